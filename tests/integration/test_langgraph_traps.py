"""What could go wrong with checkpoints on statecache, each once: nothing is lost, doubled, or another one's."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from statecache import AsyncStateCache, LimitExceeded, Settings, UsageError
from statecache.adapters.langgraph import StateCacheSaver
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.langgraph_stories import METADATA, checkpoint, config, got, ids, put

LARGE = 20_000
MIB = 1024 * 1024


class Reversing:
    """A cipher for those who cannot read backwards."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """Return the text backwards."""
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Return it forwards."""
        return ciphertext[::-1]


@pytest.fixture
def saver(cache: AsyncStateCache) -> StateCacheSaver:
    """A saver on an asynchronous client."""
    return StateCacheSaver(cache)


def values_of(found: CheckpointTuple) -> dict[str, Any]:
    return found.checkpoint["channel_values"]


def pending(found: CheckpointTuple) -> list[tuple[str, str, Any]]:
    assert found.pending_writes is not None
    return found.pending_writes


async def no_conflicts(worker: Worker, psql: psycopg.Connection[Any]) -> bool:
    """Flush, and return whether Postgres took all that there was."""
    await flush(worker)
    return rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_writes_that_come_before_their_checkpoint_are_its_own(
    saver: StateCacheSaver, cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    one = checkpoint({"a": "x" * LARGE})
    thread = config("42", one["id"])
    await saver.aput_writes(thread, [("a", 1)], "task")
    assert await saver.aget_tuple(thread) is None
    assert await ids(saver, config("42")) == []
    await flush(worker)
    await saver.aput(config("42"), one, METADATA, one["channel_versions"])
    assert pending(await got(saver, thread)) == [("task", "a", 1)]
    assert await no_conflicts(worker, psql)
    assert pending(await got(StateCacheSaver(cache), config("42"))) == [("task", "a", 1)]


async def test_a_checkpoint_that_is_put_again_once_redis_has_let_it_go_is_no_conflict(
    saver: StateCacheSaver, keys: KeySpace, worker: Worker, psql: psycopg.Connection[Any], redis_raw: Any
) -> None:
    one = checkpoint({"a": "x" * LARGE})
    await saver.aput(config("42"), one, METADATA, one["channel_versions"])
    await saver.aput_writes(config("42", one["id"]), [("a", 1)], "task")
    await flush(worker)
    assert redis_raw.unlink(*redis_raw.keys(f"{keys.state_stem(keys.shard('langgraph/42'))}*")) == 3
    await saver.aput(config("42"), one, METADATA, one["channel_versions"])
    assert await no_conflicts(worker, psql)
    found = await got(saver, config("42"))
    assert (values_of(found), pending(found)) == ({"a": "x" * LARGE}, [("task", "a", 1)])


async def test_a_thread_that_was_deleted_begins_anew(
    saver: StateCacheSaver, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    for round_ in ("first", "second"):
        parent = await put(saver, "42", {"a": round_ * LARGE})
        await put(saver, "42", {"a": round_ * LARGE * 2}, parent=parent)
        assert values_of(await got(saver, parent)) == {"a": round_ * LARGE}
        assert values_of(await got(saver, config("42"))) == {"a": round_ * LARGE * 2}
        await flush(worker)
        await saver.adelete_thread("42")
        assert await saver.aget_tuple(config("42")) is None
    assert await no_conflicts(worker, psql)


async def test_what_a_caller_changes_afterwards_changes_nothing(saver: StateCacheSaver) -> None:
    one = checkpoint({"a": [1]}, versions_seen={"node": {"a": 1}})
    metadata: Any = {"step": 1, "parents": {"b": "c"}}
    which = await saver.aput(config("42"), one, metadata, one["channel_versions"])
    one["versions_seen"]["node"]["a"] = 2
    one["channel_values"]["a"].append(2)
    one["channel_versions"]["a"] = 2
    metadata["parents"].clear()
    for _ in range(2):
        found = await got(saver, which)
        assert found.checkpoint["versions_seen"] == {"node": {"a": 1}}
        assert (values_of(found), found.checkpoint["channel_versions"]) == ({"a": [1]}, {"a": 1})
        assert found.metadata == {"step": 1, "parents": {"b": "c"}}
        found.checkpoint["versions_seen"]["node"]["a"] = 3
        values_of(found)["a"].append(3)


@pytest.mark.parametrize("ns", ["", "-", "child:1|grandchild:2", "n" * 600])
async def test_a_thread_may_have_any_name(saver: StateCacheSaver, ns: str) -> None:
    names = ["", "-", "a/b", "a", "a%2Fb", "/", "x" * 600, "x" * 601, "用户 {7}", 7]
    for number, name in enumerate(names):
        await put(saver, name, {"a": number}, ns=ns)
    for number, name in enumerate(names):
        found = await got(saver, config(name, checkpoint_ns=ns))
        assert values_of(found) == {"a": number}
        assert found.config["configurable"]["thread_id"] == str(name)
        assert found.config["configurable"]["checkpoint_ns"] == ns
        assert len(await ids(saver, config(name, checkpoint_ns=ns))) == 1
    await saver.adelete_thread("a")
    assert len(await ids(saver, None)) == len(names) - 1
    assert values_of(await got(saver, config("a/b", checkpoint_ns=ns))) == {"a": 2}


async def test_branches_whose_channels_have_the_same_version_are_kept_apart(
    saver: StateCacheSaver, worker: Worker
) -> None:
    root = await put(saver, "42", {"a": "root" * LARGE, "b": "kept" * LARGE}, version=1)
    branches = []
    for name in ("left", "right"):
        one = checkpoint(channel_values={"a": name * LARGE, "b": "kept" * LARGE}, channel_versions={"a": 2, "b": 1})
        branches.append(await saver.aput(root, one, METADATA, {"a": 2}))
    await flush(worker)
    for which, name in zip([root, *branches], ("root", "left", "right"), strict=True):
        assert values_of(await got(saver, which)) == {"a": name * LARGE, "b": "kept" * LARGE}


async def test_a_channel_that_did_not_change_is_not_written_again(
    saver: StateCacheSaver, cache: AsyncStateCache
) -> None:
    parent = await put(saver, "42", {"a": "x" * LARGE, "b": 1})
    values = {"a": "x" * LARGE, "b": 2}
    await saver.aput(parent, checkpoint(channel_values=values, channel_versions={"a": 1, "b": 2}), METADATA, {"b": 2})
    state = await cache.get("langgraph/42/ch/-/a")
    assert state is not None
    assert state.version == 1
    assert values_of(await got(saver, config("42"))) == values


async def test_a_checkpoint_may_have_more_large_values_than_a_commit_has_states(
    saver: StateCacheSaver, cache: AsyncStateCache
) -> None:
    values = {f"channel{number:03}": f"{number} " * 2000 for number in range(300)}
    which = await put(saver, "42", values)
    assert values_of(await got(saver, which)) == values
    assert len([state async for state in cache.list("langgraph/42/ch/", values=False)]) == 200


async def test_a_value_whose_version_is_not_the_parents_is_written_whatever_is_said_to_be_new(
    saver: StateCacheSaver,
) -> None:
    parent = await put(saver, "42", {"a": "x" * LARGE, "b": "x"}, version=1)
    values = {"a": "y" * LARGE, "b": "y"}
    await saver.aput(parent, checkpoint(values, version=2), METADATA, {})
    assert values_of(await got(saver, config("42"))) == values
    assert values_of(await got(saver, parent)) == {"a": "x" * LARGE, "b": "x"}


async def test_a_value_that_the_caller_leaves_out_is_that_of_the_parent(saver: StateCacheSaver) -> None:
    parent = await put(saver, "42", {"a": "x" * LARGE, "b": 1, "c": 1})
    one = checkpoint(channel_versions={"a": 1, "b": 1, "c": 2})
    await saver.aput(parent, one, METADATA, {"c": 2})
    assert values_of(await got(saver, config("42"))) == {"a": "x" * LARGE, "b": 1}


async def test_a_copy_with_another_serializer_shares_the_client_and_nothing_else(
    saver: StateCacheSaver, cache: AsyncStateCache
) -> None:
    secret = copy.copy(saver)
    secret.serde = EncryptedSerializer(Reversing(), JsonPlusSerializer())
    await put(secret, "1", {"a": "a secret", "b": "a secret" * LARGE})
    await secret.aput_writes(config("1", (await got(secret, config("1"))).checkpoint["id"]), [("a", "a secret")], "t")
    await put(saver, "2", {"a": "plain to see"})
    stored = json.dumps([state.value async for state in cache.list("langgraph/1/")])
    assert "secret" not in stored
    assert values_of(await got(secret, config("1"))) == {"a": "a secret", "b": "a secret" * LARGE}
    assert pending(await got(secret, config("1"))) == [("t", "a", "a secret")]
    assert values_of(await got(secret, config("2"))) == {"a": "plain to see"}
    allowed = saver.with_allowlist([("tests", "Thing")])
    assert values_of(await got(allowed, config("2"))) == {"a": "plain to see"}


@pytest.mark.parametrize("size", [1, 30_000], ids=["few", "many"])
async def test_pending_writes_come_in_the_order_in_which_a_run_applies_them(saver: StateCacheSaver, size: int) -> None:
    which = await put(saver, "42")
    text = "x" * size
    for task, path in (("d", "~2"), ("b", ""), ("c", "~1"), ("a", "~2")):
        await saver.aput_writes(which, [("a", task + text), (INTERRUPT, 1), ("b", 2)], task, path)
    expected = [
        (task, channel, value)
        for task in ("b", "c", "a", "d")
        for channel, value in ((INTERRUPT, 1), ("a", task + text), ("b", 2))
    ]
    assert pending(await got(saver, which)) == expected
    (listed,) = [one async for one in saver.alist(config("42"))]
    assert pending(listed) == expected


@pytest.mark.parametrize("sizes", [(1, 1), (1, 70_000), (70_000, 70_000), (70_000, 1)])
async def test_a_write_that_is_repeated_stays_and_an_error_is_replaced(
    saver: StateCacheSaver, sizes: tuple[int, int]
) -> None:
    which = await put(saver, "42")
    first, second = (f"{number}" * size for number, size in enumerate(sizes))
    for value in (first, second):
        await saver.aput_writes(which, [("a", value), (ERROR, value)], "task")
    assert pending(await got(saver, which)) == [("task", ERROR, second), ("task", "a", first)]


async def test_tasks_of_one_superstep_do_not_lose_one_anothers_writes(
    saver: StateCacheSaver, cache: AsyncStateCache
) -> None:
    which = await put(saver, "42")
    await asyncio.gather(*(saver.aput_writes(which, [("a", number)], f"task{number:02}") for number in range(40)))
    assert [value for _, _, value in pending(await got(saver, which))] == [*range(40)]
    (state,) = [one async for one in cache.list("langgraph/42/cp/")]
    assert len(state.value["writes"]) <= 8
    assert state.value["writes_elsewhere"]


async def test_values_above_eight_mib_are_kept_in_pieces(
    saver: StateCacheSaver, cache: AsyncStateCache, worker: Worker
) -> None:
    first = await put(saver, "42", {"a": b"1" * (9 * MIB)})
    await put(saver, "42", {"a": b"2" * (6 * MIB)}, parent=first)
    await put(saver, "42", {"a": b"3" * LARGE}, parent=first)
    latest = await got(saver, config("42"))
    await saver.aput_writes(latest.config, [("a", b"4" * (9 * MIB)), ("b", 1)], "task")
    await flush(worker)
    assert values_of(await got(saver, first)) == {"a": b"1" * (9 * MIB)}
    again = await got(saver, config("42"))
    assert values_of(again) == {"a": b"3" * LARGE}
    assert pending(again) == [("task", "a", b"4" * (9 * MIB)), ("task", "b", 1)]


async def test_a_value_that_is_too_large_is_refused_and_nothing_is_put(
    saver: StateCacheSaver, cache: AsyncStateCache
) -> None:
    which = await put(saver, "42", {"a": 1})
    with pytest.raises(LimitExceeded, match="serialized value"):
        await put(saver, "42", {"a": bytes(12 * MIB)}, parent=which)
    with pytest.raises(LimitExceeded):
        await saver.aput_writes(which, [("a", bytes(12 * MIB))], "task")
    assert await ids(saver, config("42")) == [which["configurable"]["checkpoint_id"]]
    assert pending(await got(saver, which)) == []


async def test_the_head_is_never_lowered(saver: StateCacheSaver, cache: AsyncStateCache, settings: Settings) -> None:
    old, *others = [checkpoint({"a": number}) for number in range(20)]
    async with AsyncStateCache(settings=settings) as second:
        savers = [saver, StateCacheSaver(second)]
        await asyncio.gather(
            *(
                savers[number % 2].aput(config("42"), one, METADATA, {"a": 1})
                for number, one in enumerate(reversed(others))
            )
        )
        await saver.aput(config("42"), old, METADATA, {"a": 1})
        for one in savers:
            assert (await got(one, config("42"))).checkpoint["id"] == others[-1]["id"]
    assert await ids(saver, config("42")) == sorted((one["id"] for one in [old, *others]), reverse=True)


async def test_metadata_comes_back_as_it_was_given_also_what_json_cannot_say(saver: StateCacheSaver) -> None:
    metadata = {"source": "loop", "step": 1, "tags": {"a", "b"}, "raw": b"\0", "nested": {"text": "a\0b"}}
    which = await put(saver, "42", metadata=metadata)
    assert (await got(saver, which)).metadata == metadata
    assert await ids(saver, config("42"), filter={"source": "loop"}) == [which["configurable"]["checkpoint_id"]]


async def test_a_saver_on_an_asynchronous_client_says_how_its_loop_has_to_be_used(
    saver: StateCacheSaver, settings: Settings
) -> None:
    which = await put(saver, "42", {"a": 1})
    with pytest.raises(UsageError, match="its own event loop"):
        saver.get_tuple(which)
    found = await asyncio.to_thread(saver.get_tuple, which)
    assert found is not None
    assert values_of(found) == {"a": 1}
    with pytest.raises(UsageError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(saver.aget_tuple(which)))
    ended = await asyncio.to_thread(lambda: asyncio.run(_used(settings)))
    with pytest.raises(UsageError, match="event loop does not run"):
        await asyncio.to_thread(ended.setup)


@pytest.fixture
async def unused(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """A client that nothing has opened or used."""
    client = AsyncStateCache(settings=settings)
    yield client
    await client.close()


@pytest.mark.parametrize("opened", [False, True])
async def test_a_client_that_is_not_used_yet_comes_to_belong_to_no_other_loop(
    unused: AsyncStateCache, *, opened: bool
) -> None:
    if opened:
        await unused.__aenter__()
    saver = StateCacheSaver(unused)
    with pytest.raises(UsageError, match="belongs to another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(saver.aget_tuple(config("42"))))
    which = await put(saver, "42", {"a": 1})
    assert values_of(await got(saver, which)) == {"a": 1}


async def _used(settings: Settings) -> StateCacheSaver:
    async with AsyncStateCache(settings=settings) as cache:
        saver = StateCacheSaver(cache)
        await saver.asetup()
    return saver


@pytest.mark.parametrize("by", ["use", "async with"])
async def test_threads_use_the_event_loop_of_the_client_wherever_the_saver_was_made(
    unused: AsyncStateCache, by: str
) -> None:
    async def made(cache: AsyncStateCache) -> StateCacheSaver:
        return StateCacheSaver(cache)

    in_a_thread = await asyncio.to_thread(StateCacheSaver, unused)  # as where a module is imported
    in_another_loop = await asyncio.to_thread(lambda: asyncio.run(made(unused)))
    with pytest.raises(UsageError, match="no event loop has used yet"):
        await asyncio.to_thread(in_a_thread.setup)
    await (unused.get("runs/42") if by == "use" else unused.__aenter__())
    for saver in (in_a_thread, in_another_loop):
        await asyncio.to_thread(saver.setup)


def test_a_saver_on_settings_serves_one_event_loop_after_the_other_and_threads(settings: Settings) -> None:
    async def another(one: BaseCheckpointSaver[Any], number: int) -> None:
        await put(one, "42", {"a": number})
        assert one.get_tuple(config("42")) is not None

    with StateCacheSaver(settings) as saver:
        for number in range(3):
            asyncio.run(another(saver, number))
        found = saver.get_tuple(config("42"))
        assert found is not None
        assert values_of(found) == {"a": 2}
    with pytest.raises(UsageError, match="closed"):
        saver.get_tuple(config("42"))


async def test_a_checkpoint_counts_as_put_once_it_is_as_durable_as_was_asked_for(
    settings: Settings, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    async with flushing(worker), StateCacheSaver(settings, durability="postgres") as saver:
        which = await put(saver, "42", {"a": "x" * LARGE})
        query = "SELECT count(*) FROM state WHERE key LIKE 'langgraph/42/%%' AND op = 'set'"
        assert rows(psql, query) == [(3,)]
        await saver.aput_writes(which, [("a", 1)], "task")
        held = "SELECT convert_from(value, 'UTF8')::jsonb #>> '{writes,0,task_id}' FROM state WHERE key LIKE %s"
        assert rows(psql, held, "langgraph/42/cp/%") == [("task",)]
