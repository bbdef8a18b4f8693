"""Letting values of changes go, as their namespace's policy says: see `rules.prune_plan` for what that touches.

    page      a page of the namespace's changes is looked at, without a lock: which values the policy lets go
    lock      the runs that these are in, a few hundred changes, in order, so that nothing builds on them meanwhile
    decide    of a newer moment: what checkpoints pin, and what branches began with, stays
    write     values that go; new keyframes for what built on them
    prove     what is kept of these runs is read again and compared with its digest, before COMMIT

On a key's last run the flusher may be writing at that moment, with a keyframe that it remembers. Such runs are done
shard by shard; at the end of the transaction the shard's row is counted up, which waits for a flush that is under way
and holds off the next. What a flush has added to the run meanwhile is read from the new keyframe too; the next one sees
the count, and forgets what it remembered.

Each of these transactions is short, waits for nobody long, and is whole: whoever is killed loses one at most, and it is
done again. Headers of changes stay, with digest and hash. A run that is damaged is left alone and told of.

An age counts by the clock of Redis and by that of Postgres: where one is behind, what is let go is older by that too.
Redis is asked before each page (`redis_time`); where it cannot be asked, nothing goes by age.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statecache.core.history.values import Base, HistoryValues, VersionAt
from statecache.history import DELTAS_MAX, Damage
from statecache.keys import beyond_prefix
from statecache.rules.pins import Pin, checkpoints_of, is_pinned, pin_of
from statecache.rules.prune_plan import Content, Held, Plan, Rewrite, plan, prove, rewritten
from statecache_workers.database import Call, Database, Transaction
from statecache_workers.logs import alarm
from statecache_workers.postgres_arrays import integers, optional_blobs, optional_integers, texts

if TYPE_CHECKING:
    from statecache.retention import Retention
    from statecache_workers.redis_time import RedisTime

ROWS = 1000
"""How many changes are looked at at once."""
VALUES = 150
"""How many values go in one transaction at most, and those of the run that exceeds it.

A flush is held up by about as long as that takes: with 500 its p99 was more than twice what it is otherwise.
"""
BYTES = 4 * 1024 * 1024
"""How many bytes of values go in one transaction at most, and the one that exceeds it."""
LAST_RUNS = 64
"""How many keys' last runs are done at once, of one shard: the more, the less often its flusher forgets values."""
Row = Sequence[Any]


class Place(NamedTuple):
    """Where the next page begins."""

    key: str
    version: int = 0


class Run(NamedTuple):
    """A run of a key, by its keyframe's version."""

    key: str
    base: int


class Lot(msgspec.Struct):
    """What is done in one transaction: versions that the policy lets go, by run; of a shard, if these are last runs."""

    shard: int | None = None
    lets_go: dict[Run, set[int]] = {}
    values: int = 0
    bytes: int = 0

    def has_room(self, size: int) -> bool:
        """Whether one more value of that size may go in the same transaction."""
        return self.values < VALUES and self.bytes + size <= BYTES

    def add(self, run: Run, version: int, size: int) -> None:
        """Add a value of that size."""
        self.lets_go.setdefault(run, set()).add(version)
        self.values += 1
        self.bytes += size


class Lots:
    """What the policy lets go, as pages of a namespace are looked at, put together in lots for one transaction each."""

    def __init__(self) -> None:
        self._full: list[Lot] = []
        self._open: dict[int | None, Lot] = {}
        self._newest: Run | None = None

    def add(self, run: Run, version: int, size: int, *, shard: int | None) -> None:
        """Add a value; all of one run stay together, for a part of it would change what the others build on."""
        lot = self._open.get(shard)
        if lot is None or not (run in lot.lets_go or lot.has_room(size)):
            if lot is not None:
                self._full.append(lot)
            lot = self._open[shard] = Lot(shard)
        lot.add(run, version, size)
        self._newest = run

    def take(self, *, every: bool) -> list[Lot]:
        """Return the lots that are full, but for one whose run may go on in the next page; or with `every` all."""
        found, self._full = self._full, []
        ready = [
            shard
            for shard, lot in self._open.items()
            if every or (len(lot.lets_go) >= LAST_RUNS and self._newest not in lot.lets_go)
        ]
        return found + [self._open.pop(shard) for shard in ready]


class Pruned(msgspec.Struct, kw_only=True):
    """How many values went, how many stay that are pinned, and which runs are damaged.

    `freed` are the bytes that were kept of what went, `bytes` are these less what new keyframes take.
    """

    values: int = 0
    freed: int = 0
    bytes: int = 0
    pinned: int = 0
    damaged: list[tuple[str, int, str]] = []

    def add(self, other: Pruned) -> None:
        """Add what was done besides."""
        self.values += other.values
        self.freed += other.freed
        self.bytes += other.bytes
        self.pinned += other.pinned
        self.damaged += other.damaged


class _Decided(NamedTuple):
    """What becomes of a run, and what is in it."""

    run: Run
    held: list[Held]
    plan: Plan
    origin: bool

    @property
    def kept(self) -> list[int]:
        """The versions whose values stay."""
        goes = set(self.plan.goes)
        return [one.version for one in self.held if not one.gone and one.version not in goes]

    @property
    def newest(self) -> int:
        """The keyframe that the last version is read from."""
        return max([self.run.base, *self.plan.keyframes])

    @property
    def freed(self) -> int:
        """How many bytes go with the values."""
        goes = set(self.plan.goes)
        return sum(one.bytes for one in self.held if one.version in goes)


class _Broken(Damage):
    """Raised for a run that is damaged."""

    def __init__(self, run: Run, why: str) -> None:
        super().__init__(why)
        self.run = run


class Pruner:
    """What lets values go, over one connection to Postgres; Redis is asked for nothing but its time."""

    def __init__(self, database: Database, redis_time: RedisTime, *, seconds: float) -> None:
        self._database = database
        self._redis_time = redis_time
        self._seconds = seconds

    async def page(self, name: str, retention: Retention, place: Place | None, lots: Lots) -> Place | None:
        """Look at a page of a namespace, add what goes to the lots, and return where the next page begins, if any.

        Raises RedisUnavailable or ConfigurationError where the policy has an age and Redis' time is not to be had.
        """
        begin = place or Place(f"{name}/")
        asked = {
            "key": begin.key, "version": begin.version, "beyond": beyond_prefix(f"{name}/"), "rows": ROWS,
            "age": retention.max_age, "redis_now": None if retention.max_age is None else await self._redis_time.now(),
            "count": 1 if retention.history == "latest" else retention.max_count,
        }  # fmt: skip
        async with self._database.transaction(snapshot=True) as transaction:
            (rows,) = await transaction.run(Call("prune_page", asked))
        following: Place | None = None
        for key, version, shard, base, size, last_run in rows:
            if shard is None:
                following = Place(key, version) if size == ROWS else None
            else:
                lots.add(Run(key, base), version, size, shard=shard if last_run else None)
        return following

    async def prune(self, lot: Lot) -> Pruned:
        """Let values go, in one transaction, but for what is pinned; a damaged run is left alone."""
        return await self._each(lot, dry_run=False)

    async def count(self, lot: Lot) -> Pruned:
        """Return what `prune` would do."""
        return await self._each(lot, dry_run=True)

    async def _each(self, lot: Lot, *, dry_run: bool) -> Pruned:
        left, damaged = dict(lot.lets_go), Pruned()
        while left:
            try:
                async with self._database.transaction(snapshot=dry_run) as transaction:
                    done = await self._done(transaction, left, lot.shard, dry_run=dry_run)
                    if not dry_run:
                        await transaction.commit()
            except _Broken as error:
                alarm("not_pruned", key=error.run.key, version=error.run.base, reason=str(error))
                damaged.damaged.append((error.run.key, error.run.base, str(error)))
                del left[error.run]
                continue
            done.add(damaged)
            return done
        return damaged

    async def _done(
        self, transaction: Transaction, lets_go: Mapping[Run, set[int]], shard: int | None, *, dry_run: bool
    ) -> Pruned:
        decided, pinned = await self._decided(transaction, lets_go, dry_run=dry_run)
        changing = [one for one in decided if one.plan.goes]
        rewriting = [one for one in changing if one.plan.rewrites]
        origins = await self._origins(transaction, [one for one in changing if one.origin and one.kept])
        rewrites = {one.run: [Rewrite(version, "gone") for version in one.plan.goes] for one in changing}
        if rewriting:
            contents = await self._contents(transaction, rewriting)
            rewrites |= await asyncio.to_thread(_rewrites, rewriting, contents, origins)
        if changing and not dry_run:
            await self._write(transaction, rewrites)
            await self._prove(transaction, [one for one in changing if one.kept], origins)
            if shard is not None and rewriting:
                await self._tell_flusher(transaction, shard, rewriting, origins)
        added = sum(
            len(how.value or how.packed or b"") for some in rewrites.values() for how in some if how.how == "alone"
        )
        replaced = sum(held.bytes for one in rewriting for held in one.held if held.version in one.plan.keyframes)
        freed = sum(one.freed for one in changing)
        values = sum(len(one.plan.goes) for one in changing)
        return Pruned(values=values, freed=freed, bytes=freed - added + replaced, pinned=pinned)

    async def _tell_flusher(
        self, transaction: Transaction, shard: int, some: Sequence[_Decided], origins: Mapping[Run, bytes | None]
    ) -> None:
        """Have a shard's flusher forget keyframes that were moved; what it wrote since is read from the new ones."""
        last = {one.run: one.held[-1].version for one in some}
        columns = {
            "keys": texts([one.run.key for one in some]), "lasts": integers([*last.values()]),
            "before": integers([one.run.base for one in some]), "now": integers([one.newest for one in some]),
        }  # fmt: skip
        _, grown = await transaction.run(Call("prune_moved", {"shard": shard}), Call("prune_grown", columns))
        for key, version in grown:
            run = next(run for run in last if run.key == key)
            last[run] = max(last[run], version)
        if grown:
            keys = {key for key, _ in grown}
            await self._prove(transaction, [one for one in some if one.run.key in keys], origins, last)

    async def _prove(
        self, transaction: Transaction, some: Sequence[_Decided], origins: Mapping[Run, bytes | None],
        last: Mapping[Run, int] | None = None,
    ) -> None:  # fmt: skip
        """Read what is kept of runs as readers do, up to the last version of each, or raise _Broken."""
        if some:
            contents = await self._contents(transaction, some, last)
            await asyncio.to_thread(_prove, some, contents, origins, last)

    async def _decided(
        self, transaction: Transaction, lets_go: Mapping[Run, set[int]], *, dry_run: bool
    ) -> tuple[list[_Decided], int]:
        """Lock the runs, and decide what becomes of them; return that, and how many values stay that are pinned."""
        runs = {
            "keys": texts([run.key for run in lets_go]), "bases": integers([run.base for run in lets_go]),
            "most": DELTAS_MAX,
        }  # fmt: skip
        prefixes = list(dict.fromkeys(prefix for run in lets_go for prefix in checkpoints_of(run.key)))
        asked = {"prefixes": texts(prefixes), "beyond": texts([beyond_prefix(prefix) for prefix in prefixes])}
        locks = [] if dry_run else [Call("prune_begin", {}), Call("prune_lock", runs)]
        *_, rows, checkpoints = await transaction.run(*locks, Call("prune_runs", runs), Call("prune_pins", asked))
        pins = [pin for key, op, schema, value, n in checkpoints if (pin := pin_of(key, op, schema, bytes(value), n))]
        decided: list[_Decided] = []
        stay = 0
        for run, some in groupby(rows, key=lambda row: Run(row[0], row[1])):
            found = list(some)
            kept = {row[2] for row in found if row[10] or _pinned(pins, row)}
            stay += len(kept & lets_go[run])
            held = [Held(row[2], row[5], row[7] is None, row[7] or 0, row[8]) for row in found]
            planned = plan(held, lets_go[run] - kept)
            decided.append(_Decided(run, held, planned, any(row[6] for row in found)))
        return decided, stay

    async def _contents(
        self, transaction: Transaction, some: Sequence[_Decided], last: Mapping[Run, int] | None = None
    ) -> dict[Run, list[Content]]:
        lasts = [one.held[-1].version if last is None else last[one.run] for one in some]
        asked = {
            "keys": texts([one.run.key for one in some]), "firsts": integers([one.run.base for one in some]),
            "lasts": integers(lasts),
        }  # fmt: skip
        (rows,) = await transaction.run(Call("prune_values", asked))
        found: dict[Run, list[Content]] = {}
        for key, first, version, value, packed, keyframe, digest, *_ in rows:
            content = Content(version, _bytes(value), _bytes(packed), keyframe, _bytes(digest))
            found.setdefault(Run(key, first), []).append(content)
        return found

    async def _origins(self, transaction: Transaction, some: Sequence[_Decided]) -> dict[Run, bytes | None]:
        """Return the values of other keys that runs begin with a delta to."""
        if not some:
            return {}

        async def fetch(name: str, parameters: Mapping[str, Any], **_: float) -> Sequence[Row]:
            return (await transaction.run(Call(name, parameters)))[0]

        asked = {
            "keys": texts([one.run.key for one in some]), "firsts": integers([one.run.base for one in some]),
            "lasts": integers([one.run.base for one in some]),
        }  # fmt: skip
        (rows,) = await transaction.run(Call("prune_values", asked))
        origins: dict[Run, bytes | None] = {}
        for key, first, *_, origin, version in rows:
            place, run = VersionAt(origin, version), Run(key, first)
            read = await HistoryValues(fetch).bases([place], seconds=self._seconds) if origin is not None else {}
            base = read.get(place, Base(None))
            if base.value is None and base.damage is not None:
                raise _Broken(run, str(base.damage)) from base.damage
            origins[run] = base.value
        return origins

    async def _write(self, transaction: Transaction, rewrites: Mapping[Run, Sequence[Rewrite]]) -> None:
        rows = sorted((run.key, how) for run, some in rewrites.items() for how in some)
        columns = {
            "key": texts([key for key, _ in rows]), "version": integers([how.version for _, how in rows]),
            "how": texts([how.how for _, how in rows]), "value": optional_blobs([how.value for _, how in rows]),
            "packed": optional_blobs([how.packed for _, how in rows]),
            "keyframe": optional_integers([how.keyframe for _, how in rows]),
        }  # fmt: skip
        (((count,),),) = await transaction.run(Call("prune_write", columns))
        if count != len(rows):
            raise RuntimeError(f"{count} of {len(rows)} changes were written, which were locked")


def _pinned(pins: Sequence[Pin], row: Row) -> bool:
    return is_pinned(pins, row[0], row[2], row[3], row[4])


def _rewrites(
    some: Sequence[_Decided], contents: Mapping[Run, Sequence[Content]], origins: Mapping[Run, bytes | None]
) -> dict[Run, list[Rewrite]]:
    found: dict[Run, list[Rewrite]] = {}
    for one in some:
        try:
            found[one.run] = rewritten(contents.get(one.run, ()), one.plan, origins.get(one.run))
        except Damage as error:
            raise _Broken(one.run, str(error)) from error
    return found


def _prove(
    some: Sequence[_Decided],
    contents: Mapping[Run, Sequence[Content]],
    origins: Mapping[Run, bytes | None],
    last: Mapping[Run, int] | None,
) -> None:
    for one in some:
        grown = () if last is None else range(one.held[-1].version + 1, last[one.run] + 1)
        try:
            prove(contents.get(one.run, ()), [*one.kept, *grown], origins.get(one.run))
        except Damage as error:
            raise _Broken(one.run, str(error)) from error


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
