"""What parts readers from the server whose pushes keep them coherent: drawn from a seed, carried out on the arena.

    line_cut      the tracked connection of one process ends, or all its connections, which are then refused for a while
    half_open     one of them, or all, stay open and nothing gets through either way, for longer than the trust window;
                  then all that has piled up arrives; half of the time the network is slow before
    pause         a process is stopped for longer than the trust window, and woken
    delay         whatever goes over the tracked connection of a process, or over all of them, takes longer
    client_kill   the server ends tracked connections
    evict         the server forgets clean states, as fast as they come back
    redis_kill    the server is killed and started again: another epoch

A fault at a process that has no tracked connection proves nothing, so it has not struck.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import urlsplit

import redis

from statecache.clock import monotonic
from tests.simulation.arena import Arena
from tests.simulation.nemesis import Strike
from tests.simulation.reader import KEYS
from tests.support.dirtiness import evict
from tests.support.fault_proxy import FaultProxy

PER_20_S = {
    "line_cut": 6, "half_open": 6, "pause": 5, "delay": 4, "client_kill": 4, "evict": 3, "redis_kill": 1,
}  # fmt: skip
"""How often each kind strikes in 20 seconds; once at least."""
LASTS = {
    "line_cut": (0.0, 0.6), "half_open": (1.2, 2.2), "pause": (1.2, 2.2), "delay": (0.5, 1.5), "client_kill": (0, 0),
    "evict": (0.3, 1.0), "redis_kill": (0.05, 0.5),
}  # fmt: skip
"""How long they last, in trust windows."""
FIRST_S, LAST_S = 0.7, 1.0
"""When the first one begins, and how long before the end the last one does."""
PATIENCE = 3.0
"""How many trust windows a fault waits for a tracked connection that it can strike."""


def wanted(kind: str, seconds: float) -> int:
    """Return how often a kind is to strike in that many seconds."""
    return max(1, round(PER_20_S[kind] * seconds / 20))


def enough(kind: str, seconds: float) -> int:
    """Return how often a kind must have struck at least for the run to prove something."""
    return (wanted(kind, seconds) + 1) // 2


def plan(seed: int, seconds: float, window_s: float) -> list[Strike]:
    """Return all faults in their order: as many of each kind as are wanted, spread over the time. Pure."""
    rng = Random(seed)
    kinds = [kind for kind in PER_20_S for _ in range(wanted(kind, seconds))]
    rng.shuffle(kinds)
    gap = (seconds - FIRST_S - LAST_S) / len(kinds)
    return [
        Strike(
            kind=kind, at_s=FIRST_S + gap * (number + rng.random()), lasts_s=rng.uniform(*LASTS[kind]) * window_s,
            pick=rng.random(),
        )
        for number, kind in enumerate(kinds)
    ]  # fmt: skip


class Severing:
    """The faults, each carried out from its beginning to its end."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._turns = {name: asyncio.Lock() for name in arena.names}

    async def strike(self, strike: Strike) -> bool:
        """Carry one fault out and return whether it struck."""
        try:
            return bool(await getattr(self, f"_{strike.kind}")(strike))
        except (redis.RedisError, OSError):
            return False

    def _named(self, strike: Strike) -> str:
        return self._arena.names[int(strike.pick * len(self._arena.names))]

    async def _tracked(self, name: str) -> tuple[FaultProxy, set[int]]:
        """Wait for tracked connections of a process; return its proxy and their ports there, none after a while."""
        proxy, ports = self._arena.proxies[name, "redis"], set[int]()
        end = monotonic() + PATIENCE * self._arena.settings.near_window_s
        while not ports and monotonic() < end:
            with suppress(redis.RedisError):
                clients = await self._at_redis(_tracked_clients)
                ports = proxy.ports & {urlsplit(f"//{client['addr']}").port for client in clients}
            await self._arena.while_waiting(0.0 if ports else 0.05)
        return proxy, ports

    async def _at_redis(self, function: Any) -> Any:
        def run() -> Any:
            with self._arena.redis() as raw:
                return function(raw)

        return await asyncio.to_thread(run)

    async def _line_cut(self, strike: Strike) -> bool:
        name = self._named(strike)
        async with self._turns[name]:
            proxy, ports = await self._tracked(name)
            if _half(strike):
                proxy.cut(ports)
                return bool(ports)
            proxy.refusing = True
            proxy.cut_all()
            await self._arena.while_waiting(strike.lasts_s)
            proxy.refusing = False
            return bool(ports)

    async def _half_open(self, strike: Strike) -> bool:
        name = self._named(strike)
        async with self._turns[name]:
            proxy, ports = await self._tracked(name)
            if strike.pick * 10_000 % 1 < 0.5:
                proxy.slow(0.35 * self._arena.settings.near_window_s)
                await self._arena.while_waiting(self._arena.settings.near_window_s)
            proxy.freeze(ports if _half(strike) else None)
            proxy.slow(0.0)
            await self._arena.while_waiting(strike.lasts_s)
            proxy.thaw()
            return bool(ports)

    async def _delay(self, strike: Strike) -> bool:
        name = self._named(strike)
        async with self._turns[name]:
            proxy, ports = await self._tracked(name)
            proxy.slow(0.01 + strike.lasts_s * (strike.pick * 100 % 1) / 3, ports if _half(strike) else None)
            await self._arena.while_waiting(strike.lasts_s)
            proxy.slow(0.0)
            return bool(ports)

    async def _pause(self, strike: Strike) -> bool:
        name = self._named(strike)
        process = self._arena.writers[name]
        _, ports = await self._tracked(name)
        await asyncio.to_thread(process.pause)
        await self._arena.while_waiting(strike.lasts_s)
        process.resume()
        return bool(ports)

    async def _client_kill(self, strike: Strike) -> bool:
        def kill(raw: redis.Redis) -> bool:
            ids = [client["id"] for client in _tracked_clients(raw)]
            return bool([raw.client_kill_filter(_id=one) for one in ids[:: 1 + _half(strike)]])

        return bool(await self._at_redis(kill))

    async def _evict(self, strike: Strike) -> bool:
        struck, end, keys = False, monotonic() + strike.lasts_s, self._arena.keys

        def evict_all(raw: redis.Redis) -> bool:
            gone = [evict(raw, keys, key) for key in KEYS]
            return any(gone)

        while monotonic() < end:
            with suppress(redis.RedisError):
                struck = await self._at_redis(evict_all) or struck
            await self._arena.while_waiting(0.05)
        return struck

    async def _redis_kill(self, strike: Strike) -> bool:
        async with self._arena.redis_turn:
            await asyncio.to_thread(self._arena.own.kill, "redis")
            await self._arena.while_waiting(strike.lasts_s)
            await self._arena.restart("redis")
        return True


def _tracked_clients(raw: Any) -> list[dict[str, str]]:
    return [client for client in raw.client_list() if "t" in client["flags"]]


def _half(strike: Strike) -> bool:
    return strike.pick * 1000 % 1 < 0.5
