"""The chaos of locks and steps: who holds a lock, and who runs a step, is stopped, killed, cut off and told late.

    outage_long     nobody reaches Redis for longer than an agent's claim on its step stands
    step_blocked    some steps' functions block the loop that they run in
    step_leased     some steps are run by a lease, which may be lost while their function runs
    left_clean      at the end: what is clean, under locks too, becomes evictable
    tracked_late    what the server pushes to one writer, or to all, reaches them a third of a second late

Everything else is what strikes in every chaos. What each fault disturbs, and when, is noted: of an agent whose process
was killed or stopped, and of everybody while a server is away, less is expected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import redis

from statecache import AsyncStateCache
from statecache.clock import monotonic
from statecache.errors import StateCacheError
from statecache.history import Stored, values_of
from tests.simulation.arena import EXPECTED_ERRORS, SETTINGS, WRITERS, Arena
from tests.simulation.evictable import never_evictable
from tests.simulation.evidence import Verdict, Violation
from tests.simulation.exclusion import Did, Steps, Token, judge_locks, judge_steps
from tests.simulation.faults import Faults
from tests.simulation.freshness import Window
from tests.simulation.history import Operation
from tests.simulation.locks_writer import COUNTERS, JOBS, TTL_S, Effect
from tests.simulation.nemesis import Strike
from tests.simulation.sampler import Sampler
from tests.simulation.writer import KEYS

CLAIM_S = 1.0
GRACE_S = 2.0
"""So long after a trouble an agent may need to have its claim again, and to keep a result."""
LOCKED_S = 15.0
LATE_S = 0.3
CALM_S = 4.0
MILD = frozenset({"tracked_late", "evict", "script_flush", "worker_kill", "worker_pause"})
"""Faults that keep no agent from its work."""


class LocksArena(Arena):
    """Writers that lock and run steps."""

    given = SETTINGS | {"step_claim_s": str(CLAIM_S)}
    writer = "tests.simulation.locks_writer"
    watched = (*KEYS, *COUNTERS)
    expected_errors = (*EXPECTED_ERRORS, "LeaseLost", "StaleToken", "LockTimeout", "LockHeld", "StepUnknown")
    aside = ("jobs/",)


class LocksFaults(Faults):
    """The faults, and the windows of time in which they disturb somebody."""

    _ended_at = 0.0
    _healed_at = 0.0
    _evictable = False

    def __init__(self, arena: Arena, sampler: Sampler) -> None:
        super().__init__(arena, sampler)
        self.troubles: list[Window] = []

    async def strike(self, strike: Strike) -> bool:
        """Carry one fault out, say whether it struck, and note whom it disturbed."""
        since = monotonic()
        whom = sorted(self._arena.writers)
        self._healed_at = 0.0
        struck = await super().strike(strike)
        if strike.kind not in MILD:
            alone = strike.kind in ("writer_kill", "writer_pause") and whom
            names = frozenset({whom[int(strike.pick * len(whom))]}) if alone else frozenset[str]()
            self.troubles.append(Window(since=since, until=self._healed_at or monotonic(), processes=names))
        return struck

    async def _outage_long(self, strike: Strike) -> bool:
        proxies = [self._arena.proxies[name, "redis"] for name in WRITERS]
        for proxy in proxies:
            proxy.refusing = True
            proxy.cut_all()
        await self._wait(strike.lasts_s)
        for proxy in proxies:
            proxy.refusing = False
        self._healed_at = monotonic()
        await self._wait(CALM_S)  # in which agents that lived through it go on
        return True

    async def _tracked_late(self, strike: Strike) -> bool:
        names = WRITERS if strike.pick < 0.5 else [WRITERS[int(strike.pick * 1000) % len(WRITERS)]]
        proxies = [self._arena.proxies[name, "redis"] for name in names]
        end, struck = monotonic() + strike.lasts_s, False
        while monotonic() < end:
            with suppress(redis.RedisError):
                ports = await self._tracked()
                for proxy in proxies:
                    proxy.slow(LATE_S, ports & proxy.ports)
                    struck = struck or bool(ports & proxy.ports)
            await self._wait(0.2)
        for proxy in proxies:
            proxy.slow(0.0)
        return struck

    async def _tracked(self) -> set[int]:
        """Return the ports of the connections that the server tracks."""

        def look() -> set[int]:
            with self._arena.redis() as raw:
                listed: Any = raw.client_list()
                return {urlsplit(f"//{one['addr']}").port or 0 for one in listed if "t" in one["flags"]}

        return await asyncio.to_thread(look)

    async def leave(self, kinds: Collection[str]) -> None:
        """Remember whether it is to be seen that what is clean becomes evictable."""
        self._evictable = "left_clean" in kinds

    async def over(self) -> None:
        """Look that every lock can be had: of those who died their ttl has passed; and what is clean."""
        self._ended_at = monotonic()
        if self._evictable:
            self.findings += await never_evictable(self._arena)
        async with AsyncStateCache(settings=self._arena.direct) as cache:
            for lock in (*(counter.rpartition("/")[0] for counter in COUNTERS), *JOBS):
                try:
                    async with cache.lock(lock, ttl=TTL_S, timeout=LOCKED_S):
                        pass
                except StateCacheError as error:
                    self.findings.append(f"liveness: {LOCKED_S:g} s after the heal {lock} cannot be locked: {error}")

    def judged(self, operations: Sequence[Operation], verdict: Verdict) -> list[Violation]:
        """Judge locks and steps."""
        with self._arena.postgres() as connection:
            rows = cast("Any", connection).execute(
                b"SELECT key, version, value, packed, keyframe, digest FROM statecache.change"
                b" WHERE key LIKE 'locked/%' ORDER BY key, version"
            )
            tokens: dict[str, list[Token]] = {}
            for key, chain in groupby(rows, itemgetter(0)):
                values = values_of(Stored(*row[1:]) for row in chain)
                tokens[key] = [msgspec.json.decode(value or b"", type=_Counted).token for value in values]
            records = cast("Any", connection).execute(
                b"SELECT key, value FROM statecache.state WHERE key LIKE 'jobs/%'"
            )
            statuses = {key: msgspec.json.decode(value, type=_Record).status for key, value in records if value}
        known = Steps(
            calls=self._calls(), statuses=statuses, troubles=self.troubles, grace_s=GRACE_S, ended_at=self._ended_at
        )
        return [*judge_locks(operations, tokens), *judge_steps(operations, known)]

    def _calls(self) -> list[Did]:
        """Return what the steps' functions have done."""
        began: dict[tuple[str, str, int], Did] = {}
        for path in sorted(self._arena.folder.glob("*.effects")):
            *lines, _torn = path.read_bytes().split(b"\n")
            for one in (msgspec.json.decode(line, type=Effect) for line in lines):
                call = (one.step, one.by, one.attempt)
                if one.ends:
                    began[call] = msgspec.structs.replace(began[call], ended=one.at)
                else:
                    began[call] = Did(step=one.step, by=one.by, began=one.at)
        return [*began.values()]


class _Counted(msgspec.Struct):
    """What a lock's holder wrote."""

    token: tuple[int, int]


class _Record(msgspec.Struct):
    """What a step's record says first."""

    status: str
