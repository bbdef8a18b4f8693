"""The cache against a plain dict: hypothesis chooses what two clients, a worker and the servers do next.

Every key's model is the list of its changes; its length is the version. Whatever happens, the cache has to be exactly
that: each answer of a verb, each state in Redis after each step, and after a last flush each row of Postgres.

    clients    set (blind, with the right or a stale expected), create, update, delete, transactions, get, list
    refusals   a stale expected, a used change_id, a disk that is not synced, a right that is lost
    sharing    transactions that need more connections, enforced locks, types of two releases
    counting   counters and collections, whose requests and replies are lost, and whose change_ids are used again
    readers    one is so slow that others write, and its state is evicted, before it installs what it has read; behind a
               closed gate nothing is given, or what is current
    network    the request or the reply of a commit is lost, others write up to eight times before it is repeated
    worker     flushes, lets entries leave so that states get a time to live, loses the acknowledgement, is replaced
    servers    clean states are evicted, what has a time to live expires, Redis gets a new replid, Redis is emptied,
               and what is lost with it is told to be lost
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from statecache import AlreadyExists, AsyncStateCache, Lost, NotFound, Settings, State, StateCache, VersionConflict
from statecache.clock import monotonic
from statecache.errors import RedisUnavailable
from statecache.keys import KeySpace
from statecache_workers.janitor import ROUND_S
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import plain_client
from tests.simulation.counting import Counting
from tests.simulation.expectation import Change, Expectation
from tests.simulation.reads import Reads
from tests.simulation.refusals import CLIENTS, KEYS, PAIRS, with_user_of_its_own
from tests.simulation.remains import nothing_is_dirty, tidied
from tests.simulation.wires import Lost as LostPart
from tests.simulation.wires import Wire
from tests.support.awaited import awaited
from tests.support.dirtiness import evict, is_dirty

T = TypeVar("T")

MakeDeployment = Callable[[], Settings]
TOLD_S = 2.0
LOST_ASKED = 2
"""Of how many of the changes that are lost with their Redis it is asked what became of them."""


class CacheMachine(Reads, Counting):
    """One deployment, two clients and a worker, and what they ought to hold."""

    def __init__(self, make_deployment: MakeDeployment) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.settings = make_deployment()
        self.keys = KeySpace(self.settings.prefix, self.settings.shards)
        self.raw = plain_client(self.settings.redis_url)
        path = f"-c search_path={self.settings.postgres_schema}"
        self.psql = psycopg.connect(self.settings.postgres_url, autocommit=True, options=path)
        self.expected = Expectation()
        self.values = count(1)
        self.ahead_s = 0.0
        self.whole = True
        self.flushed_from: set[str] = set()
        agent = with_user_of_its_own(self.settings, self.raw)
        self.wires = [Wire(agent, self.runner.get_loop()) for _ in range(2)]
        self.clients: list[AsyncStateCache] = [self._client(0), self._client(1)]
        self.worker = self._worker()
        self.run(self._flush())

    def _client(self, which: int) -> AsyncStateCache:
        settings = self.settings.model_copy(update={"writer": f"client {which}"})
        if which == 0:
            return AsyncStateCache(settings=settings, dial=self.wires[0].dial)
        return awaited(StateCache(settings=settings, dial=self.wires[1].dial_sync))

    def _worker(self) -> Worker:
        return Worker(self.settings, monotonic=lambda: monotonic() + self.ahead_s)

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; after a failure the remaining checks of the example are skipped."""
        try:
            return self.runner.run(story)
        except BaseException:  # hypothesis tells what it was; the end of the example must not hide it
            self.whole = False
            raise

    # Writing.

    @rule(who=CLIENTS, key=KEYS)
    def set_blindly(self, who: int, key: str) -> None:
        self.run(self._set(self.clients[who], key))

    @rule(who=CLIENTS, key=KEYS)
    def create(self, who: int, key: str) -> None:
        self.run(self._create(self.clients[who], key))

    async def _create(self, client: AsyncStateCache, key: str) -> None:
        value = next(self.values)
        try:
            state = await client.create(key, value)
        except AlreadyExists:
            assert self.expected.exists(key)
        else:
            assert not self.expected.exists(key)
            self.expected.took(key, "set", value, state)

    @rule(who=CLIENTS)
    def create_what_is_new(self, who: int) -> None:
        self.run(self._create_new(self.clients[who]))

    async def _create_new(self, client: AsyncStateCache) -> None:
        value = next(self.values)
        key = f"new/{value}"
        self.expected.took(key, "set", value, await client.create(key, value, assume_new=True))

    @rule(who=CLIENTS, key=KEYS, default=st.booleans())
    def update(self, who: int, key: str, default: bool) -> None:
        self.run(self._update(self.clients[who], key, {"default": 0} if default else {}))

    async def _update(self, client: AsyncStateCache, key: str, default: dict[str, Any]) -> None:
        value, before = next(self.values), []

        def function(found: Any) -> int:
            before.append(found)
            return value

        try:
            state = await client.update(key, function, **default)
        except NotFound:
            assert not self.expected.exists(key)
            assert not default
        else:
            assert before == [self.expected.value(key) if self.expected.exists(key) else 0]
            self.expected.took(key, "set", value, state)

    @rule(who=CLIENTS, key=KEYS)
    def delete(self, who: int, key: str) -> None:
        self.run(self._delete(self.clients[who], key))

    async def _delete(self, client: AsyncStateCache, key: str) -> None:
        state = await client.delete(key)
        assert (state is not None) == self.expected.exists(key)
        if state is not None:
            self.expected.took(key, "delete", None, state)

    @rule(who=CLIENTS, pair=PAIRS, deletes=st.booleans(), hurried=st.booleans())
    def write_two_in_a_transaction(self, who: int, pair: tuple[str, str], deletes: bool, hurried: bool) -> None:
        self.run(self._transact(self.clients[who], self.clients[1 - who], pair, deletes=deletes, hurried=hurried))

    async def _transact(
        self, client: AsyncStateCache, other: AsyncStateCache, pair: tuple[str, str], *, deletes: bool, hurried: bool
    ) -> None:
        one, two = pair
        values = next(self.values), next(self.values)
        deletes = deletes and self.expected.exists(one)
        try:
            async with client.transaction(one, two) as tx:
                found = await tx.get(two)
                assert (found.value if found else None) == self.expected.value(two)
                if deletes:
                    tx.delete(one)
                else:
                    tx.set(one, values[0])
                tx.set(two, values[1])
                if hurried:
                    await self._set(other, two)
        except VersionConflict as conflict:
            lost_to = conflict.key
        else:
            lost_to = ""
        assert lost_to == (two if hurried else "")
        if hurried:
            return
        self.expected.took(one, "delete" if deletes else "set", None if deletes else values[0], tx.states[one])
        self.expected.took(two, "set", values[1], tx.states[two])

    @rule(who=CLIENTS, key=KEYS)
    def write_until_it_is_durable(self, who: int, key: str) -> None:
        self.run(self._set_durably(self.clients[who], key))

    async def _set_durably(self, client: AsyncStateCache, key: str) -> None:
        writing = asyncio.create_task(self._set(client, key, durability="postgres"))
        while not writing.done():
            await self._flush()
            await asyncio.wait([writing], timeout=0.01)
        await writing
        await self._flush()

    # The network.

    @rule(who=CLIENTS, key=KEYS, lost=st.sampled_from(("request", "reply")), between=st.integers(0, 8),
          blind=st.booleans())  # fmt: skip
    def lose_a_commit(self, who: int, key: str, lost: LostPart, between: int, blind: bool) -> None:
        self.run(self._lose(who, key, lost, between, blind=blind))

    async def _lose(self, who: int, key: str, lost: LostPart, between: int, *, blind: bool) -> None:
        value, other, late = next(self.values), self.clients[1 - who], False
        chain = self.expected.chain(key)
        expecting: dict[str, Any] = {} if blind or not chain else {"expected": chain[-1].change_id}

        async def meanwhile(applied: bool) -> None:
            nonlocal late
            late = between > 0 and not applied
            if applied:
                self.expected.applied(key, Change("set", value, ""))
            for _ in range(between):
                await self._set(other, key)

        self.wires[who].arm(lost, meanwhile)
        try:
            state = await self.clients[who].set(key, value, **expecting)
        except VersionConflict:
            assert late
            assert expecting
        else:
            assert not (late and expecting)
            self.expected.took(key, "set", value, state)
        assert not self.wires[who].armed

    @rule(who=CLIENTS, pair=PAIRS, lost=st.sampled_from(("request", "reply")))
    def lose_a_transaction(self, who: int, pair: tuple[str, str], lost: LostPart) -> None:
        self.run(self._lose_transaction(who, pair, lost))

    async def _lose_transaction(self, who: int, pair: tuple[str, str], lost: LostPart) -> None:
        values = dict.fromkeys(pair, 0)
        async with self.clients[who].transaction(*pair) as tx:
            for key in pair:
                values[key] = next(self.values)
                tx.set(key, values[key])
            self.wires[who].arm(lost)
        for key in pair:
            self.expected.took(key, "set", values[key], tx.states[key])

    # The worker.

    async def _flush(self) -> None:
        await flush(self.worker)
        self.expected.flushed()
        self.flushed_from |= self._lineage()

    def _lineage(self) -> set[str]:
        """Return the servers on which the shards were opened last."""
        return {row[0] for row in self.psql.execute("SELECT replid FROM shard")}

    @rule()
    def flush(self) -> None:
        self.run(self._flush())

    @rule()
    def let_entries_leave(self) -> None:
        """After this every state that is still as it was flushed has a time to live."""
        self.ahead_s += 5.0
        self.run(self._flush())

    @rule(before=st.booleans())
    def replace_the_worker(self, before: bool) -> None:
        """The old one is gone without a word, with its last acknowledgement where there was something to flush."""
        self.run(self._replaced(acknowledges=before))

    async def _replaced(self, *, acknowledges: bool) -> None:
        if not acknowledges:
            self.worker.flusher.acknowledgement.tell = _no_answer  # type: ignore[method-assign]
        try:
            await self._flush()
        except RedisUnavailable:
            assert not acknowledges
        await self.worker.close()
        self.psql.execute("UPDATE shard SET lease_until = now() - interval '1 second'")
        self.psql.execute("UPDATE worker SET beat_until = now() - interval '1 second'")
        self.worker, self.flushed_from = self._worker(), set()
        await self._flush()

    # The servers.

    @rule(key=KEYS)
    def evict(self, key: str) -> None:
        evict(self.raw, self.keys, key)

    @rule()
    def expire(self) -> None:
        """The time passes for whatever has a time to live; that only clean states have one is theirs to see to."""
        for name in (self.keys.state(key) for key in self.expected.written()):
            if self.raw.pttl(name) >= 0:
                self.raw.unlink(name)

    @rule()
    def restart_redis(self) -> None:
        """What a restart without loss leaves behind: the same data, another replid."""
        with self.raw.pipeline(transaction=True) as together:
            together.execute_command("REPLICAOF", "127.0.0.1", "1")
            together.execute_command("REPLICAOF", "NO", "ONE")
            together.execute()

    @rule()
    def empty_redis(self) -> None:
        """All that was not flushed is lost; a worker that has flushed from the server before adopts the empty one."""
        if not self._lineage() <= self.flushed_from:
            self.run(self._flush())
        self.raw.unlink(*self.raw.keys(f"{self.settings.prefix}:*"))
        lost = self.expected.lost_what_was_not_flushed()
        self.run(self._flush())
        for state in lost[-LOST_ASKED:]:
            self.run(self._ask_for_lost(state))

    async def _ask_for_lost(self, state: State[Any]) -> None:
        """Assert that a position that has died is reported as lost, and recorded among the lost ones."""
        with pytest.raises(Lost):
            await self.clients[0].wait_durable(state, timeout=TOLD_S)
        assert state.position is not None
        query = "SELECT count(*) FROM lost WHERE shard = %s AND %s BETWEEN first_n AND last_n"
        recorded = self.psql.execute(query, [self.keys.shard(state.key), state.position.n]).fetchone()
        assert recorded is not None
        assert recorded[0] > 0

    @rule(who=CLIENTS)
    def restart_a_client(self, who: int) -> None:
        self.run(self.clients[who].close())
        self.clients[who] = self._client(who)

    # What holds after every step, and in the end.

    @invariant()
    def redis_is_what_is_expected(self) -> None:
        for key in self.expected.written():
            dirty = is_dirty(self.raw, self.keys, key)
            name = self.keys.state(key)
            found = self.raw.hgetall(name)
            self.expected.in_redis(key, found, dirty=dirty, lasts=self.raw.pttl(name) < 0)

    def teardown(self) -> None:
        try:
            if self.whole:
                self.run(self._flush())
                self.expected.in_postgres(self.psql)
                self.redis_is_what_is_expected()
                nothing_is_dirty(self.raw, self.psql, self.keys)
                self.run(tidied(self.raw, self.keys, self.expected.written(), self._tidy))
        finally:
            self.runner.run(self._close())
            self.runner.close()

    async def _tidy(self) -> None:
        self.ahead_s += ROUND_S
        await flush(self.worker)

    async def _close(self) -> None:
        for client in self.clients:
            await client.close()
        await self.worker.close()
        self.psql.close()
        self.raw.close()


async def _no_answer(*_: Any, **__: Any) -> Any:
    raise RedisUnavailable("connection", detail="the acknowledgement is lost")
