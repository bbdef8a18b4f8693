"""Many states in few exchanges, whether there is one, and what stands for an absence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    CodecError,
    InvalidKey,
    Quarantined,
    ReadMode,
    Settings,
    Unavailable,
    UsageError,
    VersionConflict,
)
from statecache.core.redis import connection
from statecache.keys import KeySpace
from statecache.resp import Command, packed
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.local_reads import until

LOOK, HYDRATE = "watermarks state_keys lost_keys", "watermarks states lost_keys recent_changes"
"""The statements that look whether Postgres has states, and that read them, each in one exchange."""
MODES: tuple[ReadMode, ...] = ("local", "primary", "fenced")


class Run(msgspec.Struct, frozen=True):
    goal: str


def _values(found: dict[str, Any]) -> dict[str, Any]:
    return {name: None if state is None else state.value for name, state in found.items()}


@every_redis
@pytest.mark.parametrize("read", MODES)
async def test_each_name_gets_what_get_gives_in_the_order_of_the_names(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, read: ReadMode
) -> None:
    for number in range(40):
        await client.set(f"runs/{number}", number)
    await client.set("runs/deleted", 1)
    await client.delete("runs/deleted")
    await flush(worker)
    redis_raw.unlink(*(keys.state(f"runs/{number}") for number in range(0, 40, 3)))
    await client.set("runs/1", "dirty")
    names = ["runs/absent", *(f"runs/{number}" for number in reversed(range(40))), "runs/deleted", "runs/1"]
    found = await client.get_many(names, read=read)
    assert list(found) == names[:-1]
    wanted: dict[str, Any] = {f"runs/{number}": number for number in range(40)}
    assert _values(found) == {**wanted, "runs/1": "dirty", "runs/absent": None, "runs/deleted": None}
    for name in ("runs/0", "runs/1", "runs/2", "runs/absent"):
        assert await client.get(name, read=read) == found[name]
    assert await client.get_many([], read=read) == {}


async def test_the_missing_ones_of_a_shard_are_loaded_together(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"runs/{number}" for number in range(60)]
    for name in names:
        await client.set(name, name)
    await flush(worker)
    redis_raw.unlink(*map(keys.state, names))
    asked, fetch = list[str](), client._runtime.postgres.fetch_each

    def counted(names: tuple[str, ...], *given: Any, **more: Any) -> Any:
        asked.append(" ".join(names))
        return fetch(names, *given, **more)

    monkeypatch.setattr(client._runtime.postgres, "fetch_each", counted)
    assert _values(await client.get_many(names)) == {name: name for name in names}
    assert asked == [LOOK, HYDRATE] * len({*map(keys.shard, names)})
    assert redis_raw.exists(*map(keys.state, names)) == 60


async def test_all_shards_are_read_in_one_exchange(client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"runs/{number}" for number in range(60)]
    for name in names:
        await client.set(name, name)
    exchanges, scripts = list[int](), client._runtime.redis.read_scripts

    def counted(name: str, calls: Any, **more: Any) -> Any:
        exchanges.append(len(calls))
        return scripts(name, calls, **more)

    monkeypatch.setattr(client._runtime.redis, "read_scripts", counted)
    assert _values(await client.get_many(names)) == {name: name for name in names}
    assert exchanges == [client.settings.shards]


async def test_what_was_read_locally_is_kept_here_and_stays_coherent(
    make_client: MakeClient, settings: Settings
) -> None:
    one, other = make_client(settings.model_copy(update={"read": "local"})), make_client(settings)
    names = [f"runs/{number}" for number in range(30)]
    for name in names:
        await other.set(name, name)
    await one.warm(names[:10])
    await one.get_many(names)
    hits = one.near.hits
    assert _values(await one.get_many(names)) == {name: name for name in names}
    assert one.near.hits == hits + 30
    await one.set("runs/3", "mine")
    assert (await one.get_many(names))["runs/3"].value == "mine"  # type: ignore[union-attr]
    invalidations = one.near.invalidations
    await other.set("runs/4", "theirs")
    await until(lambda: one.near.invalidations > invalidations)
    assert (await one.get_many(names))["runs/4"].value == "theirs"  # type: ignore[union-attr]


async def test_who_joins_what_others_read_sends_nothing(
    make_client: MakeClient, settings: Settings, keys: KeySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop of Python 3.12 turns for ever with an empty piece to send."""
    sent = list[list[bytes]]()

    def noting(commands: Sequence[Command]) -> list[bytes]:
        sent.append(packed(commands))
        return sent[-1]

    one, other = make_client(settings.model_copy(update={"read": "local"})), make_client(settings)
    names = [f"runs/{number}" for number in range(3)]
    await other.set_many({name: name for name in names})
    await one.get("runs/none")
    monkeypatch.setattr(connection, "packed", noting)
    found = await asyncio.gather(*(one.get_many(names) for _ in range(5)))
    assert [_values(some) for some in found] == [{name: name for name in names}] * 5
    assert all(pieces and all(pieces) for pieces in sent)
    assert b"".join(piece for pieces in sent for piece in pieces).count(keys.state(names[0]).encode()) < 5
    assert packed([]) == []


async def test_an_older_state_than_was_seen_is_read_again_by_itself(
    client: AsyncStateCache, redis_raw: Any, keys: KeySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.set("runs/1", 1)
    await client.set("runs/2", 2)
    old = redis_raw.dump(keys.state("runs/1"))
    await client.set("runs/1", "newer")
    newer = redis_raw.dump(keys.state("runs/1"))
    redis_raw.restore(keys.state("runs/1"), 0, old, replace=True)
    again, primary = list[str](), client._runtime.reader.primary

    def by_itself(key: str, **more: Any) -> Any:
        again.append(key)
        redis_raw.restore(keys.state("runs/1"), 0, newer, replace=True)
        return primary(key, **more)

    monkeypatch.setattr(client._runtime.reader, "primary", by_itself)
    assert _values(await client.get_many(["runs/1", "runs/2"])) == {"runs/1": "newer", "runs/2": 2}
    assert again == ["runs/1"]


async def test_a_fenced_read_of_many_has_the_word_of_postgres(
    client: AsyncStateCache, keys: KeySpace, psql: psycopg.Connection[Any]
) -> None:
    for name in ("runs/1", "runs/2"):
        await client.set(name, name)
    assert _values(await client.get_many(["runs/1", "runs/2"], read="fenced")) == {
        "runs/1": "runs/1",
        "runs/2": "runs/2",
    }
    psql.execute("UPDATE shard SET epoch = epoch + 1, replid = 'another' WHERE shard = %s", [keys.shard("runs/2")])
    with pytest.raises(Unavailable, match="not the current one"):
        await client.get_many(["runs/1", "runs/2"], read="fenced", timeout=0.5)


async def test_a_namespace_gives_its_own_names_and_its_type(client: AsyncStateCache) -> None:
    runs = client.namespace("runs", type=Run)
    await runs.set("1", Run("one"))
    assert _values(await runs.get_many(["1", "2"])) == {"1": Run("one"), "2": None}
    assert _values(await client.get_many(iter(["runs/1"]), type=Run)) == {"runs/1": Run("one")}
    await client.set("runs/3", {"goal": 3})
    with pytest.raises(CodecError, match="'runs/3'"):
        await runs.get_many(["1", "3"])


async def test_what_is_no_name_and_what_is_no_mode_is_refused(client: AsyncStateCache) -> None:
    with pytest.raises(UsageError, match="not one text"):
        await client.get_many("runs/1")
    with pytest.raises(InvalidKey):
        await client.get_many(["runs/1", "runs"])
    wrong: Any = "somewhere"
    with pytest.raises(UsageError, match="somewhere"):
        await client.get_many(["runs/1"], read=wrong)
    with pytest.raises(UsageError, match="max_stale"):
        await client.get_many(["runs/1"], read="primary", max_stale=1)


@pytest.mark.parametrize("read", MODES)
async def test_whether_there_is_a_state_is_told_whatever_its_type(
    client: AsyncStateCache, agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace, read: ReadMode
) -> None:
    runs = client.namespace("runs", type=Run)
    await client.set("runs/1", 1)
    await client.set("runs/2", 1)
    await client.delete("runs/2")
    for _ in range(2):
        assert await runs.exists("1", read=read)
        assert not await runs.exists("2", read=read)
        assert not await runs.exists("3", read=read)
    agents.commit(("runs/4", '"refused"'), reason="a\0b")
    await flush(worker)
    redis_raw.unlink(keys.state("runs/4"))
    with pytest.raises(Quarantined):
        await client.exists("runs/4", read=read)
    with pytest.raises(Quarantined):
        await client.get_many(["runs/1", "runs/4"], read=read)


@pytest.mark.parametrize("read", MODES)
async def test_a_default_comes_as_a_state_that_nobody_has_stored(
    make_client: MakeClient, settings: Settings, read: ReadMode
) -> None:
    client = make_client(settings)
    for _ in range(2):  # the second time the absence may be known here
        assert (await client.get("runs/1", default={"step": 0}, read=read)).value == {"step": 0}
    state = await client.get("runs/1", default=dict, read=read)
    assert (state.value, state.version, state.position) == ({}, 0, None)
    assert await client.get("runs/1", read=read) is None
    stored = await client.set("runs/1", {"step": 1}, expected=state)
    assert (await client.get("runs/1", default=dict, read=read)) == stored
    with pytest.raises(VersionConflict):
        await client.set("runs/1", {"step": 2}, expected=state)
    await client.delete("runs/1")
    again = await client.get("runs/1", default=None, read=read)
    assert (again.value, again.version) == (None, 2)
    assert (await client.set("runs/1", 3, expected=again)).version == 3
