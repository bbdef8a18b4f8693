"""What could go wrong with sessions of ADK on statecache, each once: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.session import Session

from statecache import (
    AsyncNamespace,
    AsyncStateCache,
    CodecError,
    OutcomeUnknown,
    Settings,
    UsageError,
)
from statecache.adapters.adk import StateCacheSessionService, sessions
from statecache.adapters.adk.shared import prepare
from statecache.adapters.filling import PAGE_BYTES_MAX, PAGE_ITEMS_MAX
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.adk_services import CHANGES, GROUP, ID, WHOSE, event, loaded, names, texts
from tests.support.disturbed_commits import counting_exchanges, holding_commits, losing_an_outcome
from tests.support.fault_proxy import FaultProxy, Kind

MIB = 1024 * 1024


@pytest.fixture
async def service(cache: AsyncStateCache) -> StateCacheSessionService:
    """A service on an asynchronous client."""
    return StateCacheSessionService(cache)


@pytest.fixture
async def session(service: StateCacheSessionService) -> Session:
    """A session of it."""
    return await service.create_session(**ID)


async def test_a_long_conversation_costs_no_more_to_append_to_than_a_short_one(
    service: StateCacheSessionService, session: Session, cache: AsyncStateCache, worker: Worker,
    psql: psycopg.Connection[Any],
) -> None:  # fmt: skip
    for number in range(150):
        await service.append_event(session, event(f"{number}"))
    pages = [state async for state in cache.list(f"{GROUP}/events/")]
    assert sum(len(page.value["items"]) for page in pages) == 150
    assert all(len(page.value["items"]) <= PAGE_ITEMS_MAX for page in pages)
    assert [page.version for page in pages] == [len(page.value["items"]) for page in pages]
    await flush(worker)
    assert rows(psql, f"SELECT count(*), max(version) FROM change WHERE key = '{GROUP}'") == [(151, 151)]
    assert rows(psql, "SELECT count(*) FROM change") == [(301,)]
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_exchanges_are_counted(
    service: StateCacheSessionService, session: Session, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        await service.append_event(session, event(f"{number}"))
    exchanges = counting_exchanges(monkeypatch, "adk/orders")
    assert await exchanges(service.append_event(session, event("more", changes={"n": 1}))) == 1
    assert await exchanges(loaded(service)) == 2
    assert await exchanges(service.get_user_state(**WHOSE)) == 1
    async with AsyncStateCache(settings=settings) as other:
        await other.get("others/1")
        assert await exchanges(loaded(StateCacheSessionService(other))) <= 4


@pytest.mark.parametrize("kind", ["drop_reply", "drop_request", "reset"])
async def test_an_event_whose_answer_is_lost_is_there_once(settings: Settings, proxy: FaultProxy, kind: Kind) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as cache:
        service = StateCacheSessionService(cache)
        fault = proxy.arm(kind, at=GROUP.encode())
        session = await service.create_session(**ID)
        assert fault.struck
        for at in (b"/events/", b"adk/orders:alice\r", b"adk/orders\r"):
            fault = proxy.arm(kind, at=at)
            await service.append_event(session, event(f"{at!r}", changes=CHANGES))
            assert fault.struck
        found = await loaded(service)
        assert (len(found.events), found.state) == (3, CHANGES)
        fault = proxy.arm(kind, at=b"/events/")
        await service.delete_session(**ID)
        assert fault.struck
        assert await service.get_session(**ID) is None


@pytest.mark.parametrize("verdict", ["applied", "not applied", "unknown"])
async def test_an_outcome_that_is_unknown_is_asked_for(
    service: StateCacheSessionService, session: Session, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    unknown, told = losing_an_outcome(monkeypatch, verdict), event("one", changes=CHANGES)
    if verdict == "unknown":
        with pytest.raises(OutcomeUnknown):
            await service.append_event(session, told)
        assert (await loaded(service)).state == {}
        assert session.events == []
    await service.append_event(session, told)
    assert len(unknown) == 1
    found = await loaded(service)
    assert (texts(found.events), found.state) == (["one"], CHANGES)
    assert session == found


async def test_what_nobody_knows_of_counts_as_a_whole_once_it_is_seen_to_be_there(
    service: StateCacheSessionService, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = AsyncNamespace.commit

    async def lost(view: Any, writes: Any, **more: Any) -> Any:
        made = await commit(view, writes, **more)
        raise OutcomeUnknown(made[0].change_id)  # type: ignore[union-attr]

    async def unknown(view: Any, change_id: str, name: str) -> Any:
        return type("Outcome", (), {"verdict": "unknown"})

    with monkeypatch.context() as patched:
        patched.setattr(AsyncNamespace, "commit", lost)
        patched.setattr(AsyncNamespace, "outcome", unknown)
        with pytest.raises(OutcomeUnknown):
            await service.append_event(session, event("one", changes=CHANGES))
        with pytest.raises(OutcomeUnknown):
            await service.create_session(**WHOSE, session_id="43", state={"user:m": 1})
    assert await service.get_user_state(**WHOSE) == {"n": 1, "m": 1}
    assert (await loaded(service)).state == CHANGES | {"user:m": 1}


async def test_a_page_that_is_redacted_by_hand_while_somebody_appends_stays_redacted(
    service: StateCacheSessionService, session: Session, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.append_event(session, event("secret"))
    commit, times = AsyncNamespace.commit, 0

    async def late(view: Any, writes: Any, **more: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            redacted = [{"author": "user", "id": "1", "timestamp": 1.0}]
            await elsewhere.update(f"adk/{writes[1].name}", lambda held: held | {"items": redacted})
        return await commit(view, writes, **more)

    monkeypatch.setattr(AsyncNamespace, "commit", late)
    async with AsyncStateCache(settings=settings) as elsewhere:
        await service.append_event(session, event("more", changes={"user:n": 1}))
    found = await loaded(service)
    assert (times, texts(found.events), found.state) == (2, ["more"], {"user:n": 1})


async def test_who_is_cancelled_waits_for_what_becomes_of_it(
    service: StateCacheSessionService, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = holding_commits(monkeypatch)
    told = event("one", changes=CHANGES)
    appending = asyncio.create_task(service.append_event(session, told))
    await begun.wait()
    for _ in range(3):
        appending.cancel()
        await asyncio.sleep(0)
    assert not appending.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await appending
    found = await loaded(service)
    assert (texts(found.events), found.state, session.events) == (["one"], CHANGES, [])
    with pytest.raises(StaleSessionError):  # for the object lacks it
        await service.append_event(session, event("two"))
    await service.append_event(session, told)
    assert session == found == await loaded(service)


async def test_a_session_that_is_created_anew_while_the_old_one_is_still_being_deleted_loses_nothing(
    service: StateCacheSessionService, session: Session, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await service.append_event(session, event("x" * PAGE_BYTES_MAX))
    delete_many = AsyncNamespace.delete_many

    async def late(view: Any, names: Any, **more: Any) -> Any:
        again = await other.create_session(**ID)
        for number in range(3):
            await other.append_event(again, event(f"{number}" * PAGE_BYTES_MAX))
        return await delete_many(view, names, **more)

    monkeypatch.setattr(sessions, "_PAGES_A_COMMIT", 1)
    monkeypatch.setattr(AsyncNamespace, "delete_many", late)
    async with AsyncStateCache(settings=settings) as elsewhere:
        other = StateCacheSessionService(elsewhere)
        await service.delete_session(**ID)
        assert [text[0] for text in texts((await loaded(other)).events)] == ["0", "1", "2"]


async def test_what_this_process_had_before_is_no_reason_to_refuse_an_event(
    service: StateCacheSessionService, cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncStateCache(settings=settings) as elsewhere:
        other = StateCacheSessionService(elsewhere)
        session, get = await other.create_session(**ID), AsyncNamespace.get
        held = await cache.get(GROUP)
        await other.append_event(session, event("one"))

        async def old(view: Any, name: str, **more: Any) -> Any:
            return held if more["read"] == "local" else await get(view, name, **more)

        monkeypatch.setattr(AsyncNamespace, "get", old)
        await service.append_event(session, event("two"))
        held = None
        await service.append_event(session, event("three"))
        assert await loaded(service) == session
        await other.delete_session(**ID)
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, event("late"))
    assert texts(session.events) == ["one", "two", "three"]


async def test_a_session_whose_page_was_deleted_by_hand_is_read_and_deleted(
    service: StateCacheSessionService, session: Session, cache: AsyncStateCache
) -> None:
    for number in range(70):
        await service.append_event(session, event(f"{number}"))
    (page, _) = [name for name in await names(cache) if "/events/" in name]
    await cache.delete(page)
    left = texts((await loaded(service)).events)
    assert left == [f"{number}" for number in range(70 - len(left), 70)]
    assert 0 < len(left) < 30
    await service.append_event(session, event("70"))
    assert texts((await loaded(service)).events) == [*left, "70"]
    await service.delete_session(**ID)
    assert await names(cache) == []


async def test_a_session_is_rewound_branched_and_erased_by_the_verbs_of_its_group(
    service: StateCacheSessionService, session: Session, cache: AsyncStateCache, settings: Settings, worker: Worker
) -> None:
    group = service.group_of(**ID)
    assert group == GROUP
    async with flushing(worker), AsyncStateCache(settings=settings) as elsewhere:
        other = StateCacheSessionService(elsewhere)
        await service.append_event(session, event("one", changes=CHANGES))
        await cache.checkpoint(group, "asked", group=True)
        await service.append_event(session, event("two", changes={"user:n": 2, "app:n": 2, "n": 2}))
        await cache.rollback(group, "asked", group=True)
        found = await loaded(other)
        assert (texts(found.events), found.state) == (["one"], {"user:n": 2, "app:n": 2, "n": 1})
        with pytest.raises(StaleSessionError):
            await service.append_event(session, event("late"))
        await other.append_event(found, event("otherwise", changes={"user:n": 3}))
        await cache.undo(group, group=True)
        assert texts((await loaded(service)).events) == ["one"]
        assert (await loaded(service)).state == {"user:n": 3, "app:n": 2, "n": 1}
        await cache.branch(group, service.group_of("orders", "alice", "42/b"), group=True)
        branched = await loaded(service, session_id="42/b")
        assert (texts(branched.events), branched.id) == (["one"], "42/b")
        await service.append_event(branched, event("apart"))
        assert texts((await loaded(service)).events) == ["one"]
        assert {one.id for one in (await service.list_sessions(**WHOSE)).sessions} == {"42", "42/b"}
        await cache.erase(group, group=True)
        assert await other.get_session(**ID) is None
        assert (await service.create_session(**ID)).state == {"user:n": 3, "app:n": 2}


async def test_a_state_that_is_of_something_else_is_refused_by_its_name(
    service: StateCacheSessionService, session: Session, cache: AsyncStateCache
) -> None:
    await cache.set("adk/orders:alice", {"of": "somebody else"})
    for verb in (lambda: loaded(service), lambda: service.get_user_state(**WHOSE),
                 lambda: service.append_event(session, event("one", changes={"user:n": 1}))):  # fmt: skip
        with pytest.raises(CodecError, match="orders:alice"):
            await verb()
    await cache.delete("adk/orders:alice")
    await cache.set(GROUP, {"of": "somebody else"})
    for verb in (lambda: loaded(service), lambda: service.append_event(session, event("one"))):
        with pytest.raises(CodecError, match=GROUP):
            await verb()
    assert (await service.list_sessions(**WHOSE)).sessions == []


async def test_postgres_holds_what_was_appended_where_that_was_asked_for(
    cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any], redis_raw: Any, keys: KeySpace
) -> None:
    service = StateCacheSessionService(cache, durability="postgres")
    async with flushing(worker):
        session = await service.create_session(**ID)
        await service.append_event(session, event("one", changes=CHANGES))
        written = rows(psql, 'SELECT key, max(version) FROM change GROUP BY key ORDER BY key COLLATE "C"')
        assert [(key, version) for key, version in written if "/events/" not in key] == [
            ("adk/orders", 2), ("adk/orders:alice", 2), (GROUP, 2),
        ]  # fmt: skip
        redis_raw.unlink(*redis_raw.scan_iter(keys.every_state()))
        assert await loaded(service) == session


async def test_a_service_that_was_closed_says_so_and_a_client_that_was_given_stays_open(
    settings: Settings, cache: AsyncStateCache
) -> None:
    async with StateCacheSessionService.from_url(
        url=settings.redis_url, postgres_url=settings.postgres_url, prefix=settings.prefix,
        postgres_schema=settings.postgres_schema, shards=settings.shards,
    ) as service:  # fmt: skip
        await service.create_session(**ID)
    with pytest.raises(UsageError, match="closed"):
        await service.get_session(**ID)
    async with StateCacheSessionService(cache) as given:
        assert (await loaded(given)).id == "42"
    assert (await loaded(given)).id == "42"


async def test_what_was_given_up_while_an_append_was_stopped_is_written_again(
    service: StateCacheSessionService, session: Session, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody appends, reads what is shared, and undoes: the session is what it was when the append began."""
    await service.append_event(session, event("before"))
    theirs, stopped = await loaded(service), list[int]()
    other = StateCacheSessionService(cache)

    async def stops(view: AsyncNamespace[Any], *args: Any) -> Any:
        prepared = await prepare(view, *args)
        if not stopped:
            stopped.append(1)
            await other.append_event(theirs, event("theirs"))
            assert await other.get_user_state(**WHOSE) == {}
            await cache.undo(GROUP, group=True)
        return prepared

    monkeypatch.setattr("statecache.adapters.adk.sessions.prepare", stops)
    await service.append_event(session, event("mine", changes=CHANGES))
    found = await loaded(service)
    assert stopped
    assert texts(found.events) == ["before", "mine"]
    assert found.state == CHANGES
