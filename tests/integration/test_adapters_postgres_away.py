"""A conversation that Redis holds goes on without Postgres: its new pages have names that no page has ever had."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from google.adk.events.event import Event
from llama_index.core.llms import ChatMessage
from pydantic_ai.messages import ModelRequest, UserPromptPart

from statecache import AsyncStateCache, Settings
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.llama_index import StateCacheChatStore
from statecache.adapters.openai_agents import StateCacheSession
from statecache.adapters.pydantic_ai import StateCacheConversationStore
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.adk_services import GROUP, ID, event, loaded, texts
from tests.support.fault_proxy import FaultProxy
from tests.support.openai_sessions import World
from tests.support.pydantic_ai_stores import saved, told

Add = Callable[[int], Awaitable[object]]
There = Callable[[], Awaitable[list[Any]]]
Adapter = Callable[[AsyncStateCache], tuple[Add, There, str]]
LONG = "x" * 4000
"""So long that a page takes four."""
SOME, MANY = 16, 30


def openai(cache: AsyncStateCache) -> tuple[Add, There, str]:
    """Return what adds an item to a session of the OpenAI SDK, what tells them by their numbers, and its group."""
    session = StateCacheSession("42", cache)

    async def there() -> list[Any]:
        items: list[Any] = await session.get_items()
        return [int(item["content"].split()[0]) for item in items]

    return lambda number: session.add_items([{"role": "user", "content": f"{number} {LONG}"}]), there, session.group


def llama(cache: AsyncStateCache) -> tuple[Add, There, str]:
    """Return the same of a chat of LlamaIndex."""
    store = StateCacheChatStore(cache)

    async def there() -> list[Any]:
        return [int(str(one.content).split()[0]) for one in await store.aget_messages("42")]

    return (
        lambda number: store.async_add_message("42", ChatMessage(content=f"{number} {LONG}")),
        there,
        store.group_of("42"),
    )


def adk(cache: AsyncStateCache) -> tuple[Add, There, str]:
    """Return the same of a session of ADK."""
    service = StateCacheSessionService(cache)

    async def add(number: int) -> Event:
        session = await service.get_session(**ID) or await service.create_session(**ID)
        return await service.append_event(session, event(f"{number} {LONG}"))

    async def there() -> list[Any]:
        return [int(text.split()[0]) for text in texts((await loaded(service)).events)]

    return add, there, GROUP


def pydantic_ai(cache: AsyncStateCache) -> tuple[Add, There, str]:
    """Return the same of a conversation of Pydantic AI."""
    store = StateCacheConversationStore(cache)

    async def there() -> list[Any]:
        entries = await store.load_entries("42") or ()
        return [int(text.split()[0]) for text in told([entry.message for entry in entries])]

    return (
        lambda number: saved(store, "42", [ModelRequest(parts=[UserPromptPart(content=f"{number} {LONG}")])]),
        there,
        store.group_of("42"),
    )


each_adapter = pytest.mark.parametrize("adapter", [openai, llama, adk, pydantic_ai], ids=lambda one: one.__name__)


def _behind(settings: Settings, proxy: FaultProxy) -> Settings:
    """Return settings of a client whose way to Postgres leads through a proxy, and whose calls do not wait for long."""
    return through(settings, postgres=proxy).model_copy(update={"timeout_s": 2.0, "hydrate_token_s": 2.0})


@each_adapter
async def test_a_conversation_goes_on_while_postgres_is_away(
    adapter: Adapter, settings: Settings, postgres_proxy: FaultProxy, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    async with AsyncStateCache(settings=_behind(settings, postgres_proxy)) as cache:
        add, there, group = adapter(cache)
        await add(0)
        await flush(worker)
        await postgres_proxy.cut_off()
        for number in range(1, MANY):
            await add(number)
        assert await there() == [*range(MANY)]
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]
    async with AsyncStateCache(settings=settings) as other:
        assert await adapter(other)[1]() == [*range(MANY)]
        versions = [state.version async for state in other.list(f"{group}/", values=False)]
        assert max(versions) <= 4, "as many as the items that a page takes: each page was new"


async def test_what_was_cleared_begins_again_while_postgres_is_away(
    settings: Settings, postgres_proxy: FaultProxy, worker: Worker
) -> None:
    """Redis still knows that it is gone."""
    many: list[Any] = [{"role": "user", "content": f"{number} {LONG}"} for number in range(SOME)]
    async with AsyncStateCache(settings=_behind(settings, postgres_proxy)) as cache:
        session, store, stored = StateCacheSession("42", cache), StateCacheChatStore(cache), openai(cache)[1]
        conversations = StateCacheConversationStore(cache)
        await session.add_items(many[:2])
        await store.async_add_message("42", ChatMessage(content="0"))
        await pydantic_ai(cache)[0](0)
        await flush(worker)
        await postgres_proxy.cut_off()
        await session.clear_session()
        await store.adelete_messages("42")
        await conversations.delete("42")
        await session.add_items(many)
        await store.async_add_message("42", ChatMessage(content="1"))
        for number in range(1, 3):
            await pydantic_ai(cache)[0](number)
        assert await stored() == [*range(SOME)]
        assert await llama(cache)[1]() == [1]
        assert await pydantic_ai(cache)[1]() == [1, 2]


@pytest.mark.parametrize("turned", ["undo", "rollback", "head alone", "edited", "deleted"])
@each_adapter
async def test_pages_that_were_taken_away_lend_their_names_to_no_later_ones(
    adapter: Adapter, turned: str, settings: Settings, worker: Worker, redis_raw: Any, psql: psycopg.Connection[Any]
) -> None:
    """Their last versions may be in Postgres alone: a page that is created as a new one would continue nothing."""
    world = World(settings, worker, redis_raw)
    async with AsyncStateCache(settings=settings) as cache:
        add, there, group = adapter(cache)
        async with flushing(worker):
            for number in range(6):
                await add(number)
            await cache.checkpoint(group, "before", group=True)
            for number in range(6, 9):
                await add(number)
            await _turned_back(cache, group, turned)
            count = 0 if turned == "deleted" else len(await there())
        for number in range(count, SOME):
            await world.empty()
            await adapter(cache)[0](number)
        assert await there() == [*range(SOME)]
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]
    async with AsyncStateCache(settings=settings) as other:
        assert await adapter(other)[1]() == [*range(SOME)]


async def _turned_back(cache: AsyncStateCache, group: str, how: str) -> None:
    """Have a conversation of nine items lose some; what writes its head alone leaves its pages as they are."""
    if how == "undo":
        await cache.undo(group, group=True)
        await cache.undo(group, group=True)
    elif how == "rollback":
        await cache.rollback(group, "before", group=True)
    elif how == "head alone":
        await cache.rollback(group, "before")
    elif how == "deleted":
        await cache.delete(group)
    else:
        await cache.update(group, lambda head: head | {"aside": 1})
