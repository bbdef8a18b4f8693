"""Large values are compared and merged while the client's event loop goes on, and in the time that the call has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from statecache import AsyncStateCache, Unavailable
from statecache.core.history import diffs, merge_bases, merges
from statecache.rules import difference, sameness, three_way
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing

KEY, BRANCH = "runs/42", "runs/43"
LARGE = list(range(3000))
TIMEOUT_S = 1.5
WAIT_S = 60.0


class Held:
    """A computation that goes on once the event loop, or whoever waits, has come to let it."""

    def __init__(self, computed: Callable[..., Any]) -> None:
        self._computed = computed
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, *values: Any, **more: Any) -> Any:
        """Compute when it may."""
        self.begun.set()
        assert self.go.wait(WAIT_S), "who called it does not go on meanwhile"
        return self._computed(*values, **more)

    async def let_go(self) -> None:
        """Have it go on, as a task beside it."""
        assert await asyncio.to_thread(self.begun.wait, WAIT_S)
        self.go.set()


async def _branched(client: AsyncStateCache) -> None:
    await client.set(KEY, LARGE)
    await client.branch(KEY, BRANCH)
    await client.set(KEY, [-1, *LARGE])
    await client.set(BRANCH, [*LARGE, -2])


async def test_a_comparison_holds_up_nobody(
    client: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.set(KEY, LARGE)
    await client.set(KEY, [*LARGE, -1])
    await flush(worker)
    held = Held(difference.differences)
    monkeypatch.setattr(diffs, "differences", held)
    (found,), _ = await asyncio.gather(client.diff(KEY, 1, 2), held.let_go())
    assert (found.place, found.op, found.after) == ("[3000]", "added", -1)


async def test_a_merge_holds_up_nobody(
    client: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with flushing(worker):
        await _branched(client)
        held = Held(three_way.merged)
        monkeypatch.setattr(merges, "merged", held)
        state, _ = await asyncio.gather(client.merge(BRANCH, KEY), held.let_go())
        assert state.value == [-1, *LARGE, -2]


async def test_crossed_merges_hold_up_nobody(
    client: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were merged into one another at once: the base is merged too, and compared."""
    async with flushing(worker):
        await _branched(client)
        await asyncio.gather(client.merge(BRANCH, KEY), client.merge(KEY, BRANCH))
        await client.set(KEY, [-1, *LARGE, -2, -3])
        held, loop_thread = Held(three_way.merged_base), threading.get_ident()
        compared: list[int] = []
        same = sameness.same

        def noted(one: Any, other: Any) -> bool:
            compared.append(threading.get_ident())
            return same(one, other)

        monkeypatch.setattr(merge_bases, "merged_base", held)
        monkeypatch.setattr(merge_bases, "same", noted)
        held.go.set()
        state = await client.merge(KEY, BRANCH)
        assert state.value == [-1, *LARGE, -2, -3]
        assert compared
        assert loop_thread not in compared


async def test_what_takes_longer_than_the_call_may_is_refused_and_nothing_is_written(
    client: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()

    def late(*values: Any, **more: Any) -> Any:
        threading.Event().wait(2 * TIMEOUT_S)
        done.set()
        return three_way.merged(*values, **more)

    async with flushing(worker):
        await _branched(client)
        monkeypatch.setattr(merges, "merged", late)
        with pytest.raises(Unavailable, match=r"a merge of [\d,]+ bytes takes longer than the call may") as refused:
            await client.merge(BRANCH, KEY, timeout=TIMEOUT_S)
        assert refused.value.reason == "timeout"
        assert await asyncio.to_thread(done.wait, WAIT_S)
        state = await client.get(KEY, read="primary")
        assert state is not None
        assert state.version == 2
