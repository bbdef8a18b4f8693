"""The faults of Postgres: it goes back, changes its place, is full, slow, read-only, or set up by somebody else.

    restored           it is put back to what it held seconds ago, all of which Redis still retains
    restored_old       … to what it held longer ago than Redis retains: what is lost must be named
    restored_behind    … to what it held before an outage, just when all of that was flushed at last
    standby_promoted   a standby that lags behind by seconds is promoted
    commit_cancelled   a standby must confirm each COMMIT, is cut off, and the waits are cancelled while the database's
                       default hides warnings; then the primary and Redis are lost at once, and it is promoted
    commit_unsynced    the database's default is not to wait for the disk; then both are killed and Redis is lost
    default_encoding   the database's default is another client_encoding; keys are not ASCII
    default_path       … another search_path     default_read_only   … read-only transactions
    read_only          the server takes no writes for a while
    row_locked         a stranger holds the row of one shard: the others go on, and `status` names him
    batch_slow         a batch that has piled up cannot be written within a statement's time
    disk_full          the disk of the changes is full for a while
    flush_silent       the worker's connection dies silently in the middle of a flush, and is cut seconds later
    encoding_refused   a database of another encoding is refused by `migrate` and by `doctor`
    left_clean         at the end: what is clean, rebuilt after a restore too, becomes evictable
    left_silent        at the end: a connection died silently in the middle of a flush, and nobody cuts it

Beside what the checker proves: what was acknowledged at `postgres` is lost by `restored_old` alone, and `wait_durable`
says yes only of what Postgres holds at that moment.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any, cast

import msgspec
import psycopg

from statecache.clock import monotonic
from tests.simulation.ages import Bounds
from tests.simulation.arena import WORKER_LINE
from tests.simulation.evictable import never_evictable
from tests.simulation.evidence import Loss, Verdict, Violation
from tests.simulation.freshness import Window, judge_freshness
from tests.simulation.history import Operation
from tests.simulation.judge import evidence
from tests.simulation.nemesis import Strike
from tests.simulation.postgres_arena import RETENTION_S
from tests.simulation.postgres_limits import OURS, STALLED_S, PostgresLimits
from tests.support.fault_proxy import Fault

UNSEEN_S = 1.0
"""So long no worker looks at a Postgres that went back."""
EVERYTHING = frozenset({"memory", "replica", "disk", "postgres"})


class PostgresFaults(PostgresLimits):
    """The faults of what Postgres holds, and of where it is."""

    _base: tuple[Any, float] | None = None
    _silent: Fault | None = None
    _evictable = False
    _forgotten_at = -inf

    # Postgres goes back.

    async def _restored(self, strike: Strike) -> bool:
        async with self._here.postgres_turn:
            since = await self._flushed_since()
            copy = await self._here.copied("backup")
            await self._wait(strike.lasts_s)
            await self._put_back(copy, "a restore")
            self._retained_until(since)
        return True

    async def _put_back(self, copy: Any, what: str, *, adopted: bool = False) -> None:
        """Restore a copy; one that names a Redis which forgot everything since needs a person's word for this one."""
        workers = [*self._here.workers.values()]
        for worker in workers:
            await asyncio.to_thread(worker.pause)
        async with self._restoring():
            await self._here.put_back(copy)
        await self._wait(UNSEEN_S)
        for worker in workers:
            worker.resume()
        if adopted:
            await self._claimed()
        await self._flushed_again(what)

    async def _claimed(self) -> None:
        servers = await self._here.sql("SELECT DISTINCT replid FROM statecache.shard")
        given_up = [word for (server,) in servers for word in ("--from", server)]
        status, said = await self._here.statecache("epoch", "adopt", "all", *given_up)
        if status:
            self.findings.append(f"adopt: `statecache epoch adopt` ended with {status}: {said}")

    @asynccontextmanager
    async def _restoring(self) -> AsyncIterator[None]:
        since = monotonic()
        yield
        self.told.restoring.append(Window(since=since, until=monotonic()))

    async def _flushed_again(self, what: str) -> None:
        """Look that what Redis has is in Postgres once more, not only that Redis says so."""
        end = monotonic() + STALLED_S
        while monotonic() < end:
            if not await self._behind():
                return
            await self._wait(0.1)
        self.findings.append(f"stalled: {STALLED_S:g} s after {what} Postgres lacks {await self._behind()}")

    async def _behind(self) -> dict[int, str]:
        """Return the shards of which Postgres holds less than Redis says that it holds."""
        told = {shard: flushed for shard, (_, flushed) in (await self._heads(None)).items()}
        with suppress(psycopg.Error):
            rows = await self._here.sql("SELECT shard, flushed FROM statecache.shard")
            return {shard: f"{n} of {told.get(shard)}" for shard, n in rows if n < told.get(shard, n)}
        return dict.fromkeys(told, "no answer")

    async def _restored_old(self, strike: Strike) -> bool:
        async with self._here.postgres_turn:
            if self._base is None:
                since = await self._flushed_since()
                self._base = await self._here.copied("base"), since
                return False
            copy, at = self._base
            if monotonic() - at < RETENTION_S + 4:
                return False
            adopted = self._forgotten_at > at
            await self._put_back(copy, "a restore of what was retained no more", adopted=adopted)
            self.told.losses.append(Loss(since=at, until=monotonic(), levels=EVERYTHING))
            self._base = None
        return True

    async def _restored_behind(self, strike: Strike) -> bool:
        here = self._here
        async with here.postgres_turn:
            since = await self._flushed_since()
            copy = await here.copied("backup")
            await asyncio.to_thread(here.database.kill)
            await self._wait(RETENTION_S + 1)
            await asyncio.to_thread(here.database.restart)
            await self._stalled(STALLED_S)
            flushed_at = monotonic()
            await self._wait(strike.lasts_s)
            await self._put_back(copy, "a restore right after an outage")
            if monotonic() - flushed_at > RETENTION_S:
                self.told.losses.append(Loss(since=since, until=monotonic(), levels=EVERYTHING))
        return True

    async def _standby_promoted(self, strike: Strike) -> bool:
        here = self._here
        async with here.postgres_turn:
            standby = await here.standby()
            since = await self._flushed_since()
            here.cut_off()
            await self._wait(strike.lasts_s)
            async with self._restoring():
                await here.promoted(standby)
            await self._flushed_again("a standby was promoted")
            self._retained_until(since)
        return True

    def _retained_until(self, since: float) -> None:
        """Note that more may be gone, where it took longer than Redis retains what was flushed since."""
        if monotonic() - since > RETENTION_S:
            self.told.losses.append(Loss(since=since, until=monotonic(), levels=EVERYTHING))

    # What was acknowledged at `postgres` outlives Redis.

    async def _commit_cancelled(self, strike: Strike) -> bool:
        here = self._here
        async with here.postgres_turn:
            standby = await here.standby()
            async with self._default("client_min_messages", "error"):
                await self._system("synchronous_standby_names", "*")
                since = await self._flushed_since()
                if not await here.caught_up():
                    return False
                end = monotonic() + strike.lasts_s
                here.cut_off()
                while monotonic() < end:
                    await here.sql(f"SELECT pg_cancel_backend(pid) {OURS} AND wait_event = 'SyncRep'")
                    await self._wait(0.05)
                await self._all_lost(since, here.promoted(standby))
                await self._system("synchronous_standby_names", "")
        return True

    async def _commit_unsynced(self, strike: Strike) -> bool:
        here = self._here
        async with here.postgres_turn, self._default("synchronous_commit", "off"):
            since = await self._flushed_since()
            await self._wait(strike.lasts_s)
            await asyncio.to_thread(here.database.kill)
            await self._all_lost(since, asyncio.to_thread(here.database.restart))
        return True

    async def _flushed_since(self) -> float:
        """Return a moment before which everything that was acknowledged is in Postgres by now."""
        since = monotonic()
        if late := await self._stalled(STALLED_S):
            self.findings.append(f"stalled: within {STALLED_S:g} s, with nothing wrong, shards were flushed to {late}")
        return since

    async def _all_lost(self, since: float, comes_back: Any) -> None:
        """Let Redis forget everything while Postgres changes its place."""
        here = self._here
        async with here.redis_turn:
            await asyncio.to_thread(here.own.kill, "redis")
            shutil.rmtree(here.own.folder / "redis" / "appendonlydir", ignore_errors=True)
            self._forgotten_at = monotonic()
            async with self._restoring():
                await comes_back
            await here.restart("redis")
            await self._opened()
        self.told.losses.append(Loss(since=since, until=monotonic() + here.settings.near_window_s))

    async def leave(self, kinds: Collection[str]) -> None:
        """Leave a flush in the middle of which the connection died."""
        self._evictable = "left_clean" in kinds
        if "left_silent" in kinds:
            await self._here.heal()
            self._silent = await self._silenced()

    async def over(self) -> None:
        """End the connection that died, and look that what is clean becomes evictable."""
        if self._evictable:
            self.findings += await never_evictable(self._here)
        if self._silent is not None:
            self._here.proxies[WORKER_LINE, "postgres"].cut_all()

    # What is judged at the end.

    def judged(self, operations: Sequence[Operation], verdict: Verdict) -> list[Violation]:
        """Judge what was said of durability and outcomes, and whether what is lost is named."""
        with self._arena.postgres() as connection:
            found = evidence(cast("Any", connection), self._arena.settings.postgres_schema)
        bounds = Bounds(window_s=self._here.settings.near_window_s, command_s=self._here.settings.timeout_s)
        return [*judge_freshness(operations, found, self.told, bounds=bounds), *self._unnamed(operations, verdict)]

    def _unnamed(self, operations: Sequence[Operation], verdict: Verdict) -> list[Violation]:
        """Return the writes acknowledged at `postgres` and lost that are in no gap that a worker has reported."""
        lost = {*verdict.lost}
        gaps = list(self._gaps())
        wrong = []
        for one in operations:
            if one.tag in lost and one.level == "postgres" and one.written:
                seen = one.written[0]
                shard = self._here.keys.shard(seen.key)
                if not any(gap.shard == shard and gap.first <= seen.n <= gap.last for gap in gaps):
                    sentence = f"{one.tag}, {one.change_id}, n {seen.n} of shard {shard}, is lost and named nowhere"
                    wrong.append(Violation(kind="unnamed", key=seen.key, operations=(one,), sentence=sentence))
        return wrong

    def _gaps(self) -> list[_Gap]:
        lines = [line for log in self._here.folder.glob("worker-*.log") for line in log.read_bytes().splitlines()]
        return [msgspec.json.decode(line, type=_Gap) for line in lines if b'"event":"gap"' in line]


class _Gap(msgspec.Struct):
    """What a worker has told of a gap."""

    shard: int
    first: int
    last: int
