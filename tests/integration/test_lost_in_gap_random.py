"""Random commits, entries taken out of the stream in between: whoever asks is told what Postgres holds of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import psycopg
import pytest

from statecache import AsyncStateCache, Lost, Settings, State
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.fixtures.servers import MakeClient

GROUP = "runs/42"
KEYS = tuple(f"{GROUP}/{name}" for name in "abcd")
SEEDS = range(*map(int, os.environ.get("SEEDS", "0:12").split(":")))

Psql = psycopg.Connection[Any]


class Made(NamedTuple):
    """An acknowledged commit: whose it is, its change_id, the states it left, and whether that is all it wrote."""

    by: int
    change_id: str
    states: tuple[State[Any], ...]
    alone: bool


class Story:
    """Commits of two clients to one group, and what happens to its stream."""

    def __init__(self, rng: Random, clients: Sequence[AsyncStateCache], redis: Any, keys: KeySpace) -> None:
        self.rng = rng
        self.clients = clients
        self.redis = redis
        self.keys = keys
        self.shard = keys.shard(GROUP)
        self.made: list[Made] = []
        self.told: list[str] = []
        self.now: dict[str, Any] = {}

    async def commit(self) -> None:
        """Write one key to all of them, or delete one."""
        by = self.rng.randrange(2)
        client, number = self.clients[by], len(self.made)
        some = self.rng.sample(KEYS, self.rng.choice([1, 1, 2, 3, 4]))
        if len(some) == 1 and self.now.get(some[0]) is not None and self.rng.random() < 0.3:
            gone = await client.delete(some[0])
            assert gone is not None
            states: tuple[State[Any], ...] = (gone,)
            self.now[some[0]] = None
        elif len(some) == 1:
            states = (await client.set(some[0], number),)
            self.now[some[0]] = number
        else:
            states = await self._together(client, some, number)
        self.made.append(Made(by, states[0].change_id, states, alone=len(some) == 1))
        self.told.append(f"{states[0].position} {'/'.join(key[-1] for key in sorted(some))}")

    async def _together(self, client: AsyncStateCache, some: list[str], number: int) -> tuple[State[Any], ...]:
        drop = {key for key in some[1:] if self.now.get(key) is not None and self.rng.random() < 0.2}

        def write(tx: Any) -> None:
            for key in some:
                if key in drop:
                    tx.delete(key)
                else:
                    tx.set(key, number)

        await client.transact(some, write)
        found = []
        for key in some:
            self.now[key] = None if key in drop else number
            state = await client.get(key, read="primary")
            if state is not None:
                found.append(state)
        return tuple(found)

    def damage(self) -> None:
        """Take entries out of the stream."""
        stream = self.keys.changes(self.shard)
        ids = [entry_id for entry_id, _ in self.redis.xrange(stream)]
        what = self.rng.choice(["trim", "one", "one", "key"])
        if what == "one" and ids:
            gone = self.rng.choice(ids)
            self.redis.xdel(stream, gone)
            self.told.append(f"XDEL {gone.decode()}")
        elif what == "trim":
            self.redis.xtrim(stream, maxlen=self.rng.choice([0, 1]))
            self.told.append("XTRIM")
        elif what == "key":
            self.redis.delete(stream)
            self.told.append("DEL stream")

    def evict(self) -> None:
        """Let clean states leave Redis."""
        dirty = {key.decode() for key in self.redis.zrange(self.keys.unflushed(self.shard), 0, -1)}
        clean = [key for key in KEYS if key not in dirty]
        if clean:
            gone = self.rng.choice(clean)
            self.redis.delete(self.keys.state(gone))
            self.told.append(f"evict {gone[-1]}")


async def _verdict(client: AsyncStateCache, state: State[Any]) -> str:
    try:
        await client.wait_durable(state, timeout=20)
    except Lost:
        return "lost"
    return "held"


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_who_asks_is_told_what_postgres_holds(
    seed: int, make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    rng = Random(seed)
    clients = [make_client(settings), make_client(settings)]
    story = Story(rng, clients, redis_raw, keys)
    for _ in range(rng.randint(3, 16)):
        match rng.choice(["commit"] * 6 + ["damage"] * 2 + ["flush", "evict"]):
            case "commit":
                await story.commit()
            case "damage":
                story.damage()
            case "flush":
                await flush(worker)
                story.told.append("flush")
            case _:
                story.evict()
    await flush(worker)
    await _judge(story, psql, make_client(settings), worker)


async def _judge(story: Story, psql: Psql, stranger: AsyncStateCache, worker: Worker) -> None:
    said = "; ".join(story.told)
    lost_rows = rows(psql, "SELECT first_n, last_n, positions FROM lost WHERE cause = 'gap'")
    covered = {n for first, last, _ in lost_rows for n in range(first, last + 1)}
    lost_of: dict[int, set[str]] = {0: set(), 1: set()}
    count = rows(psql, "SELECT count(*) FROM change")
    for one in story.made:
        held = {key for (key,) in rows(psql, "SELECT key FROM change WHERE change_id = %s", one.change_id)}
        position = one.states[0].position
        assert position is not None
        whole = position.n not in covered
        if whole:
            assert {state.key for state in one.states} <= held, f"{position} is held whole: {said}"
        else:
            lost_of[one.by].add(one.change_id)
        expected = "held" if whole else "lost"
        for asking in (*story.clients, stranger):
            for state in one.states:
                assert await _verdict(asking, state) == expected, f"wait_durable of {position} {state.key}: {said}"
                outcome = await asking.outcome(state.change_id, state.key, timeout=20)
                if outcome.verdict == "unknown" and asking is not story.clients[one.by] and not whole:
                    continue  # nothing remembers it by now but the client that wrote it
                assert (outcome.verdict, outcome.durable, outcome.settled) == (
                    "applied" if whole else "lost", whole, True,
                ), f"outcome of {position} {state.key}: {outcome}: {said}"  # fmt: skip
    for number, client in enumerate(story.clients):
        assert {lost.change_id for lost in await client.lost()} == lost_of[number], f"lost() of {number}: {said}"
    for one in story.made:
        state = one.states[0]
        if not one.alone or state.value is None:
            continue
        position = state.position
        assert position is not None
        again = story.clients[one.by].set(state.key, state.value, change_id=state.change_id, timeout=20)
        if position.n in covered:
            with pytest.raises(Lost):
                await again
        else:
            assert (await again).version == state.version, f"repeat of {position}: {said}"
    for key in KEYS:
        story.redis.delete(story.keys.state(key))
    held = set(rows(psql, "SELECT change_id, key FROM change"))
    for one in story.made:
        for state in one.states:
            if state.value is None or state.position is None or (state.change_id, state.key) in held:
                continue
            with pytest.raises(Lost):
                await stranger.set(state.key, state.value, change_id=state.change_id, timeout=20)
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change") == count, f"a repetition was applied: {said}"
    for key in KEYS:
        for evicted in (False, True):
            if evicted:
                story.redis.delete(story.keys.state(key))
            found = await stranger.get(key, read="primary")
            assert (found and found.value) == story.now.get(key), f"{key}, evicted {evicted}: {said}"
