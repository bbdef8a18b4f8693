"""Two clients of one deployment, for stories of what one of them keeps when the other one writes."""

from __future__ import annotations

import pytest

from statecache import AsyncStateCache, Settings
from tests.fix_servers import MakeClient


@pytest.fixture
def one(make_client: MakeClient, settings: Settings) -> AsyncStateCache:
    """A client of the test's deployment: the asynchronous one, and again the synchronous one."""
    return make_client(settings)


@pytest.fixture
def other(make_client: MakeClient, settings: Settings) -> AsyncStateCache:
    """Another client of the same kind."""
    return make_client(settings)
