"""What an agent goes through at every visit of a failpoint: all verbs, and the moments in which promises are broken.

The story is told in situations: the first, the one that is visited, and the ending. Each can be told again from its
beginning, for an agent that is killed goes on where it was. Beside the verbs something happens to the servers:
    followed   changes are read by a named reader, and what is there by a page
    miss       clean states were evicted: they are loaded again, read and written
    doubt      a write is repeated when the state's `recent` has long forgotten it
    counted    an increment is repeated when only Postgres has it, and what it was given
    vouched    `assume_new` for a key that is not new: the flusher sets the change aside, and Redis restarts untold
    leaving    entries leave the stream, and their states get a time to live; then they are written again
    poison     a change-set that Postgres refuses, and an entry of another program in the stream
    restored   Postgres goes back behind two acknowledged changes; the entry of one of them has left the stream
    failover   Redis is replaced by one that lacks the last changes, and the agent writes before anybody has looked
    emptied    Redis comes back with nothing; a worker that has flushed from it before adopts it, else an operator

After each write of a story it is looked whether what is dirty is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import redis

from statecache import Settings
from statecache.cli.epochs import adopt
from statecache.clock import monotonic
from statecache.errors import OutcomeUnknown, Unavailable
from statecache.history_errors import HistoryIncomplete
from statecache.keys import KeySpace
from statecache.lua import parts_of, script
from tests.simulation.actor import Actor
from tests.simulation.backups import Backup, DataSet
from tests.simulation.boundaries import situation
from tests.simulation.children import signal_all, state_of, thaw
from tests.simulation.sampler import Sampler
from tests.simulation.story_locks import CROWD, LOCKED, LockStory
from tests.support.dirtiness import dirty_keys, evict, is_dirty

A, B, C, D, E, T, R = "runs/a", "runs/b", "runs/c", "runs/d", "vouched/c", "tail/t", "restored/e"
PLAN, G, COUNT = "runs/a/plan", "restored/e/gone", "vouched/c/count"
POISON = "poison/p"
"""Most of them are on the shard that the first of two workers keeps."""
SITUATIONS = (
    "first", "again", "create", "delete", "transaction", "durable", "disk", "list", "many", "followed", "miss", "doubt",
    "counted", "vouched", "poison", "leaving", "restored", "failover", "emptied", "fenced", "near", "locked", "stepped",
    "crowded", "branched",
)  # fmt: skip
KEYS = (A, B, C, D, T, R, PLAN)
"""The keys that a companion writes meanwhile: nothing is set aside of them."""
WATCHED = (*KEYS, E, COUNT, LOCKED, CROWD)
ENTRIES_KEPT = 9
"""More entries than this a shard's stream does not keep behind the watermark."""
PATIENCE_S, ADOPTION_S, LOOK_S = 12.0, 4.0, 0.004
ROUNDS, ROUND_S = 3, PATIENCE_S / 3
_BACKENDS = "SELECT pid, state FROM pg_stat_activity WHERE backend_type LIKE 'client%' AND pid <> pg_backend_pid()"


class World:
    """What a story can do besides its client's verbs: look at the servers, and damage them."""

    def __init__(self, settings: Settings, report: Callable[[str], object] = str) -> None:
        self.settings = settings
        self._report = report
        self.keys = KeySpace(settings.prefix, settings.shards)
        self.raw: Any = redis.Redis.from_url(settings.redis_url, retry=None)
        path = f"-c search_path={settings.postgres_schema}"
        self.psql = psycopg.connect(settings.postgres_url, autocommit=True, options=path)
        self.sampler = Sampler(self.keys, WATCHED)

    def close(self) -> None:
        """Close its connections."""
        self.psql.close()
        self.raw.close()

    async def until(self, holds: Callable[[], bool], what: str, *, within_s: float = PATIENCE_S) -> None:
        """Look again and again until it holds."""
        if not await self.comes_about(holds, within_s=within_s):
            raise AssertionError(f"{what} did not come about within {within_s:g} s")

    async def comes_about(self, holds: Callable[[], bool], *, within_s: float) -> bool:
        """Look again and again until it holds, and say whether it came to that."""
        end = monotonic() + within_s
        while not (held := holds()) and monotonic() <= end:
            await passing(LOOK_S)
        return held

    def at_rest(self) -> bool:
        """Return whether everything is flushed and acknowledged, and every gate is open."""
        server = self.replid()
        rows: dict[int, int] = dict(self.psql.execute("SELECT shard, flushed FROM shard").fetchall())
        for shard, flushed in rows.items():
            n, copy, replid = self.raw.hmget(self.keys.meta(shard), "n", "flushed", "replid")
            if n is None or not int(n) == int(copy) == flushed or replid.decode() != server:
                return False
            if dirty_keys(self.raw, self.keys, shard):
                return False
        return True

    def replid(self) -> str:
        """Return the server's replication id."""
        return str(self.raw.info("replication")["master_replid"])

    def is_open(self) -> bool:
        """Return whether all gates are open."""
        metas = map(self.keys.meta, range(self.keys.shards))
        return {self.raw.hget(meta, "replid") for meta in metas} == {self.replid().encode()}

    def is_clean(self, key: str) -> bool:
        """Return whether the key has nothing to be flushed."""
        return not is_dirty(self.raw, self.keys, key)

    async def evict(self, *keys: str) -> None:
        """Evict states, once they are clean, as Redis does for room."""
        for key in keys:
            await self.until(lambda key=key: self.is_clean(key), f"{key} to be flushed")  # type: ignore[misc]
            evict(self.raw, self.keys, key)

    def look(self) -> None:
        """Report every dirty state that is not safe at this moment."""
        with contextlib.suppress(redis.ConnectionError):
            self.sampler.look(self.raw)
        while self.sampler.findings:
            self._report(f"finding {self.sampler.findings.pop()}")

    async def freeze(self, pids: Sequence[int]) -> None:
        """Stop worker processes at a moment at which none has a row lock or a running statement in Postgres."""
        while True:
            signal_all(pids, signal.SIGSTOP)
            await self.until(lambda: all(state_of(pid) in "TtZX" for pid in pids), "workers to stand still")
            asleep = {pid for pid, _ in self.psql.execute(_BACKENDS) if state_of(pid) == "S"}  # with nothing to read
            if all(state == "idle" and pid in asleep for pid, state in self.psql.execute(_BACKENDS)):
                return
            thaw(pids)
            await passing(LOOK_S)


class Story(LockStory):
    """The situations, as one agent goes through them; `hold` gives the workers to stop while the agent acts."""

    def __init__(self, world: World, actor: Actor, *, folder: Path, hold: Callable[[], Sequence[int]]) -> None:
        self.folder = folder
        self._world = world
        self._actor = actor
        self._hold = hold

    async def tell(self, situations: Sequence[str], start: int, at: Callable[[int], object]) -> None:
        """Play the situations from number `start` on, each announced by `at`."""
        for number, name in enumerate(situations[start:], start):
            at(number)
            token = situation.set(name)
            try:
                await getattr(self, f"_{name}")()
            finally:
                situation.reset(token)

    async def _ending(self) -> None:
        """Read every key and write it once more: damage shows now at the latest."""
        for key in KEYS:
            await self._actor.get(key)
            await self._actor.set(key)
        self._world.look()

    async def _first(self) -> None:
        await self._actor.set(A)
        self._world.look()
        await self._actor.get(A)

    async def _again(self) -> None:
        actor = self._actor
        state = await actor.set(A)
        self._world.look()
        await actor.set(A, expected=state)
        await actor.update(B)
        await actor.update(B)
        self._world.look()

    async def _create(self) -> None:
        await self._actor.create(C)
        await self._actor.create(C)
        await self._actor.create(f"new/{secrets.token_hex(6)}", assume_new=True)

    async def _delete(self) -> None:
        await self._actor.delete(C)
        await self._actor.create(C)
        self._world.look()

    async def _transaction(self) -> None:
        actor = self._actor
        await actor.transaction(A, PLAN, write=(A, PLAN))
        self._world.look()
        await actor.transaction(A, PLAN)
        await actor.transaction(A, PLAN, write=(A,), meanwhile=lambda: actor.between.set(PLAN))
        with contextlib.suppress(LookupError, Unavailable):
            async with actor.cache.transaction(A):
                raise LookupError

    async def _durable(self) -> None:
        await self._actor.set(A, level="postgres")
        await self._actor.confirm(await self._actor.set(B))

    async def _disk(self) -> None:
        await self._actor.set(B, level="disk")

    async def _list(self) -> None:
        for order in ("key", "-key", "newest", "oldest"):
            await self._actor.list("runs/", (A, B, C, D, PLAN), order)

    async def _many(self) -> None:
        await self._world.evict(A, PLAN)
        await self._actor.get_many((A, B, C, D, PLAN))

    async def _followed(self) -> None:
        await self._actor.follow(A)

    async def _miss(self) -> None:
        world, actor = self._world, self._actor
        await world.evict(A, B, PLAN)
        await actor.get(A)
        await actor.set(A)
        world.look()
        await actor.set(B)
        world.look()
        await actor.transaction(A, PLAN, write=(A, PLAN))
        world.look()

    async def _doubt(self) -> None:
        await self._actor.set_again(D, secrets.token_hex(12), 7)

    async def _counted(self) -> None:
        world, actor = self._world, self._actor
        await actor.count(COUNT)
        world.look()

        async def until_forgotten() -> None:
            for _ in range(7):
                await actor.between.count(COUNT)
            await self._until_gone(world.keys.changes(world.keys.shard(COUNT)), actor.between)

        await actor.count_again(COUNT, secrets.token_hex(12), until_forgotten)
        world.look()

    async def _branched(self) -> None:
        await self._actor.set(A)
        await self._actor.back(A, 1)
        with contextlib.suppress(Unavailable, HistoryIncomplete):
            versions = [change.version async for change in self._actor.cache.history(A)]
            assert versions == [*range(1, len(versions) + 1)]
        self._world.look()
        await self._actor.branch(A)

    async def _vouched(self) -> None:
        world, actor = self._world, self._actor
        await actor.insist(E)
        await world.evict(E)
        while not await self._vouch(E):
            pass
        untold = DataSet(world, E)
        await world.until(world.at_rest, "the fork to be set aside")
        untold.take_over()
        await actor.set(E)

    async def _vouch(self, key: str) -> bool:
        """Create an existing key as new, unjournaled, for it has to end as a conflict; return whether it was sent."""
        try:
            await self._actor.cache.create(key, {"by": "nobody"}, assume_new=True)
        except Unavailable:
            return False
        except OutcomeUnknown:
            pass
        return True

    async def _leaving(self) -> None:
        world, actor = self._world, self._actor
        changes = world.keys.changes(world.keys.shard(E))
        await self._vouched()
        for _ in range(2):
            await self._until_gone(changes, actor)
        await world.until(world.at_rest, "everything to be flushed")
        for key in (A, E):
            await actor.set(key)
            world.look()

    async def _until_gone(self, changes: str, actor: Actor) -> None:
        """Write until what is the newest entry of E's stream now has left it; a shard's new owner counts bytes anew."""
        world = self._world
        newest = world.raw.xinfo_stream(changes)["last-generated-id"]
        for _ in range(ROUNDS):
            for _ in range(ENTRIES_KEPT + 2):
                await actor.set(E)
            if await world.comes_about(lambda: not world.raw.xrange(changes, newest, newest), within_s=ROUND_S):
                return
        raise AssertionError(f"entries to leave did not come about within {PATIENCE_S:g} s")

    async def _poison(self) -> None:
        world = self._world
        await world.until(self._poison_is_committed, "what is poisoned to be committed")
        await world.until(world.at_rest, "what is poisoned to be parked")
        world.raw.xadd(world.keys.changes(world.keys.shard(A)), {"of": "another program"})
        await self._actor.set(A)

    def _poison_is_committed(self) -> bool:
        """Commit what only Postgres refuses, a writer with a NUL in its name; return whether the script did so."""
        world, keys, shard = self._world, self._world.keys, self._world.keys.shard(POISON)
        names = [keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.hydrating(shard)]
        commit = ["nonce", secrets.token_hex(12), "on", 0, "a\0b", "", "", 1000, 2**24, 2**24, 2**23]
        state = [POISON, "set", "*", b'{"by":"nobody"}', "json", "", "", "1"]
        answer = world.raw.eval(script("commit").text, len(names) + 1, *names, keys.state(POISON), *commit, *state)
        return bool(parts_of(answer)[1] == b"OK")

    async def _restored(self) -> None:
        world, actor = self._world, self._actor
        while True:
            await world.until(world.at_rest, "everything to be flushed")
            backup = Backup(world.psql)
            await actor.set(G, level="postgres")
            await actor.set(R, level="postgres")
            await world.until(world.at_rest, "everything to be flushed")
            if backup.age() <= 2:  # else somebody wrote meanwhile, perhaps more than the streams retain
                break
        keys, newest = world.keys, world.raw.hget(world.keys.state(R), "position")
        world.raw.xtrim(keys.changes(keys.shard(R)), minid=newest, approximate=False)
        backup.put_back()
        await actor.set(R)
        await world.until(world.at_rest, "what Postgres has lost to be flushed again")
        await actor.get(R)

    async def _failover(self) -> None:
        world, actor = self._world, self._actor
        await actor.set(T)
        await world.until(world.at_rest, "everything to be flushed")
        older = DataSet(world, T)
        await actor.set(T)
        await actor.set(T, level="postgres")
        await world.until(world.at_rest, "everything to be flushed")
        held = self._hold()
        try:
            await world.freeze(held)
            older.take_over()
            if not held:
                await world.until(world.is_open, "a worker to open the gates")
            await actor.set(T)
            world.look()
        finally:
            thaw(held)
        await actor.set(T, level="postgres")
        await actor.get(A)

    async def _emptied(self) -> None:
        world, actor = self._world, self._actor
        await world.until(world.at_rest, "everything to be flushed")
        DataSet(world, None).take_over()
        if not await world.comes_about(world.is_open, within_s=ADOPTION_S):
            # The worker that may adopt it was killed, and who came after that one knows nothing of the server before.
            given_up = [row[0] for row in world.psql.execute("SELECT DISTINCT replid FROM shard")]
            await adopt(world.settings, range(world.keys.shards), by="a person", given_up=given_up)
        await actor.get(B)
        await actor.set(A)
        world.look()


async def passing(seconds: float) -> None:
    """Let that many seconds pass; everything else goes on meanwhile."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


async def meanwhile(world: World, actor: Actor) -> None:
    """Be another agent while one is frozen: write the keys that it works on, and evict them again."""
    for key in KEYS:
        await actor.set(key)
        await actor.confirm(await actor.set(key))
        await world.evict(key)
    world.look()
