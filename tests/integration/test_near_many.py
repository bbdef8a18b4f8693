"""Many states at once, and waiting for one to change: with both clients, on real servers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings, StateCache
from statecache.clock import monotonic
from statecache.errors import InvalidKey, NotChanged, RedisUnavailable
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, MakeSettings
from tests.support.fault_proxy import FaultProxy
from tests.support.local_reads import KEY, LIMIT_S, kept, until
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of clients that read locally."""
    return make_settings(read="local")


# Warming.


async def cold(settings: Settings, other: AsyncStateCache, worker: Worker, redis_raw: Any, count: int) -> list[str]:
    """Put states into Postgres of which Redis holds none; return their keys."""
    names = [f"runs/{number}" for number in range(count)]
    for number, name in enumerate(names):
        await other.create(name, number, assume_new=True)
    await flush(worker)
    space = KeySpace(settings.prefix, settings.shards)
    redis_raw.unlink(*(space.state(name) for name in names))
    return names


async def test_states_are_loaded_from_postgres_into_redis_and_into_this_process(
    one: AsyncStateCache, other: AsyncStateCache, settings: Settings, worker: Worker, redis_raw: Any
) -> None:
    names = await cold(settings, other, worker, redis_raw, 250)
    assert await one.warm(names) == 250
    assert redis_raw.exists(*(KeySpace(settings.prefix, settings.shards).state(name) for name in names)) == 250
    before = one.near
    assert before.entries == 250
    for number, name in enumerate(names):
        state = await one.get(name)
        assert state is not None
        assert state.value == number
    assert (one.near.hits, one.near.misses) == (before.hits + 250, before.misses)


async def test_a_prefix_names_all_that_is_under_it_dirty_ones_too(
    one: AsyncStateCache, other: AsyncStateCache, settings: Settings, worker: Worker, redis_raw: Any
) -> None:
    await cold(settings, other, worker, redis_raw, 20)
    await other.set("runs/dirty", 1)
    await other.set("walks/1", 1)
    assert await one.warm("runs/") == 21
    assert await one.namespace("walks").warm("") == 1
    assert await one.warm([]) == 0
    assert await one.warm(["runs/absent", "runs/absent"]) == 0


async def test_what_is_warm_stays_coherent(one: AsyncStateCache, other: AsyncStateCache) -> None:
    await other.set(KEY, 1)
    assert await one.warm([KEY]) == 1
    await other.set(KEY, 2)
    async with asyncio.timeout(LIMIT_S):
        while (await one.get(KEY)).value != 2:  # type: ignore[union-attr]
            await pause()


async def test_a_slow_network_brings_them_all_the_same(
    make_client: MakeClient, other: AsyncStateCache, settings: Settings, proxy: FaultProxy
) -> None:
    """While 3 MB arrive, the answer to a heartbeat waits behind them for longer than the trust window."""
    one = make_client(through(settings, redis=proxy).model_copy(update={"near_window_s": 0.4}))
    names = [f"runs/{number}" for number in range(12)]
    for name in names:
        await other.set(name, "x" * 250_000)
    assert await one.get(names[0]) is not None
    proxy.bytes_per_s = 2_000_000.0
    assert await one.warm(names) == len(names)
    await until(lambda: one.near.trusted)
    assert one.near.entries == len(names)


async def test_more_than_there_is_room_for_goes_out_again(make_client: MakeClient, settings: Settings) -> None:
    small = make_client(settings.model_copy(update={"near_entries_max": 10}))
    for number in range(30):
        await small.set(f"runs/{number}", number)
    assert await small.warm([f"runs/{number}" for number in range(30)]) == 30
    assert (small.near.entries, small.near.evictions) == (10, 20)


async def test_redis_is_warm_where_nothing_can_be_kept(
    make_client: MakeClient, other: AsyncStateCache, settings: Settings, worker: Worker, redis_raw: Any
) -> None:
    names = await cold(settings, other, worker, redis_raw, 5)
    nothing = make_client(settings.model_copy(update={"near_entries_max": 0}))
    assert await nothing.warm(names) == 0
    assert redis_raw.exists(*(KeySpace(settings.prefix, settings.shards).state(name) for name in names)) == 5
    assert nothing.near.entries == 0


async def test_a_bad_name_is_refused_before_anything_is_loaded(one: AsyncStateCache) -> None:
    with pytest.raises(InvalidKey):
        await one.warm(["runs/1", "runs"])


# Waiting for a change.


async def woken(waiting: asyncio.Task[Any]) -> Any:
    """Return what a waiter got; raise TimeoutError after LIMIT_S."""
    async with asyncio.timeout(LIMIT_S):
        return await waiting


async def waits(client: AsyncStateCache) -> None:
    """Wait until somebody waits for the key on that client."""
    async with asyncio.timeout(LIMIT_S):
        while KEY not in client._runtime.near._watchers:
            await pause()


async def test_the_next_change_wakes_who_waits(one: AsyncStateCache, other: AsyncStateCache) -> None:
    asked = await other.set(KEY, {"approved": False})
    waiting = asyncio.ensure_future(one.wait_for(KEY, after=asked, timeout=LIMIT_S))
    await waits(one)
    assert not waiting.done()
    answer = await other.set(KEY, {"approved": True})
    assert await woken(waiting) == answer
    assert one._runtime.near._watchers == {}


async def test_a_change_that_has_happened_already_is_given_at_once(
    one: AsyncStateCache, other: AsyncStateCache
) -> None:
    asked = await other.set(KEY, 1)
    answer = await other.set(KEY, 2)
    assert await one.wait_for(KEY, after=asked, timeout=LIMIT_S) == answer
    assert await one.wait_for(KEY, after=asked.change_id, timeout=LIMIT_S) == answer


async def test_a_state_that_does_not_exist_yet_is_waited_for(one: AsyncStateCache, other: AsyncStateCache) -> None:
    waiting = asyncio.ensure_future(one.wait_for(KEY, timeout=LIMIT_S))
    await waits(one)
    made = await other.create(KEY, 1)
    assert await woken(waiting) == made


async def test_a_delete_is_a_change(one: AsyncStateCache, other: AsyncStateCache) -> None:
    state = await other.set(KEY, 1)
    waiting = asyncio.ensure_future(one.wait_for(KEY, after=state, timeout=LIMIT_S))
    await waits(one)
    gone = await other.delete(KEY)
    assert await woken(waiting) is None
    waiting = asyncio.ensure_future(one.wait_for(KEY, after=gone.change_id if gone else "", timeout=LIMIT_S))
    again = await other.create(KEY, 2)
    assert await woken(waiting) == again


async def test_nothing_happens_and_that_is_said(one: AsyncStateCache) -> None:
    state = await one.set(KEY, 1)
    with pytest.raises(NotChanged, match=r"'runs/1' did not change within 0\.2 s") as late:
        await one.wait_for(KEY, after=state, timeout=0.2)
    assert isinstance(late.value, TimeoutError)
    assert one._runtime.near._watchers == {}


@pytest.mark.parametrize("answered", [False, True])
async def test_a_look_that_the_end_cuts_off_says_nothing_of_redis(
    one: AsyncStateCache, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """Where one was answered before; a first look that is not says that Redis may be away."""
    reader, state = one._runtime.reader, await one.set(KEY, 1)
    local = reader.local

    async def cut_off(key: str, *, end: float) -> Any:
        if answered and end - monotonic() > 0.04:
            return await local(key, end=end)
        raise RedisUnavailable("timeout", detail="no answer within 0.001 s")

    monkeypatch.setattr(reader, "local", cut_off)
    for client in ("_async", "_sync"):
        for name in ("_LOOK_S", "_LOOK_DEAF_S"):
            monkeypatch.setattr(f"statecache.{client}.reads.{name}", 0.28)
    with pytest.raises(NotChanged if answered else RedisUnavailable):
        await one.wait_for(KEY, after=state, timeout=0.3)
    assert one._runtime.near._watchers == {}


async def test_a_waiter_that_is_stopped_until_its_time_is_over_looks_once_more(
    one: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was stopped, or something blocked its event loop: the push has yet to be read."""
    state, late_s = await one.set(KEY, 1), [0.0]
    watch = one._runtime.near.watch

    def watch_and_stop(key: str, signal: Any) -> None:
        async def stopped(seconds: float) -> bool:
            with StateCache(settings=settings) as writer:
                writer.set(KEY, 2)
            late_s[0] += seconds
            return False

        watch(key, signal)
        signal.wait = stopped

    monkeypatch.setattr(one._runtime.near, "watch", watch_and_stop)
    for client in ("_async", "_sync"):
        monkeypatch.setattr(f"statecache.{client}.reads.monotonic", lambda: monotonic() + late_s[0])
        monkeypatch.setattr(f"statecache.{client}.reads._LOOK_S", LIMIT_S)
        monkeypatch.setattr(f"statecache.{client}.reads._LOOK_DEAF_S", LIMIT_S)
    changed = await one.wait_for(KEY, after=state, timeout=LIMIT_S)
    assert changed is not None
    assert changed.value == 2
    assert one._runtime.near._watchers == {}


async def test_without_pushes_it_looks_for_itself(
    make_client: MakeClient, other: AsyncStateCache, settings: Settings
) -> None:
    deaf = make_client(settings.model_copy(update={"near_entries_max": 0}))
    state = await other.set(KEY, 1)
    waiting = asyncio.ensure_future(deaf.wait_for(KEY, after=state, timeout=LIMIT_S))
    await waits(deaf)
    answer = await other.set(KEY, 2)
    assert await woken(waiting) == answer


async def test_a_wake_that_is_lost_is_made_up_for(
    one: AsyncStateCache, other: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = await other.set(KEY, 1)
    await kept(one)
    waiting = asyncio.ensure_future(one.wait_for(KEY, after=state, timeout=LIMIT_S))
    await waits(one)
    monkeypatch.setattr(one._runtime.near, "invalidate", lambda keys: list(keys))
    answer = await other.set(KEY, 2)
    assert await woken(waiting) == answer


# Threads and forked children.


def test_threads_share_one_cache_and_none_of_them_goes_back(settings: Settings) -> None:
    """Eight threads read and write four keys; each sees its own writes, and no key ever goes back for it."""
    faults: list[str] = []
    with StateCache(settings=settings) as cache:
        for key in range(4):
            cache.set(f"runs/{key}", 0)

        def work(seed: int) -> None:
            seen: dict[str, int] = {}
            for step in range(150):
                key = f"runs/{(seed + step) % 4}"
                if step % 5 == 0:
                    state: Any = cache.update(key, lambda value: value + 1)
                else:
                    state = cache.get(key, read="primary" if step % 7 == 0 else None)
                if state.version < seen.get(key, 0):
                    faults.append(f"{key}: {state.version} after {seen[key]}")
                seen[key] = state.version

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        values = [cache.get(f"runs/{key}", read="primary") for key in range(4)]
        assert sum(state.value for state in values if state) == 8 * 30
        assert cache.near.hits > 0


def _in_a_child(function: Callable[[], bool]) -> bool:
    """Run a function in a forked child and return its answer."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if function() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_nothing_of_its_parent_and_reads_for_itself(settings: Settings) -> None:
    with StateCache(settings=settings) as cache:
        cache.set(KEY, 1)
        assert cache.warm([KEY]) == 1

        def child() -> bool:
            forgotten = cache.near.entries == 0 and not cache.near.trusted
            state = cache.get(KEY)
            return forgotten and state is not None and state.value == 2 and cache.warm([KEY]) == 1

        with StateCache(settings=settings) as other:
            other.set(KEY, 2)
        assert _in_a_child(child)
        assert cache.warm([KEY]) == 1  # the parent's connection is its own
        hits = cache.near.hits
        cache.get(KEY)
        assert cache.near.hits == hits + 1


def test_threads_that_read_first_at_the_same_moment_open_one_connection(settings: Settings) -> None:
    for _ in range(5):
        before = {*threading.enumerate()}
        with StateCache(settings=settings) as cache:
            together = threading.Barrier(8)

            def read(cache: StateCache = cache, together: threading.Barrier = together) -> None:
                together.wait(LIMIT_S)
                cache._runtime.tracked.is_up()

            threads = [threading.Thread(target=read) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            listening = [one for one in {*threading.enumerate()} - before if one.name == "statecache-near"]
            assert len(listening) == 1
