"""What the library keeps of its own beside what adapters keep: no listing gives it, and no delete takes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from llama_index.core.llms import ChatMessage

from statecache import AsyncStateCache
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.llama_index import StateCacheChatStore, StateCacheKVStore
from statecache.adapters.openai_agents import StateCacheSession
from statecache.adapters.pydantic_ai import StateCacheConversationStore
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.adk_services import ID, WHOSE, event, texts
from tests.support.openai_sessions import items
from tests.support.own_records import marked
from tests.support.pydantic_ai_stores import saved, told, turn


class Talk(NamedTuple):
    """A conversation of some adapter: its groups, and what adds to it, lists all, reads it, and deletes it."""

    groups: list[str]
    add: Callable[[], Awaitable[object]]
    listed: Callable[[], Awaitable[list[Any]]]
    read: Callable[[], Awaitable[list[str]]]
    delete: Callable[[], Awaitable[object]]


def openai(cache: AsyncStateCache) -> Talk:
    """Return a session of the OpenAI SDK, whose sessions are not listed."""
    session = StateCacheSession("42", cache)

    async def read() -> list[str]:
        return [str(one) for one in await session.get_items()]

    async def listed() -> list[Any]:
        return await read() and ["42"]

    return Talk([session.group], lambda: session.add_items(items(2)), listed, read, session.clear_session)


def adk(cache: AsyncStateCache) -> Talk:
    """Return a session of ADK, with states of its app and its user."""
    service = StateCacheSessionService(cache)

    async def add() -> None:
        session = await service.get_session(**ID) or await service.create_session(**ID)
        await service.append_event(session, event("0", changes={"app:n": 1, "user:n": 1, "n": 1}))

    async def listed() -> list[Any]:
        sessions = [(await service.list_sessions(**which)).sessions for which in (WHOSE, {"app_name": "orders"})]
        assert sessions[0] == sessions[1]
        return [(one.id, one.state) for one in sessions[0]]

    async def read() -> list[str]:
        found = await service.get_session(**ID)
        return [] if found is None else texts(found.events)

    groups = ["adk/orders", "adk/orders:alice", "adk/orders:alice:42"]
    return Talk(groups, add, listed, read, lambda: service.delete_session(**ID))


def pydantic_ai(cache: AsyncStateCache) -> Talk:
    """Return a conversation of Pydantic AI, whose entries are looked for by their ids alone, too."""
    store = StateCacheConversationStore(cache)

    async def read() -> list[str]:
        found = await store.load("42")
        record = await store.read_record("42")
        if found is None or record is None or record.head_id is None:
            return []
        alone = await store.read_history("".join(record.head_id))
        assert told([entry.message for entry in alone]) == told(found.messages)
        return told(found.messages)

    async def listed() -> list[Any]:
        return [one.conversation_id for one in await store.read_records(limit=3)]

    group, add = store.group_of("42"), lambda: saved(store, "42", turn(0))
    return Talk([group], add, listed, read, lambda: store.delete("42"))


def llama(cache: AsyncStateCache) -> Talk:
    """Return a chat of LlamaIndex."""
    store = StateCacheChatStore(cache)

    async def read() -> list[str]:
        return [str(one.content) for one in await store.aget_messages("42")]

    add, delete = lambda: store.async_add_message("42", ChatMessage(content="0")), lambda: store.adelete_messages("42")
    return Talk([store.group_of("42")], add, store.aget_keys, read, delete)


@pytest.mark.parametrize("made", [openai, adk, pydantic_ai, llama], ids=lambda made: made.__name__)
async def test_a_conversation_with_named_points_is_used_like_any_other(
    made: Callable[[AsyncStateCache], Talk], cache: AsyncStateCache, worker: Worker
) -> None:
    talk = made(cache)
    await talk.add()
    listed, read = await talk.listed(), await talk.read()
    assert len(listed) == 1
    async with flushing(worker):
        kept = await marked(cache, *talk.groups)
        assert (await talk.listed(), await talk.read()) == (listed, read)
        await talk.add()
        assert await talk.listed() == listed
        assert await talk.read() == read + read
        kept |= await marked(cache, *talk.groups, label="two")
        for _ in range(2):  # the second looks for what a delete that was cut off has left
            await talk.delete()
            assert (await talk.listed(), await talk.read()) == ([], [])
        assert kept <= {state.key async for state in cache.list(values=False)}
        await cache.rollback(talk.groups[-1], "all-one", group=True)
    assert (await talk.listed(), await talk.read()) == (listed, read)
    await talk.delete()
    await talk.add()
    assert await talk.read() == read


async def test_a_collection_with_named_points_is_read_like_any_other(cache: AsyncStateCache, worker: Worker) -> None:
    store, values = StateCacheKVStore(cache), {key: {"key": key} for key in ("a", "b/c", "", "checkpoints", "steps")}
    await store.aput_all([*values.items()])
    async with flushing(worker):
        kept = await marked(cache, store.group_of())
        await cache.set(f"{store.group_of()}/kv/a/notes", "somebody else's")
        assert await store.aget_all() == values
        for key, value in values.items():
            assert await store.aget(key) == value
            assert await store.adelete(key)
            assert not await store.adelete(key)
        assert await store.aget_all() == {}
        assert kept <= {state.key async for state in cache.list(values=False)}
        await cache.rollback(store.group_of(), "all-one", group=True)
    assert await store.aget_all() == values
