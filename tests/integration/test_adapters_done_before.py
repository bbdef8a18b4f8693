"""Who finds that what he asks for was done before is acknowledged once that is as durable as he asks for.

His first call was told that it is applied and not known to be durable; that it is applied was never the question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic_ai.conversation import Conversation

from statecache import AsyncNamespace, AsyncStateCache, Durability, DurabilityNotMet, OutcomeUnknown, Settings
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.langgraph import StateCacheSaver, StateCacheStore
from statecache.adapters.llama_index import StateCacheChatStore, StateCacheKVStore
from statecache.adapters.openai_agents import StateCacheSession
from statecache.adapters.pydantic_ai import StateCacheConversationStore
from statecache.testing.embedded import Servers
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeSettings
from tests.support.adk_services import ID, event, loaded
from tests.support.langgraph_stories import config, got, put
from tests.support.llama_index_stores import messages
from tests.support.openai_sessions import items
from tests.support.pydantic_ai_stores import turn

pytestmark = pytest.mark.counts_seconds

Verb = Callable[[], Awaitable[object]]
Case = Callable[[AsyncStateCache, Durability], Awaitable[Verb]]
TIMES = 3
"""How often each is called: a call that takes two commits ends once with each of them, and then finds all of it."""
SHORT_S = 0.3


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of calls that do not wait for long."""
    return make_settings(timeout_s=SHORT_S, hydrate_token_s=SHORT_S)


async def two_checkpoints(cache: AsyncStateCache) -> None:
    """Put two checkpoints of a thread, of one run."""
    saver, told = StateCacheSaver(cache), {"run_id": "r"}
    await put(saver, "42", {"small": 2}, parent=await put(saver, "42", {"small": 1}, metadata=told), metadata=told)


async def delete_thread(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what deletes a thread of LangGraph."""
    await two_checkpoints(cache)
    return lambda: StateCacheSaver(cache, durability=level).adelete_thread("42")


async def prune(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what thins a thread out."""
    await two_checkpoints(cache)
    return lambda: StateCacheSaver(cache, durability=level).aprune(["42"])


async def prune_all(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what leaves nothing of a thread."""
    await two_checkpoints(cache)
    return lambda: StateCacheSaver(cache, durability=level).aprune(["42"], strategy="delete")


async def copy_thread(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what copies a thread."""
    await two_checkpoints(cache)
    return lambda: StateCacheSaver(cache, durability=level).acopy_thread("42", "43")


async def delete_for_runs(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what deletes what a run has put."""
    await two_checkpoints(cache)
    return lambda: StateCacheSaver(cache, durability=level).adelete_for_runs(["r"])


async def _put_writes(cache: AsyncStateCache, level: Durability, count: int) -> Verb:
    """Return what puts what so many tasks have written at one moment; all of them are told the same."""
    at = await put(StateCacheSaver(cache), "42", {"small": 1})
    saver = StateCacheSaver(cache, durability=level)

    async def put_writes() -> None:
        calls = (saver.aput_writes(at, [("small", task)], f"{task}") for task in range(count))
        told = await asyncio.gather(*calls, return_exceptions=True)
        assert len({repr(one) for one in told}) == 1
        if told[0] is not None:
            raise told[0]

    return put_writes


async def put_writes(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what puts the writes of a task."""
    return await _put_writes(cache, level, 1)


async def put_writes_of_some(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what puts the writes of tasks that have room in the checkpoint."""
    return await _put_writes(cache, level, 3)


async def put_writes_of_many(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what puts the writes of tasks that have states of their own."""
    return await _put_writes(cache, level, 12)


async def delete_item(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what deletes an item of LangGraph's store."""
    await StateCacheStore(cache).aput(("users",), "ada", {"n": 1})
    return lambda: StateCacheStore(cache, durability=level).adelete(("users",), "ada")


async def delete_session(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what deletes a session of ADK."""
    await StateCacheSessionService(cache).create_session(**ID)
    return lambda: StateCacheSessionService(cache, durability=level).delete_session(**ID)


async def clear_session(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what empties a session of the OpenAI SDK."""
    await StateCacheSession("42", cache).add_items(items(2))
    return StateCacheSession("42", cache, durability=level).clear_session


async def delete_messages(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what deletes a chat of LlamaIndex."""
    await StateCacheChatStore(cache).aset_messages("42", messages(2))
    return lambda: StateCacheChatStore(cache, durability=level).adelete_messages("42")


async def delete_value(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what deletes a value of LlamaIndex."""
    await StateCacheKVStore(cache).aput("42", {"n": 1})
    return lambda: StateCacheKVStore(cache, durability=level).adelete("42")


async def delete_conversation(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what deletes a conversation of Pydantic AI."""
    conversation = Conversation(conversation_id="42")
    conversation.messages.extend(turn(0))
    await StateCacheConversationStore(cache).save(conversation)
    return lambda: StateCacheConversationStore(cache, durability=level).delete("42")


CASES: list[Case] = [
    delete_thread, prune, prune_all, copy_thread, delete_for_runs, put_writes, put_writes_of_some, put_writes_of_many,
    delete_item, delete_session, clear_session, delete_messages, delete_value, delete_conversation,
]  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


@each_case
async def test_what_was_done_before_is_acknowledged_once_postgres_has_it(
    case: Case, settings: Settings, worker: Worker
) -> None:
    async with AsyncStateCache(settings=settings) as cache:
        call = await case(cache, "postgres")
        await flush(worker)
        for _ in range(TIMES):
            with pytest.raises(OutcomeUnknown, match="not yet known to be in Postgres"):
                await call()
        await flush(worker)
        await call()


@each_case
async def test_at_memory_what_was_done_before_is_acknowledged_at_once(case: Case, settings: Settings) -> None:
    async with AsyncStateCache(settings=settings) as cache:
        call = await case(cache, "memory")
        for _ in range(TIMES):
            await call()


async def test_what_never_was_is_deleted_without_a_worker(settings: Settings) -> None:
    async with AsyncStateCache(settings=settings.model_copy(update={"durability": "postgres"})) as cache:
        await StateCacheSaver(cache).adelete_thread("42")
        await StateCacheStore(cache).adelete(("users",), "ada")
        await StateCacheSessionService(cache).delete_session(**ID)
        await StateCacheSession("42", cache).clear_session()
        await StateCacheChatStore(cache).adelete_messages("42")
        await StateCacheConversationStore(cache).delete("42")


@contextmanager
def without_copies(pair: Servers) -> Iterator[None]:
    """Have the replica acknowledge nothing."""
    pair.pause("replica-1")
    try:
        yield
    finally:
        pair.resume("replica-1")


@pytest.fixture
def short(paired: Settings) -> Settings:
    """Settings of calls on the pair that do not wait for long."""
    return paired.model_copy(update={"timeout_s": 2.0, "hydrate_token_s": 2.0})


@each_case
async def test_what_was_done_before_is_acknowledged_once_a_replica_has_it(
    case: Case, short: Settings, pair: Servers
) -> None:
    async with AsyncStateCache(settings=short) as cache:
        call = await case(cache, "replica")
        with without_copies(pair):
            for _ in range(TIMES):
                with pytest.raises(DurabilityNotMet, match="0 of 1 copies"):
                    await call()
        await call()


@pytest.mark.parametrize("count", [1, 3, 12])
async def test_what_tasks_have_written_is_there_where_they_are_told_that_it_is_applied(
    count: int, short: Settings, pair: Servers
) -> None:
    """That too few copies have what comes before it keeps none of it from being written."""
    async with AsyncStateCache(settings=short) as cache:
        call = await _put_writes(cache, "replica", count)
        with without_copies(pair), pytest.raises(DurabilityNotMet):
            await call()
        found = await got(StateCacheSaver(cache), config("42"))
        assert sorted(int(task) for task, _, _ in found.pending_writes or ()) == [*range(count)]


async def append_event(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what appends an event of ADK, the same one each time."""
    service, one = StateCacheSessionService(cache, durability=level), event("one")
    await service.create_session(**ID)

    async def append() -> None:
        await service.append_event(await loaded(service), one)

    return append


async def add_items(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what adds items of the OpenAI SDK."""
    session = StateCacheSession("42", cache, durability=level)
    await session.add_items(items(1))
    return lambda: session.add_items(items(2))


async def add_message(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what adds a message of LlamaIndex."""
    store = StateCacheChatStore(cache, durability=level)
    await store.aset_messages("42", messages(1))
    return lambda: store.async_add_message("42", messages(1)[0])


async def save(cache: AsyncStateCache, level: Durability) -> Verb:
    """Return what saves a conversation of Pydantic AI with a turn more, as it is loaded each time."""
    store = StateCacheConversationStore(cache, durability=level)
    await store.save(Conversation(conversation_id="42"))

    async def saved() -> None:
        conversation = await store.load("42")
        assert conversation is not None
        conversation.messages.extend(turn(len(conversation.messages)))
        await store.save(conversation)

    return saved


@pytest.mark.parametrize("case", [append_event, add_items, add_message, save], ids=lambda case: case.__name__)
async def test_a_commit_whose_answer_was_lost_is_acknowledged_once_a_replica_has_it(
    case: Case, short: Settings, pair: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That Redis is found to hold it says as little of its copies as the answer that was lost."""
    commit = AsyncNamespace.commit

    async def unanswered(view: Any, writes: Any, **more: Any) -> Any:
        made = await commit(view, writes, **more | {"durability": "memory"})
        raise OutcomeUnknown(made[0].change_id, keys=(made[0].key,))  # type: ignore[union-attr]

    async with AsyncStateCache(settings=short) as cache:
        call = await case(cache, "replica")
        monkeypatch.setattr(AsyncNamespace, "commit", unanswered)
        with without_copies(pair), pytest.raises(OutcomeUnknown, match="the reply was lost"):
            await call()
        await call()
