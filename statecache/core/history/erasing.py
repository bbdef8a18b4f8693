"""Erasing a key, or a group, with the records that belong to it: everywhere, but for copies that were made before.

    delete    every key that is known, deleted ones too, by commits that Postgres holds when they return; so all that
              was committed before is flushed, near caches are told, and Redis holds tombstones. Their hashes begin anew
    detach    changes of other keys that are kept as deltas to one of these get their values by themselves
    blank     what is kept of the versions before, and what was set aside, a bounded number of rows at a time
    stream    entries that hold these versions are taken out; all of them are flushed

It is done by functions of the schema's owner, for which a right is needed. Interrupted anywhere, it may be begun again:
that adds a tombstone and blanks the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.clock import monotonic, wall
from statecache.core.history.values import VersionAt
from statecache.erasure import ErasedFrom, Erasure
from statecache.errors import NotFound, UsageError
from statecache.history import ERASED
from statecache.keys import beyond_prefix
from statecache.lua import script
from statecache.model import BLIND, STATES_PER_COMMIT_MAX, Position, Write
from statecache.rules.leases import UNGUARDED, Locks

if TYPE_CHECKING:
    from statecache.core.runtime import Runtime

ROWS = 1000
"""How many changes are blanked at once."""
ENTRIES = 1000
"""How many entries are taken out of a stream at once."""
ROUNDS_MAX = 10
_BACKUPS = "backups, archived WAL and exports that were made before"
_FILES = "freed space in the files of Postgres until VACUUM, and the append-only file of Redis until it is rewritten"


class Subject(NamedTuple):
    """What is to be erased: a key with the records below it, or a group with all its keys; who asks for it, and why."""

    key: str
    group: bool
    actor: str
    why: str

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefixes of the other keys that go with it."""
        return (f"{self.key}/",) if self.group else (f"{self.key}/checkpoints/", f"{self.key}/steps/")

    def means(self, key: str) -> bool:
        """Whether a key is to be erased."""
        return key == self.key or key.startswith(self.prefixes)


class Known(NamedTuple):
    """What is known of a subject: its keys, changes of others that are deltas to theirs, other keys made from them."""

    keys: frozenset[str]
    deltas: tuple[VersionAt, ...]
    branches: frozenset[str]


class _Deleted(NamedTuple):
    """A key's last commit: the version of its tombstone, and where that is."""

    version: int
    position: Position


async def erase(runtime: Runtime, subject: Subject, *, seconds: float) -> Erasure:
    """Erase a subject; `seconds` is for each exchange with a server.

    Raises NotFound where there was never anything, UsageError where quarantine holds some of it with others' changes,
    ConfigurationError where the role may not erase, and what commits raise.
    """
    shard = runtime.keys.shard(subject.key)
    await _fetch(runtime, "erase_history", {"keys": [], "versions": [], "by": "", "most": 0}, seconds)
    deleted: dict[str, _Deleted] = {}
    known = await known_of(runtime, subject, seconds=seconds)
    for _ in range(ROUNDS_MAX):
        missing = sorted(known.keys - deleted.keys())
        if not missing:
            break
        deleted |= await _delete(runtime, subject, missing, shard, seconds)
        known = await known_of(runtime, subject, seconds=seconds)
    if not deleted:
        raise NotFound(subject.key, hint="There was never anything to erase.")
    versions = {key: one.version - 1 for key, one in deleted.items() if one.version > 1}
    await _detach(runtime, known.deltas, seconds)
    places = await _blank(runtime, subject, versions, seconds)
    places["stream"] = await _take_out(runtime, shard, deleted, seconds)
    await _prove(runtime, versions, seconds)
    return Erasure(
        key=subject.key,
        keys=tuple(sorted(deleted)),
        positions=tuple(sorted({one.position for one in deleted.values()})),
        at=wall(),
        places=tuple(ErasedFrom(place=place, rows=rows, bytes=size) for place, (rows, size) in places.items()),
        branches=tuple(sorted(known.branches)),
        left=(_BACKUPS, _FILES),
    )


async def _fetch(runtime: Runtime, name: str, asked: Mapping[str, Any], seconds: float) -> Sequence[Sequence[Any]]:
    return await runtime.postgres.fetch(name, asked, seconds=seconds)


async def known_of(runtime: Runtime, subject: Subject, *, seconds: float) -> Known:
    """Look for the subject's keys, in Postgres and among what is not flushed.

    Raises UsageError where quarantine holds some of it with others' changes.
    """
    shard = runtime.keys.shard(subject.key)
    meta, unflushed = runtime.keys.meta(shard), runtime.keys.unflushed(shard)
    (dirty,) = await runtime.redis.read([("EVAL", script("dirty").text, 2, meta, unflushed)], seconds=seconds)
    keys = {key for name in dirty if subject.means(key := name.decode("utf-8", "replace"))}
    asked = {
        "keys": [subject.key], "prefixes": [*subject.prefixes], "shard": shard,
        "beyond": [beyond_prefix(prefix) for prefix in subject.prefixes],
    }  # fmt: skip
    rows = await _fetch(runtime, "erase_look", asked, seconds)
    keys |= {key for what, key, _, _ in rows if what == "key"}
    others = [row for row in rows if row[0] in ("delta", "branch") and not subject.means(row[1])]
    parked: dict[str, set[bool]] = {}
    for what, place, _, key in rows:
        if what == "parked":
            parked.setdefault(place, set()).add(subject.means(key))
    if mixed := sorted(place for place, some in parked.items() if len(some) > 1):
        hint = "Take it in or give it up first: `statecache quarantine`. Or erase the whole group."
        why = f"the entry {mixed[0]} in quarantine holds changes of {subject.key!r} and of others"
        raise UsageError(why, hint=hint)
    deltas = tuple(VersionAt(key, version) for what, key, version, _ in others if what == "delta")
    return Known(frozenset(keys), deltas, frozenset(key for _, key, _, _ in others))


async def _delete(
    runtime: Runtime, subject: Subject, keys: Sequence[str], shard: int, seconds: float
) -> dict[str, _Deleted]:
    """Delete keys, whatever they hold, and return their tombstones; no lock is in the way."""
    locks = Locks((), UNGUARDED) if runtime.policies.enforces(keys[0], None) else None
    deleted: dict[str, _Deleted] = {}
    for start in range(0, len(keys), STATES_PER_COMMIT_MAX):
        some = keys[start : start + STATES_PER_COMMIT_MAX]
        commit = runtime.committer.new(
            [Write(key=key, op="delete", expected=BLIND) for key in some], shard, durability="postgres",
            actor=subject.actor, reason=f"{ERASED}: {subject.why}" if subject.why else ERASED,
            end=monotonic() + seconds, locks=locks,
        )  # fmt: skip
        done = await runtime.committer.commit(commit)
        deleted |= {key: _Deleted(version, done.position) for key, version in zip(some, done.versions, strict=True)}
    return deleted


async def _detach(runtime: Runtime, deltas: Sequence[VersionAt], seconds: float) -> None:
    """Have changes of other keys that are deltas to what is erased be kept by themselves."""
    for place in deltas:
        value = (await runtime.history_values.read([place], seconds=seconds)).get(place)
        if value is not None:
            asked = {"key": place.key, "version": place.version, "value": value}
            await _fetch(runtime, "detach_branch", asked, seconds)


async def _blank(
    runtime: Runtime, subject: Subject, versions: Mapping[str, int], seconds: float
) -> dict[str, tuple[int, int]]:
    """Blank what Postgres keeps of these versions and those before; return the rows and bytes of each place."""
    asked = {
        "keys": [*versions], "versions": [*versions.values()], "by": subject.actor or runtime.settings.writer,
        "most": ROWS,
    }  # fmt: skip
    found: dict[str, tuple[int, int]] = {}
    while True:
        rows = await _fetch(runtime, "erase_history", asked, seconds)
        for place, count, size in rows:
            before = found.get(place, (0, 0))
            found[place] = before[0] + count, before[1] + size
        if not any(place == "change" and count for place, count, _ in rows):
            return found


async def _take_out(runtime: Runtime, shard: int, deleted: Mapping[str, _Deleted], seconds: float) -> tuple[int, int]:
    """Take the entries out of the stream that hold what was erased, which are flushed; return how many these were."""
    stream, newest = runtime.keys.changes(shard), {one.position for one in deleted.values()}
    (first,) = await runtime.redis.read([("XRANGE", stream, "-", "+", "COUNT", 1)], seconds=seconds)
    if not first:
        return 0, 0
    asked = {"keys": [*deleted], "after": int(first[0][0].partition(b"-")[2]) - 1}
    places = [Position(*row) for row in await _fetch(runtime, "erase_places", asked, seconds)]
    ids = [str(place) for place in places if place not in newest]
    gone = 0
    for start in range(0, len(ids), ENTRIES):
        (count,) = await runtime.redis.read([("XDEL", stream, *ids[start : start + ENTRIES])], seconds=seconds)
        gone += count
    return gone, 0


async def _prove(runtime: Runtime, versions: Mapping[str, int], seconds: float) -> None:
    """Raise RuntimeError where anything is left of what was erased."""
    rows = await _fetch(runtime, "erase_left", {"keys": [*versions], "versions": [*versions.values()]}, seconds)
    if rows:
        raise RuntimeError(f"of {rows[0][0]!r} something is left in {rows[0][1]}")
