"""Erasing a key, or a group, with the records that belong to it: everywhere, but for copies that were made before.

    delete    every key that is known, deleted ones too, until Postgres holds that; so all that was committed before is
              flushed, near caches are told, and Redis holds tombstones, whose hashes begin anew (`deleting`)
    blank     what is kept of the versions before, and what was set aside, a bounded number of rows at a time; other
              keys' changes that are kept as deltas to one of these are detached first: they get their values themselves
    stream    entries that hold these versions are taken out; all of them are flushed. Where the primary changes
              meanwhile, the shard is opened on the new one first: there a state that lacks its tombstone goes
    prove     nothing is left in any of these places, or all of it is done again

It is done by functions of the schema's owner, for which a right is needed. Interrupted anywhere, it may be begun again:
that adds a tombstone and blanks the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from statecache.backoff import Backoff
from statecache.clock import monotonic, wall
from statecache.core.history.deleting import delete_all
from statecache.core.history.subjects import known_of
from statecache.erasure import ErasedFrom, Erasure
from statecache.errors import RedisUnavailable, UsageError
from statecache.redis_errors import refusal
from statecache.settings import writer_of

if TYPE_CHECKING:
    from statecache.core.history.deleting import Deleted
    from statecache.core.history.subjects import Subject
    from statecache.core.history.values import VersionAt
    from statecache.core.runtime import Runtime

ROWS = 1000
"""How many changes are blanked at once."""
ENTRIES, ENTRY_BYTES = 200, 4 * 1024 * 1024
"""How many entries of a stream are looked at at once at most, and until they have so many bytes."""
TIMES_MAX = 10
"""How often it is blanked again where something is left."""
_BACKUPS = "backups, archived WAL and exports that were made before"
_FILES = "freed space in the files of Postgres until VACUUM, and the append-only file of Redis until it is rewritten"


async def erase(runtime: Runtime, subject: Subject, *, seconds: float) -> Erasure:
    """Erase a subject; `seconds` is for each exchange with a server.

    Raises NotFound where there was never anything, UsageError where quarantine holds some of it with others' changes,
    ConfigurationError where the role may not erase, and what `known_of` and commits raise; UsageError also where it is
    erased, but some of what others committed meanwhile is torn.
    """
    await _fetch(runtime, "erase_history", {"keys": [], "versions": [], "by": "", "most": 0}, seconds)
    deleted, rest = await delete_all(runtime, subject, seconds=seconds)
    versions = {key: one.version - 1 for key, one in deleted.items()}
    places: dict[str, tuple[int, int]] = {}
    for _ in range(TIMES_MAX):
        await _blank(runtime, subject, versions, places, seconds)
        left = await _fetch(runtime, "erase_left", {"keys": [*versions], "versions": [*versions.values()]}, seconds)
        if not left:
            break
    else:
        raise RuntimeError(f"of {left[0][0]!r} something is left in {left[0][1]}")
    await _clear(runtime, subject, deleted, places, seconds)
    known = await known_of(runtime, subject, seconds=seconds)
    if rest:
        torn = f"{min(rest)!r} was committed together with keys that are gone"
        why = f"{len(deleted)} keys are erased, but others never ceased to write to {subject.key!r}, and {torn}"
        raise UsageError(why, hint="Stop them, and call it again: that takes the rest too.")
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
    runtime: Runtime, subject: Subject, deleted: Mapping[str, Deleted], places: dict[str, tuple[int, int]],
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
    runtime: Runtime, subject: Subject, deleted: Mapping[str, Deleted], places: dict[str, tuple[int, int]],
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
            count, freed, start = await runtime.redis.script("erase_flushed_entries", [changes], asked, seconds=seconds)
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
