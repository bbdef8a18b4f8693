"""The faults of the network: what proxies do to the lines between the processes and the servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from tests.simulation.arena import WORKER_LINE, Arena
from tests.simulation.nemesis import Strike
from tests.support.fault_proxy import FaultProxy, Kind

HELD = 6
"""How many requests one fault holds up."""
_BLIND_SET = b"$3\r\nset\r\n$1\r\n*\r\n"
"""What a commit that overwrites whatever is there has among its arguments."""


class NetworkFaults:
    """The faults that proxies carry out."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    async def _wait(self, seconds: float) -> None:
        await self._arena.while_waiting(seconds)

    def _lines(self, server: str, strike: Strike) -> list[FaultProxy]:
        """Return the proxies that are struck: one writer's, the workers', all writers' or all."""
        writers = self._arena.names
        lines = (*writers, WORKER_LINE)
        whose = [*((line,) for line in lines), lines[-1:], writers, lines][int(strike.pick * (len(lines) + 3))]
        return [self._arena.proxies[line, server] for line in whose]

    def _line_of_a_writer(self, server: str, strike: Strike) -> FaultProxy:
        writers = self._arena.names
        return self._arena.proxies[writers[int(strike.pick * len(writers))], server]

    async def _redis_refusing(self, strike: Strike) -> bool:
        for proxy in self._lines("redis", strike):
            proxy.refusing = True
            proxy.cut_all()
        await self._wait(strike.lasts_s)
        for proxy in self._lines("redis", strike):
            proxy.refusing = False
        return True

    async def _redis_freeze(self, strike: Strike) -> bool:
        return await self._frozen("redis", strike)

    async def _postgres_freeze(self, strike: Strike) -> bool:
        return await self._frozen("postgres", strike)

    async def _frozen(self, server: str, strike: Strike) -> bool:
        for proxy in self._lines(server, strike):
            proxy.freeze()
        await self._wait(strike.lasts_s)
        for proxy in self._lines(server, strike):
            proxy.thaw()
            if strike.pick * 100 % 1 < 0.5:  # half of the time what was half-open never comes back
                proxy.cut_all()
        return True

    async def _redis_delay(self, strike: Strike) -> bool:
        return await self._delayed("redis", strike)

    async def _postgres_delay(self, strike: Strike) -> bool:
        return await self._delayed("postgres", strike)

    async def _delayed(self, server: str, strike: Strike) -> bool:
        for proxy in self._lines(server, strike):
            proxy.delay_s = 0.02 + strike.pick * 10 % 1 / 10
        await self._wait(strike.lasts_s)
        for proxy in self._lines(server, strike):
            proxy.delay_s = 0.0
        return True

    async def _redis_trickle(self, strike: Strike) -> bool:
        for proxy in self._lines("redis", strike):
            proxy.trickle = True
        await self._wait(strike.lasts_s)
        for proxy in self._lines("redis", strike):
            proxy.trickle = False
        return True

    async def _redis_reset(self, strike: Strike) -> bool:
        for proxy in self._lines("redis", strike):
            proxy.cut_all()
        return True

    async def _postgres_reset(self, strike: Strike) -> bool:
        for proxy in self._lines("postgres", strike):
            proxy.cut_all()
        return True

    async def _redis_drop_request(self, strike: Strike) -> bool:
        return await self._armed("redis", "drop_request", b"EVALSHA", strike)

    async def _redis_drop_reply(self, strike: Strike) -> bool:
        return await self._armed("redis", "drop_reply", b"EVALSHA", strike)

    async def _redis_cut(self, strike: Strike) -> bool:
        return await self._armed_at(self._line_of_a_writer("redis", strike), "cut", b"json", strike)

    async def _redis_hold(self, strike: Strike) -> bool:
        """Some commits of one writer are held up on their way, long past the time that their sender waits."""
        kind: Kind = "hold_request" if strike.pick * 10 % 1 < 0.7 else "hold_reply"
        at = _BLIND_SET if strike.pick * 100 % 1 < 0.7 else b"EVALSHA"
        return await self._held(self._line_of_a_writer("redis", strike), kind, at, self._wait(strike.lasts_s))

    async def _held(self, proxy: FaultProxy, kind: Kind, at: bytes, meanwhile: Awaitable[object]) -> bool:
        faults = [proxy.arm(kind, at=at) for _ in range(HELD)]
        try:
            await meanwhile
        finally:
            for fault in faults:
                proxy.disarm(fault)
        return any(fault.struck for fault in faults)

    async def _exec_drop_reply(self, strike: Strike) -> bool:
        kind: Kind = "drop_reply" if strike.pick < 0.7 else "cut"
        return await self._armed_at(self._line_of_a_writer("redis", strike), kind, b"EXEC\r\n", strike)

    async def _commit_drop_request(self, strike: Strike) -> bool:
        return await self._armed_at(self._arena.proxies["worker", "postgres"], "drop_request", b"COMMIT", strike)

    async def _commit_drop_reply(self, strike: Strike) -> bool:
        return await self._armed_at(self._arena.proxies["worker", "postgres"], "drop_reply", b"COMMIT", strike)

    async def _armed(self, server: str, kind: Kind, at: bytes, strike: Strike) -> bool:
        return await self._armed_at(self._lines(server, strike)[0], kind, at, strike)

    async def _armed_at(self, proxy: FaultProxy, kind: Kind, at: bytes, strike: Strike) -> bool:
        fault = proxy.arm(kind, at=at)
        with suppress(TimeoutError):
            async with asyncio.timeout(strike.lasts_s):
                await fault.wait()
        proxy.disarm(fault)
        return fault.struck
