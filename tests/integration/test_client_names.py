"""Names: views within views, the namespaces that there are, and values that move to another key."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.errors import AlreadyExists, CodecError, InvalidKey, NotFound, UsageError
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient

Psql = psycopg.Connection[Any]


class Job(msgspec.Struct, frozen=True):
    """A value."""

    goal: str
    tries: int = 0


async def test_a_view_within_a_view_is_about_the_keys_below(client: AsyncStateCache) -> None:
    runs = client.namespace("runs", type=Job, encoding="msgpack", durability="memory")
    one = runs.namespace("42")
    await one.set("plan", Job("buy"))
    assert (await one.set("plan/a", Job("sell"))).key == "runs/42/plan/a"
    state = await client.get("runs/42/plan", type=Job)
    assert state is not None
    assert state.value == Job("buy")
    found = await one.get("plan")
    assert found is not None
    assert found.value == Job("buy")
    assert [state.key async for state in one.list()] == ["runs/42/plan", "runs/42/plan/a"]
    with pytest.raises(CodecError):
        await client.namespace("runs", type=Job).namespace("42", type=list[int]).get("plan")


@pytest.mark.parametrize("name", ["", "a//b", "a/", "/a", 7])
async def test_a_name_that_no_key_could_have_is_refused(client: AsyncStateCache, name: Any) -> None:
    with pytest.raises(InvalidKey):
        client.namespace("runs").namespace(name)


async def test_a_policy_of_a_view_within_is_its_own_where_it_is_given(client: AsyncStateCache) -> None:
    runs = client.namespace("runs", encoding="msgpack", value_bytes_max=10)
    assert runs.namespace("42")._view.encoding == "msgpack"
    assert runs.namespace("42", encoding="json")._view.encoding == "json"
    assert runs.namespace("42")._view.value_bytes_max == 10
    assert client.namespace("runs")._view.encoding == "json"


async def test_the_namespaces_are_those_in_postgres_and_those_on_their_way(
    client: AsyncStateCache, worker: Worker
) -> None:
    assert await client.namespaces() == []
    for key in ("runs/1", "runs/2", "a/1", "runs.old/1"):
        await client.set(key, 1)
    await flush(worker)
    await client.set("zeta/1", 1)
    assert await client.namespaces() == ["a", "runs", "runs.old", "zeta"]


async def test_a_namespace_of_which_all_is_deleted_is_none(client: AsyncStateCache, worker: Worker) -> None:
    for key in ("runs/1", "runs/2", "a/1"):
        await client.set(key, 1)
    await client.delete("a/1")
    assert await client.namespaces() == ["runs"]
    await flush(worker)
    await client.delete("runs/1")
    assert await client.namespaces() == ["runs"]
    await client.delete("runs/2")
    assert await client.namespaces() == []
    await flush(worker)
    assert await client.namespaces() == []


async def test_a_copy_is_what_is_stored_whatever_this_client_knows_of_it(client: AsyncStateCache) -> None:
    typed = client.namespace("runs", type=Job, encoding="msgpack")
    first = await typed.set("1", Job("buy", 3))
    copied = await client.copy("runs/1", "others/1")
    assert (copied.key, copied.version, copied.schema) == ("others/1", 1, first.schema)
    assert copied.change_id != first.change_id
    state = await client.namespace("others", type=Job).get("1")
    assert state is not None
    assert state.value == Job("buy", 3)
    assert (await typed.get("1")) == first


async def test_a_copy_replaces_nothing_unless_it_is_told_to(client: AsyncStateCache) -> None:
    await client.set("runs/1/a", "new")
    await client.set("runs/1/b", "old")
    with pytest.raises(AlreadyExists):
        await client.copy("runs/1/a", "runs/1/b")
    replaced = await client.copy("runs/1/a", "runs/1/b", replace=True)
    assert (replaced.value, replaced.version) == ("new", 2)
    with pytest.raises(NotFound):
        await client.copy("runs/1/none", "runs/1/c")
    with pytest.raises(UsageError, match="to itself"):
        await client.copy("runs/1/a", "runs/1/a", replace=True)


async def test_a_rename_is_one_commit(client: AsyncStateCache, worker: Worker, psql: Psql) -> None:
    before = await client.set("runs/1/draft", {"step": 1})
    after = await client.rename("runs/1/draft", "runs/1/final", actor="ann", reason="done")
    assert (after.key, after.value, after.version) == ("runs/1/final", {"step": 1}, 1)
    assert await client.get("runs/1/draft") is None
    assert await client.get("runs/1/final") == after
    await flush(worker)
    asked = "SELECT key, op, version, parent_change_id, actor FROM change WHERE change_id = %s ORDER BY key"
    rows = psql.execute(asked, [after.change_id]).fetchall()
    assert rows == [
        ("runs/1/draft", "delete", 2, before.change_id, "ann"),
        ("runs/1/final", "set", 1, "", "ann"),
    ]


async def test_a_rename_overwrites_nothing_and_stays_in_its_group(client: AsyncStateCache) -> None:
    await client.set("runs/1/a", 1)
    await client.set("runs/1/b", 2)
    with pytest.raises(AlreadyExists):
        await client.rename("runs/1/a", "runs/1/b")
    with pytest.raises(InvalidKey, match="not of the group"):
        await client.rename("runs/1/a", "runs/2/a")
    with pytest.raises(NotFound):
        await client.rename("runs/1/none", "runs/1/c")
    assert (await client.rename("runs/1/a", "runs/1/b", replace=True)).value == 1
    assert await client.get("runs/1/a") is None


async def test_of_many_who_rename_one_state_one_does(client: AsyncStateCache, settings: Settings) -> None:
    await client.set("runs/1/a", "here")
    names = [f"runs/1/b{number}" for number in range(8)]
    done = await asyncio.gather(*(client.rename("runs/1/a", name) for name in names), return_exceptions=True)
    moved = [one for one in done if not isinstance(one, BaseException)]
    assert len(moved) == 1
    assert all(isinstance(one, NotFound) for one in done if isinstance(one, BaseException))
    assert [state.key async for state in client.list("runs/1/")] == [moved[0].key]


async def test_what_is_written_meanwhile_is_renamed_or_stays(client: AsyncStateCache, make_client: MakeClient) -> None:
    """No value is lost between a reader of the one key and a writer of it."""
    writer = make_client(client.settings)
    for number in range(20):
        source, target = f"runs/1/a{number}", f"runs/1/z{number}"
        await client.set(source, "old")
        renamed = asyncio.create_task(client.rename(source, target))
        written = await writer.set(source, "new")
        await renamed
        here, there = await client.get(source), await client.get(target)
        assert there is not None
        if here is None:
            assert there.value == "new"
        else:
            assert (here.change_id, there.value) == (written.change_id, "old")
