"""Listings: what Postgres holds and what is still on its way there, each key once, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    CodecError,
    InvalidKey,
    PostgresUnavailable,
    Quarantined,
    Settings,
    State,
    Unavailable,
    UsageError,
)
from statecache.core.read.listed import Order
from statecache.core.read.listing import Listing
from statecache.keys import KeySpace
from statecache.lua import script
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush
from tests.fixtures.servers import MakeClient, every_redis
from tests.simulation.backups import Backup
from tests.support.workers import at_work


class Run(msgspec.Struct, frozen=True):
    goal: str


async def _keys(listing: AsyncIterator[State[Any]]) -> list[str]:
    return [state.key async for state in listing]


@every_redis
async def test_clean_and_dirty_states_are_listed_once_in_byte_order(client: AsyncStateCache, worker: Worker) -> None:
    names = [
        "runs/Z",
        "runs/a",
        "runs/a/steps/1",
        "runs/a b",
        "runs/é",
        "runs/ä",
        "runs/~",
        "runs/\U0001f511",
        "runs/10",
    ]
    for number, name in enumerate(names):
        await client.set(name, number)
        if number == 4:
            await flush(worker)
    await client.set("other/1", "not under the prefix")
    await client.set("runs/Z", "again")
    await client.delete("runs/a")
    expected = sorted({*names} - {"runs/a"}, key=str.encode)
    assert await _keys(client.list("runs/")) == expected
    values = {state.key: state.value async for state in client.list("runs/")}
    assert values["runs/Z"] == "again"
    await flush(worker)
    assert await _keys(client.list("runs/")) == expected


async def test_a_prefix_may_end_anywhere_behind_the_namespace(client: AsyncStateCache, worker: Worker) -> None:
    for name in ("runs/42", "runs/42/a", "runs/42/b", "runs/420", "runs/43", "runsmore/42"):
        await client.set(name, 1)
        if name == "runs/42/a":
            await flush(worker)
    assert await _keys(client.list("runs/42")) == ["runs/42", "runs/42/a", "runs/42/b", "runs/420"]
    assert await _keys(client.list("runs/42/")) == ["runs/42/a", "runs/42/b"]
    assert await _keys(client.list("runs/5")) == []
    with pytest.raises(InvalidKey, match="names a whole namespace"):
        await _keys(client.list("runs"))
    assert await _keys(client.list()) == ["runs/42", "runs/42/a", "runs/42/b", "runs/420", "runs/43", "runsmore/42"]
    assert await _keys(client.list(after="runs/43")) == ["runsmore/42"]
    await flush(worker)
    assert await _keys(client.list(order="-key", limit=2)) == ["runsmore/42", "runs/43"]
    with pytest.raises(UsageError, match="by age one namespace is listed at a time"):
        await _keys(client.list(order="newest"))
    for refused in (client.delete_many(prefix=""), client.warm("")):  # what is done to all has to be named
        with pytest.raises(InvalidKey, match="names a whole namespace"):
            await refused
    assert len(await _keys(client.list())) == 6


async def test_the_newest_come_first_and_a_limit_ends_it(client: AsyncStateCache, worker: Worker) -> None:
    for number in range(6):
        await client.set(f"runs/{number}", number)
        if number == 3:
            await flush(worker)
    await client.set("runs/1", "again")
    await client.delete("runs/5")
    assert await _keys(client.list("runs/", order="newest")) == ["runs/1", "runs/4", "runs/3", "runs/2", "runs/0"]
    assert await _keys(client.list("runs/", order="newest", limit=2)) == ["runs/1", "runs/4"]
    assert await _keys(client.list("runs/", limit=3)) == ["runs/0", "runs/1", "runs/2"]


async def test_a_listing_of_many_pages_is_whole(
    client: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statecache.core.read.listing._PAGE", 7)
    monkeypatch.setattr("statecache.core.read.dirty._KEYS_PER_READ", 3)
    names = [f"runs/{number:03d}" for number in range(50)]
    for number, name in enumerate(names):
        await client.set(name, number)
        if number == 34:
            await flush(worker)
    for name in names[::9]:
        await client.set(name, "dirty again")
    assert await _keys(client.list("runs/")) == names
    assert sorted(await _keys(client.list("runs/", order="newest"))) == names


@pytest.mark.parametrize("order", ["key", "-key"])
async def test_a_page_ends_where_its_values_come_to_many_bytes(
    client: AsyncStateCache, worker: Worker, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lists many large states holds as many bytes of them at once as a page may have, and a value more."""
    pages: list[list[int]] = []
    page_of = Listing._page

    async def noted(*asked: Any, **more: Any) -> Any:
        rows, watermarks = await page_of(*asked, **more)
        pages.append([len(row[2]) for row in rows])
        return rows, watermarks

    monkeypatch.setattr("statecache.core.read.listing._PAGE_BYTES", 300)
    monkeypatch.setattr(Listing, "_page", noted)
    sizes = [0, 1, 298, 5, 400, 400, 100, 100, 100, 100, *([30] * 25)]
    wanted = [(f"runs/{number:02d}", "x" * size) for number, size in enumerate(sizes)]
    for key, value in wanted:
        await client.set(key, value)
    await flush(worker)
    await client.set("runs/03", "dirty")
    wanted[3] = ("runs/03", "dirty")
    listed = [(state.key, state.value) async for state in client.list("runs/", order=order)]
    assert listed == (wanted if order == "key" else wanted[::-1])
    assert len(pages) > 5
    assert all(sum(page[:-1]) < 300 for page in pages)
    assert await _keys(client.list("runs/", limit=12)) == [key for key, _ in wanted[:12]]


async def test_a_namespace_lists_its_own_with_its_type(client: AsyncStateCache) -> None:
    runs = client.namespace("runs", type=Run)
    await runs.set("1", Run("one"))
    await client.set("other/1", 1)
    assert [state.value async for state in runs.list()] == [Run("one")]
    assert [state.value async for state in client.list("runs/", type=Run)] == [Run("one")]
    await client.set("runs/2", {"goal": 2})
    with pytest.raises(CodecError, match="'runs/2'"):
        [state async for state in runs.list()]


async def test_characters_that_like_patterns_are_themselves(client: AsyncStateCache, worker: Worker) -> None:
    names = ["runs/%", "runs/%a", "runs/*", "runs/_", "runs/x", "runs/[x]"]
    for name in names:
        await client.set(name, 1)
    for _ in range(2):
        assert await _keys(client.list("runs/%")) == ["runs/%", "runs/%a"]
        assert await _keys(client.list("runs/_")) == ["runs/_"]
        assert await _keys(client.list("runs/[")) == ["runs/[x]"]
        await flush(worker)


async def test_names_that_begin_with_the_last_character_are_listed(client: AsyncStateCache, worker: Worker) -> None:
    names = ["runs/z", "runs/\U0010ffff", "runs/\U0010ffffz", "runs/\U0010ffff\U0010ffff"]
    for name in names:
        await client.set(name, 1)
    for _ in range(2):
        assert await _keys(client.list("runs/")) == names
        assert await _keys(client.list("runs/", order="-key")) == names[::-1]
        assert await _keys(client.list("runs/", order="oldest")) == names
        assert await _keys(client.list("runs/\U0010ffff")) == names[1:]
        await flush(worker)


async def test_a_listing_of_raw_values_leaves_out_the_records_of_steps(
    client: AsyncStateCache, settings: Settings
) -> None:
    files = client.namespace("files", encoding="raw")
    await files.set("1", b"\xff")
    async with at_work(settings):
        assert await files.step("1", "upload", lambda step: "done") == "done"
    assert [(state.key, state.value) async for state in files.list()] == [("files/1", b"\xff")]
    assert await _keys(client.list("files/", values=False)) == ["files/1", "files/1/steps/upload"]


async def test_a_state_that_is_flushed_during_the_listing_is_not_missed(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    for number in range(4):
        await client.set(f"runs/{number}", number)
    seen = []
    async for state in client.list("runs/"):
        seen.append(state.key)
        await flush(worker)
    assert seen == [f"runs/{number}" for number in range(4)]


async def test_what_a_postgres_lacks_that_went_back_is_listed_from_redis(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, worker: Worker,
    psql: psycopg.Connection[Any],
) -> None:  # fmt: skip
    await client.set("runs/1", "old")
    await client.set("runs/2", "to be deleted")
    await flush(worker)
    backup = Backup(psql)
    await client.set("runs/1", "new")
    await client.delete("runs/2")
    await client.set("runs/3", "later")
    await flush(worker)
    backup.put_back()
    other = make_client(settings)
    order: Any
    for order in ("key", "newest"):
        found = {state.key: state.value async for state in other.list("runs/", order=order)}
        assert found == {"runs/1": "new", "runs/3": "later"}


@pytest.mark.parametrize("order", ["key", "-key", "newest", "oldest"])
@pytest.mark.parametrize("older", [False, True], ids=["same-epoch", "older-epoch"])
@pytest.mark.parametrize("begun", [False, True], ids=["let-go", "letting-go"])
async def test_a_postgres_that_went_back_behind_what_redis_let_go_is_not_listed(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, worker: Worker,
    psql: psycopg.Connection[Any], redis_raw: Any, keys: KeySpace, older: bool, begun: bool, order: Order,
) -> None:  # fmt: skip
    """It may be the server from before a failover, which no worker flushes into: then nothing mends it."""
    await client.set("runs/1", "old")
    await flush(worker)
    backup = Backup(psql)
    await client.set("runs/1", "new")
    await client.set("later/1", 1)
    await flush(worker)
    backup.put_back()
    if older:  # and it has flushed more than the epoch began with, of what that epoch lacks
        psql.execute("UPDATE shard SET epoch = epoch - 1, flushed = flushed + 100")
    other = make_client(settings)
    assert [state.value async for state in other.list("runs/", order=order)] == ["new"]
    assert await other.namespaces() == ["later", "runs"]
    for key, n in (("runs/1", 2), ("later/1", 1)):
        shard = keys.shard(key)
        retired = [keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.state(key)]
        redis_raw.eval(script("retire").text, len(retired), *retired, 1, n, n, "", 1000, 60_000, "", key)
        assert redis_raw.zscore(keys.unflushed(shard), key) is None
        if not begun:
            redis_raw.xtrim(keys.changes(shard), maxlen=0, approximate=False)
    for one in (other, make_client(settings.model_copy(update={"stale_reads": True}))):  # for the gate is open
        for what in ("runs/", "", None):
            with pytest.raises(Unavailable) as told:
                await (one.namespaces() if what is None else _keys(one.list(what, order=order if what else "key")))
            assert (told.value.reason, "holds less than was flushed" in told.value.detail) == ("hydration", True)
    assert (await other.get("runs/1")).value == "new"  # type: ignore[union-attr]


async def test_what_a_postgres_that_knows_nothing_of_a_shard_lacks_is_listed_from_redis(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    await client.set("runs/1", 1)
    await flush(worker)
    psql.execute("TRUNCATE change, state")
    psql.execute("DELETE FROM shard")
    other = make_client(settings)
    order: Any
    for order in ("key", "newest"):
        assert await _keys(other.list("runs/", order=order)) == ["runs/1"]
    assert await other.namespaces() == ["runs"]


@every_redis
async def test_a_state_whose_change_is_in_quarantine_is_listed_as_long_as_redis_holds_it(
    client: AsyncStateCache, agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    for name in ("runs/1", "runs/2", "runs/3"):
        await client.set(name, 1)
    await flush(worker)
    agents.commit(("runs/2", '"refused"'), reason="a\0b")
    agents.commit({"key": "runs/3", "op": "delete", "value": ""}, reason="a\0b")
    for settled in (False, True):
        if settled:
            await flush(worker)
            assert not agents.dirty(keys.shard("runs/2"))
        assert {state.key: state.value async for state in client.list("runs/")} == {"runs/1": 1, "runs/2": "refused"}
        assert await _keys(client.list("runs/", order="newest")) == ["runs/2", "runs/1"]
        assert await _keys(client.list("runs/", order="newest", limit=1)) == ["runs/2"]
        assert await _keys(client.list("runs/", order="newest", limit=2)) == ["runs/2", "runs/1"]
    redis_raw.unlink(keys.state("runs/2"))
    for order in ("key", "newest"):
        for values in (True, False):
            for _ in range(2):
                with pytest.raises(Quarantined) as refused:
                    await _keys(client.list("runs/2", order=order, values=values))
                assert refused.value.key == "runs/2"
                with pytest.raises(Quarantined):
                    await client.get("runs/2")
            redis_raw.unlink(keys.state("runs/2"))
    await client.set("runs/2", "again")
    assert await _keys(client.list("runs/")) == ["runs/1", "runs/2"]
    await flush(worker)
    assert await _keys(client.list("runs/")) == ["runs/1", "runs/2"]


async def test_a_dirty_state_that_was_removed_by_hand_breaks_no_listing(
    client: AsyncStateCache, make_client: MakeClient, settings: Settings, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    stranger = make_client(settings)
    await client.set_many({"runs/1": 1, "runs/2": 2})
    await flush(worker)
    await client.set("runs/1", "dirty")
    redis_raw.unlink(keys.state("runs/1"))
    for values in (True, False):
        assert await _keys(stranger.list("runs/", values=values)) == ["runs/1", "runs/2"]


async def test_what_is_in_quarantine_is_found_on_every_page(
    client: AsyncStateCache, agents: Agents, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statecache.core.read.listing._PAGE", 7)
    monkeypatch.setattr("statecache.core.read.dirty._KEYS_PER_READ", 3)
    names = [f"runs/{number:03d}" for number in range(30)]
    for number, name in enumerate(names):
        agents.commit(name, reason="a\0b" if number % 3 else "")
    await flush(worker)
    await client.set("runs/010", "dirty again")
    assert await _keys(client.list("runs/")) == names
    assert sorted(await _keys(client.list("runs/", order="newest"))) == names


async def test_without_postgres_there_is_no_listing(make_client: MakeClient, settings: Settings) -> None:
    client = make_client(settings.model_copy(update={"postgres_url": "postgresql://x:hush@127.0.0.1:1/x"}))
    with pytest.raises(PostgresUnavailable):
        await _keys(client.list("runs/", timeout=1.0))
