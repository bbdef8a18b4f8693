"""One worker: its connections, its shards, and one turn of its work after the other.

    turn    connect · tend the shards · heads · resync new shards · flush one batch · tidy a little
    rest    wait on the streams until one has an entry, until another worker rings, or something falls due

The turn behind a rest that a few shards ended looks at those alone, for somebody waits for them; the next looks at all.

Everything happens in one task on one connection to each server, in this order, so a turn never meets itself. Beside it
run gatekeeper and expiry, on connections of their own. What goes wrong with a server ends the turn with Unavailable;
nothing was acknowledged then, what was believed is forgotten, and the next turn begins from what the servers say.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from statecache.clock import monotonic as real_monotonic
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.errors import ConfigurationError, PostgresUnavailable, RedisUnavailable, Unavailable
from statecache.keys import KeySpace
from statecache.settings import Settings, writer_of
from statecache_workers.avoided_shards import Avoidance
from statecache_workers.counters import SECONDS, Buckets
from statecache_workers.database import Database
from statecache_workers.expiry import Expiry
from statecache_workers.flusher import Flusher, Progress
from statecache_workers.foreign_entries import expel
from statecache_workers.gatekeeper import Gatekeeper
from statecache_workers.janitor import Janitor
from statecache_workers.logs import alarm, say, warn
from statecache_workers.lost_tails import tell_of_tails
from statecache_workers.owned_shards import Head, Heads, Holding
from statecache_workers.ownership import Ownership, Share, leave_held, look_again
from statecache_workers.policies import Policies
from statecache_workers.primary import Primary
from statecache_workers.redis_memory import Room
from statecache_workers.resync import resync
from statecache_workers.streams import Stock

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link

REST_MIN_S = 0.002
UNEVEN_S = 0.075
"""How soon a worker looks again that has fewer shards than its part, while the others may be about to give some."""
REPORT_S = 10.0
MEASURE_S = 2.0


class Worker:
    """A worker, which flushes a fair part of the shards."""

    def __init__(self, settings: Settings, *, monotonic: Callable[[], float] = real_monotonic) -> None:
        self.settings = settings
        self.id = f"{writer_of(settings)}:{secrets.token_hex(4)}"
        self.keys = KeySpace(settings.prefix, settings.shards)
        self.redis = RedisTier(settings, self.keys)
        self.postgres = PostgresTier(
            settings, self.keys, name=f"statecache worker {self.id[-8:]}", cluster=lambda: self.redis.cluster,
            ask_redis=self.redis.look_again)  # fmt: skip
        self.ownership, self.expiry = Ownership(settings, owner=self.id), Expiry(settings, monotonic=monotonic)
        self.flusher = Flusher(settings, self.keys, owner=self.id, monotonic=monotonic)
        self.janitor = Janitor(settings, self.keys, self.flusher, owner=self.id, monotonic=monotonic)
        self.gatekeeper = Gatekeeper(
            settings, self.keys, self.redis, self.postgres, by=self.id, done=self.refresh, monotonic=monotonic
        )
        self.policies = Policies(settings, self.keys, self.flusher.histories, by=self.id, monotonic=monotonic)
        self.primary = Primary(
            settings, self.keys, self.redis, self.postgres, streams=self.flusher.streams, ownership=self.ownership,
            by=self.id, vouched=self.gatekeeper.vouched, soon=self.refresh, changed=self._changed, monotonic=monotonic,
        )  # fmt: skip
        self.holdings: dict[int, Holding] = {}
        self.heads: Heads | None = None
        self.stocks, self._measured, self.share = dict[int, Stock](), set[int](), Share()
        self.turn_s = Buckets(SECONDS)
        self.room = Room(settings, monotonic=monotonic)
        self.ready = self._joined = False
        self.taking = True
        self._monotonic = monotonic
        self._nudge = asyncio.Event()
        self._next_tend = self._leased_until = self._next_measure = self._uneven_until = monotonic()
        self.avoidance = Avoidance(settings.lease_s)
        self._trouble = self._given_up_for = ""
        self._woken: list[int] = []
        self._flushed, self._next_report = (0, 0), monotonic() + REPORT_S
        self._database: Database | None = None

    @property
    def is_spare(self) -> bool:
        """Whether it has no shards because others have all of them, as far as it knows."""
        return self._joined and not self.holdings and self.share.unowned == 0

    def refresh(self) -> None:
        """Make the next turn read the shards' rows again, and come soon."""
        self._next_tend = self._monotonic()
        self._nudge.set()

    def nudge(self) -> None:
        """End a rest."""
        self._nudge.set()

    async def connect(self) -> tuple[Link, Database]:
        """Return the connections, new ones where the old ones broke."""
        if self._database is None or not self._database.alive:
            self.forget()
            self._database = Database(await self.postgres.session(), self.settings)
        link = await self.primary.connect()
        self.postgres.check_pair()
        return link, self._database

    def _changed(self) -> None:
        """Believe nothing of what another connection told: that may have led to another server."""
        self.forget()
        self.expiry.leave_server()

    def forget(self) -> None:
        """Forget what is believed of the shards."""
        self.flusher.forget(self.holdings)
        self.refresh()

    async def turn(self) -> bool:
        """Do one turn of work and return whether there is more to do at once."""
        begun = self._monotonic()
        try:
            return await self._turn()
        except (Unavailable, ConfigurationError) as error:
            self._trouble = str(error)
            if isinstance(error, RedisUnavailable) and error.reason == "refused" and self.primary.link is not None:
                await self.primary.link.close()  # the next one is asked which right is gone
            self.forget()
            raise
        except BaseException:  # whatever it was, what is believed may no longer be so
            self.forget()
            raise
        finally:
            self.turn_s.note(self._monotonic() - begun)

    async def _turn(self) -> bool:
        link, database = await self.connect()
        if self._monotonic() >= self._next_tend:
            await self._tend(link, database)
        rescuing = await self.primary.look_beside(database, hindered=self.gatekeeper.fails_at(self.holdings))
        if not self.holdings:
            if self.settings.health_port is not None:
                await self.look()  # nothing else would tell this worker that Redis is gone
            self._trouble = ""
            self._announce()
            return rescuing
        woken, self._woken = self._woken, []
        heads = await self.flusher.look(link, self.holdings, woken)
        whole = heads.of.keys() >= self.holdings.keys()
        if whole and not self._measured >= self.holdings.keys():
            await self._measure(link, heads)
        self.heads = heads if whole else heads.over(self.heads)
        if whole:
            await self._resync(link, database, heads)
        progress = await self.flusher.cycle(link, database, self.holdings, heads=heads, woken=woken)
        await self._see_to(link, database, progress)
        if not whole:
            return True
        if self.janitor.due:
            await self.janitor.step(link, database, self.holdings)
        self.expiry.ask(self._served())
        await self._measure(link, heads)
        await self.room.look(link)
        await self.policies.look(link, database)
        self._announce()
        due = self.janitor.due or self._monotonic() >= self._next_tend
        return rescuing or due or progress.waiting or progress.entries > 0

    async def _tend(self, link: Link, database: Database) -> None:
        now = self._monotonic()
        await look_again(self.avoidance, self.ownership, self.flusher.streams, link, database, now)
        before, trouble = self.share.live, self.trouble
        share = self.share = await self.ownership.tend(
            database, avoid=self.avoidance, take=self.taking, trouble=trouble
        )
        taken = share.rows.keys() - self.holdings.keys()
        lost = self.holdings.keys() - share.rows.keys() - share.held
        self._leased_until = now + self.settings.lease_s
        self._next_tend = now + self._pause(now, moved=bool(taken or lost) or share.live != before)
        for shard in lost:
            del self.holdings[shard]
            self.flusher.tips.drop(shard)
        for shard, row in share.rows.items():
            holding = self.holdings.setdefault(shard, Holding(shard, row, self.janitor.retention()))
            if holding.phase == "open" and holding.row == row:
                continue
            self.flusher.tips.drop(shard)
            holding.reread(row)
        held = [self.holdings[shard] for shard in share.held & self.holdings.keys()]
        for holding in held:
            self.flusher.tips.drop(holding.shard)
        await leave_held(self.ownership, database, held, self._monotonic(), long_s=self.settings.lease_s)
        self.avoidance.hold(self.holdings, now)
        self.flusher.batches.suspect_only(self.holdings)
        if taken or lost:
            say("shards", taken=len(taken), lost=len(lost), owned=len(self.holdings), workers=share.live)
        for pid, shards, name in share.ended:
            warn("session_ended", pid=pid, session=name, shards=shards)
        if share.reaped:
            warn("reaped", workers=share.reaped)
        hopeless = [one for one in self.avoidance.hopeless(now) if one not in self.gatekeeper.opening]
        if share.able and hopeless:
            await self._give_up(link, database, hopeless, trouble)
        elif (lost or not self._joined) and share.live > 1:
            await self.flusher.streams.ring(link)
        self._joined = True

    async def _give_up(
        self, link: Link, database: Database, shards: list[int], reason: str, *, too_new: bool = False
    ) -> None:
        """Leave shards to the other workers, and avoid them for a while."""
        await self.ownership.give_back(database, shards)
        self.avoidance.give_up(shards, self._monotonic(), too_new=too_new)
        for shard in shards:
            self.holdings.pop(shard, None)
            self.flusher.tips.drop(shard)
        self._given_up_for = reason
        alarm("given_up", shards=shards, reason=reason)
        await self.flusher.streams.ring(link)

    def _served(self) -> list[int]:
        """Note which shards were served by the turn that passed, and return them."""
        self._trouble, served = "", [one.shard for one in self.holdings.values() if one.phase == "open"]
        self.avoidance.serve(served, self._monotonic())
        return served

    @property
    def apart(self) -> dict[int, str]:
        """The shards that are set apart, and why; also while what Postgres refused of them is tried again."""
        apart = {one.shard: one.reason for one in self.holdings.values() if one.phase == "apart"}
        return apart | {shard: told for shard, told in self.flusher.batches.refused.items() if shard in self.holdings}

    @property
    def trouble(self) -> str:
        """What hinders the worker, in words; '' where nothing does."""
        apart = [f"shard {shard}: {reason or 'held'}" for shard, reason in self.apart.items()]
        closed = any(one.phase == "new" for one in self.holdings.values())
        gate = self.gatekeeper.reason if closed else ""
        avoided = self._given_up_for if self.avoidance.shards else ""
        hinders = filter(None, [self._trouble, gate, avoided, *apart[:3]])
        return "; ".join(dict.fromkeys(hinders)) or self.primary.told

    def _pause(self, now: float, *, moved: bool) -> float:
        """Return for how long to leave the shards alone: not long while they are being handed over to this worker.

        The others notice a new worker within `lease_renew_s`; twice that time after the last move, nothing more is to
        be had from them.
        """
        usual = self.settings.lease_renew_s
        if moved:
            self._uneven_until = now + 2 * usual
        short = self.taking and len(self.share.rows) < self.settings.shards // self.share.live
        return min(UNEVEN_S, usual) if short and now < self._uneven_until else usual

    async def _resync(self, link: Link, database: Database, heads: Heads) -> None:
        """Open new shards, as far as they fit."""
        new = [holding for holding in self.holdings.values() if holding.phase == "new"]
        if not new:
            return
        resynced = await resync(link, database, self.flusher, new, heads=heads, keys=self.keys)
        for shard in resynced.opened:
            self.gatekeeper.opened(shard, self.holdings[shard].row.epoch)
        if resynced.opened:
            self.gatekeeper.agreed(heads.server)
            await tell_of_tails(database, self.flusher.streams.ended, resynced.opened, by=self.id)
            await self.policies.look(link, database, now=True)
        if resynced.unsure:
            self.refresh()
        if resynced.closed:
            self.gatekeeper.ask(resynced.closed)

    async def _see_to(self, link: Link, database: Database, progress: Progress) -> None:
        for shard in progress.foreign_entries:
            parked = await expel(link, database, self.flusher.streams, self.keys, self.holdings[shard])
            self.flusher.counters.quarantined += parked
        if progress.newer:
            await self._give_up(link, database, progress.newer, "a newer release wrote to them", too_new=True)
        if progress.unsure:
            self.refresh()
        self._counters(progress)

    def _counters(self, progress: Progress) -> None:
        """Log now and then how much was flushed, where anything was."""
        self._flushed = (self._flushed[0] + progress.entries, self._flushed[1] + progress.changes)
        now = self._monotonic()
        if now >= self._next_report and self._flushed[0]:
            behind = self.behind(self.positions() or {})
            say("flushed", entries=self._flushed[0], changes=self._flushed[1], behind=behind)
            self._flushed, self._next_report = (0, 0), now + REPORT_S

    def _announce(self) -> None:
        if self.ready or not (self.holdings or self.share.unowned == 0):
            return
        waiting = [one for one in self.holdings.values() if one.phase == "new"]
        if all(self.gatekeeper.tried(one.shard) for one in waiting):
            self.ready = True
            say("ready", worker=self.id, owned=len(self.holdings), closed=len(waiting), workers=self.share.live)

    async def rest(self) -> None:
        """Wait until a stream has something to read, until something falls due, or for a nudge."""
        due = self._next_tend - self._monotonic()
        if self.holdings:
            due = min(due, self.janitor.next_due - self._monotonic())
        if self._nudge.is_set():
            self._nudge.clear()
            return
        watched = [one for one in self.holdings.values() if one.phase == "open"]
        nudged = asyncio.ensure_future(self._nudge.wait())
        waits: set[asyncio.Future[Any]] = {nudged}
        seconds = max(REST_MIN_S, due)
        watching = None
        if watched or self.flusher.streams.listening:
            watching = asyncio.ensure_future(self.primary.wait(watched, seconds=seconds))
            waits.add(watching)
        try:
            await asyncio.wait(waits, timeout=None if watching else seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.wait(waits)
        self._nudge.clear()
        if watching is not None and not watching.cancelled():
            self._woken, rung = watching.result()
            if rung:
                self._next_tend = self._monotonic()

    async def look(self) -> None:
        """Ask Redis alone how far the shards are."""
        link = await self.primary.connect()
        heads = await self.flusher.streams.heads(link, list(self.holdings))
        await self._measure(link, heads)
        self.heads = heads

    async def tell(self) -> None:
        """Say in Postgres, while Redis cannot be used, that this worker lives and what hinders it."""
        if self._database is not None and self._database.alive:
            await self.ownership.tell(self._database, self.share, self.trouble)

    async def _measure(self, link: Link, heads: Heads) -> None:
        """Measure the streams now and then, and new shards before their lag is told, where somebody may ask for it."""
        due = self._monotonic() >= self._next_measure or not self._measured >= self.holdings.keys()
        if self.settings.health_port is not None and due:
            self.stocks = await self.flusher.streams.measure(link, list(self.holdings.values()), heads)
            self._measured = set(self.holdings)
            self._next_measure = self._monotonic() + MEASURE_S

    @property
    def owned(self) -> int:
        """How many shards are its own by leases that stand."""
        return len(self.holdings) if self._monotonic() < self._leased_until else 0

    def behind(self, targets: dict[int, int]) -> int:
        """Return how many change-sets up to these positions are still to be flushed, or, of an old primary, kept."""
        done = {
            shard: max(holding.row.flushed, self.primary.kept_upto(shard)) for shard, holding in self.holdings.items()
        }
        return sum(max(0, n - done[shard]) for shard, n in targets.items() if shard in done)

    def positions(self) -> dict[int, int] | None:
        """Return the newest n of each shard as last seen; None where the server was never asked."""
        if self.heads is None:
            return None if self.holdings else {}
        return {shard: head.n for shard, head in self.heads.of.items() if isinstance(head, Head)}

    async def leave(self) -> bool:
        """Give all shards back, and return whether that worked; a connection that had died unseen is replaced once."""
        try:
            try:
                await self._sign_off()
            except PostgresUnavailable:
                if self._database is None or self._database.alive:
                    raise
                await self._sign_off()
            if self.share.live > 1 and (link := self.primary.link) is not None and link.alive:
                await self.flusher.streams.ring(link)
        except (PostgresUnavailable, ConfigurationError) as error:
            warn("not_given_back", detail=str(error))
            return False
        return True

    async def _sign_off(self) -> None:
        if self._database is None or not self._database.alive:
            self._database = Database(await self.postgres.session(), self.settings)
        await self.ownership.leave(self._database)

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(self.gatekeeper.stop(), self.expiry.stop(), self.janitor.stop(), self.primary.close())
        if self._database is not None:
            await self._database.close()
