"""The large values of a thread's latest checkpoint are the newest of their channels, so no policy lets them go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata

from statecache import AsyncStateCache, Namespace, Settings, StateCache, VersionNotFound
from statecache.adapters.langgraph import StateCacheSaver
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing
from tests.fixtures.servers import MakeSettings
from tests.support.cut_short import Killed, killing
from tests.support.histories import Psql, let_go
from tests.support.langgraph_stories import METADATA, checkpoint, config, got, ids, put

RUN: dict[str, Any] = {**METADATA, "run_id": "second"}


def large(number: int) -> str:
    """Return a value that gets a state of its own."""
    return f"{number} " * 4000


async def after(
    saver: StateCacheSaver,
    parent: RunnableConfig,
    log: int,
    number: int,
    *,
    version: int,
    changed: bool = False,
    **more: Any,
) -> RunnableConfig:
    """Put a checkpoint that changes a small channel, and the large one where it has changed."""
    one = checkpoint({"log": large(log), "n": number}, **more)
    one["channel_versions"] = {"log": version if changed else log, "n": version}
    return await saver.aput(parent, one, METADATA, {"log": version, "n": version} if changed else {"n": version})


@pytest.fixture
async def fresh(settings: Settings) -> AsyncIterator[Callable[..., AsyncStateCache]]:
    """Clients that know nothing of what was put."""
    async with AsyncExitStack() as stack:

        def made(of: Settings = settings) -> AsyncStateCache:
            client = AsyncStateCache(settings=of)
            stack.push_async_callback(client.close)
            return client

        yield made


@pytest.fixture
async def turns(cache: AsyncStateCache) -> list[RunnableConfig]:
    """Two checkpoints of a thread, each with another large value."""
    saver = StateCacheSaver(cache)
    first = await put(saver, "42", {"log": large(1), "n": 1})
    second = await put(saver, "42", {"log": large(2), "n": 2}, parent=first, metadata=RUN, version=2)
    return [first, second]


def _before(turns: list[RunnableConfig]) -> str:
    """Return an id that comes just before that of the later checkpoint."""
    later: str = turns[1]["configurable"]["checkpoint_id"]
    return later[:-1] + chr(ord(later[-1]) - 1)


async def forked(saver: StateCacheSaver, cache: AsyncStateCache, turns: list[RunnableConfig]) -> None:
    """Go on from the earlier checkpoint, with its large value."""
    await after(saver, turns[0], 1, 9, version=3)


async def forked_without_values(saver: StateCacheSaver, cache: AsyncStateCache, turns: list[RunnableConfig]) -> None:
    """Go on from the earlier checkpoint, without the value of what has not changed, as of a delta channel."""
    one = checkpoint({"n": 9})
    one["channel_versions"] = {"log": 1, "n": 3}
    await saver.aput(turns[0], one, METADATA, {"n": 3})


async def put_twice(saver: StateCacheSaver, cache: AsyncStateCache, turns: list[RunnableConfig]) -> None:
    """Put the same fork again, as after an answer that was lost."""
    one = checkpoint({"log": large(1), "n": 9})
    one["channel_versions"] = {"log": 1, "n": 3}
    versions = set[int]()
    for _ in range(2):
        await saver.aput(turns[0], one, METADATA, {"n": 3})
        state = await cache.get("langgraph/42/ch/-/log")
        assert state is not None
        versions.add(state.version)
    assert versions == {3}, "the value is put once"


async def gone_back(saver: StateCacheSaver, cache: AsyncStateCache, turns: list[RunnableConfig]) -> None:
    """Delete the later run, so the head goes back to the first checkpoint."""
    await saver.adelete_for_runs(["second"])


async def rolled_back(saver: StateCacheSaver, cache: AsyncStateCache, turns: list[RunnableConfig]) -> None:
    """Go back by the library's own verb."""
    await cache.undo(saver.group_of("42"), group=True)


async def earlier(saver: StateCacheSaver, cache: AsyncStateCache, turns: list[RunnableConfig]) -> None:
    """Another run puts a checkpoint with an earlier id, and with a large value of its own."""
    await after(saver, turns[0], 3, 3, version=3, changed=True, id=_before(turns))


HOW = {
    "forked": (forked, 1, 9), "forked-without-values": (forked_without_values, 1, 9),
    "put-twice": (put_twice, 1, 9), "gone-back": (gone_back, 1, 1),
    "rolled-back": (rolled_back, 1, 1), "earlier": (earlier, 2, 2),
}  # fmt: skip
Done = Callable[[StateCacheSaver, AsyncStateCache, list[RunnableConfig]], Awaitable[None]]


CUT = {name: HOW[name] for name in ("forked", "forked-without-values", "gone-back", "earlier")}


@pytest.mark.parametrize(("done", "log", "number"), HOW.values(), ids=HOW)
async def test_the_latest_checkpoint_keeps_its_values_under_any_policy(
    cache: AsyncStateCache, fresh: Callable[..., AsyncStateCache], settings: Settings, psql: Psql, worker: Worker,
    turns: list[RunnableConfig], done: Done, log: int, number: int,
) -> None:  # fmt: skip
    await done(StateCacheSaver(cache), cache, turns)
    assert await let_go(settings, psql, worker) > 0
    saver = StateCacheSaver(fresh())
    found = await got(saver, config("42"))
    assert found.checkpoint["channel_values"] == {"log": large(log), "n": number}
    await after(saver, found.config, log, 10, version=10)
    again = await got(StateCacheSaver(fresh()), config("42"))
    assert again.checkpoint["channel_values"] == {"log": large(log), "n": 10}


async def test_what_a_policy_has_let_go_is_left_out_of_listings_and_copies(
    cache: AsyncStateCache, fresh: Callable[..., AsyncStateCache], settings: Settings, psql: Psql, worker: Worker,
    turns: list[RunnableConfig],
) -> None:  # fmt: skip
    small = await put(StateCacheSaver(cache), "42", {"n": 3}, parent=turns[1], version=3)
    assert await let_go(settings, psql, worker) > 0
    saver = StateCacheSaver(fresh())
    with pytest.raises(VersionNotFound):
        await got(saver, turns[0])
    readable = [one["configurable"]["checkpoint_id"] for one in (small, turns[1])]
    assert await ids(saver, config("42")) == readable
    for limit in (1, 2, 3):
        assert await ids(saver, config("42"), limit=limit) == readable[:limit]
    await saver.acopy_thread("42", "copy")
    assert await ids(saver, config("copy")) == readable


async def test_a_branch_keeps_the_latest_values_when_its_thread_is_erased(
    cache: AsyncStateCache,
    fresh: Callable[..., AsyncStateCache],
    settings: Settings,
    psql: Psql,
    worker: Worker,
    turns: list[RunnableConfig],
) -> None:
    saver = StateCacheSaver(cache)
    await forked(saver, cache, turns)
    await flush(worker)
    await cache.branch(saver.group_of("42"), saver.group_of("other"), group=True)
    await flush(worker)
    found = await got(StateCacheSaver(fresh()), config("other"))
    await after(saver, found.config, 2, 10, version=10, changed=True)
    await cache.undo(saver.group_of("other"), group=True)
    await flush(worker)
    async with flushing(worker):
        await cache.erase(saver.group_of("42"), group=True)
    assert await let_go(settings, psql, worker) > 0
    found = await got(StateCacheSaver(fresh()), config("other"))
    assert found.checkpoint["channel_values"] == {"log": large(1), "n": 9}


async def test_a_branch_of_what_was_put_without_digests_is_read_when_its_thread_is_erased(
    cache: AsyncStateCache, fresh: Callable[..., AsyncStateCache], worker: Worker, turns: list[RunnableConfig]
) -> None:
    def without_digests(document: dict[str, Any]) -> dict[str, Any]:
        forms = document["channel_values"]
        log = {name: part for name, part in forms["log"].items() if name != "digests"}
        return document | {"channel_values": forms | {"log": log}}

    saver = StateCacheSaver(cache)
    async for state in cache.list("langgraph/42/cp/", values=False):
        await cache.update(state.key, without_digests)
    await flush(worker)
    await cache.branch(saver.group_of("42"), saver.group_of("other"), group=True)
    async with flushing(worker):
        await cache.erase(saver.group_of("42"), group=True)
    found = await got(StateCacheSaver(fresh()), config("other"))
    assert found.checkpoint["channel_values"] == {"log": large(2), "n": 2}


async def test_a_thread_that_is_imported_elsewhere_goes_on_there(
    cache: AsyncStateCache,
    fresh: Callable[..., AsyncStateCache],
    make_settings: MakeSettings,
    turns: list[RunnableConfig],
) -> None:
    other = fresh(make_settings())
    async for state in cache.list("langgraph/"):
        await other.set(state.key, state.value)
    saver = StateCacheSaver(other)
    assert await ids(saver, config("42")) == [turns[1]["configurable"]["checkpoint_id"]]
    found = await got(saver, config("42"))
    assert found.checkpoint["channel_values"] == {"log": large(2), "n": 2}
    await after(saver, found.config, 2, 10, version=10)
    found = await got(saver, config("42"))
    assert found.checkpoint["channel_values"] == {"log": large(2), "n": 10}


async def test_a_run_that_is_deleted_leaves_a_checkpoint_that_is_whole(
    cache: AsyncStateCache, fresh: Callable[..., AsyncStateCache], settings: Settings, psql: Psql, worker: Worker
) -> None:
    saver = StateCacheSaver(cache)
    base = await put(saver, "42", {"n": 0})
    first = await put(saver, "42", {"log": large(1), "n": 1}, parent=base)
    await put(saver, "42", {"log": large(2), "n": 2}, parent=first, metadata=RUN, version=2)
    assert await let_go(settings, psql, worker) > 0
    await StateCacheSaver(fresh()).adelete_for_runs(["second"])
    found = await got(StateCacheSaver(fresh()), config("42"))
    assert found.checkpoint["channel_values"] == {"n": 0}


async def test_a_branch_that_is_imported_where_its_first_thread_s_name_is_anothers_is_read(
    cache: AsyncStateCache, fresh: Callable[..., AsyncStateCache], make_settings: MakeSettings, worker: Worker,
    turns: list[RunnableConfig],
) -> None:  # fmt: skip
    saver, other = StateCacheSaver(cache), fresh(make_settings())
    await flush(worker)
    await cache.branch(saver.group_of("42"), saver.group_of("other"), group=True)
    async for state in cache.list("langgraph/other/"):
        await other.set(state.key, state.value)
    there, parent = StateCacheSaver(other), None
    for number in range(4):
        parent = await put(there, "42", {"log": large(10 + number)}, parent=parent, version=number)
    found = await got(there, config("other"))
    assert found.checkpoint["channel_values"] == {"log": large(2), "n": 2}


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a commit take one value of 90 KB, and not two."""
    monkeypatch.setattr("statecache.adapters.langgraph.channels.COMMIT_BYTES_MAX", 150_000)
    monkeypatch.setattr("statecache.core.commit.attempts.COMMIT_BYTES_MAX", 160_000)


async def two_large(saver: StateCacheSaver) -> tuple[RunnableConfig, dict[str, str]]:
    """Put a checkpoint with two large values, and two that each change one; return the first, and its values."""
    old, metadata = {"a": "a" * 90_000, "b": "b" * 90_000}, cast("CheckpointMetadata", RUN)
    first = await put(saver, "42", {**old, "n": 1})
    one = checkpoint({**old, "a": "A" * 90_000, "n": 2})
    one["channel_versions"] = {"a": 2, "b": 1, "n": 2}
    second = await saver.aput(first, one, metadata, {"a": 2, "n": 2})
    other = checkpoint({"a": "A" * 90_000, "b": "B" * 90_000, "n": 3})
    other["channel_versions"] = {"a": 2, "b": 3, "n": 3}
    await saver.aput(second, other, metadata, {"b": 3, "n": 3})
    return first, old


async def fork_of_large(saver: StateCacheSaver, first: RunnableConfig, old: dict[str, str]) -> None:
    """Go on from the first checkpoint, with both its large values."""
    fork = checkpoint({**old, "n": 9})
    fork["channel_versions"] = {"a": 1, "b": 1, "n": 4}
    await saver.aput(first, fork, METADATA, {"n": 4})


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("how", ["forked", "deleted"])
async def test_what_no_commit_has_room_for_is_put_again_behind_it(
    settings: Settings, fresh: Callable[..., AsyncStateCache], psql: Psql, worker: Worker, how: str
) -> None:
    saver = StateCacheSaver(fresh())
    first, old = await two_large(saver)
    if how == "forked":
        await fork_of_large(saver, first, old)
    else:
        await saver.adelete_for_runs(["second"])
    assert await let_go(settings, psql, worker) > 0
    found = await got(StateCacheSaver(fresh()), config("42"))
    assert found.checkpoint["channel_values"] == {**old, "n": 9 if how == "forked" else 1}


def cut(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> None:
    """Have the commit of that number, and all behind it, end in Killed: before it is done, or after it."""
    killing(monkeypatch, number, after=after)
    commit, count = Namespace.commit, -1

    def instead(view: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        mine = count
        if mine > number or (mine == number and not after):
            raise Killed
        made = commit(view, *arguments, **more)
        if mine == number and after:
            raise Killed
        return made

    monkeypatch.setattr(Namespace, "commit", instead)


async def is_cut(monkeypatch: pytest.MonkeyPatch, does: Awaitable[Any], number: int, *, after: bool) -> bool:
    """Await something whose commits are cut short, and return whether that was so."""
    with monkeypatch.context() as patched:
        cut(patched, number, after=after)
        try:
            await does
        except Killed:
            return True
    return False


async def latest_is_one_of(fresh: Callable[..., AsyncStateCache], *expected: dict[str, Any]) -> None:
    """Look whether the latest checkpoint is whole, as it was before or after, and is gone on with."""
    saver = StateCacheSaver(fresh())
    found = await got(saver, config("42"))
    values = found.checkpoint["channel_values"]
    assert values in expected
    one = checkpoint({**values, "n": 10})
    one["channel_versions"] = found.checkpoint["channel_versions"] | {"n": 10}
    await saver.aput(found.config, one, METADATA, {"n": 10})
    again = await got(StateCacheSaver(fresh()), config("42"))
    assert again.checkpoint["channel_values"] == {**values, "n": 10}


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("cut_at", [(0, True), (1, False), (1, True)], ids=str)
@pytest.mark.parametrize(("done", "log", "number"), CUT.values(), ids=CUT)
async def test_wherever_a_process_ends_the_latest_checkpoint_keeps_its_values(
    cache: AsyncStateCache, sync_cache: StateCache, fresh: Callable[..., AsyncStateCache], settings: Settings,
    psql: Psql, worker: Worker, turns: list[RunnableConfig], monkeypatch: pytest.MonkeyPatch,
    done: Done, log: int, number: int, cut_at: tuple[int, bool], kind: str,
) -> None:  # fmt: skip
    saver = StateCacheSaver(cache if kind == "async" else sync_cache)
    await is_cut(monkeypatch, done(saver, cache, turns), cut_at[0], after=cut_at[1])
    assert await let_go(settings, psql, worker) > 0
    await latest_is_one_of(fresh, {"log": large(2), "n": 2}, {"log": large(log), "n": number})


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("how", ["forked", "deleted"])
async def test_what_takes_several_commits_is_the_latest_once_the_last_is_done(
    cache: AsyncStateCache, sync_cache: StateCache, fresh: Callable[..., AsyncStateCache], settings: Settings,
    psql: Psql, worker: Worker, monkeypatch: pytest.MonkeyPatch, how: str, number: int, after: bool, kind: str,
) -> None:  # fmt: skip
    saver = StateCacheSaver(cache if kind == "async" else sync_cache)
    first, old = await two_large(saver)
    does = fork_of_large(saver, first, old) if how == "forked" else saver.adelete_for_runs(["second"])
    await is_cut(monkeypatch, does, number, after=after)
    assert await let_go(settings, psql, worker) > 0
    new = {"a": "A" * 90_000, "b": "B" * 90_000, "n": 3}
    await latest_is_one_of(fresh, new, {**old, "n": 9 if how == "forked" else 1})
