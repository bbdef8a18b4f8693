"""A fork whose removal was still to come when Redis restarted: it must not be read, nor continued, afterwards.

    fork_restarted    somebody vouches that a key is new which is not; the flusher sets the change aside, and Redis is
                      killed before it is told to remove it

Nothing of it is in a journal but the write that came first: what is current at the end must be that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from statecache import AsyncStateCache
from statecache.clock import monotonic
from statecache.errors import StateCacheError
from statecache.lua import script
from tests.simulation.faults import Faults
from tests.simulation.history import Recorder, seen_of
from tests.simulation.nemesis import Strike
from tests.support.dirtiness import evict

ACKS = 20
"""How many acknowledgements are lost, at most, until Redis is dead."""
ASIDE_S = 5.0
CLEAN_S = 5.0
LOOK_S = 0.01


class ForkFaults(Faults):
    """The faults of forks: a create with a wrong `assume_new`, and a kill of Redis before the fork is removed."""

    _forks = 0

    async def _fork_restarted(self, strike: Strike) -> bool:
        here = self._arena
        self._forks += 1
        key, name = f"fork/{self._forks}", f"fork{self._forks}"
        async with self._quiet() as quiet:
            if not quiet:
                return False
            with Recorder(here.folder / f"{name}.jsonl", name) as recorder:
                async with AsyncStateCache(settings=here.direct) as cache:
                    sent = recorder.invoke("s", "set", [key], kind="write", level="postgres")
                    state = await cache.set(key, {"by": sent.tag}, durability="postgres")
                    recorder.ok(sent, written=[seen_of(state)])
                    if not await self._left_redis(key):
                        return False
                    with self._no_acknowledgements():
                        return await self._forked(cache, key, strike.lasts_s)

    async def _left_redis(self, key: str) -> bool:
        """Take a state away as soon as it is clean."""
        keys, end = self._arena.keys, monotonic() + CLEAN_S
        while monotonic() < end:
            if await self._at_redis(lambda raw: evict(raw, keys, key)):
                return True
            await self._wait(LOOK_S)
        return False

    @contextmanager
    def _no_acknowledgements(self) -> Iterator[None]:
        """Lose what workers tell Redis of what is flushed."""
        ack = script("ack").sha.encode()
        lines = [line for line in self._arena.lines if line not in self._arena.names]
        proxies = [self._arena.proxies[line, "redis"] for line in lines]
        faults = [(proxy, proxy.arm("drop_request", at=ack)) for proxy in proxies for _ in range(ACKS)]
        try:
            yield
        finally:
            for proxy, fault in faults:
                proxy.disarm(fault)

    async def _forked(self, cache: AsyncStateCache, key: str, seconds: float) -> bool:
        """Commit a fork, let the flusher set it aside, and let Redis die before it knows."""
        with suppress(StateCacheError):
            await cache.create(key, {"by": "nobody"}, assume_new=True)
        end, aside = monotonic() + ASIDE_S, False
        while not aside and monotonic() < end:
            await self._wait(LOOK_S)
            aside = bool(await self._at_postgres("SELECT 1 FROM statecache.conflict WHERE key = %s", (key,)))
        primary = self._arena.primary_server
        await asyncio.to_thread(primary.kill)
        await self._wait(seconds)
        await asyncio.to_thread(primary.restart)
        return aside
