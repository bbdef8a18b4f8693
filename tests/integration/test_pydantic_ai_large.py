"""Conversations of Pydantic AI that are larger than a commit: what is written ahead of their record counts with it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from pydantic_ai import DeferredToolRequests
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ToolCallPart

from statecache import AsyncNamespace, AsyncStateCache, DurabilityRefused, LimitExceeded, Set, Settings
from statecache.adapters.pydantic_ai import StateCacheConversationStore, log
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.pydantic_ai_stores import said, saved, told, turns


class Killed(BaseException):
    """What ends a process, as far as the adapter is concerned."""


@pytest.fixture
def store(cache: AsyncStateCache) -> StateCacheConversationStore:
    """A store on an asynchronous client."""
    return StateCacheConversationStore(cache)


async def test_a_conversation_larger_than_a_commit_is_forked_and_deleted(
    store: StateCacheConversationStore, cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    conversation = Conversation(conversation_id="42")
    for number in range(5):
        conversation.messages.extend(turns(60 * (number + 1), since=60 * number, size=70_000))
        await store.save(conversation)
    fork = await store.fork("42", new_conversation_id="43")
    assert fork.messages == conversation.messages
    await store.delete("42")
    assert [state.key async for state in cache.list("pydantic-ai/42", values=False)] == []
    assert await said(store, "43") == told(conversation.messages)
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_of_a_large_save_whose_first_part_is_not_durable_enough_nothing_counts_and_nothing_stays(
    cache: AsyncStateCache, settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes more than one commit, and the worker is away until it is tried again."""
    monkeypatch.setattr(log, "_COMMIT_BYTES_MAX", 64 * 1024)
    long = turns(4, size=40_000)
    async with AsyncStateCache(settings=settings.model_copy(update={"timeout_s": 3.0})) as hasty:
        with pytest.raises(DurabilityRefused):
            await saved(StateCacheConversationStore(hasty, durability="postgres"), "42", long)
    assert [state.key async for state in cache.list("pydantic-ai/42")] == []
    store = StateCacheConversationStore(cache, durability="postgres")
    assert await store.load("42") is None
    async with flushing(worker):
        await saved(store, "42", long)
        assert len(await said(store)) == len(long)
        await store.delete("42")
    assert [state.key async for state in cache.list("pydantic-ai/42")] == []


@pytest.mark.parametrize("ends", ["is saved", "is begun again", "is killed"])
async def test_a_large_save_that_is_cut_off_from_its_first_part_leaves_no_record_without_its_pages(
    store: StateCacheConversationStore, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Who deletes what is not there takes what a killed process has left for it, and may meet one that is at work."""
    monkeypatch.setattr(log, "_COMMIT_BYTES_MAX", 64 * 1024)
    commit, long, deleted = AsyncNamespace.commit, turns(8, size=40_000), list[int]()

    async def cut_off(view: Any, writes: Any, **more: Any) -> Any:
        names = {one.name for one in writes}
        openings = [one for one in writes if isinstance(one, Set) and one.name.endswith("/000000")]
        is_part = bool(openings) and openings[0].expected is not None
        if len(deleted) < 2 and (is_part if ends == "is begun again" else "42" in names):
            before = [state.key async for state in cache.list("pydantic-ai/42/")]
            if ends == "is killed":
                deleted.extend((len(before), 0))
                raise Killed
            await StateCacheConversationStore(cache).delete("42")
            deleted.append(len(before) - len([state async for state in cache.list("pydantic-ai/42/")]))
        return await commit(view, writes, **more)

    monkeypatch.setattr(AsyncNamespace, "commit", cut_off)
    if ends != "is killed":
        await saved(store, "42", long)
        assert await said(store) == told(long)
        assert len(deleted) == 2
        assert min(deleted) >= 2
    else:
        with pytest.raises(Killed):
            await saved(store, "42", long)
        assert len([state async for state in cache.list("pydantic-ai/42/")]) == deleted[0] > 2
    await store.delete("42")
    assert [state.key async for state in cache.list("pydantic-ai/42")] == []


async def test_what_a_killed_fork_has_left_hides_no_entry_of_the_original(
    store: StateCacheConversationStore, monkeypatch: pytest.MonkeyPatch, worker: Worker
) -> None:
    monkeypatch.setattr(log, "_COMMIT_BYTES_MAX", 64 * 1024)
    await saved(store, "original", turns(4, size=40_000))
    entries = await store.load_entries("original")
    assert entries is not None
    commit = AsyncNamespace.commit

    async def killed(view: Any, writes: Any, **more: Any) -> Any:
        if "fork" in {one.name for one in writes}:
            raise Killed
        return await commit(view, writes, **more)

    with monkeypatch.context() as patched:
        patched.setattr(AsyncNamespace, "commit", killed)
        with pytest.raises(Killed):
            await store.fork("original", new_conversation_id="fork")
    await flush(worker)
    for entry in entries:
        assert (await store.read_entry(entry.id[:])).message == entry.message


async def test_more_pages_than_a_commit_takes_are_refused_where_a_conversation_is(
    store: StateCacheConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one has them written ahead."""
    monkeypatch.setattr(log, "WRITTEN_PAGES_MAX", 3)
    await saved(store, "42", turns(2))
    with pytest.raises(LimitExceeded, match="number of pages"):
        await saved(store, "42", turns(8, size=40_000))
    assert len(await said(store)) == len(turns(2))


async def test_a_large_record_is_counted_with_its_pages(
    store: StateCacheConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_COMMIT_BYTES_MAX", 64 * 1024)
    commit, parts = AsyncNamespace.commit, list[int]()

    async def noted(view: Any, writes: Any, **more: Any) -> Any:
        parts.append(len(writes))
        return await commit(view, writes, **more)

    monkeypatch.setattr(AsyncNamespace, "commit", noted)
    waits = DeferredToolRequests(approvals=[ToolCallPart("tool", {"text": "x" * 40_000})])
    messages = turns(2, size=20_000)
    await store.save(Conversation(conversation_id="42", messages=messages, deferred_tool_requests=waits))
    assert len(parts) == 2
    found = await store.load("42")
    assert found is not None
    assert (found.messages, found.deferred_tool_requests) == (messages, waits)
