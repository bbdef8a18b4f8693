"""Large values that several checkpoints of a thread have in common, wherever they are put again, under any policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig

from statecache import AsyncStateCache, LimitExceeded, Settings, StateCache
from statecache.adapters.langgraph import StateCacheSaver
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.histories import Psql, pruned
from tests.support.langgraph_stories import METADATA, checkpoint, config, got, ids

LARGE = {number: f"{number} " * 4000 for number in range(1, 6)}


async def after(
    saver: StateCacheSaver, parent: RunnableConfig | None, values: dict[str, Any], versions: dict[str, int],
    *changed: str, run_id: str = "", counters_since_delta_snapshot: Any = None, **more: Any,
) -> RunnableConfig:  # fmt: skip
    """Put a checkpoint of these values, of which some have changed, and return its configuration."""
    one = checkpoint(values, channel_versions=versions, **more)
    counters = {"counters_since_delta_snapshot": counters_since_delta_snapshot}
    metadata: Any = {**METADATA, **(counters if counters_since_delta_snapshot else {})}
    metadata |= {"run_id": run_id} if run_id else {}
    return await saver.aput(parent or config("42"), one, metadata, {name: versions[name] for name in changed})


@pytest.fixture(params=["async", "sync"])
def saver(request: pytest.FixtureRequest, cache: AsyncStateCache, sync_cache: StateCache) -> StateCacheSaver:
    """A saver on either client."""
    return StateCacheSaver(cache if request.param == "async" else sync_cache)


@pytest.fixture
async def fresh(settings: Settings) -> AsyncIterator[Callable[[], StateCacheSaver]]:
    """Savers that know nothing of what was put."""
    async with AsyncExitStack() as stack:

        def made() -> StateCacheSaver:
            client = AsyncStateCache(settings=settings)
            stack.push_async_callback(client.close)
            return StateCacheSaver(client)

        yield made


LetGo = Callable[[], Any]


@pytest.fixture
def let_go(settings: Settings, psql: Psql, worker: Worker) -> LetGo:
    """What has all values go that are not the newest of their states, and returns how many these were."""

    async def now() -> int:
        await flush(worker)
        psql.execute("DELETE FROM retention")
        psql.execute("INSERT INTO retention (name, history, changed_by) VALUES ('langgraph', 'latest', 'test')")
        return (await pruned(settings)).values

    return now


async def values_of(saver: StateCacheSaver, which: RunnableConfig) -> dict[str, Any]:
    """Return the values of a checkpoint that is there."""
    return (await got(saver, which)).checkpoint["channel_values"]


async def test_runs_are_taken_back_one_after_the_other(
    saver: StateCacheSaver, fresh: Callable[[], StateCacheSaver], let_go: LetGo
) -> None:
    parent, done = None, list[RunnableConfig]()
    for number, log in enumerate((1, 1, 1, 2), 1):
        changed = ["n", *(["log"] if number in (1, 4) else [])]
        values, versions = {"log": LARGE[log], "n": number}, {"log": 4 if log == 2 else 1, "n": number}
        parent = await after(saver, parent, values, versions, *changed, run_id=f"run {number}")
        done.append(parent)
    for number in (4, 3, 2):
        await fresh().adelete_for_runs([f"run {number}"])
        await let_go()
        assert await values_of(fresh(), config("42")) == {"log": LARGE[1], "n": number - 1}
        left = [one["configurable"]["checkpoint_id"] for one in reversed(done[: number - 1])]
        assert await ids(fresh(), config("42")) == left
    on = await after(saver, done[0], {"log": LARGE[1], "n": 9}, {"log": 1, "n": 9}, "n")
    assert await values_of(fresh(), on) == {"log": LARGE[1], "n": 9}


@pytest.mark.parametrize("brings", ["values", "nothing"])
async def test_a_fork_shares_what_it_takes_over_with_the_checkpoint_that_it_follows(
    saver: StateCacheSaver, fresh: Callable[[], StateCacheSaver], let_go: LetGo, brings: str
) -> None:
    first = await after(saver, None, {"log": LARGE[1], "n": 1}, {"log": 1, "n": 1}, "log", "n")
    await after(saver, first, {"log": LARGE[2], "n": 2}, {"log": 2, "n": 2}, "log", "n")
    taken = {"log": LARGE[1]} if brings == "values" else {}
    fork = await after(saver, first, {**taken, "n": 3}, {"log": 1, "n": 3}, "n", run_id="fork")
    assert await let_go() > 0
    assert await values_of(fresh(), fork) == {"log": LARGE[1], "n": 3}
    assert await values_of(fresh(), first) == {"log": LARGE[1], "n": 1}
    await fresh().adelete_for_runs(["fork"])
    await let_go()
    assert await values_of(fresh(), config("42")) == {"log": LARGE[1], "n": 1}


async def test_what_stands_beside_is_put_again_where_others_name_it(
    saver: StateCacheSaver, fresh: Callable[[], StateCacheSaver], let_go: LetGo
) -> None:
    first = await after(saver, None, {"log": LARGE[1]}, {"log": 1}, "log", id="1")
    await after(saver, first, {"log": LARGE[2], "n": 2}, {"log": 2, "n": 2}, "log", "n", id="5", run_id="last")
    late = await after(saver, first, {"log": LARGE[3], "n": 3}, {"log": 3, "n": 3}, "log", "n", id="2")
    with_it = await after(saver, late, {"log": LARGE[3], "n": 4}, {"log": 3, "n": 4}, "n", id="3")
    await after(saver, first, {"log": LARGE[4], "n": 5}, {"log": 4, "n": 5}, "log", "n", id="4", run_id="last")
    await fresh().adelete_for_runs(["last"])
    assert await let_go() > 0
    for which in (config("42"), with_it):
        assert await values_of(fresh(), which) == {"log": LARGE[3], "n": 4}
    assert await values_of(fresh(), late) == {"log": LARGE[3], "n": 3}


@pytest.mark.parametrize("snapshot", ["its-own", "beside"])
async def test_the_snapshot_that_the_latest_is_made_of_is_not_written_over_by_what_comes_late(
    saver: StateCacheSaver, fresh: Callable[[], StateCacheSaver], let_go: LetGo, snapshot: str
) -> None:
    def since(*counts: int) -> dict[str, Any]:
        return {"counters_since_delta_snapshot": {"log": [*counts]}}

    first = await after(saver, None, {"log": LARGE[1]}, {"log": 1}, "log", id="1", **since(0, 0))
    made_of, number = first, 1
    if snapshot == "beside":
        await after(saver, first, {"n": 5}, {"log": 5, "n": 5}, "log", "n", id="5", **since(1, 1))
        made_of, number = await after(saver, first, {"log": LARGE[2]}, {"log": 2}, "log", id="2", **since(0, 0)), 2
    await after(saver, made_of, {"n": 6}, {"log": 6, "n": 6}, "log", "n", id="6", **since(1, 1))
    late = await after(saver, first, {"log": LARGE[3]}, {"log": 3}, "log", id="4", **since(0, 0))
    await let_go()
    history = await fresh().aget_delta_channel_history(config=config("42"), channels=["log"])
    assert history["log"]["seed"] == LARGE[number]
    assert await values_of(fresh(), late) == {"log": LARGE[3]}


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a commit be of 160 KB, of which large values are at most 150 KB."""
    monkeypatch.setattr("statecache.adapters.langgraph.channels.COMMIT_BYTES_MAX", 150_000)
    monkeypatch.setattr("statecache.adapters.langgraph.channels.WHOLE_BYTES_MAX", 160_000, raising=False)
    monkeypatch.setattr("statecache.core.commit.attempts.COMMIT_BYTES_MAX", 160_000)


async def two_turns(saver: StateCacheSaver) -> tuple[RunnableConfig, dict[str, Any]]:
    """Put a checkpoint with a large value, and one that changes a small one; return the first, and its values."""
    values = {"log": "x" * 90_000, "n": 1}
    first = await after(saver, None, values, {"log": 1, "n": 1}, "log", "n")
    await after(saver, first, {**values, "n": 2}, {"log": 1, "n": 2}, "n")
    return first, values


async def states_of(cache: AsyncStateCache) -> dict[str, int]:
    """Return all states of the thread with their versions."""
    return {state.key: state.version async for state in cache.list("langgraph/42/", values=False)}


@pytest.mark.usefixtures("little_room")
async def test_runs_are_taken_back_where_no_commit_has_room_for_what_is_put_again(
    saver: StateCacheSaver, fresh: Callable[[], StateCacheSaver], let_go: LetGo
) -> None:
    values, versions, parent = {"a": "a" * 90_000, "b": "b" * 90_000, "n": 1}, {"a": 1, "b": 1, "n": 1}, None
    for number, changed in enumerate((["a", "b"], [], [], ["a"], ["b"]), 1):
        values |= {"n": number} | ({changed[0]: str(number) * 90_000} if number > 3 else {})
        versions |= dict.fromkeys([*changed, "n"], number)
        parent = await after(saver, parent, {**values}, {**versions}, "n", *changed, run_id=f"run {min(number, 4)}")
    for number in (4, 3, 2):
        await fresh().adelete_for_runs([f"run {number}"])
        await let_go()
        found = await values_of(fresh(), config("42"))
        assert found == {"a": "a" * 90_000, "b": "b" * 90_000, "n": number - 1}


@pytest.mark.usefixtures("little_room")
async def test_a_fork_may_change_as_much_as_a_commit_holds(
    saver: StateCacheSaver, fresh: Callable[[], StateCacheSaver], let_go: LetGo
) -> None:
    first, values = await two_turns(saver)
    new = {**values, "a": "a" * 77_500, "b": "b" * 77_500}
    fork = await after(saver, first, new, {"log": 1, "n": 1, "a": 3, "b": 3}, "a", "b")
    await let_go()
    assert await values_of(fresh(), config("42")) == await values_of(fresh(), fork) == new


@pytest.mark.usefixtures("little_room")
async def test_where_the_last_commit_has_no_room_nothing_is_put_ahead_of_it(
    saver: StateCacheSaver, cache: AsyncStateCache
) -> None:
    first, values = await two_turns(saver)
    before = await states_of(cache)
    new = {"a": "a" * 70_000, "b": "b" * 70_000} | {f"s{number}": "s" * 4000 for number in range(10)}
    for _ in range(2):
        with pytest.raises(LimitExceeded, match="the commit's size"):
            await after(saver, first, values | new, {"log": 1, "n": 1} | dict.fromkeys(new, 3), *new)
        assert await states_of(cache) == before


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("sizes", [(90_000, 90_000), (140_000,), (149_000, 1)], ids=str)
async def test_the_first_of_a_thread_brings_more_than_a_commit_holds(
    saver: StateCacheSaver, fresh: Callable[[], StateCacheSaver], sizes: tuple[int, ...]
) -> None:
    small = {f"s{number}": "s" * 4000 for number in range(20)}
    values = {f"a{at}": "a" * size for at, size in enumerate(sizes)} | small
    one = await after(saver, None, values, dict.fromkeys(values, 1), *values)
    assert await values_of(fresh(), one) == await values_of(fresh(), config("42")) == values


@pytest.mark.usefixtures("little_room")
async def test_of_the_first_of_a_thread_nothing_is_put_whose_small_values_no_commit_holds(
    saver: StateCacheSaver, cache: AsyncStateCache
) -> None:
    values = {name: name * 90_000 for name in "ab"} | {f"s{number}": "s" * 4000 for number in range(45)}
    for _ in range(2):
        with pytest.raises(LimitExceeded, match="the commit's size"):
            await after(saver, None, values, dict.fromkeys(values, 1), *values)
        assert await states_of(cache) == {}
