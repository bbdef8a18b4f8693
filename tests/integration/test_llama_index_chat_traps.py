"""What could go wrong with chats of LlamaIndex on statecache, each once: nothing is lost, doubled, or read half."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import pickle
import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.workflow import (
    Context,
    JsonPickleSerializer,
    JsonSerializer,
    StartEvent,
    StopEvent,
    Workflow,
    step,
)

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
from statecache.adapters.llama_index import StateCacheChatStore
from statecache.adapters.openai_agents import StateCacheSession
from statecache.settings import variable_of
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.disturbed_commits import counting_exchanges, losing_an_outcome
from tests.support.fault_proxy import FaultProxy, Kind
from tests.support.llama_index_stores import messages
from tests.support.openai_sessions import items

MIB = 1024 * 1024


@pytest.fixture
def store(cache: AsyncStateCache) -> StateCacheChatStore:
    """A store on an asynchronous client."""
    return StateCacheChatStore(cache)


async def names(cache: AsyncStateCache) -> list[str]:
    """Return the names of the states that the chat has."""
    return [state.key async for state in cache.list("llama-index-chat/42", values=False)]


async def test_a_long_chat_costs_no_more_to_add_to_than_a_short_one(
    store: StateCacheChatStore, cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    for one in messages(200):
        await store.async_add_message("42", one)
    pages = [state async for state in cache.list(f"{store.group_of('42')}/pages/")]
    assert [page.version for page in pages] == [len(page.value["items"]) for page in pages]
    assert len(pages) > 3
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change") == [(400,)]
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_exchanges_are_counted(store: StateCacheChatStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.aset_messages("42", messages(300, size=100))
    await store.adelete_message("42", 100)
    await store.aget_messages("42")
    exchanges = counting_exchanges(monkeypatch, "llama-index-chat/42")
    assert await exchanges(store.aget_messages("42")) == 1
    assert await exchanges(store.async_add_message("42", messages(1)[0])) == 1
    assert await exchanges(store.adelete_last_message("42")) == 1
    assert await exchanges(store.aget_messages("42")) == 1


async def test_what_is_redacted_by_hand_while_somebody_changes_a_chat_stays_redacted(
    store: StateCacheChatStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.aset_messages("42", messages(3))
    commit, times, redacted = AsyncNamespace.commit, 0, ChatMessage(content="redacted")

    async def late(view: Any, writes: Any, **more: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            [page] = [state.key async for state in elsewhere.list("llama-index-chat/42/pages/", values=False)]
            first = redacted.model_dump(mode="json")
            await elsewhere.update(page, lambda held: held | {"items": [first, *held["items"][1:]]})
        return await commit(view, writes, **more)

    async with AsyncStateCache(settings=settings) as elsewhere:
        monkeypatch.setattr(AsyncNamespace, "commit", late)
        await store.async_add_message("42", messages(4)[3])
        assert times == 2
        assert await StateCacheChatStore(elsewhere).aget_messages("42") == [redacted, *messages(4)[1:]]


@pytest.mark.parametrize("kind", ["drop_reply", "drop_request", "reset"])
async def test_a_change_whose_answer_is_lost_is_there_once(settings: Settings, proxy: FaultProxy, kind: Kind) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as cache:
        store = StateCacheChatStore(cache)
        await store.aset_messages("42", messages(3))
        for verb in (
            store.async_add_message("42", messages(4)[3]),
            store.adelete_message("42", 0),
            store.async_add_message("42", messages(1)[0], 0),
            store.adelete_last_message("42"),
        ):
            fault = proxy.arm(kind, at=b"llama-index-chat/42/pages/")
            await verb
            assert fault.struck
        assert await store.aget_messages("42") == messages(3)


@pytest.mark.parametrize("verdict", ["applied", "not applied", "unknown"])
async def test_an_outcome_that_is_unknown_is_asked_for(
    store: StateCacheChatStore, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    await store.aset_messages("42", messages(2))
    unknown = losing_an_outcome(monkeypatch, verdict)
    if verdict == "unknown":
        with pytest.raises(OutcomeUnknown):
            await store.adelete_last_message("42")
    else:
        assert await store.adelete_last_message("42") == messages(2)[1]
    assert len(unknown) == 1
    assert await store.aget_messages("42") == messages(2 if verdict == "unknown" else 1)


async def test_what_cannot_be_kept_is_refused_as_a_whole(
    store: StateCacheChatStore, cache: AsyncStateCache, settings: Settings
) -> None:
    await store.aset_messages("42", messages(1))
    strange = ChatMessage(content="x", additional_kwargs={"a": object()})
    with pytest.raises(CodecError) as refused:
        await store.aset_messages("42", [*messages(2), strange])
    assert refused.value.path == "$[2]"
    for large in (messages(1, size=8 * MIB), messages(3, size=6 * MIB)):
        with pytest.raises(LimitExceeded):
            await store.aset_messages("42", large)
    assert await store.aget_messages("42") == messages(1)
    await store.aset_messages("42", messages(5000, size=2000))
    assert await store.aget_messages("42") == messages(5000, size=2000)
    for call in (store.aget_messages("4\0"), store.async_add_message("4\0", messages(1)[0])):
        with pytest.raises(UsageError, match="NUL"):
            await call
    with pytest.raises(UsageError, match="more than one segment"):
        StateCacheChatStore(cache, namespace="a/b")
    with pytest.raises(UsageError, match="not on a int"):
        StateCacheChatStore(1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="wait for its own event loop"):
        store.get_messages("42")
    own = StateCacheChatStore(settings)
    assert len(await own.aget_messages("42")) == 5000
    await own.aclose()
    with pytest.raises(UsageError, match="the store is closed"):
        await own.aget_keys()


@pytest.mark.parametrize("how", ["adelete_message", "adelete_last_message", "adelete_messages"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_this_release_cannot_read_is_not_deleted_either(
    cache: AsyncStateCache, sync_cache: StateCache, kind: str, how: str
) -> None:
    def of_another_release(page: Any) -> Any:
        newer = {"block_type": "of a newer release", "x": 1}
        return page | {"items": [*page["items"][:2], page["items"][2] | {"blocks": [newer]}]}

    store = StateCacheChatStore(cache if kind == "async" else sync_cache)
    await store.aset_messages("42", messages(3))
    (page,) = [state.key async for state in cache.list(f"{store.group_of('42')}/pages/", values=False)]
    await cache.update(page, of_another_release)
    before = [(state.key, state.version) async for state in cache.list("llama-index-chat/42")]
    arguments: list[Any] = ["42", 2] if how == "adelete_message" else ["42"]
    with pytest.raises(CodecError, match="holds what is no message"):
        await getattr(store, how)(*arguments)
    assert [(state.key, state.version) async for state in cache.list("llama-index-chat/42")] == before
    assert await store.adelete_message("42", 0) == messages(3)[0]


async def test_a_namespace_that_others_use_too_says_of_whom_a_state_is(cache: AsyncStateCache) -> None:
    store, session = StateCacheChatStore(cache, namespace="agents"), StateCacheSession("42", cache, namespace="agents")
    await session.add_items(items(3))
    calls: list[Callable[[], Any]] = [
        lambda: store.aget_messages("42"),
        lambda: store.async_add_message("42", messages(1)[0]),
        lambda: store.aset_messages("42", messages(1)),
        lambda: store.adelete_messages("42"),
        lambda: store.adelete_message("42", 0),
    ]
    for call in calls:
        with pytest.raises(CodecError, match=r"agents/42' .*no head of a chat of LlamaIndex"):
            await call()
    await store.aset_messages("43", messages(2))
    assert await store.aget_keys() == ["43"]
    with pytest.raises(CodecError, match=r"agents/43' .*no head of a session"):
        await StateCacheSession("43", cache, namespace="agents").add_items(items(1))
    assert await session.get_items() == items(3)
    assert await store.aget_messages("43") == messages(2)


async def test_a_chat_of_more_pages_than_one_commit_takes_is_replaced_and_deleted(
    store: StateCacheChatStore, cache: AsyncStateCache
) -> None:
    large = messages(600, size=12_000)
    verbs: list[Callable[[], Any]] = [
        lambda: store.aset_messages("42", messages(150, size=12_000)),
        lambda: store.adelete_messages("42"),
    ]
    for verb in verbs:
        for one in large[:300]:
            await store.async_add_message("42", one)
        assert len(await names(cache)) > 256
        before = await store.aget_messages("42")
        answer = await verb()
        assert answer is None or answer == before
        assert len(await names(cache)) < 200
    assert await names(cache) == []
    assert await store.aget_messages("42") == []


@pytest.mark.parametrize("seed", range(2))
async def test_readers_only_ever_see_what_a_chat_was_at_one_moment(
    settings: Settings, worker: Worker, psql: psycopg.Connection[Any], seed: int
) -> None:
    async with AsyncStateCache(settings=settings) as one, AsyncStateCache(settings=settings) as two, flushing(worker):
        store, drawn, held, over = StateCacheChatStore(one), random.Random(seed), [list[ChatMessage]()], False

        async def read(cache: AsyncStateCache) -> int:
            other, seen = StateCacheChatStore(cache), 0
            while not over:
                since = len(held) - 1
                assert await other.aget_messages("42") in held[max(since - 1, 0) :]
                seen += 1
            return seen

        async def write() -> None:
            nonlocal over
            try:
                for number in range(120):
                    what, now = drawn.choice(["add"] * 4 + ["insert", "take", "last", "set"]), [*held[-1]]
                    (more,), at = messages(number + 1, since=number, size=1000), drawn.randrange(max(len(now), 1))
                    if what == "set":
                        held.append(messages(number + 30, since=number, size=1000))
                        await store.aset_messages("42", held[-1])
                    elif what in ("add", "insert"):
                        now.insert(len(now) if what == "add" else at, more)
                        held.append(now)
                        await store.async_add_message("42", more, None if what == "add" else at)
                    elif now:
                        wanted = now.pop(-1 if what == "last" else at)
                        held.append(now)
                        assert await store.adelete_message("42", -1 if what == "last" else at) == wanted
            finally:
                over = True

        *seen, _ = await asyncio.gather(read(one), read(two), write())
        assert min(seen) > 10
        assert await StateCacheChatStore(two).aget_messages("42") == held[-1]
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_a_chat_is_rewound_copied_and_erased_by_the_verbs_of_its_group(
    store: StateCacheChatStore, cache: AsyncStateCache, settings: Settings, worker: Worker
) -> None:
    async with flushing(worker), AsyncStateCache(settings=settings) as elsewhere:
        other, group = StateCacheChatStore(elsewhere), store.group_of("42")
        await store.aset_messages("42", messages(70))
        await cache.checkpoint(group, "asked", group=True)
        await store.async_add_message("42", messages(71)[70])
        await store.aset_messages("42", messages(9))
        await cache.rollback(group, "asked", group=True)
        await other.async_add_message("42", messages(71)[70])
        assert await store.aget_messages("42") == messages(71)
        await cache.branch(group, store.group_of("a/b"), group=True)
        assert sorted(await store.aget_keys()) == ["42", "a/b"]
        assert await store.adelete_last_message("a/b") == messages(71)[70]
        assert await other.aget_messages("a/b") == messages(70)
        await cache.erase(group, group=True)
        assert await other.aget_keys() == ["a/b"]
        assert await store.aget_messages("42") == []


def test_without_await_on_clients_of_ones_own(settings: Settings) -> None:
    with StateCache(settings=settings) as cache:
        store = StateCacheChatStore(cache, durability="memory")
        store.setup()
        for one in messages(3):
            store.add_message("42", one)
        assert store.delete_message("42", 1) == messages(2)[1]
    with StateCacheChatStore.from_url(
        url=settings.redis_url, postgres_url=settings.postgres_url, prefix=settings.prefix,
        postgres_schema=settings.postgres_schema, shards=settings.shards,
    ) as again:  # fmt: skip
        assert again.get_messages("42") == [messages(1)[0], messages(3)[2]]
        assert again.group_of("a/b") == "llama-index-chat/a%2Fb"


def test_a_store_is_pickled_with_the_settings_that_it_stands_on(settings: Settings) -> None:
    with StateCacheChatStore(settings, namespace="mine", durability="memory") as store:
        store.add_message("42", messages(1)[0])
        memory = ChatMemoryBuffer.from_defaults(token_limit=10_000, chat_store=store, chat_store_key="42")
        for again in (pickle.loads(pickle.dumps(store)), pickle.loads(pickle.dumps(memory)).chat_store):
            assert (again.namespace, again.durability, again._clients._settings) == ("mine", "memory", settings)
            assert again._clients._policy == {"durability": "memory"}
            assert (again.get_messages("42"), again._bytes_max) == (messages(1), store._bytes_max)
            again.close()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(store.get_messages, ("42",)) == messages(1)
        assert store.get_messages("42") == messages(1), "it has clients of its own"
        assert copy.deepcopy(store)._clients is store._clients
        told = store.to_json()
        assert settings.postgres_url not in told
        assert '"durability": "memory"' in told


def test_a_store_made_again_from_its_fields_stands_on_the_servers_that_it_stood_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateCacheChatStore(settings) as store:
        told = store.to_dict()
        with pytest.raises(UsageError, match="other servers than the environment names"):
            StateCacheChatStore.from_dict(told)
        assert StateCacheChatStore.from_dict({"namespace": "mine"}).servers != store.servers, "the environment's"
        for name in ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards"):
            monkeypatch.setenv(variable_of(name), str(getattr(settings, name)))
        store.add_message("42", messages(1)[0])
        with StateCacheChatStore.from_dict(told) as again:
            assert (again.get_messages("42"), again.to_dict()) == (messages(1), told)
        monkeypatch.setenv(variable_of("postgres_schema"), "another")
        with pytest.raises(UsageError, match="leave `servers` out"):
            StateCacheChatStore.from_dict(told)


@pytest.mark.parametrize("serializer", [JsonSerializer(), JsonPickleSerializer()], ids=["json", "pickle"])
async def test_a_context_of_a_workflow_that_holds_a_memory_comes_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, serializer: JsonSerializer
) -> None:
    for name in ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards"):
        monkeypatch.setenv(variable_of(name), str(getattr(settings, name)))
    async with StateCacheChatStore(namespace="mine", durability="memory") as store:
        memory = ChatMemoryBuffer.from_defaults(token_limit=10_000, chat_store=store, chat_store_key="42")
        context: Context[Any] = Context(_Flow())
        await context.store.set("memory", memory)
        await context.store.set("other", 1)
        await memory.aput(messages(1)[0])
        again: Context[Any] = Context.from_dict(_Flow(), context.to_dict(serializer=serializer), serializer=serializer)
        assert await again.store.get("other") == 1
        found = await again.store.get("memory")
        assert (found.chat_store.namespace, found.chat_store.durability) == ("mine", "memory")
        assert await found.aget() == messages(1)
        await found.chat_store.aclose()


class _Flow(Workflow):
    @step
    async def only(self, event: StartEvent) -> StopEvent:
        return StopEvent()


def test_a_store_that_stands_on_a_client_says_why_it_is_not_pickled(sync_cache: StateCache) -> None:
    with pytest.raises(UsageError, match="stands on a client that was given") as refused:
        pickle.dumps(StateCacheChatStore(sync_cache))
    assert "of settings" in refused.value.hint
