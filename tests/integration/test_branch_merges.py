"""Merging branches: what both sides made of what they were made from, as one commit on what is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    ChangeIdReused,
    CodecError,
    HistoryIncomplete,
    InvalidKey,
    LockHeld,
    MergeConflict,
    NotFound,
    Settings,
    UsageError,
)
from statecache.rules.three_way import merged
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing, rows
from tests.fixtures.servers import MakeClient

MAIN, SIDE = "runs/main", "runs/side"
Psql = psycopg.Connection[Any]


class Run(msgspec.Struct, frozen=True):
    """What an agent has come to."""

    step: int = 0
    said: list[str] = []
    notes: dict[str, str] = {}


@pytest.fixture(autouse=True)
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """A worker that flushes beside the test."""
    async with flushing(worker):
        yield


async def test_what_both_did_is_in_it_and_the_merge_names_both_parents(client: AsyncStateCache, psql: Psql) -> None:
    await client.set(MAIN, {"said": ["a"], "plan": "p", "step": 1})
    await client.branch(MAIN, SIDE)
    ours = await client.set(MAIN, {"said": ["a", "ours"], "plan": "p", "step": 2})
    await client.set(SIDE, {"said": ["a", "theirs"], "plan": "q", "step": 1})
    state = await client.merge(SIDE, MAIN, reason="both", actor="ada", durability="postgres")
    assert state.value == {"said": ["a", "ours", "theirs"], "plan": "q", "step": 2}
    assert (state.key, state.version, state.parent_change_id) == (MAIN, 3, ours.change_id)
    assert rows(psql, "SELECT reason, actor FROM change WHERE key = %s AND version = 3", MAIN) == [
        (f"merge of {SIDE}@2: both", "ada")
    ]
    merge, branch = await client.ancestry(MAIN)
    assert (merge.kind, merge.key, merge.version, merge.origin, merge.origin_version) == ("merge", MAIN, 3, SIDE, 2)
    assert (merge.reason, branch.kind, branch.key, branch.origin) == ("both", "branch", SIDE, MAIN)
    assert [one.key for one in await client.branches(MAIN)] == [SIDE]
    assert await client.branches(SIDE) == []


async def test_a_second_merge_begins_from_the_last_one(client: AsyncStateCache) -> None:
    await client.set(MAIN, ["a"])
    await client.branch(MAIN, SIDE)
    await client.set(SIDE, ["a", "b"])
    await client.set(MAIN, ["z", "a"])
    assert (await client.merge(SIDE, MAIN)).value == ["z", "a", "b"]
    await client.set(SIDE, ["a", "b", "c"])
    assert (await client.merge(SIDE, MAIN)).value == ["z", "a", "b", "c"]
    assert (await client.merge(MAIN, SIDE)).value == ["z", "a", "b", "c"]
    await client.set(SIDE, ["z", "a", "b", "c", "d"])
    await client.set(MAIN, ["y", "z", "a", "b", "c"])
    assert (await client.merge(SIDE, MAIN)).value == ["y", "z", "a", "b", "c", "d"]
    assert (await client.merge(MAIN, SIDE)).value == ["y", "z", "a", "b", "c", "d"]


async def test_nothing_new_is_nothing_written_and_what_only_they_changed_is_taken_as_it_is(
    client: AsyncStateCache,
) -> None:
    await client.set(MAIN, 1)
    await client.branch(MAIN, SIDE)
    main = await client.set(MAIN, 2)
    assert await client.merge(SIDE, MAIN) == main
    assert (await client.merge(MAIN, SIDE)).value == 2
    state = await client.namespace("runs", encoding="msgpack").set("side", b"\0")
    taken = await client.namespace("runs", encoding="msgpack").merge("side", "main")
    assert (taken.value, taken.version, state.version) == (b"\0", 3, 3)


async def test_branches_of_one_origin_are_merged_from_it(client: AsyncStateCache) -> None:
    await client.set(MAIN, {"a": 1})
    for name in ("runs/x", "runs/y"):
        await client.branch(MAIN, name)
        await client.set(name, {"a": 1, name: 1})
    state = await client.merge("runs/x", "runs/y")
    assert state.value == {"a": 1, "runs/x": 1, "runs/y": 1}


async def test_what_both_changed_differently_is_told_by_its_paths_and_nothing_is_written(
    client: AsyncStateCache,
) -> None:
    await client.set(MAIN, {"a": 1, "b": {"c": 1, "d": 1}, "e": 1})
    await client.set(MAIN, {"a": 1, "b": {"c": 1, "d": 1}})
    await client.branch(MAIN, SIDE)
    ours = await client.set(MAIN, {"a": 2, "b": {"c": 2, "d": 1}})
    await client.set(SIDE, {"a": 3, "b": {"c": 3, "d": 2}})
    with pytest.raises(MergeConflict) as caught:
        await client.merge(SIDE, MAIN)
    assert (caught.value.branch, caught.value.into, caught.value.base) == (SIDE, MAIN, 2)
    assert caught.value.paths == ("a", "b.c")
    assert "changed the same since version 2: a, b.c. Nothing" in str(caught.value)
    assert await client.get(MAIN) == ours


async def test_a_function_decides(client: AsyncStateCache) -> None:
    seen: list[Any] = []

    def added(base: Any, ours: Any, theirs: Any) -> Any:
        seen.append((base, ours, theirs))
        return ours + theirs - base

    await client.set(MAIN, 10)
    await client.branch(MAIN, SIDE)
    await client.set(SIDE, 15)
    assert (await client.merge(SIDE, MAIN, function=added)).value == 15
    assert seen == []
    await client.set(MAIN, 12)
    await client.set(SIDE, 20)
    assert (await client.merge(SIDE, MAIN, function=added)).value == 17
    counters = client.namespace("runs", merge=added)
    await counters.set("side", 21)
    await counters.set("main", 18)
    assert (await counters.merge("side", "main")).value == 19
    assert seen == [(15, 12, 20), (20, 18, 21)]
    await client.set(SIDE, 0)
    await client.set(MAIN, 0)
    with pytest.raises(UsageError, match="returned None"):
        await client.merge(SIDE, MAIN, function=lambda *_: None)
    with pytest.raises(ZeroDivisionError):
        await client.merge(SIDE, MAIN, function=lambda *_: 1 / 0)
    with pytest.raises(UsageError, match="is not a function of base, ours and theirs"):
        await client.merge("runs/none", MAIN, function="ours")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="merge= is a function"):
        client.namespace("runs", merge=5)  # type: ignore[call-overload]


async def merged_at_once(client: AsyncStateCache, decide: Any) -> None:
    """Merge two keys into one another at once: the second merge begins and ends while the first one is decided."""
    loop, merging = asyncio.get_running_loop(), [lambda: client.merge(MAIN, SIDE, function=decide)]

    async def beside(*sides: Any) -> Any:
        await merging.pop()()
        return decide(*sides)

    def function(*sides: Any) -> Any:
        if not merging:
            return decide(*sides)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # of a client without one
            return asyncio.run_coroutine_threadsafe(beside(*sides), loop).result()
        return beside(*sides)

    await client.merge(SIDE, MAIN, function=function)
    assert not merging


async def test_what_was_merged_both_ways_at_once_is_doubled_by_no_further_merge(client: AsyncStateCache) -> None:
    await client.set(MAIN, {"said": ["a"]})
    await client.branch(MAIN, SIDE)
    for round_ in range(3):
        for key in (MAIN, SIDE):
            state = await client.get(key)
            assert state is not None
            await client.set(key, {"said": [*state.value["said"], f"{key} {round_}"]})
        await merged_at_once(client, lambda *sides: merged(*sides).value)
    ours, theirs = [(await client.get(key)) for key in (MAIN, SIDE)]
    assert ours is not None
    assert theirs is not None
    assert ours.value != theirs.value
    everything = ["a", *(f"{key} {round_}" for key in (MAIN, SIDE) for round_ in range(3))]
    assert sorted((await client.merge(SIDE, MAIN)).value["said"]) == sorted(everything)
    await client.update(SIDE, lambda then: {"said": [one for one in then["said"] if one != f"{MAIN} 0"]})
    everything.remove(f"{MAIN} 0")
    for pair in ((SIDE, MAIN), (MAIN, SIDE)):
        assert sorted((await client.merge(*pair)).value["said"]) == sorted(everything)


async def test_a_function_decides_on_what_was_merged_both_ways_at_once(client: AsyncStateCache) -> None:
    def added(base: Any, ours: Any, theirs: Any) -> Any:
        return ours + theirs - base

    await client.set(MAIN, 10)
    await client.branch(MAIN, SIDE)
    await client.set(MAIN, 12)
    await client.set(SIDE, 13)
    await merged_at_once(client, added)
    assert (await client.merge(SIDE, MAIN, function=added)).value == 15
    await client.increment(MAIN, 2)
    await client.increment(SIDE, 3)
    assert (await client.merge(SIDE, MAIN, function=added)).value == 20


async def test_typed_values_are_merged_as_their_type_has_them(client: AsyncStateCache) -> None:
    runs = client.namespace("runs", type=Run)
    await client.set(MAIN, {"step": 1, "said": ["a"]})
    await runs.branch("main", "side")
    await runs.set("main", Run(2, ["a", "b"], {"by": "ours"}))
    await client.namespace("runs", encoding="msgpack", type=Run).set("side", Run(1, ["a", "c"], {"for": "theirs"}))
    state = await runs.merge("side", "main", durability="postgres")
    assert state.value == Run(2, ["a", "b", "c"], {"by": "ours", "for": "theirs"})
    assert state.schema == (await runs.set("other", Run())).schema
    await client.branch("runs/main", "runs/odd")
    await client.set("runs/odd", {"step": "no number", "said": [], "notes": {}})
    await runs.set("main", Run(3))
    with pytest.raises(CodecError):
        await runs.merge("odd", "main")


class Versioned(msgspec.Struct, frozen=True):
    """What is read from an earlier version too."""

    __schema_version__ = 2
    said: list[str] = []
    tags: frozenset[str] = frozenset()


EARLIER: Any = msgspec.defstruct("Versioned", [("lines", list[str])])


def _with_tags(old: Any) -> Any:
    return {"said": old["lines"], "tags": ["old"]}


async def test_what_is_upgraded_as_it_is_read_is_merged_too(client: AsyncStateCache) -> None:
    runs = client.namespace("runs", type=Versioned, upgrade={1: _with_tags})
    await client.set(MAIN, EARLIER(["a"]))
    await runs.branch("main", "side")
    await runs.update("main", lambda run: Versioned([*run.said, "ours"], run.tags | {"x"}))
    await runs.update("side", lambda run: Versioned([*run.said, "theirs"], run.tags | {"y"}))
    state = await runs.merge("side", "main")
    assert state.value == Versioned(["a", "ours", "theirs"], frozenset({"old", "x", "y"}))
    assert state.schema.startswith("Versioned@2#")


class Tagged(msgspec.Struct, frozen=True):
    """What has sets in it."""

    tags: frozenset[str] = frozenset()
    more: dict[str, set[int] | None] = {}


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_sets_of_a_type_are_merged_by_their_members(client: AsyncStateCache, encoding: Any) -> None:
    sets = client.namespace("runs", type=set[str], encoding=encoding)
    await sets.set("main", {*"abcdefgh"})
    await sets.branch("main", "side")
    await sets.set("main", {*"acdefghx", "both"})
    await sets.set("side", {*"hgfedcby", "both"})
    assert (await sets.merge("side", "main")).value == {*"cdefghxy", "both"}
    tagged = client.namespace("tagged", type=Tagged, encoding=encoding)
    await tagged.set("main", Tagged(frozenset("a"), {"n": {1}, "none": None}))
    await tagged.branch("main", "side")
    await tagged.set("main", Tagged(frozenset("ab"), {"n": {2}, "none": None}))
    await tagged.set("side", Tagged(frozenset("bc"), {"n": {3, 4}, "none": {1}}))
    assert (await tagged.merge("side", "main")).value == Tagged(frozenset("bc"), {"n": {2, 3, 4}, "none": {1}})


async def test_ends_and_encodings_of_ours_stay(client: AsyncStateCache) -> None:
    packed = client.namespace("runs", encoding="msgpack")
    ours = await packed.set("main", {"a": 1}, ttl=3600)
    await client.branch(MAIN, SIDE)
    await packed.set("main", {"a": 1, "b": b"\0"}, ttl=3600)
    await packed.set("side", {"a": 2})
    state = await client.merge(SIDE, MAIN)
    assert state.value == {"a": 2, "b": b"\0"}
    assert state.expires_at is not None
    assert ours.expires_at is not None
    assert state.expires_at > ours.expires_at
    await client.set(SIDE, {"a": 5})
    assert (await client.merge(SIDE, MAIN)).expires_at == state.expires_at


async def test_strangers_and_those_that_are_gone_are_refused(client: AsyncStateCache) -> None:
    await client.set(MAIN, 1)
    await client.set(SIDE, 1)
    with pytest.raises(UsageError, match="no common ancestor"):
        await client.merge(SIDE, MAIN)
    await client.delete(SIDE)
    for pair in ((SIDE, MAIN), (MAIN, SIDE)):
        with pytest.raises(NotFound):
            await client.merge(*pair)


async def test_of_those_who_race_each_is_merged(make_client: MakeClient, settings: Settings) -> None:
    clients = [make_client(settings) for _ in range(4)]
    await clients[0].set(MAIN, {})
    for number, client in enumerate(clients):
        await client.branch(MAIN, f"runs/{number}")
        await client.set(f"runs/{number}", {str(number): number})
    await asyncio.gather(*(client.merge(f"runs/{number}", MAIN) for number, client in enumerate(clients)))
    state = await clients[0].get(MAIN)
    assert state is not None
    assert state.value == {str(number): number for number in range(4)}


async def test_a_call_may_be_repeated_by_its_change_id(make_client: MakeClient, settings: Settings) -> None:
    client, change_id = make_client(settings), "c" * 24
    await client.set(MAIN, ["a"])
    await client.branch(MAIN, SIDE)
    await client.set(SIDE, ["a", "b"])
    await client.set(MAIN, ["a", "x"])
    state = await client.merge(SIDE, MAIN, change_id=change_id)
    for number in range(10):
        await client.set(MAIN, number)
    await client.set(SIDE, ["more"])
    assert await make_client(settings).merge(SIDE, MAIN, change_id=change_id, durability="postgres") == state
    await client.set(MAIN, 1, change_id="d" * 24)
    with pytest.raises(ChangeIdReused):
        await client.merge(SIDE, MAIN, change_id="d" * 24)
    await client.branch(MAIN, "runs/another")
    for call in (client.merge("runs/another", MAIN, change_id=change_id), client.undo(MAIN, change_id=change_id)):
        with pytest.raises(ChangeIdReused):
            await call
    assert await client.merge(SIDE, MAIN, change_id=change_id) == state


async def test_a_lock_is_in_the_way_of_others(make_client: MakeClient, settings: Settings) -> None:
    runs = make_client(settings).namespace("runs", locking="enforced")
    other = make_client(settings).namespace("runs", locking="enforced")
    await runs.set("main", [1])
    await runs.branch("main", "main/side")
    await runs.set("main/side", [1, 2])
    await runs.set("main", [0, 1])
    async with runs.lock("main") as lease:
        with pytest.raises(LockHeld):
            await other.merge("main/side", "main")
        assert (await lease.merge("main/side", "main")).value == [0, 1, 2]
        await other.branch("main", "elsewhere")
        await other.set("elsewhere", [0, 1, 2, 3])
        assert (await lease.merge("elsewhere", "main")).value == [0, 1, 2, 3]
        assert (await lease.branch("elsewhere", "main/of-elsewhere")).value == [0, 1, 2, 3]
        for call in (lease.merge("main", "elsewhere"), lease.branch("main", "runs-of-others")):
            with pytest.raises(InvalidKey, match="which the lease guards"):
                await call


async def test_what_is_not_in_postgres_in_time_is_told(make_client: MakeClient, make_settings: Any) -> None:
    client = make_client(make_settings())  # nobody flushes this one
    await client.set(MAIN, 1)
    await client.set(SIDE, 1)
    with pytest.raises(HistoryIncomplete):
        await client.merge(SIDE, MAIN, timeout=0.5)
