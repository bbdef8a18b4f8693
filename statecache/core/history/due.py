"""What a client remembers of its writes, so that checkpoints are made unasked when a policy says so."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache._process import begins_anew_after_fork, mutex
from statecache.rules.checkpoints import automatic_label

if TYPE_CHECKING:
    from statecache.checkpoint_policy import CheckpointPolicy
    from statecache.model import Policy

WRITTEN_MAX = 1000
"""Of how many keys, the last ones, it is known that they were written since a checkpoint was made."""
SPANS_MAX = 10_000
"""Of how many keys, the last ones, it is known in which span of time they were written last."""
UNDER_WAY_MAX = 16
"""How many checkpoints are made at once, beside the calls that wrote."""


class DueCheckpoint(NamedTuple):
    """Why a checkpoint is due; `label` is None for a name that is made up."""

    why: str
    label: str | None = None


class DueCheckpoints:
    """What was written, and how many checkpoints are under way."""

    def __init__(self) -> None:
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget what a forked child's parent has written."""
        self._mutex = mutex
        self._written: dict[str, Policy] = {}
        self._spans: dict[str, int] = {}
        self.logged = float("-inf")
        """When it was logged last that one was not made, on the monotonic clock."""
        self.under_way = 0

    def due(self, policy: CheckpointPolicy, key: str, version: int, at: datetime) -> DueCheckpoint | None:
        """Return what a change makes due."""
        if policy.every_changes is not None and version % policy.every_changes == 0:
            return DueCheckpoint("changes")
        if policy.every_s is None:
            return None
        span = int(at.timestamp() / policy.every_s)
        with self._mutex:
            known = self._spans.pop(key, None)
            while len(self._spans) >= SPANS_MAX:
                del self._spans[next(iter(self._spans))]
            self._spans[key] = span
        if known == span:
            return None
        begun = datetime.fromtimestamp(span * policy.every_s, UTC)
        return DueCheckpoint("every", automatic_label(begun, f"every-{policy.every_s:g}s"))

    def begins(self) -> bool:
        """Return whether one more may be made now; `ends` has to follow."""
        with self._mutex:
            if self.under_way >= UNDER_WAY_MAX:
                return False
            self.under_way += 1
            return True

    def ends(self) -> None:
        """Note that one is made, or is not."""
        with self._mutex:
            self.under_way -= 1

    def note(self, key: str, policy: Policy) -> None:
        """Note that a key was written under a policy."""
        with self._mutex:
            self._written.pop(key, None)
            while len(self._written) >= WRITTEN_MAX:
                del self._written[next(iter(self._written))]
            self._written[key] = policy

    def forget(self, key: str) -> None:
        """Note that a checkpoint of a key is made."""
        with self._mutex:
            self._written.pop(key, None)

    def written(self) -> dict[str, Policy]:
        """Return what was written since a checkpoint was made, and forget it."""
        with self._mutex:
            written, self._written = self._written, {}
        return written
