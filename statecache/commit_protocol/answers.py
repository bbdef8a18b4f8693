"""What answers about a commit mean: the script's, an outcome or the error to raise, and an entry of the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statecache.entries import ForeignEntry, NewerFormat, change_set
from statecache.errors import (
    Backpressure,
    ChangeIdReused,
    DurabilityRefused,
    ForeignData,
    LimitExceeded,
    LockHeld,
    Quarantined,
    StaleToken,
    StateCacheError,
    VersionConflict,
)
from statecache.model import ABSENT, AGED, EXPIRED, PRESENT, Position
from statecache.records import text_of
from statecache.redis_errors import found_at
from statecache.rules.modifiers import Made, unfit_error
from statecache.rules.outcomes import Content, content_of

if TYPE_CHECKING:
    from statecache.commit_protocol.commit import Commit
    from statecache.model import ChangeRecord, Write


class Committed(msgspec.Struct, frozen=True):
    """The answer of an applied commit: its position, the server's time, each written state's version and parent.

    `made` is what modifiers have made, by the place of their write among those that change a state. `repeated` says
    that Redis was found to hold it before it was sent, which does not tell whether Postgres does.
    """

    change_id: str
    position: Position
    updated_at: str
    versions: tuple[int, ...]
    parents: tuple[str, ...]
    made: Mapping[int, Made] = {}
    repeated: bool = False


class Found(NamedTuple):
    """Where an applied commit stands, with versions and parents in the order of the keys asked for."""

    position: Position
    at: str
    versions: tuple[int, ...]
    parents: tuple[str, ...]
    contents: tuple[Content, ...]
    in_stream: bool
    """Whether it was found in the stream; else in Postgres."""
    changes: tuple[ChangeRecord, ...] = ()
    """What was written, where it was found in the stream; in Postgres it has to be asked for."""
    made: Mapping[int, Made] = {}
    """What modifiers have made, by the place of their key."""
    bases: Mapping[int, Made | None] = {}
    """What they had been given, where that is known; None where there was nothing."""


class Absent(StateCacheError):
    """{key!r} is absent, and the commit asked for it to be there."""

    key: str

    def __init__(self, key: str) -> None:
        super().__init__(key=key)


def too_few_replicas(connected: int, wanted: int) -> str:
    """Return the reason why `replica` is refused where fewer replicas are connected than must acknowledge."""
    return f"{connected} replicas are connected and {wanted} must acknowledge"


def committed_of(commit: Commit, reply: Sequence[Any]) -> Committed:
    """Read the answer of a commit that was applied."""
    position, change_id = Position.parse(reply[2]) or Position(0, 0), commit.change_id
    repeated = reply[1] != b"OK"
    if len(reply) == 6:  # most commits are of one state
        return Committed(
            change_id, position, reply[3].decode(), (int(reply[4]),), (reply[5].decode(),), repeated=repeated
        )
    written = commit.written()
    end = 4 + 2 * len(written)
    modifiers = [at for at, write in enumerate(written) if write.modifier is not None]
    made = zip(reply[end::3], reply[end + 1 :: 3], reply[end + 2 :: 3], strict=True)
    return Committed(
        change_id, position, reply[3].decode(), tuple(map(int, reply[4:end:2])),
        tuple(map(bytes.decode, reply[5:end:2])),
        {at: Made(value, encoding.decode(), schema.decode())
         for at, (encoding, schema, value) in zip(modifiers, made, strict=True)},
        repeated,
    )  # fmt: skip


def error_of(commit: Commit, reply: Sequence[Any]) -> StateCacheError:
    """Return the error for the answer of a commit that was not applied."""
    verdict, rest = reply[1].decode(), reply[2:]
    if verdict == "CONFLICT":
        write, actual = commit.writes[rest[0] - 1], rest[1].decode()
        if write.expected == ABSENT:
            return VersionConflict(write.key, None, actual)
        if write.expected in (PRESENT, EXPIRED):
            return Absent(write.key)
        return VersionConflict(write.key, write.expected.removesuffix(AGED), None if rest[2] == b"expired" else actual)
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
    if verdict == "UNFIT":
        return _unfit(commit.writes[rest[0] - 1], rest[1].decode(), rest[2])
    if verdict == "FOREIGN":
        return found_at(rest[0].decode("utf-8", "replace"), rest[1].decode("utf-8", "replace"))
    return ForeignData(commit.redis_keys[0], reason=f"the commit script answered {verdict!r}")


def _unfit(write: Write, what: str, which: bytes | None) -> StateCacheError:
    """Return the error for a state that cannot be modified."""
    if what == "quarantined":
        return Quarantined(write.key, (which or b"").decode())
    assert write.modifier is not None
    return unfit_error(write.key, write.modifier.verb, what, which or b"")


def is_lasting(commit: Commit, reply: Sequence[Any]) -> bool:
    """Return whether every attempt of the commit meets this refusal, whenever it arrives, or is executed no more.

    What a modifier makes is another thing at another time.
    """
    if reply[1] == b"CONFLICT":
        return reply[-1] == b"FINAL" or commit.writes[reply[2] - 1].expected not in (ABSENT, PRESENT, EXPIRED)
    return reply[1] == b"REUSED" or (reply[1] == b"LIMIT" and not commit.modifies)


def found_in(entry_id: bytes, raw: Sequence[bytes], keys: Sequence[str]) -> Found | None:
    """Return where a stream entry placed the keys; None where it is not ours, or wrote none of them.

    Raises ChangeIdReused where it wrote only some of them: a commit is whole, so that was another one.
    """
    try:
        entry = change_set(entry_id, raw)
    except (ForeignEntry, NewerFormat):
        return None
    changes = {change.key: change for change in entry.changes}
    if not changes.keys() >= set(keys):
        known = next((changes[key] for key in keys if key in changes), None)
        if known is not None:
            raise ChangeIdReused(known.key, entry.change_id, version=known.version)
        return None
    versions = tuple(changes[key].version for key in keys)
    parents = tuple(changes[key].parent_change_id for key in keys)
    contents = tuple(content_of(changes[key].op, changes[key].value, changes[key].encoding) for key in keys)
    written = tuple(changes[key] for key in keys)
    return Found(entry.position, text_of(entry.at), versions, parents, contents, in_stream=True, changes=written)
