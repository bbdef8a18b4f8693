"""The faults of roles: who is the primary changes, the address moves with it, late, or not for everybody.

    failover_kept      FAILOVER to a replica; new connections are led to it, those that stand stay with the old one
    failover_back      the same there and back
    failover_stale     the same, and the old primary's replication is cut off: what it answers is old
    failover_late      the same, and the address moves late
    replica_freeze     one replica, or all, stand still: WAIT is not answered
    replica_freeze_reset   all stand still, and the connections on which somebody waits for them break
    replica_slow       what the replicas get, and what they answer, comes late
    replica_cut        a replica's replication is cut off
    primary_restart    the primary is killed and comes back
    primary_killed     … and does not: the replica that has got furthest is promoted
    promoted_behind    a replica is cut off, the primary is killed, and the replica is promoted: the tail is lost
    promoted_beside    a replica is promoted while the old primary goes on, and some clients stay with that
    promoted_unseen    a replica with a lost tail is promoted while Postgres is down, so nobody can open its shards
    old_primary_returns    a replica is promoted, goes on, dies; the old primary comes back, on an operator's word
    fork_restarted     Redis dies before it is told to remove a fork that was set aside
    left_kept          at the end: as failover_kept, and nothing is cut by the heal
    left_forgotten     at the end: a worker stays with an old primary, while the other follows the address

What each of them may lose is told: FAILOVER nothing at any level; a replica that got furthest nothing that was
acknowledged at `replica`; the others all but what was acknowledged at `postgres`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import redis

from statecache.clock import monotonic
from tests.simulation.ages import Bounds
from tests.simulation.arena import WORKER_LINE, WRITERS
from tests.simulation.evidence import Evidence, Loss, Verdict, Violation
from tests.simulation.fork_faults import ForkFaults
from tests.simulation.freshness import Window, judge_freshness
from tests.simulation.history import Operation
from tests.simulation.judge import evidence
from tests.simulation.nemesis import KINDS, ROLES, Strike
from tests.simulation.roles_arena import LOOK_S, SECOND_WORKER, WINDOW_S, RolesArena

FAILOVER_S = 5.0
TAIL_S = 0.8
SLOW_S = 0.3
IN_PLACE = frozenset({"replica_freeze", "replica_freeze_reset", "replica_slow", "replica_cut"})
"""By these no server loses what it holds, not for a moment."""
STALLED_S = 12.0
"""Within this time of a change of roles, when nothing else is wrong, everything has to be flushed up to that moment."""
BELOW_POSTGRES = frozenset({"memory", "replica", "disk"})
ONE_SERVER = frozenset({"memory", "disk"})
"""The levels that the loss of one server may take, where a replica with all that was acknowledged is promoted."""


class RolesFaults(ForkFaults):
    """The faults of roles and addresses, one after the other."""

    async def strike(self, strike: Strike) -> bool:
        """Carry one fault out, those of roles one after the other, and say whether it struck."""
        if strike.kind not in ROLES or strike.kind in KINDS:
            return await super().strike(strike)
        async with self._arena.redis_turn:
            since = monotonic()
            struck = since < self.ends_at and await super().strike(strike)
            if strike.kind not in IN_PLACE:
                self.told.restoring.append(Window(since=since, until=monotonic() + WINDOW_S))
            return struck

    @property
    def _roles(self) -> RolesArena:
        return cast("RolesArena", self._arena)

    def _other(self, strike: Strike) -> str:
        return self._roles.others[int(strike.pick * 1000) % 2]

    # FAILOVER, by which nothing is lost at any level.

    async def _failover_kept(self, strike: Strike) -> bool:
        before = self._roles.primary
        if not await self._failed_over(self._other(strike)):
            return False
        if late := await self._stalled(STALLED_S):
            told = f"{STALLED_S:g} s after FAILOVER of {before} to {self._roles.primary}"
            self.findings.append(f"stalled: {told} shards were flushed up to {late}")
        return True

    async def _failover_back(self, strike: Strike) -> bool:
        before = self._roles.primary
        struck = await self._failed_over(self._other(strike))
        await self._wait(strike.lasts_s)
        return await self._failed_over(before) and struck

    async def _failover_stale(self, strike: Strike) -> bool:
        here = self._roles
        before = here.primary
        if not await self._failed_over(self._other(strike)):
            return False
        if strike.pick < 0.7:  # else before it has heard of the new epoch
            await self._whole()
        here.feeds[before].freeze()
        await self._wait(strike.lasts_s)
        await here.follow(before)
        return True

    async def _failover_late(self, strike: Strike) -> bool:
        return await self._failed_over(self._other(strike), late_s=strike.lasts_s)

    async def _failed_over(self, to: str, *, late_s: float = 0.0) -> bool:
        here, before = self._roles, self._roles.primary
        if not await here.in_step(here.others):
            return False
        await here.ask(before, "FAILOVER", "TO", "127.0.0.1", here.port(to), "TIMEOUT", int(FAILOVER_S * 1000))
        if not await self._has_role(to, "master", FAILOVER_S + 1):
            return False
        here.primary = to
        await self._wait(late_s)
        here.move()
        for name in here.others:
            await here.follow(name)
        return True

    async def _has_role(self, name: str, role: str, seconds: float) -> bool:
        end = monotonic() + seconds
        while monotonic() < end:
            with suppress(redis.RedisError):
                if (await self._roles.ask(name, "INFO", "replication"))["role"] == role:
                    return True
            await self._wait(LOOK_S)
        return False

    # Replicas that do not answer.

    async def _replica_freeze(self, strike: Strike) -> bool:
        others = self._roles.others
        async with self._frozen_replicas(others if strike.pick < 0.7 else others[:1]):
            await self._wait(strike.lasts_s)
        return True

    async def _replica_freeze_reset(self, strike: Strike) -> bool:
        here = self._roles
        async with self._frozen_replicas(here.others):
            await self._wait(strike.lasts_s)
            for name in WRITERS:
                here.proxies[name, "redis"].cut_all()
            await self._wait(strike.lasts_s / 2)
        return True

    @asynccontextmanager
    async def _frozen_replicas(self, names: Sequence[str]) -> AsyncIterator[None]:
        own = self._arena.own
        for name in names:
            await asyncio.to_thread(own.pause, name)
        since = monotonic()
        try:
            yield
        finally:
            if len(names) == len(self._roles.others):
                self.told.uncopied.append(Window(since=since, until=monotonic()))
            for name in names:
                own.resume(name)

    async def _replica_slow(self, strike: Strike) -> bool:
        feeds = [self._roles.feeds[name] for name in self._roles.others]
        for feed in feeds:
            feed.delay_s = SLOW_S
        await self._wait(strike.lasts_s)
        for feed in feeds:
            feed.delay_s = 0.0
        return True

    async def _replica_cut(self, strike: Strike) -> bool:
        here = self._roles
        name = self._other(strike)
        here.feeds[name].freeze()
        await self._wait(strike.lasts_s)
        await here.follow(name)
        return True

    # Primaries that die, and replicas that are promoted.

    async def _primary_restart(self, strike: Strike) -> bool:
        here = self._roles
        await asyncio.to_thread(here.own.kill, here.primary)
        await self._wait(strike.lasts_s)
        await here.restart(here.primary)
        return True

    async def _primary_killed(self, strike: Strike) -> bool:
        here = self._roles
        if not await self._whole():
            return False
        since, before = monotonic(), here.primary
        await asyncio.to_thread(here.own.kill, before)
        await self._wait(strike.lasts_s)
        reached = {name: await self._log_end(name) for name in here.others}
        await self._succeeded(before, max(reached, key=lambda name: reached[name]), since, ONE_SERVER)
        return True

    async def _whole(self) -> bool:
        """Wait until every gate is open and the replicas know that too: a copy of before is not opened by itself."""
        return await self._opened() and await self._roles.in_step(self._roles.others)

    async def _log_end(self, name: str) -> int:
        told = await self._roles.ask(name, "INFO", "replication")
        return int(told["slave_repl_offset"])

    async def _promoted_behind(self, strike: Strike) -> bool:
        here = self._roles
        if not await self._whole():
            return False
        before, name = here.primary, self._other(strike)
        since = monotonic()
        here.feeds[name].freeze()
        await self._wait(strike.lasts_s)
        await asyncio.to_thread(here.own.kill, before)
        await self._succeeded(before, name, since, BELOW_POSTGRES)
        return True

    async def _promoted_unseen(self, strike: Strike) -> bool:
        """Promote a replica while Postgres is down, so that nobody can open it; reads go on, and must not go back."""
        here = self._roles
        async with here.postgres_turn:
            if not await self._whole():
                return False
            before, name = here.primary, self._other(strike)
            since = monotonic()
            here.feeds[name].freeze()
            await self._wait(TAIL_S)
            await asyncio.to_thread(here.own.kill, "postgres")
            await asyncio.to_thread(here.own.kill, before)
            await here.promoted(name)
            here.move(cut=True)
            await self._wait(strike.lasts_s)
            await here.restart("postgres")
            await self._succeeded(before, name, since, BELOW_POSTGRES)
        return True

    async def _succeeded(self, before: str, name: str, since: float, levels: frozenset[str]) -> None:
        """Let a replica succeed a primary that is dead, and that one follow it."""
        here = self._roles
        await here.promoted(name)
        here.move(cut=True)
        await here.restart(before)
        for other in here.others:
            await here.follow(other)
        await self._lost(since, levels)

    async def _lost(self, since: float, levels: frozenset[str]) -> None:
        """Note what may be gone; what is near in some process is believed for its trust window yet."""
        await self._opened()
        self.told.losses.append(Loss(since=since, until=monotonic() + WINDOW_S, levels=levels))

    async def _promoted_beside(self, strike: Strike) -> bool:
        """Promote a replica; some clients, and perhaps a worker, stay with the old primary for a while."""
        here = self._roles
        stay = frozenset(line for at, line in enumerate(here.lines) if int(strike.pick * 64) >> at & 1)
        if not await self._whole():
            return False
        before, name, since = here.primary, self._other(strike), monotonic()
        await here.promoted(name)
        here.move({*here.lines} - stay, cut=True)
        await here.follow(next(other for other in here.others if other != before))
        await self._wait(strike.lasts_s)
        here.move(cut=True)
        await here.follow(before)
        self.told.alone.append(Window(since=since, until=monotonic() + WINDOW_S))
        await self._lost(since, BELOW_POSTGRES)
        return True

    async def _old_primary_returns(self, strike: Strike) -> bool:
        here = self._roles
        if not await self._whole():
            return False
        old, new, since = here.primary, self._other(strike), monotonic()
        await asyncio.to_thread(here.own.kill, old)
        await here.promoted(new)
        here.move(cut=True)
        await self._opened()
        await self._wait(strike.lasts_s)
        await asyncio.to_thread(here.own.kill, new)
        await here.restart(old)
        here.primary = old
        here.move(cut=True)
        await self._claimed()
        await here.restart(new)
        for other in here.others:
            await here.follow(other)
        await self._lost(since, BELOW_POSTGRES)
        return True

    async def _claimed(self) -> None:
        """Give an operator's word that this is the primary."""
        status, said = await self._roles.adopt()
        if status:
            self.findings.append(f"adopt: `statecache epoch adopt` ended with {status}: {said}")

    # What the product has to live with.

    async def leave(self, kinds: Collection[str]) -> None:
        """Leave standing connections with a server that is no primary any more, or a worker with an old primary."""
        left = sorted({"left_kept", "left_forgotten"} & {*kinds})
        if not left:
            return
        here = self._roles
        await here.heal()
        if left[here.seed % len(left)] == "left_kept":
            await self._failed_over(here.others[0])
            return
        await here.in_step(here.others)
        before, since = here.primary, monotonic()
        await here.promoted(here.others[0])
        here.left_alone, here.forgotten = before, frozenset({SECOND_WORKER})
        here.move(cut=True)
        await self._lost(since, BELOW_POSTGRES)

    async def over(self) -> None:
        """Remember the worker that was forgotten."""
        here = self._roles
        if here.forgotten:
            here.forgotten = frozenset()
            here.move([SECOND_WORKER, WORKER_LINE], cut=True)
            await here.follow(here.left_alone)

    def judged(self, operations: Sequence[Operation], verdict: Verdict) -> list[Violation]:
        """Judge what was said of durability, copies and outcomes."""
        with self._arena.postgres() as connection:
            found: Evidence = evidence(cast("Any", connection), self._arena.settings.postgres_schema)
        bounds = Bounds(window_s=WINDOW_S, command_s=self._arena.settings.timeout_s)
        return judge_freshness(operations, found, self.told, bounds=bounds)
