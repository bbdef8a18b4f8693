"""What comes next for a commit, decided from the server's answer and nothing else; the committer carries it out.

    OK, DUP, MUTE    Applied
    FENCED           OpenShard, and again       MISSING    Load, and again     POLICY    HeedPolicy, and again
    UNSURE           LookUp: it may have been applied long ago
    LATE             Pause, and again: this attempt was not executed, and says nothing of others
    CONFLICT, STALE, HELD, BACKLOG, REPLICAS, LIMIT, UNFIT, REUSED, OOM     certainly not applied by this attempt:
                     Refuse; Wait, and again, while an earlier attempt could still be executed and meet another answer,
                     which the server prevents where a CONFLICT is FINAL
    FOREIGN          Fail; Pause where somebody's entry is in the way, which a worker will remove
    an error reply   Again where the script was not known, Pause where a later try may succeed, else Fail
    no reply         `unanswered`: Pause, and again as a repeat
    what hinders it  Pause where that passes, else Fail; once an answer was lost, Pause for as long as there is time

An error that is raised says what is true of the commit: Refuse and an unknown outcome are told apart by `Commit.fail`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from redis.exceptions import NoScriptError

from statecache.commit_protocol.answers import Committed, Found, committed_of, error_of, is_lasting
from statecache.commit_protocol.commit import Commit
from statecache.error_facts import unended
from statecache.errors import (
    Backpressure,
    ChangeIdReused,
    ConfigurationError,
    ForeignData,
    OutcomeUnknown,
    RedisUnavailable,
    StateCacheError,
    Unavailable,
)
from statecache.model import Position
from statecache.records import time_of
from statecache.redis_errors import AGAIN, FINAL, code_of, refusal
from statecache.rules.outcomes import another

_NOWHERE_ELSE = "it is applied in Redis, but its entry was removed from the stream before it was flushed"


class Applied(msgspec.Struct, frozen=True):
    """It is applied, now or by an earlier attempt."""

    committed: Committed


class OpenShard(msgspec.Struct, frozen=True):
    """Open the shard, then send the commit again."""


class Load(msgspec.Struct, frozen=True):
    """Load the states of these keys from Postgres, then send the commit again."""

    keys: list[str]


class HeedPolicy(msgspec.Struct, frozen=True):
    """Show the locks that the namespace wants to see, or none, then send the commit again."""

    found: bytes


class LookUp(msgspec.Struct, frozen=True):
    """Ask the stream and Postgres whether it was applied long ago; `applied` where it is known that it was.

    `position` says where, if that is known.
    """

    applied: bool
    position: Position | None = None


class Again(msgspec.Struct, frozen=True):
    """Send it again at once; `counted` where that is a retry of the call."""

    counted: bool = True


class Pause(msgspec.Struct, frozen=True):
    """Send it again after a pause; where no time is left for one, fail with the error."""

    error: StateCacheError


class Wait(msgspec.Struct, frozen=True):
    """Send it again when the server would refuse every earlier attempt for coming too late.

    Where no time is left for that, fail with the error.
    """

    error: StateCacheError
    seconds: float


class Refuse(msgspec.Struct, frozen=True):
    """Raise the error: it is not applied, and never will be."""

    error: StateCacheError


class Fail(msgspec.Struct, frozen=True):
    """Give it up with the error; the outcome is unknown where any attempt may have been applied."""

    error: StateCacheError
    cause: Exception | None = None


Next = Applied | OpenShard | Load | HeedPolicy | LookUp | Again | Pause | Wait | Refuse | Fail


def next_step(commit: Commit, reply: Sequence[Any] | Exception, *, now: float) -> Next:
    """Return what the answer asks for, and note in the commit what it says; `now` is on the monotonic clock."""
    if isinstance(reply, Exception):
        return after_error(commit, reply, now=now)
    verdict = reply[1]
    if verdict == b"LATE":
        commit.repeat = True
        late = RedisUnavailable("late", detail="the server got the commit after its time")
        return Pause(commit.last_error or late)  # being late says nothing of what hindered it before
    commit.last_error = None
    if verdict in (b"OK", b"DUP", b"MUTE"):
        return Applied(committed_of(commit, reply))
    if verdict == b"FENCED":
        return OpenShard()
    if verdict == b"MISSING":
        return Load([commit.writes[at - 1].key for at in reply[2:]])
    if verdict == b"POLICY":
        return HeedPolicy(reply[2])
    if verdict == b"UNSURE":
        return LookUp(applied=len(reply) > 2, position=Position.parse(reply[2]) if len(reply) > 2 else None)
    if verdict == b"CONFLICT" and commit.looks_again(reply[2] - 1, reply[3].decode()):
        commit.unpin()
        return Again()
    refused = error_of(commit, reply)
    if not isinstance(refused, (ForeignData, ConfigurationError)):
        return _refused(commit, refused, now, lasting=is_lasting(commit, reply))
    return Pause(refused) if "equal or smaller" in refused.reason else Fail(refused)


def after_error(commit: Commit, reply: Exception, *, now: float) -> Again | Pause | Wait | Refuse | Fail:
    """Return what comes next where the script was not run, or not beyond its first write."""
    if isinstance(reply, NoScriptError):
        return Again(counted=False)
    code = code_of(reply)
    if code == "OOM":
        why = f"Redis is out of memory: {unended(str(reply))}"
        return _refused(commit, Backpressure(commit.shard, reason=why), now)
    error = refusal(reply, commit.redis_keys[0])
    if isinstance(error, RedisUnavailable) and code in AGAIN:
        return hindered(commit, error)
    return Pause(error) if asks_on(commit, error) else Fail(error, reply)


def _refused(commit: Commit, error: StateCacheError, now: float, *, lasting: bool = False) -> Refuse | Wait:
    """Return a refusal, once no earlier attempt can meet another answer: what is refused is never applied later."""
    lingers_s = commit.lingers - now
    return Refuse(error) if lasting or lingers_s <= 0 else Wait(error, lingers_s)


def after_lookup(
    commit: Commit, found: Found | None, current: Sequence[Sequence[bytes | None]], *, applied: bool
) -> Found | Refuse | Again:
    """Return what a repeat comes to once the stream and Postgres were asked: what was found, where that is this commit.

    `current` is what was there before they were asked, change_id and op of each state: one that was not applied goes
    on, and expects that. `applied` says that the server knew of it.
    """
    keys = tuple(write.key for write in commit.written())
    if found is not None:
        committed_at = time_of(found.at)
        if (at := another(commit.written(), found.contents, committed_at, found.made, found.bases)) is not None:
            return Refuse(ChangeIdReused(keys[at], commit.change_id, version=found.versions[at]))
        return found
    if applied:
        return Refuse(OutcomeUnknown(commit.change_id, keys=keys, reason=_NOWHERE_ELSE))
    commit.pin(current)
    return Again()


def hindered(commit: Commit, error: StateCacheError) -> Pause | Fail:
    """Return what comes next where it could not be sent, or what it needs first could not be done."""
    if isinstance(error, RedisUnavailable) and error.reason not in FINAL:
        return Pause(error)
    return Pause(error) if asks_on(commit, error) else Fail(error)


def asks_on(commit: Commit, error: StateCacheError) -> bool:
    """Return whether it goes on asking as long as it has time: its answer is lost, and may be had from another server.

    An address that leads to the wrong one for a moment, as in a failover, leads to the right one again.
    """
    return commit.lost_answer is not None and isinstance(error, (Unavailable, ConfigurationError))
