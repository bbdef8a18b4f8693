"""What could go wrong with sessions on statecache, each once: nothing is lost, doubled, or grows with what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from agents.extensions.memory import EncryptedSession
from agents.memory import SQLiteSession

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
from statecache.adapters.filling import PAGE_BYTES_MAX, PAGE_ITEMS_MAX
from statecache.adapters.openai_agents import StateCacheSession
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, flushing, rows
from tests.fixtures.servers import MakeSettings
from tests.support.disturbed_commits import counting_exchanges, holding_commits, losing_an_outcome
from tests.support.fault_proxy import FaultProxy, Kind
from tests.support.openai_sessions import items

MIB = 1024 * 1024


@pytest.fixture
def session(cache: AsyncStateCache) -> StateCacheSession:
    """A session on an asynchronous client."""
    return StateCacheSession("42", cache)


async def names(cache: AsyncStateCache) -> list[str]:
    """Return the names of the states that the session has."""
    return [state.key.removeprefix("openai-agents/") async for state in cache.list("openai-agents/42", values=False)]


async def test_a_long_conversation_costs_no_more_to_add_to_than_a_short_one(
    session: StateCacheSession, cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    for number in range(200):
        await session.add_items(items(number + 1, since=number))
    pages = [state async for state in cache.list(f"{session.group}/items/")]
    assert sum(len(page.value["items"]) for page in pages) == 200
    assert all(len(page.value["items"]) <= PAGE_ITEMS_MAX for page in pages)
    assert [page.version for page in pages] == [len(page.value["items"]) for page in pages]
    await flush(worker)
    assert rows(psql, "SELECT count(*), max(version) FROM change WHERE key = 'openai-agents/42'") == [(200, 200)]
    assert rows(psql, "SELECT count(*) FROM change") == [(400,)]
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_pages_are_bounded_in_bytes(session: StateCacheSession, cache: AsyncStateCache) -> None:
    sizes = [6000, 6000, 6000, 40_000, 10, 10, 16_000, 500, 3 * MIB]
    for at, size in enumerate(sizes):
        await session.add_items([{"role": "user", "content": f"{at}" + "x" * size}])
    found = [page.value["items"] async for page in cache.list(f"{session.group}/items/")]
    assert [len(page) for page in found] == [2, 1, 1, 3, 1, 1]
    assert all(sum(len(str(item)) for item in page) < PAGE_BYTES_MAX for page in found if len(page) > 1)
    assert [len(str(item["content"])) - 1 for item in await session.get_items()] == sizes  # type: ignore[typeddict-item]


async def test_exchanges_are_counted(
    session: StateCacheSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        await session.add_items(items(number + 1, since=number))
    exchanges = counting_exchanges(monkeypatch, "openai-agents/42")
    assert await exchanges(session.add_items(items(1))) == 1
    assert await exchanges(session.get_items(10)) == 1
    assert await exchanges(session.get_items()) <= 2
    assert await exchanges(session.get_items()) == 1
    assert await exchanges(session.pop_item()) == 1
    async with AsyncStateCache(settings=settings) as other:
        await other.get("others/1")
        elsewhere = StateCacheSession("42", other)
        assert await exchanges(elsewhere.get_items(10)) == 2
        assert await exchanges(elsewhere.get_items()) <= 2


@pytest.mark.parametrize("kind", ["drop_reply", "drop_request", "reset"])
async def test_an_addition_whose_answer_is_lost_is_there_once(
    settings: Settings, proxy: FaultProxy, kind: Kind
) -> None:
    async with AsyncStateCache(settings=through(settings, redis=proxy)) as cache:
        session = StateCacheSession("42", cache)
        await session.add_items(items(3))
        for verb in (session.add_items(items(4, since=3)), session.pop_item(), session.add_items(items(4, since=3))):
            fault = proxy.arm(kind, at=b"openai-agents/42/items/000001")
            await verb
            assert fault.struck
        assert await session.get_items() == items(4)
        fault = proxy.arm(kind, at=b"openai-agents/42/items/000001")
        await session.clear_session()
        assert fault.struck
        assert await session.get_items() == []


async def test_who_has_added_last_adds_again_without_reading_unless_others_have_meanwhile(
    session: StateCacheSession, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    for verb in ("get", "get_many"):
        asked = getattr(AsyncNamespace, verb)

        async def noted(view: Any, names: Any, asked: Any = asked, **more: Any) -> Any:
            read.append(more["read"])
            return await asked(view, names, **more)

        monkeypatch.setattr(AsyncNamespace, verb, noted)
    await session.add_items(items(1))
    read.clear()
    await session.add_items(items(2, since=1))
    assert read == []
    await StateCacheSession("42", cache).add_items(items(3, since=2))
    read.clear()
    await session.add_items(items(4, since=3))
    assert read == ["primary", "primary"]
    assert await session.get_items() == items(4)


@pytest.mark.parametrize("verdict", ["applied", "not applied", "unknown"])
async def test_an_outcome_that_is_unknown_is_asked_for(
    session: StateCacheSession, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    await session.add_items(items(2))
    unknown = losing_an_outcome(monkeypatch, verdict)
    if verdict == "unknown":
        with pytest.raises(OutcomeUnknown):
            await session.add_items(items(3, since=2))
    else:
        await session.add_items(items(3, since=2))
    assert len(unknown) == 1
    assert await session.get_items() == items(2 if verdict == "unknown" else 3)


async def test_who_is_cancelled_waits_for_what_becomes_of_it(
    session: StateCacheSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = holding_commits(monkeypatch)
    adding = asyncio.create_task(session.add_items(items(2)))
    waiting = asyncio.create_task(session.add_items(items(3)))
    await begun.wait()
    for _ in range(3):
        adding.cancel()
        waiting.cancel()
        await asyncio.wait([waiting])
    assert not adding.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert await session.get_items() == items(2)
    await session.add_items(items(3, since=2))
    assert await session.get_items() == items(3)


async def test_what_is_too_large_is_refused_as_a_whole(session: StateCacheSession, cache: AsyncStateCache) -> None:
    def large(mib: float) -> Any:
        return {"role": "user", "content": "x" * int(mib * MIB)}

    await session.add_items(items(1))
    for refused in ([large(8)], [*items(1), large(9)], [large(6), large(6), large(6)]):
        with pytest.raises(LimitExceeded):
            await session.add_items(refused)
    assert await session.get_items() == items(1)
    await session.add_items([large(7.9), large(7.9)])
    assert [len(str(item["content"])) for item in await session.get_items(2)] == [int(7.9 * MIB)] * 2  # type: ignore[typeddict-item]
    await session.clear_session()
    many = [{"role": "user", "content": f"{number} {'x' * 3000}"} for number in range(5000)]
    await session.add_items(many)  # type: ignore[arg-type]
    assert await session.get_items() == many
    assert (await cache.get(session.group, default=dict)).value["items"] == 5000


@pytest.mark.parametrize("item", [{"a": {1, 2}}, {"a": b"x"}, {"a": object()}, {("a",): 1}, {"a": 10**5000}])
async def test_what_is_no_json_is_refused_with_its_place(session: StateCacheSession, item: Any) -> None:
    with pytest.raises(CodecError) as refused:
        await session.add_items([*items(2), item])
    assert refused.value.path == "$[2]"
    assert await session.get_items() == []


async def test_a_session_of_more_pages_than_one_commit_takes_is_cleared(
    session: StateCacheSession, cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any]
) -> None:
    for _ in range(9):
        await session.add_items([{"role": "user", "content": "x" * PAGE_BYTES_MAX}] * 60)
    assert len(await names(cache)) == 541
    assert len(await session.get_items()) == 540
    assert len(await session.get_items(300)) == 300
    await session.clear_session()
    assert await session.get_items() == []
    assert await names(cache) == []
    await session.add_items(items(3))
    assert await session.get_items() == items(3)
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_a_conversation_is_rewound_branched_and_erased_by_the_verbs_of_its_group(
    session: StateCacheSession, cache: AsyncStateCache, settings: Settings, worker: Worker
) -> None:
    async with flushing(worker), AsyncStateCache(settings=settings) as elsewhere:
        other = StateCacheSession("42", elsewhere)
        await session.add_items(items(70))
        await cache.checkpoint(session.group, "asked", group=True)
        await session.add_items(items(140, since=70))
        await session.pop_item()
        assert await other.get_items() == items(139)
        await cache.rollback(session.group, "asked", group=True)
        await other.add_items([{"role": "user", "content": "otherwise"}])
        otherwise: list[Any] = [*items(70), {"role": "user", "content": "otherwise"}]
        assert await session.get_items() == await other.get_items() == otherwise
        await cache.undo(session.group, group=True)
        assert await other.get_items() == await session.get_items() == items(70)
        await session.clear_session()
        assert await other.get_items() == []
        await cache.undo(session.group, group=True)
        assert await other.get_items() == items(70)
        branch = StateCacheSession("42-b", cache)
        await cache.branch(session.group, branch.group, group=True)
        await branch.add_items(items(1))
        assert await branch.get_items() == [*items(70), *items(1)]
        assert (await cache.get(branch.group, default=dict)).value["session_id"] == "42-b"
        await cache.erase(session.group, group=True)
        assert await other.get_items() == []
        await session.add_items(items(2))
        assert await other.get_items() == items(2)


async def test_states_that_were_edited_one_by_one_are_taken_as_they_are(
    session: StateCacheSession, cache: AsyncStateCache
) -> None:
    for number in range(130):
        await session.add_items([{"role": "user", "content": f"{number}"}])
    states = [state async for state in cache.list(f"{session.group}/items/", values=False)]
    pages = sorted((state.key for state in states), key=lambda key: key.rpartition("/")[2])

    def said(found: list[Any]) -> list[int]:
        return [int(item["content"]) for item in found]

    await cache.update(pages[0], lambda page: page | {"items": [page["items"][0]]})
    assert said(await session.get_items()) == [0, *range(64, 130)]
    await cache.rollback(pages[2], 1)
    assert said(await session.get_items()) == [0, *range(64, 129)]
    assert said(await session.get_items(3)) == [126, 127, 128]
    await session.add_items([{"role": "user", "content": "130"}])
    assert said(await session.get_items()) == [0, *range(64, 129), 130]
    await cache.delete(pages[1])
    assert said(await session.get_items()) == [0, 128, 130]
    assert [await session.pop_item() for _ in range(4)][3] is None
    assert await session.get_items() == []
    await session.add_items(items(2))
    await cache.delete(pages[0])
    assert await session.get_items() == []
    await session.add_items(items(1))
    assert await session.get_items() == items(1)
    await cache.delete(pages[0])
    await session.clear_session()
    assert await session.get_items() == []
    await cache.set(session.group, {"of": "somebody else"})
    for verb in (session.get_items, session.pop_item, lambda: session.add_items(items(1))):
        with pytest.raises(CodecError, match="openai-agents/42"):
            await verb()


async def test_what_is_redacted_by_hand_while_somebody_adds_or_pops_stays_redacted(
    session: StateCacheSession, cache: AsyncStateCache, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, commit, times = f"{session.group}/items/000001", AsyncNamespace.commit, 0

    async def late(view: Any, writes: Any, **more: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            await elsewhere.update(page, lambda held: held | {"items": [{"redacted": True}, *held["items"][1:]]})
        return await commit(view, writes, **more)

    async with AsyncStateCache(settings=settings) as elsewhere:
        for verb in (lambda: session.add_items(items(4, since=3)), session.pop_item):
            await session.clear_session()
            await session.add_items(items(3))
            times = 0
            with monkeypatch.context() as patched:
                patched.setattr(AsyncNamespace, "commit", late)
                await verb()
            assert times == 2
            assert (await session.get_items())[:2] == [{"redacted": True}, items(2)[1]]
    assert len(await session.get_items()) == 2


async def test_postgres_holds_what_was_added_where_that_was_asked_for(
    cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any], redis_raw: Any, keys: KeySpace
) -> None:
    session = StateCacheSession("42", cache, durability="postgres")
    async with flushing(worker):
        for number in range(3):
            await session.add_items(items(number + 1, since=number))
            version = rows(psql, "SELECT max(version) FROM change WHERE key = 'openai-agents/42/items/000001'")
            assert version == [(number + 1,)]
        redis_raw.unlink(*map(keys.state, [session.group, f"{session.group}/items/000001"]))
        assert await session.get_items() == items(3)


async def test_pages_fit_into_the_values_that_settings_allow(make_settings: MakeSettings) -> None:
    async with AsyncStateCache(settings=make_settings(value_bytes_max=2048)) as cache:
        session = StateCacheSession("42", cache)
        await session.add_items(items(40))
        for number in range(40, 60):
            await session.add_items(items(number + 1, since=number))
        assert await session.get_items() == items(60)
        with pytest.raises(LimitExceeded, match="value"):
            await session.add_items([{"role": "user", "content": "x" * 2048}])
        with pytest.raises(LimitExceeded, match="pages"):
            await session.add_items([{"role": "user", "content": "x" * 1500}] * 300)
        assert await session.get_items() == items(60)


async def test_the_sdk_may_encrypt_what_is_kept(session: StateCacheSession, cache: AsyncStateCache) -> None:
    sealed = EncryptedSession("42", session, encryption_key="k" * 44)  # type: ignore[arg-type]
    theirs = SQLiteSession("42")
    same = EncryptedSession("42", theirs, encryption_key="k" * 44)
    for one in (sealed, same):
        await one.add_items(items(5))
    assert await sealed.get_items() == await same.get_items() == items(5)
    assert await sealed.get_items(2) == items(5)[-2:]
    theirs.close()
    assert await sealed.pop_item() == items(5)[-1]
    kept = (await cache.get(f"{session.group}/items/000001", default=dict)).value["items"]
    assert [item["__enc__"] for item in kept] == [1] * 4


async def test_a_session_that_is_closed_does_nothing_and_leaves_a_given_client_open(
    session: StateCacheSession, cache: AsyncStateCache, settings: Settings
) -> None:
    await session.close()
    await session.add_items(items(1))
    assert await session.ping()
    own = StateCacheSession("42", settings)
    assert await own.get_items() == items(1)
    await own.close()
    await own.close()
    calls: list[Callable[[], Any]] = [
        own.get_items,
        own.pop_item,
        own.clear_session,
        own.ping,
        lambda: own.add_items([]),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="the session is closed"):
            await call()
    async with StateCacheSession.from_url(
        "42", url=settings.redis_url, postgres_url=settings.postgres_url, prefix=settings.prefix,
        postgres_schema=settings.postgres_schema, shards=settings.shards, durability="memory",
    ) as again:  # fmt: skip
        assert await again.get_items() == items(1)


async def test_what_a_session_cannot_stand_on_is_refused(cache: AsyncStateCache, settings: Settings) -> None:
    with StateCache(settings=settings) as synchronous, pytest.raises(UsageError, match="not on a StateCache"):
        StateCacheSession("42", synchronous)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="more than one segment"):
        StateCacheSession("42", cache, namespace="a/b")
    with pytest.raises(UsageError, match="NUL"):
        StateCacheSession("4\0002", cache)


async def test_a_redis_that_is_away_is_told_by_a_ping(settings: Settings, proxy: FaultProxy) -> None:
    near = through(settings, redis=proxy).model_copy(update={"timeout_s": 0.5})
    async with AsyncStateCache(settings=near) as cache:
        session = StateCacheSession("42", cache)
        assert await session.ping()
        proxy.refusing = True
        proxy.cut_all()
        assert not await session.ping()
