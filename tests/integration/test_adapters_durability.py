"""What adapters acknowledge is as durable as was asked for: at `postgres` nothing while no worker brings it there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from pydantic_ai.conversation import Conversation

from statecache import (
    AsyncNamespace,
    AsyncStateCache,
    Backpressure,
    Durability,
    DurabilityNotMet,
    DurabilityRefused,
    OutcomeUnknown,
    RedisUnavailable,
    Settings,
)
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.llama_index import StateCacheChatStore
from statecache.adapters.openai_agents import StateCacheSession
from statecache.adapters.pydantic_ai import StateCacheConversationStore
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing
from tests.fixtures.servers import MakeSettings
from tests.support.adk_services import CHANGES, ID, WHOSE, event, loaded, texts
from tests.support.llama_index_stores import messages
from tests.support.openai_sessions import items
from tests.support.pydantic_ai_stores import turn

pytestmark = pytest.mark.counts_seconds

Changes = dict[str, Callable[[], Awaitable[object]]]
SHORT_S = 0.3


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of calls that do not wait for long."""
    return make_settings(timeout_s=SHORT_S, hydrate_token_s=SHORT_S)


def openai(cache: AsyncStateCache, durability: Durability) -> Changes:
    """Return what changes a session of the OpenAI SDK."""
    session = StateCacheSession("42", cache, durability=durability)
    return {"add": lambda: session.add_items(items(2)), "pop": session.pop_item, "clear": session.clear_session}


def llama(cache: AsyncStateCache, durability: Durability) -> Changes:
    """Return what changes a chat of LlamaIndex."""
    store = StateCacheChatStore(cache, durability=durability)
    return {
        "set": lambda: store.aset_messages("42", messages(2)),
        "add": lambda: store.async_add_message("42", messages(1)[0]),
        "delete last": lambda: store.adelete_last_message("42"),
        "delete": lambda: store.adelete_messages("42"),
    }


def pydantic_ai(cache: AsyncStateCache, durability: Durability) -> Changes:
    """Return what changes a conversation of Pydantic AI."""
    store = StateCacheConversationStore(cache, durability=durability)

    async def save() -> None:
        conversation = await store.load("42") or Conversation(conversation_id="42")
        conversation.messages.extend(turn(len(conversation.messages)))
        await store.save(conversation)

    return {"save": save, "save more": save, "delete": lambda: store.delete("42")}


def adk(cache: AsyncStateCache, durability: Durability) -> Changes:
    """Return what changes a session of ADK."""
    service = StateCacheSessionService(cache, durability=durability)

    async def append() -> None:
        await service.append_event(await loaded(service), event("one"))

    return {
        "create": lambda: service.create_session(**ID),
        "append": append,
        "delete": lambda: service.delete_session(**ID),
    }


@pytest.mark.parametrize("changes", [openai, llama, pydantic_ai, adk], ids=lambda made: made.__name__)
async def test_nothing_is_acknowledged_that_no_worker_has_brought_into_postgres(
    changes: Callable[..., Changes], settings: Settings, worker: Worker
) -> None:
    async with AsyncStateCache(settings=settings) as cache:
        for change in changes(cache, "postgres").values():
            with pytest.raises(OutcomeUnknown, match="not yet known to be in Postgres"):
                await change()
            await flush(worker)


@pytest.mark.parametrize("changes", [openai, llama, pydantic_ai, adk], ids=lambda made: made.__name__)
async def test_at_a_lesser_level_all_is_acknowledged(changes: Callable[..., Changes], settings: Settings) -> None:
    async with AsyncStateCache(settings=settings) as cache:
        for change in changes(cache, "memory").values():
            await change()


async def test_an_event_that_is_appended_again_is_acknowledged_once_postgres_has_it(
    settings: Settings, worker: Worker
) -> None:
    """It is the session's last event already: that alone does not say how durable it is."""
    one = event("one", changes={"n": 1})
    async with AsyncStateCache(settings=settings) as cache:
        service = StateCacheSessionService(cache)
        session = await service.create_session(**ID)
        await flush(worker)
        durable = StateCacheSessionService(cache, durability="postgres")
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await durable.append_event(session, one)
        found = await loaded(service)
        assert (texts(found.events), found.state) == (["one"], {"n": 1})


def _lacking(monkeypatch: pytest.MonkeyPatch, *, behind: str, verb: str = "commit") -> None:
    """Have a verb's change of what begins so be applied, and be acknowledged by no copy."""
    real = getattr(AsyncNamespace, verb)

    async def carried_out(view: Any, what: Any, *given: Any, **more: Any) -> Any:
        made = await real(view, what, *given, **more)
        if more["reason"] == behind:
            one = made[0] if isinstance(made, list) else made
            change_id = one.change_id if one is not None else "f" * 24
            raise DurabilityNotMet(change_id, level="replica", reached=0, wanted=1)
        return made

    monkeypatch.setattr(AsyncNamespace, verb, carried_out)


async def test_an_event_that_too_few_copies_have_counts_as_a_whole(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = StateCacheSessionService(cache)
    session = await service.create_session(**ID)
    one = event("one", changes=CHANGES)
    with monkeypatch.context() as patched:
        _lacking(patched, behind="append_event")
        with pytest.raises(DurabilityNotMet):
            await service.append_event(session, one)
    found = await loaded(service)
    assert (texts(found.events), found.state) == (["one"], CHANGES)
    await service.append_event(session, one)
    assert texts((await loaded(service)).events) == ["one"]


async def test_a_session_that_too_few_copies_have_is_created_as_a_whole_and_deleted(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = StateCacheSessionService(cache)
    with monkeypatch.context() as patched:
        _lacking(patched, behind="create_session")
        with pytest.raises(DurabilityNotMet):
            await service.create_session(**ID, state=CHANGES)
    assert (await loaded(service)).state == CHANGES
    with monkeypatch.context() as patched:
        _lacking(patched, behind="delete_session")
        with pytest.raises(DurabilityNotMet):
            await service.delete_session(**ID)
    assert await service.get_session(**ID) is None


async def test_an_event_whose_preparation_too_few_copies_have_is_refused_and_leaves_nothing(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = StateCacheSessionService(cache)
    session = await service.create_session(**ID)
    with monkeypatch.context() as patched:
        _lacking(patched, behind="prepare", verb="_updated")
        with pytest.raises(DurabilityRefused, match="so it did nothing"):
            await service.append_event(session, event("one", changes=CHANGES))
        with pytest.raises(DurabilityRefused, match="so it did nothing"):
            await service.create_session(**WHOSE, session_id="43", state=CHANGES)
    found = await loaded(service)
    assert (found.events, found.state) == ([], {})
    for name in ("adk/orders", "adk/orders:alice"):
        state = await cache.get(name)
        assert cast("Any", state).value["prepared"] == {}
    await service.append_event(session, event("two", changes=CHANGES))
    assert (await loaded(service)).state == CHANGES


@pytest.mark.parametrize("verb", ["append", "create"])
async def test_what_waits_for_a_worker_before_the_event_is_refused_and_leaves_nothing(
    verb: str, settings: Settings, worker: Worker
) -> None:
    """Nobody is told that all see what nobody sees; once a worker runs, the same call does it."""
    one = event("one", changes=CHANGES)
    async with AsyncStateCache(settings=settings) as cache:
        lasting, service = StateCacheSessionService(cache, durability="postgres"), StateCacheSessionService(cache)
        session = await service.create_session(**ID)
        await flush(worker)

        async def work() -> None:
            if verb == "append":
                await lasting.append_event(session, one)
            else:
                await lasting.create_session(**WHOSE, session_id="43", state=CHANGES)

        for _ in range(2):
            with pytest.raises(
                DurabilityRefused, match=r"not known to be in Postgres, so it did nothing.*a worker runs"
            ):
                await work()
        await _nothing_is_there(cache, service)
    async with AsyncStateCache(settings=settings.model_copy(update={"timeout_s": 10.0})) as cache, flushing(worker):
        lasting = StateCacheSessionService(cache, durability="postgres")
        await work()
        assert (await loaded(lasting, session_id="42" if verb == "append" else "43")).state == CHANGES


async def _nothing_is_there(cache: AsyncStateCache, service: StateCacheSessionService) -> None:
    """Assert that a session holds nothing, that there is no other, and that nothing is prepared."""
    found = await loaded(service)
    assert (found.events, found.state) == ([], {})
    assert await service.get_session(**WHOSE, session_id="43") is None
    for name in ("adk/orders", "adk/orders:alice"):
        state = await cache.get(name, read="primary")
        assert cast("Any", state).value["prepared"] == {}


async def test_what_is_not_answered_before_the_event_is_told_as_nothing(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the change beside it is applied says nothing of the event, whose outcome is known."""
    service = StateCacheSessionService(cache)
    session = await service.create_session(**ID)
    updated = AsyncNamespace._updated

    async def unanswered(view: Any, *given: Any, **more: Any) -> Any:
        made = await updated(view, *given, **more)
        if more["reason"] == "prepare":
            raise OutcomeUnknown(made.change_id, keys=(made.key,))
        return made

    with monkeypatch.context() as patched:
        patched.setattr(AsyncNamespace, "_updated", unanswered)
        with pytest.raises(RedisUnavailable, match="what goes before append_event was not answered, so it did nothing"):
            await service.append_event(session, event("one", changes=CHANGES))
    await _nothing_is_there(cache, service)


@pytest.mark.parametrize("verb", ["append", "create", "delete"])
async def test_what_fails_behind_the_commit_is_told_as_one_that_may_be_applied(
    verb: str, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RedisUnavailable would say that nothing was applied: a Runner that tries again would have the message twice."""
    service, one = StateCacheSessionService(cache), event("one", changes=CHANGES)

    async def away(*given: Any, **__: Any) -> None:
        if given[-1]:  # what is prepared, the states or the pages that it is about
            raise RedisUnavailable("connection", detail="it is away")

    if verb != "create":
        session = await service.create_session(**ID)
    if verb == "delete":
        monkeypatch.setattr("statecache.adapters.adk.sessions._PAGES_A_COMMIT", 0)
        await service.append_event(session, event("old"))
    with monkeypatch.context() as patched:
        for failing in ("resolve", "states_of"):
            patched.setattr(f"statecache.adapters.adk.sessions.{failing}", away)
        patched.setattr(AsyncNamespace, "delete_many", away)
        work: dict[str, Callable[[], Awaitable[object]]] = {
            "append": lambda: service.append_event(session, one), "create": lambda: service.create_session(**ID),
            "delete": lambda: service.delete_session(**ID),
        }  # fmt: skip
        with pytest.raises(OutcomeUnknown, match=r"it is applied, but .*Redis is unavailable") as told:
            await work[verb]()
    (key,) = told.value.keys
    assert (await cache.outcome(told.value.change_id, key)).verdict == "applied"
    if verb == "append":
        await service.append_event(session, one)
        found = await loaded(service)
        assert (texts(found.events), found.state) == (["one"], CHANGES)
    else:
        assert (await service.get_session(**ID) is None) == (verb == "delete")


async def test_who_reads_what_takes_effect_does_not_wait_until_that_is_durable(
    settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncStateCache(settings=settings) as cache:
        service = StateCacheSessionService(cache)
        session = await service.create_session(**ID)
        with monkeypatch.context() as patched:
            patched.setattr("statecache.adapters.adk.sessions.resolve", _nothing)
            await service.append_event(session, event("one", changes=CHANGES))
        await flush(worker)
        assert (await loaded(StateCacheSessionService(cache, durability="postgres"))).state == CHANGES


async def _nothing(*_: Any) -> None:
    """Do nothing, as a process that was killed."""


@pytest.mark.parametrize("level", ["memory", "disk", "replica"])
async def test_an_event_that_is_there_keeps_what_it_changes_beside_where_it_is_refused_when_it_is_appended_again(
    level: Durability, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ended between the event and what it changes beside; who appends it again is refused, then is not.

    Readers do not wait for what cannot be written, either: what has taken effect is seen.
    """
    service, one = StateCacheSessionService(cache), event("one", changes=CHANGES)
    session = await service.create_session(**ID)
    with monkeypatch.context() as patched:
        patched.setattr("statecache.adapters.adk.sessions.resolve", _nothing)
        await service.append_event(session, one)
    again = StateCacheSessionService(cache, durability=level)
    with monkeypatch.context() as patched:
        for verb in ("commit", "_updated"):
            patched.setattr(AsyncNamespace, verb, _refused)
        with pytest.raises(OutcomeUnknown, match="it is applied, but"):
            await again.append_event(session, one)
        found = await loaded(again)
        assert (texts(found.events), found.state) == (["one"], CHANGES)
    await service.append_event(session, one)
    found = await loaded(service)
    assert (texts(found.events), found.state) == (["one"], CHANGES)


async def _refused(*_: Any, **__: Any) -> None:
    raise Backpressure(0, reason="it is told to")
