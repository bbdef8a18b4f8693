"""The faults of the nemesis, carried out. Each method does one kind, from its beginning to its end.

A method gives False where there was nothing to strike. What it leaves behind when it is interrupted is undone by the
arena's `heal`. Servers are killed, frozen and started one fault at a time; other faults may meet a server that is
down, and then count as not struck.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any

import psycopg
import redis

from statecache.clock import monotonic
from statecache.testing.process import Process, descendants
from tests.simulation.arena import Arena
from tests.simulation.evidence import Loss, Verdict, Violation
from tests.simulation.freshness import Told
from tests.simulation.history import Invoke, Operation, lines_of
from tests.simulation.nemesis import Strike
from tests.simulation.network import NetworkFaults
from tests.simulation.sampler import Sampler
from tests.support.dirtiness import evict

QUIET_S = 15.0
_LOOK_S = 0.05
_HYDRATION = b"Gives epoch and watermark of each asked shard"
"""What stands in the exchanges that look for states, and that read them, for Redis, and in no other one."""
_BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'statecache%%' AND backend_type = 'client backend'
ORDER BY state = 'active' DESC, pid
"""


class Faults(NetworkFaults):
    """The faults, carried out; `told` holds when promises have exceptions, `findings` what the faults saw go wrong."""

    def __init__(self, arena: Arena, sampler: Sampler) -> None:
        super().__init__(arena)
        self._sampler = sampler
        self.told = Told()
        self.findings: list[str] = []
        self.ends_at = inf
        """The moment past which a fault that had to wait for its turn does not begin any more."""

    async def leave(self, kinds: Collection[str]) -> None:
        """Do what is to be healed of by the product alone, if it is among these kinds of faults."""

    async def over(self) -> None:
        """End what `leave` has left, once the product lives in spite of it."""

    def judged(self, operations: Sequence[Operation], verdict: Verdict) -> list[Violation]:
        """Judge what only this profile promises."""
        return []

    async def strike(self, strike: Strike) -> bool:
        """Carry one fault out and return whether it struck: a server that is down is not struck.

        A statement that psycopg itself refuses, without any server, is a programming error and raised.
        """
        try:
            return bool(await getattr(self, f"_{strike.kind}")(strike))
        except (redis.RedisError, psycopg.Error, OSError) as error:
            if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
                raise
            return False

    async def _stalled(self, seconds: float, shards: Collection[int] | None = None) -> dict[int, str]:
        """Return the shards where what Redis has now is not flushed and acknowledged within that time, and how far."""
        heads, end = await self._heads(shards), monotonic() + seconds
        late = dict.fromkeys(heads, "")
        while late and monotonic() < end:
            for shard, (_, flushed) in (await self._heads(late)).items():
                if flushed >= heads[shard][0]:
                    del late[shard]
                else:
                    late[shard] = f"{flushed} of {heads[shard][0]}"
            await self._wait(_LOOK_S)
        return late

    async def _heads(self, shards: Collection[int] | None) -> dict[int, tuple[int, int]]:
        """Return n and the watermark of each shard, as the primary has them; empty while it does not answer."""
        keys = self._arena.keys

        def look() -> dict[int, tuple[int, int]]:
            with suppress(redis.RedisError), self._arena.redis() as raw:
                told = {one: raw.hmget(keys.meta(one), "n", "flushed") for one in shards or range(keys.shards)}
                return {one: (int(n), int(flushed)) for one, (n, flushed) in told.items() if n and flushed}
            return {}

        return await asyncio.to_thread(look)

    # Processes.

    async def _writer_kill(self, strike: Strike) -> bool:
        name = _picked(sorted(self._arena.writers), strike)
        if name is None:
            return False
        process = self._arena.writers.pop(name)
        await asyncio.to_thread(process.kill)
        await self._wait(strike.lasts_s)
        self._arena.start_writer(name)
        return True

    async def _worker_kill(self, strike: Strike) -> bool:
        name = _picked(sorted(self._arena.workers), strike)
        if name is None:
            return False
        process = self._arena.workers.pop(name)
        await asyncio.to_thread(process.kill)
        await self._wait(strike.lasts_s)
        self._arena.start_worker()
        return True

    async def _writer_pause(self, strike: Strike) -> bool:
        return await self._paused(self._arena.writers, strike)

    async def _worker_pause(self, strike: Strike) -> bool:
        return await self._paused(self._arena.workers, strike)

    async def _paused(self, processes: dict[str, Process], strike: Strike) -> bool:
        name = _picked(sorted(processes), strike)
        if name is None:
            return False
        process = processes[name]
        await asyncio.to_thread(process.pause)
        await self._wait(strike.lasts_s)
        process.resume()
        return True

    # Redis.

    async def _redis_kill(self, strike: Strike) -> bool:
        async with self._arena.redis_turn:
            await asyncio.to_thread(self._arena.own.kill, "redis")
            await self._wait(strike.lasts_s)
            await self._arena.restart("redis")
        return True

    async def _redis_pause(self, strike: Strike) -> bool:
        async with self._arena.redis_turn:
            await asyncio.to_thread(self._arena.own.pause, "redis")
            await self._wait(strike.lasts_s)
            self._arena.own.resume("redis")
        return True

    async def _redis_sleep(self, strike: Strike) -> bool:
        return await self._at_redis(lambda raw: _debug_sleep(raw, strike.lasts_s))

    async def _client_kill(self, strike: Strike) -> bool:
        def kill(raw: redis.Redis) -> bool:
            listed: Any = raw.client_list(_type="normal")
            ids = [client["id"] for client in listed if client["id"] != str(raw.client_id())]
            struck = [raw.client_kill_filter(_id=one) for one in ids[:: 1 + int(strike.pick * 3)]]
            return bool(struck)

        return await self._at_redis(kill)

    async def _script_flush(self, strike: Strike) -> bool:
        return await self._at_redis(lambda raw: raw.script_flush())

    async def _memory_squeeze(self, strike: Strike) -> bool:
        def squeeze(raw: redis.Redis) -> bool:
            used: Any = raw.info("memory")
            raw.config_set("maxmemory-policy", "volatile-lru" if strike.pick < 0.5 else "noeviction")
            return bool(raw.config_set("maxmemory", max(1, int(used["used_memory"] * (0.8 + strike.pick / 4)))))

        struck = await self._at_redis(squeeze)
        await self._wait(strike.lasts_s)
        with suppress(redis.RedisError):
            await self._at_redis(lambda raw: raw.config_set("maxmemory", 0))
        return struck

    async def _evict(self, strike: Strike) -> bool:
        """Evict clean states for a while, as fast as they come back."""
        struck, end = False, monotonic() + strike.lasts_s
        while monotonic() < end:
            struck = await self._evicted() or struck
            await self._wait(0.03)
        return struck

    async def _evicted(self) -> bool:
        keys = self._arena.keys

        def evict_all(raw: redis.Redis) -> bool:
            gone = [evict(raw, keys, key) for key in self._arena.watched]
            return any(gone)

        with suppress(redis.RedisError):
            return await self._at_redis(evict_all)
        return False

    async def _hydrate_hold(self, strike: Strike) -> bool:
        """Hold one writer's read from Postgres back until others have written and Redis has forgotten the key."""
        return await self._held(
            self._line_of_a_writer("postgres", strike), "hold_reply", _HYDRATION, self._forgotten(strike)
        )

    async def _forgotten(self, strike: Strike) -> None:
        await self._evict(strike)
        await self._evicted()

    async def _at_redis(self, function: Callable[[redis.Redis], Any]) -> bool:
        def run() -> bool:
            with self._arena.redis() as raw:
                return bool(function(raw))

        return await asyncio.to_thread(run)

    # Postgres.

    async def _postgres_kill(self, strike: Strike) -> bool:
        async with self._arena.postgres_turn:
            await asyncio.to_thread(self._arena.database.kill)
            await self._wait(strike.lasts_s)
            await asyncio.to_thread(self._arena.database.restart)
        return True

    async def _backend_pause(self, strike: Strike) -> bool:
        async with self._arena.postgres_turn:
            pid = await self._backend(strike)
            root = self._arena.database.pid
            if pid is None or root is None or pid not in descendants(root):
                return False
            os.kill(pid, signal.SIGSTOP)
            try:
                await self._wait(strike.lasts_s)
            finally:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        return True

    async def _backend_terminate(self, strike: Strike) -> bool:
        return await self._signalled("SELECT pg_terminate_backend(%s)", strike)

    async def _backend_cancel(self, strike: Strike) -> bool:
        return await self._signalled("SELECT pg_cancel_backend(%s)", strike)

    async def _signalled(self, statement: str, strike: Strike) -> bool:
        pid = await self._backend(strike)
        return pid is not None and bool(await self._at_postgres(statement, (pid,)))

    async def _backend(self, strike: Strike) -> int | None:
        rows = await self._at_postgres(_BACKENDS)
        pid: int | None = _picked([row[0] for row in rows], strike)
        return pid

    async def _at_postgres(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        def run() -> list[tuple[Any, ...]]:
            with self._arena.postgres() as connection:
                return connection.execute(statement.encode(), parameters).fetchall()

        return await asyncio.to_thread(run)

    async def _table_lock(self, strike: Strike) -> bool:
        def run(statement: bytes, connection: psycopg.Connection[Any]) -> None:
            connection.execute(b"SET lock_timeout = '1s'")
            connection.execute(b"BEGIN")
            connection.execute(statement)

        schema = self._arena.settings.postgres_schema
        table = ("change", "state", "shard")[int(strike.pick * 3)]
        connection = await asyncio.to_thread(self._arena.postgres)
        try:
            lock = f"LOCK TABLE {schema}.{table} IN EXCLUSIVE MODE".encode()
            await asyncio.to_thread(run, lock, connection)
            await self._wait(strike.lasts_s)
        finally:
            connection.close()
        return True

    # Losing what Redis holds.

    async def _flushall(self, strike: Strike) -> bool:
        """Everything is flushed and nobody writes: whatever Redis forgets then, nothing is lost."""
        async with self._quiet() as quiet:
            return quiet and await self._at_redis(lambda raw: raw.flushall())

    @asynccontextmanager
    async def _quiet(self) -> AsyncIterator[bool]:
        """Keep writers from beginning operations; yield whether all of theirs have ended and are flushed."""
        waiting, told = [*self._arena.writers.values()], list[Process]()
        end = monotonic() + QUIET_S
        try:
            while monotonic() < end:
                ready = [one for one in waiting if self._arena.journal(one).exists()]  # else it would die of the signal
                for process in ready:
                    process.send(signal.SIGUSR1)
                    waiting.remove(process)
                told += ready
                if not waiting and not self._busy(told) and await self._flushed():
                    break
                await self._wait(_LOOK_S)
            else:
                yield False
                return
            yield True
        finally:
            for process in told:
                process.send(signal.SIGUSR2)

    def _busy(self, writers: list[Process]) -> bool:
        """Return whether a journal holds an operation whose last sending has not ended."""
        for process in writers:
            path = self._arena.journal(process)
            last = {line.tag: line for line in lines_of(path.read_bytes())}
            if any(isinstance(line, Invoke) for line in last.values()):
                return True
        return False

    async def _flushed(self) -> bool:
        with suppress(redis.RedisError, psycopg.Error):
            return not await behind(self._arena)
        return False

    async def _lost_tail(self, strike: Strike) -> bool:
        """Kill Redis and start it with what it held a moment before: what was added in between is gone.

        Every gate is open before: a data set of an earlier epoch than Postgres knows is opened on an operator's word.
        """
        arena = self._arena
        if not await self._opened():
            return False
        data = arena.own.folder / "redis" / "appendonlydir"
        older = arena.own.folder / "older"
        since = monotonic()
        shutil.copytree(data, older)
        try:
            await self._wait(strike.lasts_s)
            await asyncio.to_thread(arena.own.kill, "redis")
            shutil.rmtree(data)
            shutil.move(older, data)
        finally:
            shutil.rmtree(older, ignore_errors=True)
        await arena.restart("redis")
        await self._opened()
        self.told.losses.append(Loss(since=since, until=monotonic()))
        return True

    async def _opened(self) -> bool:
        """Wait until every shard's gate is open; return False if that takes longer than QUIET_S."""
        end = monotonic() + QUIET_S
        while monotonic() < end:
            with suppress(redis.RedisError):
                if await self._at_redis(lambda raw: self._sampler.look(raw) == self._arena.settings.shards):
                    return True
            await self._wait(_LOOK_S)
        return False


async def behind(arena: Arena) -> list[int]:
    """Return the shards where Postgres has not all that Redis has, or whose gate is closed."""

    def look() -> list[int]:
        schema = arena.settings.postgres_schema
        with arena.postgres() as connection, arena.redis() as raw:
            rows = connection.execute(f"SELECT shard, flushed, replid FROM {schema}.shard".encode()).fetchall()
            told: Any = raw.info("replication")
            late = []
            for shard, flushed, replid in rows:
                head: Any = raw.hmget(arena.keys.meta(int(str(shard))), "n", "flushed", "replid")
                values = [None if value is None else value.decode() for value in head]
                if values != [str(flushed), str(flushed), replid] or told["master_replid"] != replid:
                    late.append(int(str(shard)))
        return late

    return await asyncio.to_thread(look)


def _debug_sleep(raw: Any, seconds: float) -> Any:
    return raw.execute_command("DEBUG", "SLEEP", f"{seconds:.3f}")


def _picked(among: list[Any], strike: Strike) -> Any:
    return among[int(strike.pick * len(among))] if among else None
