"""One session in many hands at once: readers, writers, event loops, threads, and those who rewind it."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import redis.asyncio
from agents import RunConfig, Runner

from statecache import AlreadyCurrent, AsyncNamespace, AsyncStateCache, Settings, VersionConflict
from statecache.adapters.openai_agents import StateCacheSession, conversation
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.openai_sessions import items
from tests.support.polling import pause, pause_thread
from tests.support.scripted_model import ScriptedModel, agent, said

SILENT = RunConfig(tracing_disabled=True)
TIMES = 1000


class Writer:
    """Changes a session as a plain list is changed, and keeps what the list has been."""

    def __init__(self, cache: AsyncStateCache, seed: int) -> None:
        self.cache, self.session, self.drawn = cache, StateCacheSession("42", cache), random.Random(seed)
        self.items: list[Any] = []
        self.held: list[list[Any]] = [[]]
        self.marks: list[tuple[Any, list[Any]]] = []
        self.number = 0

    async def step(self) -> None:
        """Do one thing; what the list is to be then is noted before, for readers may see it at once."""
        what = self.drawn.choice(["add"] * 6 + ["pop"] * 3 + ["mark", "rollback", "clear"])
        if what == "add":
            more = items(self.number + self.drawn.choice([1, 2, 30]), since=self.number)
            self.number += len(more)
            self.note([*self.items, *more])
            await self.session.add_items(more)
        elif what == "pop":
            wanted = self.items[-1] if self.items else None
            self.note(self.items[:-1])
            assert await self.session.pop_item() == wanted
        elif what == "clear" and self.drawn.random() < 0.3:
            self.note([])
            await self.session.clear_session()
        elif what == "mark" and (head := await self.cache.get(self.session.group, read="primary")) is not None:
            self.marks.append((head.position, self.items))
        elif what == "rollback" and self.marks:
            position, then = self.drawn.choice(self.marks)
            self.note(then)
            try:
                await self.cache.rollback(self.session.group, position, group=True)
            except AlreadyCurrent:
                assert then == self.items == await self.session.get_items()

    def note(self, then: list[Any]) -> None:
        """Note what the list is about to be."""
        self.items = then
        self.held.append(then)


@pytest.mark.parametrize("seed", range(4))
async def test_readers_only_ever_see_what_the_session_was_at_one_moment(
    settings: Settings, worker: Worker, psql: psycopg.Connection[Any], seed: int
) -> None:
    async with AsyncStateCache(settings=settings) as one, AsyncStateCache(settings=settings) as two, flushing(worker):
        writer, over = Writer(one, seed), False

        async def read(cache: AsyncStateCache, limit: int | None) -> int:
            session, seen = StateCacheSession("42", cache), 0
            while not over:
                since = len(writer.held) - 1
                found = await session.get_items(limit)
                held = writer.held[max(since - 1, 0) :]
                assert found in [then if limit is None else then[-limit:] for then in held]
                seen += 1
            return seen

        async def write() -> None:
            nonlocal over
            try:
                for _ in range(120):
                    await writer.step()
            finally:
                over = True

        *seen, _ = await asyncio.gather(read(one, None), read(two, None), read(two, 40), write())
        assert min(seen) > 10
        assert await StateCacheSession("42", two).get_items() == writer.items
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM conflict") == [(0,)]


async def test_a_session_that_is_rewound_while_another_process_adds_goes_on_from_where_it_was_put(
    settings: Settings,
) -> None:
    async with AsyncStateCache(settings=settings) as one, AsyncStateCache(settings=settings) as two:
        session, other, added = StateCacheSession("42", one), StateCacheSession("42", two), 0
        await session.add_items(items(60))
        start = await one.get(session.group, read="primary", default=dict)
        assert start.position is not None

        async def add() -> None:
            nonlocal added
            for number in range(30):
                await other.add_items(items(61 + number, since=60 + number))
                added += 1

        async def rewind() -> int:
            times = 0
            while added < 30:
                with suppress(AlreadyCurrent, VersionConflict):
                    await one.rollback(session.group, start.position, group=True)
                    times += 1
                whole(await session.get_items())
            return times

        _, times = await asyncio.gather(add(), rewind())
        assert times > 0
        whole(await other.get_items())
        await other.add_items(items(91, since=90))
        assert (await session.get_items())[-1:] == items(91, since=90)


def whole(found: list[Any]) -> None:
    """Raise unless that is where the session was put, and then a run of what was added, without a gap."""
    assert found[:60] == items(60)
    first = int(found[60]["content"].split()[0]) if found[60:] else 0
    assert found[60:] == items(first + len(found) - 60, since=first)


async def test_writers_in_each_others_way_take_turns(settings: Settings) -> None:
    caches = [AsyncStateCache(settings=settings) for _ in range(6)]

    async def add(cache: AsyncStateCache, name: int) -> None:
        session = StateCacheSession("42", cache)
        for number in range(15):
            item: Any = {"by": name, "number": number}
            await session.add_items([item])

    await asyncio.gather(*(add(cache, name) for name, cache in enumerate(caches)))
    found: list[Any] = await StateCacheSession("42", caches[0]).get_items()
    for name in range(6):
        assert [item["number"] for item in found if item["by"] == name] == [*range(15)]
    for cache in caches:
        await cache.close()


async def test_a_turn_that_is_lost_meanwhile_is_nobodys_concern(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, redis_raw: Any, keys: KeySpace
) -> None:
    monkeypatch.setattr(conversation, "CROWDED", 0)
    commit, taken = AsyncNamespace.commit, list[str]()

    async def taking_the_turn(view: Any, writes: Any, **more: Any) -> Any:
        leases = keys.leases(keys.shard("openai-agents/42"))
        names = [name for name in redis_raw.hkeys(leases) if b"/turn" in name]
        taken.extend(map(str, names))
        redis_raw.hdel(leases, *names or ["none"])
        return await commit(view, writes, **more)

    monkeypatch.setattr(AsyncNamespace, "commit", taking_the_turn)
    async with AsyncStateCache(settings=settings) as one, AsyncStateCache(settings=settings) as two:
        sessions = [StateCacheSession("42", cache) for cache in (one, two)]
        for number in range(4):
            await sessions[number % 2].add_items(items(number + 1, since=number))
        assert await sessions[0].get_items() == await sessions[1].get_items() == items(4)
        assert taken


def connections(redis_raw: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that counts the connections to Redis that this process has made from now on, and not closed."""
    made, opened = set[str](), redis.asyncio.Connection._connect

    async def noted(connection: Any) -> None:
        await opened(connection)  # type: ignore[no-untyped-call]
        made.add(":".join(map(str, connection._writer.get_extra_info("sockname")[:2])))

    monkeypatch.setattr(redis.asyncio.Connection, "_connect", noted)
    return lambda: sum(one["addr"] in made for one in redis_raw.client_list())


def none(more: Callable[[], int]) -> bool:
    """Return whether there are none soon."""
    for _ in range(TIMES):
        if not more():
            return True
        pause_thread()
    return False


@pytest.mark.own_servers("it counts the connections to the whole server")
def test_event_loops_and_threads_share_a_session_and_leave_nothing_behind(
    settings: Settings, redis_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, more = StateCacheSession.from_settings("42", settings), connections(redis_raw, monkeypatch)

    async def add(number: int) -> None:
        await session.add_items(items(number + 1, since=number))
        assert more() > 0

    for number in range(5):
        asyncio.run(add(number))
        assert none(more)
    assert asyncio.run(session.get_items()) == items(5)
    threads = [threading.Thread(target=asyncio.run, args=[add(number)]) for number in range(5, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = asyncio.run(session.get_items())
    assert found[:5] == items(5)
    assert sorted(map(repr, found)) == sorted(map(repr, items(11)))
    assert none(more)
    assert session._clients._made == {}


@pytest.mark.own_servers("it counts the connections to the whole server")
async def test_a_session_that_nothing_refers_to_any_more_closes_its_client(
    settings: Settings, redis_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = connections(redis_raw, monkeypatch)
    session = StateCacheSession.from_settings("42", settings)
    await session.add_items(items(1))
    assert more() > 0
    del session
    gc.collect()
    for _ in range(TIMES):
        if not more():
            return
        await pause()
    raise AssertionError(f"{more()} connections are left")


@pytest.mark.own_servers("it counts the connections to the whole server")
def test_a_run_that_is_not_awaited_may_be_followed_by_another(
    settings: Settings, redis_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, told = connections(redis_raw, monkeypatch), list[Any]()

    def runs() -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        session, model = StateCacheSession.from_settings("42", settings), ScriptedModel()
        for text in ("abc", "def"):
            told.append(Runner.run_sync(agent(model), text, session=session, run_config=SILENT).final_output)
        told.append(said(model.inputs[2]))
        asyncio.run(session.close())
        told.append(more())
        loop.close()

    thread = threading.Thread(target=runs)
    thread.start()
    thread.join()
    first = ["user: abc", "function_call: look_up", "function_call_output: cba", "assistant: It is cba.", "user: def"]
    assert told == ["It is cba.", "It is fed.", first, 0]
