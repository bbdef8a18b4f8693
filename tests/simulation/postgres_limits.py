"""The faults of Postgres that leave its data alone: what is slow, stuck or full, and somebody else's defaults."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import psycopg

from statecache import AsyncStateCache
from statecache.clock import monotonic
from statecache.errors import StateCacheError
from tests.simulation.arena import WORKER_LINE
from tests.simulation.faults import Faults
from tests.simulation.history import Recorder, seen_of
from tests.simulation.nemesis import Strike
from tests.simulation.postgres_arena import SMALL, PostgresArena
from tests.support.fault_proxy import Fault

STALLED_S = 12.0
"""Within this time, when nothing else is wrong, everything has to be flushed up to the moment before."""
OTHERS_S = 6.0
"""Within this time the other shards have to be, where somebody holds the row of one."""
ROW_S = 0.02
PILED_UP = 600
BATCH_S = 40.0
STRUCK_S = 6.0
IN_A_FLUSH = b'"by":"w'
"""What a flush holds in the middle: a value of a writer."""
_SLOW = f"""
CREATE OR REPLACE FUNCTION statecache.slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep({ROW_S}); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT ON statecache.change FOR EACH ROW EXECUTE FUNCTION statecache.slow();
"""
OURS = "FROM pg_stat_activity WHERE application_name LIKE 'statecache%' AND backend_type = 'client backend'"


class PostgresLimits(Faults):
    """The faults of what Postgres can do, and of how it is set up."""

    _piles = 0

    @property
    def _here(self) -> PostgresArena:
        return cast("PostgresArena", self._arena)

    # Somebody else's defaults.

    async def _default_encoding(self, strike: Strike) -> bool:
        return await self._under_default("client_encoding", "LATIN1", strike)

    async def _default_path(self, strike: Strike) -> bool:
        return await self._under_default("search_path", "pg_catalog", strike)

    async def _default_read_only(self, strike: Strike) -> bool:
        return await self._under_default("default_transaction_read_only", "on", strike)

    async def _under_default(self, name: str, value: str, strike: Strike) -> bool:
        async with self._here.postgres_turn, self._default(name, value):
            await self._wait(strike.lasts_s)
        return True

    @asynccontextmanager
    async def _default(self, name: str, value: str) -> AsyncIterator[None]:
        """Let every session that begins have another default of the database."""
        sql = self._here.sql
        await sql(f"ALTER DATABASE postgres SET {name} = '{value}'")
        await sql(f"SELECT pg_terminate_backend(pid) {OURS}")
        try:
            yield
        finally:
            with suppress(psycopg.Error):
                await sql(f"ALTER DATABASE postgres RESET {name}")
                await sql(f"SELECT pg_terminate_backend(pid) {OURS}")

    async def _system(self, name: str, value: str) -> None:
        await self._here.sql(f"ALTER SYSTEM SET {name} = '{value}'")
        await self._here.sql("SELECT pg_reload_conf()")

    async def _read_only(self, strike: Strike) -> bool:
        async with self._here.postgres_turn:
            await self._system("default_transaction_read_only", "on")
            await self._wait(strike.lasts_s)
            await self._system("default_transaction_read_only", "off")
        return True

    async def _encoding_refused(self, strike: Strike) -> bool:
        here = self._here
        await here.sql("DROP DATABASE IF EXISTS latin WITH (FORCE)")
        await here.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0 LOCALE_PROVIDER libc")
        url = here.postgres_url.rpartition("/")[0] + "/latin"
        for command in ("migrate", "doctor"):
            status, said = await here.statecache(command, postgres_url=url, prefix="latin")
            if not status or "LATIN1" not in said:
                self.findings.append(f"encoding: `statecache {command}` took a database of LATIN1: {said[-300:]}")
        await here.sql("DROP DATABASE latin WITH (FORCE)")
        return True

    # What is slow, stuck or full.

    async def _row_locked(self, strike: Strike) -> bool:
        here = self._here
        locked = int(strike.pick * here.settings.shards)
        others = [shard for shard in range(here.settings.shards) if shard != locked]
        name = max(here.workers)
        await asyncio.to_thread(here.workers.pop(name).kill)  # one worker has all shards, and nobody takes over
        await self._stalled(STALLED_S)
        connection = await asyncio.to_thread(here.postgres)
        try:
            begin = b"BEGIN; SET LOCAL lock_timeout = '5s'; SELECT 1 FROM statecache.shard WHERE shard = %d FOR UPDATE"
            await asyncio.to_thread(connection.execute, begin % locked)
            end = monotonic() + strike.lasts_s
            while monotonic() < end:
                if late := await self._stalled(OTHERS_S, others):
                    told = f"the row of shard {locked} is held, and {OTHERS_S:g} s later"
                    self.findings.append(f"stalled: {told} other shards were flushed up to {late}")
                    break
                await self._wait(0.5)
            status, said = await here.statecache("status")
            if not status or "held by pid" not in said:
                self.findings.append(f"untold: the row of shard {locked} is held, and status says: {said[-300:]}")
        finally:
            connection.close()
            here.start_worker()
        return True

    async def _batch_slow(self, strike: Strike) -> bool:
        """Pile up a backlog, and let Postgres write it so slowly that one batch takes longer than it may."""
        here = self._here
        workers = [*here.workers.values()]
        for worker in workers:
            await asyncio.to_thread(worker.pause)
        await self._pile_up()
        async with self._no_new():
            await here.sql(_SLOW)
            for worker in workers:
                worker.resume()
            late = await self._stalled(BATCH_S)
            await here.sql("DROP TRIGGER slow ON statecache.change")
        if late:
            self.findings.append(f"stalled: {BATCH_S:g} s with slow batches, and shards were flushed up to {late}")
        return True

    async def _pile_up(self) -> None:
        """Commit more than one batch can take while Postgres is slow; the journals have it as any writer's."""
        here = self._here
        self._piles += 1
        with Recorder(here.folder / f"pile-{self._piles}.jsonl", f"pile{self._piles}") as recorder:
            async with AsyncStateCache(settings=here.direct) as cache:

                async def commit(number: int) -> None:
                    sent = recorder.invoke(f"s{number}", "set", [f"pile/{number}"], kind="write")
                    try:
                        state = await cache.set(sent.keys[0], {"by": sent.tag})
                    except StateCacheError as error:
                        recorder.unknown(sent, error)
                    else:
                        recorder.ok(sent, written=[seen_of(state)])

                await asyncio.gather(*(commit(number) for number in range(PILED_UP)))

    @asynccontextmanager
    async def _no_new(self) -> AsyncIterator[None]:
        """Let the writers begin nothing meanwhile; nothing is waited for."""
        told = [one for one in self._here.writers.values() if self._here.journal(one).exists()]
        for writer in told:
            writer.send(signal.SIGUSR1)
        try:
            yield
        finally:
            for writer in told:
                writer.send(signal.SIGUSR2)

    async def _disk_full(self, strike: Strike) -> bool:
        here = self._here
        space = await asyncio.to_thread(here.small_disk)
        if space is None:
            return False
        async with here.postgres_turn:
            try:
                await here.sql(f"CREATE TABLESPACE {SMALL} LOCATION '{space}'")
                await here.sql(f"SET lock_timeout = '5s'; ALTER TABLE statecache.change SET TABLESPACE {SMALL}")
                filler = space.parent / "filler"
                await asyncio.to_thread(_fill, filler)
                await self._wait(strike.lasts_s)
                filler.unlink()
                if late := await self._stalled(STALLED_S):
                    self.findings.append(f"stalled: {STALLED_S:g} s after a full disk shards were flushed up to {late}")
            finally:
                with suppress(psycopg.Error):
                    await here.sql("ALTER TABLE statecache.change SET TABLESPACE pg_default")
                    await here.sql(f"DROP TABLESPACE IF EXISTS {SMALL}")
                await asyncio.to_thread(here.remove_small_disk)
        return True

    async def _flush_silent(self, strike: Strike) -> bool:
        fault = await self._silenced()
        await self._wait(strike.lasts_s)
        self._here.proxies[WORKER_LINE, "postgres"].cut_all()
        return fault.struck

    async def _silenced(self) -> Fault:
        fault = self._here.proxies[WORKER_LINE, "postgres"].arm("silence", at=IN_A_FLUSH)
        with suppress(TimeoutError):
            async with asyncio.timeout(STRUCK_S):
                await fault.wait()
        self._here.proxies[WORKER_LINE, "postgres"].disarm(fault)
        return fault


def _fill(path: Any) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"\0" * 65536):
            pass
