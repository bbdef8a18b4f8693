"""What an adapter makes of a commit whose answer was lost, where nobody can be asked either."""

from __future__ import annotations

from typing import Any

import pytest

from statecache import ConfigurationError, OutcomeUnknown, StateCacheError, Unavailable
from statecache.adapters.applied import is_applied
from statecache.adapters.plans import run

UNKNOWN = OutcomeUnknown("f" * 24, keys=("chats/1",))


class View:
    """A view that cannot say what became of a change."""

    def __init__(self, error: StateCacheError) -> None:
        self._error = error

    def outcome(self, *_: str) -> Any:
        """Raise what is in the way."""
        raise self._error


@pytest.mark.parametrize("error", [ConfigurationError("told to"), Unavailable("epoch", detail="told to")], ids=repr)
def test_what_cannot_be_asked_for_stays_unknown(error: StateCacheError) -> None:
    """Any other error would say that nothing was applied."""
    view: Any = View(error)
    with pytest.raises(OutcomeUnknown) as caught:
        run(view, is_applied(UNKNOWN, "1"))
    assert (caught.value, caught.value.__cause__) == (UNKNOWN, error)
