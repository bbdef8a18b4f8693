"""Reads of many states of many shards whose gates are closed: they are answered as each by itself, and as soon."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, ReadMode, Settings
from statecache.errors import Unavailable
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, MakeSettings
from tests.support.local_reads import until

SHARDS = 24
KEYS = [f"run{number}/1" for number in range(120)]
GONE, NEVER, NEWER = "run0/gone", "run1/never", "run2/newer"
NO_POSTGRES = {"postgres_url": "postgresql://127.0.0.1:1/none"}
STATES = "watermarks states"


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings(shards=SHARDS)


class Shards:
    """The shards of a deployment: closed so that no client may open them, and as they were."""

    def __init__(self, settings: Settings, raw: Any, psql: psycopg.Connection[Any]) -> None:
        self._raw, self._psql = raw, psql
        self.keys = KeySpace(settings.prefix, settings.shards)
        self._replid = b""

    def close(self) -> None:
        """Give the data sets, and the rows, to two other servers."""
        self._replid = self._raw.hget(self.keys.meta(0), "replid")
        self._give("a" * 40, "b" * 40)

    def open(self) -> None:
        """Have all as it was."""
        self._give(self._replid.decode(), self._replid.decode())

    def _give(self, data_sets: str, rows: str) -> None:
        """Give them all at once, for whoever waits for the gates does so for half a second."""
        self._psql.execute("UPDATE shard SET replid = %s", [rows])
        with self._raw.pipeline(transaction=True) as together:
            for shard in range(SHARDS):
                together.hset(self.keys.meta(shard), "replid", data_sets)
            together.execute()


@pytest.fixture
async def shards(settings: Settings, redis_raw: Any, psql: psycopg.Connection[Any], worker: Worker) -> Shards:
    """Closed shards. Postgres holds KEYS at 2, and GONE; Redis has gone back to KEYS at 1, and alone holds NEWER."""
    made = Shards(settings, redis_raw, psql)
    async with AsyncStateCache(settings=settings) as agent:
        await asyncio.gather(*(agent.set(key, 1) for key in KEYS))
        old = {key: redis_raw.dump(made.keys.state(key)) for key in KEYS}
        await asyncio.gather(*(agent.set(key, 2) for key in [*KEYS, GONE]))
        await flush(worker)
        await agent.set(NEWER, "not flushed")
    for key, dump in old.items():
        redis_raw.restore(made.keys.state(key), 0, dump, replace=True)
    redis_raw.unlink(made.keys.state(GONE))
    assert len({made.keys.shard(key) for key in KEYS}) == SHARDS
    made.close()
    return made


def _asked(client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that will tell what is asked of Postgres."""
    asked, fetch = list[str](), client._runtime.postgres.fetch_each

    def noted(names: tuple[str, ...], *given: Any, **more: Any) -> Any:
        asked.append(" ".join(names))
        return fetch(names, *given, **more)

    monkeypatch.setattr(client._runtime.postgres, "fetch_each", noted)
    return asked


@pytest.mark.parametrize("read", ["local", "primary"])
async def test_gates_are_left_their_moment_together_and_postgres_is_asked_once(
    make_client: MakeClient, settings: Settings, shards: Shards, monkeypatch: pytest.MonkeyPatch, read: ReadMode
) -> None:
    """One after the other they take half a second each, and more than a call has."""
    client = make_client(settings)
    asked = _asked(client, monkeypatch)
    found = await client.get_many([*KEYS, GONE, NEVER], read=read, timeout=3)
    assert {key: state and state.value for key, state in found.items()} == {
        **dict.fromkeys([*KEYS, GONE], 2),
        NEVER: None,
    }
    assert asked.count(STATES) == 1
    for key in (KEYS[0], GONE, NEVER):
        assert await client.get(key, read=read) == found[key]


async def test_what_cannot_be_had_is_refused_as_by_itself(
    make_client: MakeClient, settings: Settings, shards: Shards
) -> None:
    with pytest.raises(Unavailable, match="older state") as refused:
        await make_client(settings).get_many([*KEYS, NEWER], timeout=2)
    assert refused.value.reason == "epoch"


async def test_nobody_is_given_less_than_it_has_seen(
    make_client: MakeClient, settings: Settings, shards: Shards, redis_raw: Any
) -> None:
    client = make_client(settings)
    shards.open()
    assert await client.exists(NEWER)
    shards.close()
    redis_raw.unlink(shards.keys.state(NEWER))
    assert await make_client(settings).get_many([*KEYS[:9], NEWER], timeout=2)
    with pytest.raises(Unavailable) as refused:
        await client.get_many([*KEYS, NEWER], timeout=2)
    assert refused.value.reason == "epoch"


async def test_stale_states_are_accepted_of_those_that_postgres_cannot_give(
    make_client: MakeClient, settings: Settings, shards: Shards
) -> None:
    content = make_client(settings.model_copy(update={"stale_reads": True}))
    found = await content.get_many([*KEYS, NEWER], timeout=3)
    assert [state and state.value for state in found.values()] == [*[2] * len(KEYS), "not flushed"]
    alone = make_client(settings.model_copy(update={"stale_reads": True} | NO_POSTGRES))
    found = await alone.get_many(KEYS, timeout=3)
    assert [state and state.value for state in found.values()] == [1] * len(KEYS)


@pytest.mark.parametrize("read", ["primary", "fenced"])
async def test_gates_that_open_meanwhile_are_read_behind_together(
    make_client: MakeClient, settings: Settings, shards: Shards, monkeypatch: pytest.MonkeyPatch, read: ReadMode
) -> None:
    client = make_client(settings)
    asked = _asked(client, monkeypatch)
    reading = asyncio.create_task(_many(client, read))
    await until(lambda: 0 in client._runtime.reader.closed_gates)
    shards.open()
    assert [state and state.value for state in await reading] == [1] * len(KEYS)
    assert len(asked) < SHARDS


async def _many(client: AsyncStateCache, read: ReadMode) -> list[Any]:
    return [*(await client.get_many(KEYS, read=read)).values()]
