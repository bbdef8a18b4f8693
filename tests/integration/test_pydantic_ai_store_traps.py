"""What could go wrong with conversations on statecache, each once: nothing is lost, doubled, or grows with the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelRequest, ToolReturnPart

from statecache import (
    AsyncNamespace,
    AsyncStateCache,
    CodecError,
    LimitExceeded,
    OutcomeUnknown,
    Settings,
    StateCache,
    UsageError,
)
from statecache.adapters.filling import PAGE_ITEMS_MAX
from statecache.adapters.openai_agents import StateCacheSession
from statecache.adapters.pydantic_ai import StateCacheConversationStore
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.disturbed_commits import counting_exchanges, holding_commits, losing_an_outcome
from tests.support.fault_proxy import FaultProxy, Kind
from tests.support.local_reads import kept
from tests.support.openai_sessions import items
from tests.support.pydantic_ai_stores import said, saved, told, turn, turns

MIB = 1024 * 1024


@pytest.fixture
def store(cache: AsyncStateCache) -> StateCacheConversationStore:
    """A store on an asynchronous client."""
    return StateCacheConversationStore(cache)


async def test_a_long_conversation_costs_no_more_to_save_than_a_short_one(
    store: StateCacheConversationStore, cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    conversation = Conversation(conversation_id="42")
    for number in range(100):
        conversation.messages.extend(turn(number))
        await store.save(conversation)
    pages = [state async for state in cache.list(f"{store.group_of('42')}/log/")]
    assert sum(len(page.value["entries"]) for page in pages) == 200
    assert all(len(page.value["entries"]) <= PAGE_ITEMS_MAX for page in pages)
    await flush(worker)
    assert rows(psql, "SELECT count(*), max(version) FROM change WHERE key = 'pydantic-ai/42'") == [(100, 100)]
    [(changes,)] = rows(psql, "SELECT count(*) FROM change")
    assert 200 <= changes < 200 + 2 * len(pages)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_exchanges_are_counted(
    store: StateCacheConversationStore, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept(cache, "others/1")
    conversation = await saved(store, "42", turns(150))
    await store.load("42")
    exchanges = counting_exchanges(monkeypatch, "pydantic-ai/42")
    conversation.messages.extend(turn(150))
    assert await exchanges(store.save(conversation)) == 2
    assert await exchanges(store.load("42", limit=10)) == 1
    assert await exchanges(store.load("42")) == 1
    assert len(conversation.messages) == 302


@pytest.mark.parametrize("kind", ["drop_reply", "drop_request", "reset"])
async def test_a_save_whose_answer_is_lost_is_there_once(settings: Settings, proxy: FaultProxy, kind: Kind) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as cache:
        store = StateCacheConversationStore(cache)
        conversation = await saved(store, "42", turns(2))
        log = (await cache.get("pydantic-ai/42", default=dict)).value["log"]
        conversation.messages.extend(turn(2))
        fault = proxy.arm(kind, at=f"{log}/000001".encode())
        assert len(await store.save(conversation)) == 2
        assert fault.struck
        assert await said(store) == told(turns(3))
        fault = proxy.arm(kind, at=f"{log}/000001".encode())
        await store.delete("42")
        assert fault.struck
        assert await store.load("42") is None


@pytest.mark.parametrize("verdict", ["applied", "not applied", "unknown"])
async def test_an_outcome_that_is_unknown_is_asked_for(
    store: StateCacheConversationStore, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    conversation = await saved(store, "42", turns(1))
    unknown = losing_an_outcome(monkeypatch, verdict)
    conversation.messages.extend(turn(1))
    if verdict == "unknown":
        with pytest.raises(OutcomeUnknown):
            await store.save(conversation)
    else:
        await store.save(conversation)
    assert len(unknown) == 1
    assert await said(store) == told(turns(1 if verdict == "unknown" else 2))


async def test_who_is_cancelled_waits_for_what_becomes_of_it(
    store: StateCacheConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = holding_commits(monkeypatch)
    saving = asyncio.create_task(store.save(Conversation(conversation_id="42", messages=turns(2))))
    await begun.wait()
    for _ in range(3):
        saving.cancel()
        await asyncio.wait([saving], timeout=0)
    assert not saving.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert await said(store) == told(turns(2))


async def test_what_is_too_large_is_refused_as_a_whole(store: StateCacheConversationStore) -> None:
    conversation = await saved(store, "42", turns(1))
    revision = conversation.revision
    for refused in (turn(1, size=9 * MIB), [*turn(1), *turn(2, size=8 * MIB)], turns(4, since=1, size=6 * MIB)):
        with pytest.raises(LimitExceeded):
            await store.save(replace(conversation, messages=[*conversation.messages, *refused]))
    assert await store.load("42") == conversation
    conversation.messages.extend(turns(3, since=1, size=7 * MIB))
    await store.save(conversation)
    assert conversation.revision != revision
    assert [len(one) > 7 * MIB for one in await said(store)] == [False, False, True, False, True, False]


async def test_a_conversation_that_begins_anew_has_no_name_of_a_page_of_the_one_before(
    store: StateCacheConversationStore, cache: AsyncStateCache
) -> None:
    seen = set[str]()
    for _ in range(3):
        await saved(store, "42", turns(40))
        pages = {state.key async for state in cache.list("pydantic-ai/42/", values=False)}
        assert len(pages) > 1
        assert pages.isdisjoint(seen)
        seen |= pages
        await store.delete("42")


async def test_what_cannot_be_serialized_is_refused_with_its_place(store: StateCacheConversationStore) -> None:
    circle: list[Any] = []
    circle.append(circle)
    for content in (object(), circle):
        strange = ModelRequest(parts=[ToolReturnPart(tool_name="x", content=content, tool_call_id="1")])
        with pytest.raises(CodecError) as refused:
            await store.save(Conversation(conversation_id="42", messages=[*turns(1), strange]))
        assert refused.value.path == "$[2]"
    assert await store.load("42") is None


async def test_a_namespace_that_others_use_too_says_of_whom_a_state_is(
    store: StateCacheConversationStore, cache: AsyncStateCache
) -> None:
    both = StateCacheConversationStore(cache, namespace="agents")
    session = StateCacheSession("42", cache, namespace="agents")
    await session.add_items(items(3))
    mine = Conversation(conversation_id="42", messages=turns(1))
    calls: list[Callable[[], Any]] = [lambda: both.load("42"), lambda: both.save(mine), lambda: both.delete("42")]
    for call in calls:
        with pytest.raises(CodecError, match=r"agents/42' .*no record of a conversation of Pydantic AI"):
            await call()
    await saved(both, "43", turns(1))
    assert [one.conversation_id for one in await both.list_conversations()] == ["43"]
    with pytest.raises(CodecError, match=r"agents/43' .*no head of a session"):
        await StateCacheSession("43", cache, namespace="agents").add_items(items(1))
    assert await session.get_items() == items(3)
    assert await said(both, "43") == told(turns(1))
    await cache.update("agents/43", lambda head: head | {"format_version": 2})
    with pytest.raises(CodecError, match="agents/43"):
        await both.load("43")


async def test_a_conversation_is_rewound_copied_and_erased_by_the_verbs_of_its_group(
    store: StateCacheConversationStore, cache: AsyncStateCache, settings: Settings, worker: Worker
) -> None:
    async with flushing(worker), AsyncStateCache(settings=settings) as elsewhere:
        other, group = StateCacheConversationStore(elsewhere), store.group_of("42")
        await saved(store, "42", turns(40))
        await cache.checkpoint(group, "asked", group=True)
        late = await saved(store, "42", turns(80, since=40))
        assert await said(other) == told(turns(80))
        await cache.rollback(group, "asked", group=True)
        assert await said(other) == await said(store) == told(turns(40))
        with pytest.raises(ConversationConflict):
            await store.save(late)
        await saved(other, "42", turn(99))
        assert await said(store) == told([*turns(40), *turn(99)])
        await cache.branch(group, other.group_of("a/b"), group=True)
        await saved(other, "a/b", turn(100))
        assert await said(store, "a/b") == told([*turns(40), *turn(99), *turn(100)])
        assert sorted(one.conversation_id for one in await store.list_conversations()) == ["42", "a/b"]
        await cache.erase(group, group=True)
        assert await other.load("42") is None
        await saved(store, "42", turn(1))
        assert await said(other) == told(turn(1))


async def test_entries_that_are_gone_are_told_and_a_history_is_never_read_with_a_gap(
    store: StateCacheConversationStore, cache: AsyncStateCache
) -> None:
    await saved(store, "42", turns(70))
    pages = [state.key async for state in cache.list(f"{store.group_of('42')}/log/")]
    await cache.delete(pages[1])
    with pytest.raises(KeyError, match=r"there is no entry .* in pydantic-ai/42"):
        await store.load("42")
    part = await store.load("42", limit=2)
    assert part is not None
    assert told(part.messages) == told(turn(69))
    record = ConversationRecord(conversation_id="43", head_id="gone")
    with pytest.raises(ConversationConflict):
        await store.write_record(record, expected_revision=None)
    lost = ConversationEntry(parent_id="gone", message=turn(1)[0])
    record = ConversationRecord(conversation_id="43", head_id=lost.id)
    with pytest.raises(ConversationConflict):
        await store.write_record(record, new_entries=[lost], expected_revision=None)
    assert await store.read_record("43") is None


async def test_what_is_redacted_by_hand_while_somebody_saves_stays_redacted(
    store: StateCacheConversationStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, commit, times = await saved(store, "42", turns(2)), AsyncNamespace.commit, 0

    def redacted(page: Any) -> Any:
        first = next(iter(page["entries"].values()))
        first["message"]["parts"][0]["content"] = "redacted"
        return page

    async def late(view: Any, writes: Any, **more: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            [page] = [state.key async for state in elsewhere.list("pydantic-ai/42/log/")]
            await elsewhere.update(page, redacted)
        return await commit(view, writes, **more)

    async with AsyncStateCache(settings=settings) as elsewhere:
        monkeypatch.setattr(AsyncNamespace, "commit", late)
        conversation.messages.extend(turn(2))
        await store.save(conversation)
        assert times == 2
        assert await said(StateCacheConversationStore(elsewhere)) == ["redacted", *told(turns(3))[1:]]


async def test_postgres_holds_what_was_saved_where_that_was_asked_for(
    cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    store = StateCacheConversationStore(cache, durability="postgres")
    async with flushing(worker):
        for number in range(3):
            await saved(store, "42", turn(number))
            assert rows(psql, "SELECT max(version) FROM change WHERE key = 'pydantic-ai/42'") == [(number + 1,)]


async def test_conversations_do_not_wait_for_one_another(
    store: StateCacheConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, held, go_on = AsyncNamespace.commit, asyncio.Event(), asyncio.Event()

    async def holding(view: Any, writes: Any, **more: Any) -> Any:
        if not held.is_set():
            held.set()
            await go_on.wait()
        return await commit(view, writes, **more)

    monkeypatch.setattr(AsyncNamespace, "commit", holding)
    first = asyncio.create_task(saved(store, "1", turn(1)))
    await held.wait()
    async with asyncio.timeout(20):
        await saved(store, "2", turn(2))
    assert not first.done()
    go_on.set()
    await first


def test_event_loops_and_threads_share_a_store(settings: Settings) -> None:
    store = StateCacheConversationStore.from_settings(settings)
    asyncio.run(saved(store, "0", turns(2)))
    threads = [
        threading.Thread(target=lambda number=number: asyncio.run(saved(store, str(number), turn(number))))
        for number in range(1, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listed = asyncio.run(store.list_conversations())
    assert sorted(one.conversation_id for one in listed) == ["0", "1", "2", "3", "4"]
    assert store._clients._made == {}


async def test_a_store_that_is_closed_does_nothing_and_leaves_a_given_client_open(
    store: StateCacheConversationStore, settings: Settings
) -> None:
    await store.close()
    await saved(store, "42", turn(1))
    own = StateCacheConversationStore(settings)
    assert await said(own) == told(turn(1))
    await own.close()
    await own.close()
    calls: list[Callable[[], Any]] = [
        lambda: own.load("42"),
        own.list_conversations,
        own.ping,
        lambda: own.delete("42"),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="the store is closed"):
            await call()
    async with StateCacheConversationStore.from_url(
        url=settings.redis_url, postgres_url=settings.postgres_url, prefix=settings.prefix,
        postgres_schema=settings.postgres_schema, shards=settings.shards, durability="memory",
    ) as again:  # fmt: skip
        assert await said(again) == told(turn(1))


async def test_what_a_store_cannot_stand_on_is_refused(cache: AsyncStateCache, settings: Settings) -> None:
    with StateCache(settings=settings) as synchronous, pytest.raises(UsageError, match="not on a StateCache"):
        StateCacheConversationStore(synchronous)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="more than one segment"):
        StateCacheConversationStore(cache, namespace="a/b")
    store = StateCacheConversationStore(cache)
    for call in (store.load("4\0002"), store.list_conversations(scope="a\0"), store.list_conversations(scope="\ud83d")):
        with pytest.raises(UsageError):
            await call
    with pytest.raises(UsageError):
        await store.save(Conversation(conversation_id="42"), scope="\ud83d")


async def test_a_redis_that_is_away_is_told_by_a_ping(settings: Settings, proxy: FaultProxy) -> None:
    near = through(settings, redis=proxy).model_copy(update={"timeout_s": 0.5})
    async with AsyncStateCache(settings=near) as cache:
        store = StateCacheConversationStore(cache)
        assert await store.ping()
        proxy.refusing = True
        proxy.cut_all()
        assert not await store.ping()
