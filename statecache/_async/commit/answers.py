"""What the commit script's answers mean: an outcome, or the error to raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from statecache._async.commit.support import too_few_replicas
from statecache._async.redis.tier import found_at
from statecache.errors import (
    Backpressure,
    ChangeIdReused,
    DurabilityRefused,
    ForeignData,
    LimitExceeded,
    LockHeld,
    StaleToken,
    StateCacheError,
    VersionConflict,
)
from statecache.model import ABSENT, PRESENT, Position

if TYPE_CHECKING:
    from statecache._async.commit.commit import Commit


class Committed(msgspec.Struct, frozen=True):
    """The answer of an applied commit: its position, the server's time, each written state's version and parent."""

    change_id: str
    position: Position
    updated_at: str
    versions: tuple[int, ...]
    parents: tuple[str, ...]


class Absent(StateCacheError):
    """{key!r} is absent, and the commit asked for it to be there."""

    key: str

    def __init__(self, key: str) -> None:
        super().__init__(key=key)


def committed_of(change_id: str, reply: Sequence[Any]) -> Committed:
    """Read the answer of a commit that was applied."""
    position = Position.parse(reply[2]) or Position(0, 0)
    if len(reply) == 6:  # most commits are of one state
        return Committed(change_id, position, reply[3].decode(), (int(reply[4]),), (reply[5].decode(),))
    return Committed(
        change_id, position, reply[3].decode(), tuple(map(int, reply[4::2])), tuple(map(bytes.decode, reply[5::2]))
    )


def error_of(commit: Commit, reply: Sequence[Any]) -> StateCacheError:
    """Return the error for the answer of a commit that was not applied."""
    verdict, rest = reply[1].decode(), reply[2:]
    if verdict == "CONFLICT":
        write, actual = commit.writes[rest[0] - 1], rest[1].decode()
        if write.expected == ABSENT:
            return VersionConflict(write.key, None, actual)
        if write.expected == PRESENT:
            return Absent(write.key)
        return VersionConflict(write.key, write.expected, actual)
    if verdict == "REUSED":
        return ChangeIdReused(commit.writes[rest[0] - 1].key, commit.change_id, version=int(rest[1]))
    if verdict == "STALE":
        lock, token, holder = (part.decode("utf-8", "replace") for part in rest)
        if commit.locks is not None:
            commit.locks.refused(lock)
        return StaleToken(lock, token=token, holder=holder)
    if verdict == "HELD":
        return LockHeld(rest[0].decode("utf-8", "replace"), holder=rest[1].decode("utf-8", "replace"))
    if verdict == "BACKLOG":
        entries, size = (int(part) for part in rest)
        return Backpressure(
            commit.shard, reason=f"Postgres is behind, {entries} changes and {size} bytes are not yet flushed"
        )
    if verdict == "REPLICAS":
        return DurabilityRefused(commit.durability, reason=too_few_replicas(*map(int, rest)))
    if verdict == "LIMIT":
        at, actual, limit = int(rest[0]), int(rest[1]), int(rest[2])
        if at == 0:
            return LimitExceeded("the commit's size in bytes", actual=actual, limit=limit)
        return LimitExceeded("the value", actual=actual, limit=limit, key=commit.writes[at - 1].key)
    if verdict == "FOREIGN":
        return found_at(rest[0].decode("utf-8", "replace"), rest[1].decode("utf-8", "replace"))
    return ForeignData(commit.redis_keys[0], reason=f"the commit script answered {verdict!r}")


def is_lasting(commit: Commit, reply: Sequence[Any]) -> bool:
    """Return whether every attempt of the commit meets this refusal, whenever it arrives."""
    if reply[1] == b"CONFLICT":
        return commit.writes[reply[2] - 1].expected not in (ABSENT, PRESENT)
    return reply[1] in (b"LIMIT", b"REUSED")
