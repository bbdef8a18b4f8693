"""Erasing a key, or a group, with the records that belong to it: everywhere, but for copies that were made before.

    delete    every key that is known, deleted ones too, by commits that Postgres holds when they return; so all that
              was committed before is flushed, near caches are told, and Redis holds tombstones, whose hashes begin
              anew. A commit of others may write several keys, and none of them goes without the rest: what came
              between is looked at when Postgres holds it, and of what would be torn the rest is deleted too
    blank     what is kept of the versions before, and what was set aside, a bounded number of rows at a time; other
              keys' changes that are kept as deltas to one of these are detached first: they get their values themselves
    stream    entries that hold these versions are taken out; all of them are flushed. Where the primary changes
              meanwhile, the shard is opened on the new one first: there a state that lacks its tombstone goes
    prove     nothing is left in any of these places, or all of it is done again

It is done by functions of the schema's owner, for which a right is needed. Interrupted anywhere, it may be begun again:
that adds a tombstone and blanks the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from statecache.backoff import Backoff
from statecache.clock import monotonic, wall
from statecache.core.history.values import VersionAt
from statecache.core.read.listed import BEHIND
from statecache.erasure import ErasedFrom, Erasure
from statecache.errors import NotFound, RedisUnavailable, Unavailable, UsageError
from statecache.history import ERASED
from statecache.keys import beyond_prefix
from statecache.model import BLIND, STATES_PER_COMMIT_MAX, Position, Write
from statecache.redis_errors import refusal
from statecache.rules.leases import UNGUARDED, Locks
from statecache.settings import writer_of

if TYPE_CHECKING:
    from statecache.core.runtime import Runtime

ROWS = 1000
"""How many changes are blanked at once."""
ENTRIES, ENTRY_BYTES = 200, 4 * 1024 * 1024
"""How many entries of a stream are looked at at once at most, and until they have so many bytes."""
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
    or others never cease to write to it, ConfigurationError where the role may not erase, and what commits raise.
    """
    await _fetch(runtime, "erase_history", {"keys": [], "versions": [], "by": "", "most": 0}, seconds)
    deleted = await _delete_all(runtime, subject, seconds)
    versions = {key: one.version - 1 for key, one in deleted.items()}
    places: dict[str, tuple[int, int]] = {}
    for _ in range(ROUNDS_MAX):
        await _blank(runtime, subject, versions, places, seconds)
        left = await _fetch(runtime, "erase_left", {"keys": [*versions], "versions": [*versions.values()]}, seconds)
        if not left:
            break
    else:
        raise RuntimeError(f"of {left[0][0]!r} something is left in {left[0][1]}")
    await _clear(runtime, subject, deleted, places, seconds)
    known = await known_of(runtime, subject, seconds=seconds)
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
    """Look for the subject's keys, in Postgres and among what is not flushed; a shard that tells nothing is opened.

    Raises UsageError where quarantine holds some of it with others' changes, and Unavailable where nothing tells what
    is not flushed: the shard cannot be opened, or a worker has to compare first.
    """
    shard = runtime.keys.shard(subject.key)
    keys = {name for name in await _dirty(runtime, shard, seconds) if subject.means(name)}
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


async def _delete_all(runtime: Runtime, subject: Subject, seconds: float) -> dict[str, _Deleted]:
    """Delete all of a subject, and what belongs to it of commits that came between."""
    known = await known_of(runtime, subject, seconds=seconds)
    if not known.keys:
        raise NotFound(subject.key, hint="There was never anything to erase.")
    deleted = await _delete(runtime, subject, sorted(known.keys), seconds)
    first = min(one.position.n for one in deleted.values())
    for _ in range(ROUNDS_MAX):
        known = await known_of(runtime, subject, seconds=seconds)
        torn = await _torn(runtime, subject, known.keys - deleted.keys(), first, deleted, seconds)
        if not torn:
            return deleted
        deleted |= await _delete(runtime, subject, sorted(torn), seconds)
    raise UsageError(f"others never ceased to write to {subject.key!r}", hint="Stop them, and call it again.")


async def _torn(
    runtime: Runtime, subject: Subject, new: Collection[str], first: int, deleted: Mapping[str, _Deleted],
    seconds: float,
) -> set[str]:  # fmt: skip
    """Return the keys that stay of commits of which others go, or that were there before the first delete.

    That is known of all up to the last delete, for Postgres holds it. What a commit has written of a key goes if it is
    older than the key's tombstone. What comes behind the last one stays.
    """
    last = max(one.position.n for one in deleted.values())
    if last == first and not new:
        return set()
    asked = {"shard": runtime.keys.shard(subject.key), "after": first, "last": last, "keys": sorted(new)}
    commits: dict[int, dict[str, bool]] = {}
    for key, version, n in await _fetch(runtime, "erase_between", asked, seconds):
        if subject.means(key):
            goes = key in deleted and version <= deleted[key].version
            commits.setdefault(n, {})[key] = goes
    return {
        key for n, written in commits.items() if n <= first or any(written.values())
        for key, goes in written.items() if not goes
    }  # fmt: skip


async def _dirty(runtime: Runtime, shard: int, seconds: float) -> list[str]:
    """Return which keys of a shard are dirty.

    Nothing tells them where the shard was never opened on this server, as after its Redis came back empty, or until a
    worker has gone through what an epoch began without: it is opened, and the worker waited for.
    """
    names, backoff, end = runtime.keys, Backoff(0.005, 0.25), monotonic() + seconds
    places, unflushed = [names.meta(shard), names.unflushed(shard), names.changes(shard)], names.unflushed(shard)
    while True:
        try:
            (dirty,), *_ = await runtime.redis.read_script("dirty", places, [""], seconds=seconds)
        except ResponseError as error:
            raise refusal(error, unflushed) from error
        if isinstance(dirty, bytes):
            raise refusal(ResponseError(dirty.decode("utf-8", "replace")), unflushed)
        if not isinstance(dirty, int):
            return [name.decode("utf-8", "replace") for name in dirty]
        await runtime.opener.open(shard, end=end)
        if backoff.outlasts(end):
            raise Unavailable("hydration", detail=f"in shard {shard} {BEHIND}")
        await runtime.redis.io.sleep(backoff.take())


async def _delete(runtime: Runtime, subject: Subject, keys: Sequence[str], seconds: float) -> dict[str, _Deleted]:
    """Delete keys, whatever they hold, and return their tombstones; no lock is in the way."""
    shard = runtime.keys.shard(subject.key)
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
    runtime: Runtime, subject: Subject, versions: Mapping[str, int], places: dict[str, tuple[int, int]], seconds: float
) -> None:
    """Blank what Postgres keeps of these versions and those before; add the rows and bytes to those of each place."""
    asked = {
        "keys": [*versions], "versions": [*versions.values()], "by": subject.actor or writer_of(runtime.settings),
        "most": ROWS,
    }  # fmt: skip
    tried: tuple[VersionAt, ...] | None = None
    while True:
        found = {place: (rows, size) for place, rows, size in await _fetch(runtime, "erase_history", asked, seconds)}
        if found.pop("delta", None):
            deltas = (await known_of(runtime, subject, seconds=seconds)).deltas
            if deltas == tried:
                raise RuntimeError(f"changes of others are still deltas to what is erased: {[*map(str, deltas)]}")
            await _detach(runtime, deltas, seconds)
            tried = deltas
            continue
        for place, (count, size) in found.items():
            before = places.get(place, (0, 0))
            places[place] = before[0] + count, before[1] + size
        if not found["change"][0]:
            return


async def _clear(
    runtime: Runtime, subject: Subject, deleted: Mapping[str, _Deleted], places: dict[str, tuple[int, int]],
    seconds: float,
) -> None:  # fmt: skip
    """Take what is left of the subject out of the primary on which the shard is open, or of the one that follows it."""
    end, backoff = monotonic() + seconds, Backoff(0.005, 0.25)
    while True:
        await runtime.reader.record(subject.key, end=end)
        try:
            await _take_out(runtime, subject, deleted, places, max(end - monotonic(), 0.001))
            return await _forget(runtime, sorted(deleted), max(end - monotonic(), 0.001))
        except RedisUnavailable:
            if backoff.outlasts(end):
                raise
            await runtime.redis.io.sleep(backoff.take())


async def _take_out(
    runtime: Runtime, subject: Subject, deleted: Mapping[str, _Deleted], places: dict[str, tuple[int, int]],
    seconds: float,
) -> None:  # fmt: skip
    """Take the entries out of the stream that hold what was erased; add their number and bytes to those of before."""
    newest = {one.position for one in deleted.values()}
    stay, start = " ".join(["", *map(str, newest), ""]), "-"
    changes = runtime.keys.changes(runtime.keys.shard(subject.key))
    places.setdefault("stream", (0, 0))
    while start:
        asked = [start, str(max(newest)), ENTRIES, ENTRY_BYTES, stay, subject.key, *subject.prefixes]
        try:
            count, freed, start = await runtime.redis.script("erase_entries", [changes], asked, seconds=seconds)
        except ResponseError as error:
            raise refusal(error, changes) from error
        gone, size = places["stream"]
        places["stream"] = gone + count, size + freed


async def _forget(runtime: Runtime, keys: Sequence[str], seconds: float) -> None:
    """Take digests of what modifiers were asked for out of the states; a repeat of one looks into Postgres then."""
    for start in range(0, len(keys), ENTRIES):
        states = [runtime.keys.state(key) for key in keys[start : start + ENTRIES]]
        replies = await runtime.redis.exchange([("HDEL", state, "asked") for state in states], seconds=seconds)
        for state, reply in zip(states, replies, strict=True):
            if isinstance(reply, ResponseError):
                raise refusal(reply, state)
