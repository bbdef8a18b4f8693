"""What a client remembers of its writes, so that checkpoints are made unasked when a policy says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
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
WAITING_MAX = 10_000
"""How many further ones wait for their turn."""


class DueCheckpoint(NamedTuple):
    """Why a checkpoint is due; `label` is None for a name that is made up."""

    why: str
    label: str | None = None


class Due(NamedTuple):
    """A checkpoint that is to be made of a write: `make` has so many seconds for it, and says whether it was made."""

    key: str
    version: int
    make: Callable[[float], Awaitable[bool]]


class Written(NamedTuple):
    """The last write of a key, and the policy of the view that made it."""

    policy: Policy
    version: int


class DueCheckpoints:
    """What was written, how many checkpoints are under way, and which wait for their turn."""

    def __init__(self) -> None:
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget what a forked child's parent has written."""
        self._mutex = mutex
        self._written: dict[str, Written] = {}
        self._waiting: deque[Due] = deque()
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

    def begins(self, due: Due) -> bool | None:
        """Return whether one more is to be made now, and `next` be asked after it.

        False where it waits for its turn; None where too many do, so that it is left out.
        """
        with self._mutex:
            if self.under_way < UNDER_WAY_MAX:
                self.under_way += 1
                return True
            if len(self._waiting) >= WAITING_MAX:
                return None
            self._waiting.append(due)
            return False

    def next(self) -> Due | None:
        """Return which is to be made after one that was begun; None for no further one."""
        with self._mutex:
            if self._waiting:
                return self._waiting.popleft()
            self.under_way -= 1
            return None

    def ends(self) -> None:
        """Note that one that was begun is cut off: none is made after it."""
        with self._mutex:
            self.under_way -= 1

    def waiting(self) -> list[Due]:
        """Return which wait for their turn; whoever asks makes them."""
        with self._mutex:
            waiting = [*self._waiting]
            self._waiting.clear()
        return waiting

    def note(self, key: str, policy: Policy, version: int) -> None:
        """Note that a key was written under a policy."""
        with self._mutex:
            self._written.pop(key, None)
            while len(self._written) >= WRITTEN_MAX:
                del self._written[next(iter(self._written))]
            self._written[key] = Written(policy, version)

    def made(self, key: str, version: int) -> None:
        """Note that there is a checkpoint of a key's version; what was written behind that is still to have one."""
        with self._mutex:
            if key in self._written and self._written[key].version <= version:
                del self._written[key]

    def written(self) -> dict[str, Written]:
        """Return what was written since a checkpoint was made, and forget it."""
        with self._mutex:
            written, self._written = self._written, {}
        return written
