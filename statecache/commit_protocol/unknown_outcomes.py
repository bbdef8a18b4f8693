"""Commits whose outcome their caller never learnt: what is kept of them, and what it makes certain.

A commit ends in doubt where its time is up (`OutcomeUnknown`), or where its caller is gone before the answer: a task
that is cancelled, a thread that is interrupted. It leaves its change_id, its keys, and the moment past which none of
its attempts is executed any more: the server refuses what comes later. Before that moment "it is nowhere" proves
nothing, after it that is final. Only the client that sent the attempts knows the moment.

A commit that was never sent leaves nothing, for it was not applied. A repeat with the same change_id takes the doubt
over and ends it, or leaves it again. All of this costs nothing on the way of a commit that is answered.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from statecache.clock import wall
from statecache.errors import OutcomeUnknown, RedisUnavailable, StateCacheError
from statecache.model import Unsettled

if TYPE_CHECKING:
    from statecache.commit_protocol.commit import Commit

UNSETTLED_MAX = 10_000
NOTES_MAX = 10
"""How many commits are named by what ended their call; `unsettled()` has them all."""
_EARLIER = "an earlier attempt of this change was never answered"
_logger = logging.getLogger("statecache")


class UnknownOutcome(msgspec.Struct, frozen=True):
    """A commit in doubt, and the moment on the monotonic clock after which no attempt of it is executed."""

    unsettled: Unsettled
    until: float


class UnknownOutcomes:
    """The commits of a client that ended in doubt: the newest UNSETTLED_MAX of them.

    Every change of the table is one step that no other thread can interrupt.
    """

    def __init__(self) -> None:
        self._held: dict[str, UnknownOutcome] = {}
        self._overflowed = False

    def get(self, change_id: str) -> UnknownOutcome | None:
        """Return the doubt about a change, if there is one."""
        return self._held.get(change_id)

    def all(self) -> tuple[Unsettled, ...]:
        """Return them all, the oldest first."""
        return tuple(doubt.unsettled for doubt in list(self._held.values()))

    def settle(self, change_id: str) -> None:
        """End a doubt."""
        self._held.pop(change_id, None)

    def take_over(self, commit: Commit) -> None:
        """Pass a doubt on to the commit that repeats the change, whose own failure settles nothing either."""
        doubt = self._held.pop(commit.change_id, None)
        if doubt is not None:
            commit.lingers = doubt.until
            commit.doubt = RedisUnavailable("connection", detail=_EARLIER)

    def note(self, commit: Commit, error: BaseException) -> None:
        """Note how a commit failed: in doubt, unless the error says what became of it or nothing was sent."""
        if isinstance(error, StateCacheError) and not isinstance(error, OutcomeUnknown):
            return
        until = max(commit.latest, commit.lingers)
        if not until:
            return
        keys = tuple(write.key for write in commit.written())
        self._held[commit.change_id] = UnknownOutcome(
            Unsettled(change_id=commit.change_id, keys=keys, since=wall()), until
        )
        if not isinstance(error, StateCacheError) and len(getattr(error, "__notes__", ())) < NOTES_MAX:
            error.add_note(f"statecache: {OutcomeUnknown(commit.change_id, keys=keys, reason='the call was ended')}")
        self._keep_the_newest()

    def _keep_the_newest(self) -> None:
        surplus = list(self._held)[:-UNSETTLED_MAX] if len(self._held) > UNSETTLED_MAX else []
        for change_id in surplus:
            self._held.pop(change_id, None)
        if surplus and not self._overflowed:
            self._overflowed = True
            _logger.warning("more than %d commits are unsettled; the oldest are forgotten", UNSETTLED_MAX)


__all__ = ["UNSETTLED_MAX", "UnknownOutcome", "UnknownOutcomes"]
