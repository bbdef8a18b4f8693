"""Networks that fail to order: proxies in front of the test's servers, and settings that lead through them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from statecache import Settings
from tests.fault_proxy import FaultProxy


def _proxy_of(url: str) -> FaultProxy:
    parts = urlsplit(url)
    return FaultProxy(parts.hostname or "127.0.0.1", parts.port or 0)


def through(settings: Settings, *, redis: FaultProxy | None = None, postgres: FaultProxy | None = None) -> Settings:
    """Return the same settings with URLs that lead through the proxies."""
    changed = {}
    for name, proxy in (("redis_url", redis), ("postgres_url", postgres)):
        if proxy is not None:
            url = getattr(settings, name)
            netloc = re.sub(r"[^@]*$", f"127.0.0.1:{proxy.port}", urlsplit(url).netloc, count=1)
            changed[name] = urlsplit(url)._replace(netloc=netloc).geturl()
    return settings.model_copy(update=changed)


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the test's Redis."""
    async with _proxy_of(settings.redis_url) as started:
        yield started


@pytest.fixture
async def postgres_proxy(settings: Settings) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the test's Postgres."""
    async with _proxy_of(settings.postgres_url) as started:
        yield started
