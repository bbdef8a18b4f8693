"""Commits whose outcome their caller never learnt: what is kept of them, and what it makes certain.

The outcome is unknown where the time was up (`OutcomeUnknown`), or where the caller is gone before the answer: a task
that is cancelled, a thread that is interrupted. Such a commit leaves its change_id, its keys, and the moment past which
none of its attempts is executed any more: the server refuses what comes later. Before that moment "it is nowhere"
proves nothing, after it that is final. Only the client that sent the attempts knows the moment.

A commit that was never sent leaves nothing, for it was not applied. A repeat with the same change_id takes over what is
noted and resolves it, or leaves it again. All of this costs nothing on the way of a commit that is answered.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from statecache.clock import wall
from statecache.errors import OutcomeUnknown, RedisUnavailable, StateCacheError
from statecache.model import UnknownCommit

if TYPE_CHECKING:
    from statecache.commit_protocol.commit import Commit

UNKNOWN_MAX = 10_000
NOTES_MAX = 10
"""How many commits are named by what ended their call; `unknown_outcomes()` has them all."""
_EARLIER = "an earlier attempt of this change was never answered"
_logger = logging.getLogger("statecache")


class NotedOutcome(msgspec.Struct, frozen=True):
    """A commit with an unknown outcome; no attempt of it is executed after `until`, on the monotonic clock.

    `nonce` is that of the last one, '' where others of them are another sender's.
    """

    commit: UnknownCommit
    until: float
    nonce: bytes


class UnknownOutcomes:
    """The commits of a client whose outcome is unknown: the newest UNKNOWN_MAX of them.

    Every change of the table is one step that no other thread can interrupt.
    """

    def __init__(self) -> None:
        self._held: dict[str, NotedOutcome] = {}
        self._overflowed = False

    def get(self, change_id: str) -> NotedOutcome | None:
        """Return what is noted of a change, if its outcome is unknown."""
        return self._held.get(change_id)

    def all(self) -> tuple[UnknownCommit, ...]:
        """Return them all, the oldest first."""
        return tuple(noted.commit for noted in list(self._held.values()))

    def resolve(self, change_id: str) -> None:
        """Forget a change whose outcome is known by now."""
        self._held.pop(change_id, None)

    def take_over(self, commit: Commit) -> None:
        """Pass what is noted on to the commit that repeats the change, whose own failure resolves nothing either."""
        noted = self._held.pop(commit.change_id, None)
        if noted is not None:
            commit.lingers, commit.nonce = noted.until, noted.nonce
            commit.lost_answer = RedisUnavailable("connection", detail=_EARLIER)

    def note(self, commit: Commit, error: BaseException) -> None:
        """Note a commit that failed, unless the error says what became of it or nothing was sent."""
        if isinstance(error, StateCacheError) and not isinstance(error, OutcomeUnknown):
            return
        until = max(commit.latest, commit.lingers)
        if not until:
            return
        keys = tuple(write.key for write in commit.written())
        self._held[commit.change_id] = NotedOutcome(
            UnknownCommit(change_id=commit.change_id, keys=keys, since=wall()),
            until,
            commit.nonce if commit.numbered else b"",
        )
        if not isinstance(error, StateCacheError) and len(getattr(error, "__notes__", ())) < NOTES_MAX:
            error.add_note(f"statecache: {OutcomeUnknown(commit.change_id, keys=keys, reason='the call was ended')}")
        self._keep_the_newest()

    def _keep_the_newest(self) -> None:
        surplus = list(self._held)[:-UNKNOWN_MAX] if len(self._held) > UNKNOWN_MAX else []
        for change_id in surplus:
            self._held.pop(change_id, None)
        if surplus and not self._overflowed:
            self._overflowed = True
            _logger.warning("more than %d commits have an unknown outcome; the oldest are forgotten", UNKNOWN_MAX)


__all__ = ["UNKNOWN_MAX", "NotedOutcome", "UnknownOutcomes"]
