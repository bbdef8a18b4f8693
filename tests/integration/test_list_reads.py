"""How much listings read, from either tier, and how much of it they hold: as the limit needs, and a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings, State
from statecache.core.read.listed import ORDERS
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush

NAMES = [f"runs/{number:02d}" for number in range(40)]


async def _states(listing: AsyncIterator[State[Any]]) -> list[State[Any]]:
    return [state async for state in listing]


async def _keys(listing: AsyncIterator[State[Any]]) -> list[str]:
    return [state.key async for state in listing]


def _counting_rows(client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what comes to hold how many rows each page has that is read from now on."""
    rows, postgres = list[int](), client._runtime.listing._postgres
    fetch = postgres.fetch_each

    async def counted(*given: Any, **more: Any) -> Any:
        found = await fetch(*given, **more)
        rows.append(len(found[-1]))
        return found

    monkeypatch.setattr(postgres, "fetch_each", counted)
    return rows


async def test_as_many_rows_are_read_as_the_limit_needs(
    client: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.set_many({f"runs/{number:03d}": number for number in range(300)})
    await flush(worker)
    rows = _counting_rows(client, monkeypatch)
    order: Any
    for order in ("key", "-key", "newest", "oldest"):
        assert len(await _keys(client.list("runs/", order=order, limit=5))) == 5
        assert rows.pop() == 5
        assert not rows


@pytest.mark.parametrize("where", [None, {"n": 1}])
async def test_where_a_dirty_state_is_not_listed_one_more_page_of_rows_is_read(
    where: Any, client: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages by key have as many bytes as five of the states."""
    value = {"n": 1}
    monkeypatch.setattr("statecache.core.read.listing._PAGE_BYTES", 5 * len(b'{"n":1}'))
    names = [f"runs/{number:03d}" for number in range(100)]
    await client.set_many(dict.fromkeys(names, value))
    await flush(worker)
    by_age = await _keys(client.list("runs/", order="oldest"))
    unlisted = {names[0], names[-1], by_age[0], by_age[-1]}
    for name in unlisted:
        await (client.delete(name) if where is None else client.set(name, {"n": 2}))
    rows = _counting_rows(client, monkeypatch)
    for order in ORDERS:
        there = [name for name in (names if order in ("key", "-key") else by_age) if name not in unlisted]
        expected = there[:5] if order in ("key", "oldest") else there[:-6:-1]
        assert await _keys(client.list("runs/", order=order, limit=5, where=where)) == expected
        assert rows == ([5, 5] if order in ("key", "-key") else [5, 10])
        rows.clear()


@pytest.mark.parametrize("where", [None, {"n": 1}])
async def test_of_what_is_dirty_as_many_values_are_read_as_the_limit_needs(
    where: Any, client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By age too, where all that is dirty has to be looked at. What is deleted stands in front, and needs none."""
    await client.set_many({f"runs/{number:03d}": {"n": number % 2} for number in range(300)})
    for number in (0, 1, 2, 297, 298, 299):
        await client.delete(f"runs/{number:03d}")
    expected = {order: await _keys(client.list("runs/", order=order, where=where)) for order in ORDERS}
    order: Any
    valued, dirty = list[str](), client._runtime.listing._dirty
    held = dirty.held

    async def counted(keys: Any, seconds: float, *, values: bool) -> Any:
        valued.extend(keys if values else ())
        return await held(keys, seconds, values=values)

    monkeypatch.setattr(dirty, "held", counted)
    for order in ORDERS:
        found = await _states(client.list("runs/", order=order, limit=20, where=where))
        assert [(state.key, state.value) for state in found] == [
            (key, {"n": int(key[-1]) % 2}) for key in expected[order][:20]
        ]
        assert len(valued) == len({*valued}) <= (20 if where is None else 100)
        valued.clear()
        assert len(await _states(client.list("runs/", order=order, limit=20, values=False))) == 20
        assert not valued


async def test_of_what_is_dirty_no_more_values_are_read_at_once_than_make_a_page(
    client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as the first ones tell how large they are, in every order."""
    monkeypatch.setattr("statecache.core.read.listing._PAGE_BYTES", 1000)
    await client.set_many(dict.fromkeys(NAMES, "x" * 98))
    valued, dirty = list[int](), client._runtime.listing._dirty
    held = dirty.held

    async def counted(keys: Any, seconds: float, *, values: bool) -> Any:
        valued.extend([len(keys)] if keys and values else ())
        return await held(keys, seconds, values=values)

    monkeypatch.setattr(dirty, "held", counted)
    order: Any
    for order in ORDERS:
        assert len(await _keys(client.list("runs/", order=order))) == len(NAMES)
        assert valued == [20, 10, 10]
        valued.clear()


async def test_pages_by_key_do_not_each_ask_for_the_names_of_all_that_is_dirty(
    client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"runs/{number:04d}" for number in range(3000)]
    for at in range(0, len(names), 500):
        await client.set_many(dict.fromkeys(names[at : at + 500], 1))
    looks, dirty = list[Any](), client._runtime.listing._dirty
    told = dirty._told

    async def counted(*given: Any, **more: Any) -> Any:
        looks.append(given)
        return await told(*given, **more)

    monkeypatch.setattr(dirty, "_told", counted)
    assert await _keys(client.list("runs/")) == names
    assert await _keys(client.list("runs/", order="-key")) == names[::-1]
    assert len(looks) == 2 * 3


@pytest.fixture
async def lazy(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """An asynchronous client, whose listings go on while it does something else."""
    async with AsyncStateCache(settings=settings) as client:
        yield client


@pytest.mark.parametrize("dirty", [0, 7], ids=["flushed", "some dirty"])
async def test_what_a_page_shows_is_given_before_the_next_is_read(
    dirty: int, lazy: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more bytes are held than a page of Postgres' rows has, by key, however many states are listed."""
    monkeypatch.setattr("statecache.core.read.listing._PAGE_BYTES", 1000)
    await lazy.set_many(dict.fromkeys(NAMES, "x" * 98))
    await flush(worker)
    for name in [*NAMES[1:dirty], *NAMES[20 : 20 + dirty]]:
        await lazy.set(name, "y" * 98)
    read, fetch = list[int](), lazy._runtime.listing._postgres.fetch_each

    async def counted(*given: Any, **more: Any) -> Any:
        found = await fetch(*given, **more)
        read.append(sum(len(row[2]) for row in found[-1]))
        return found

    monkeypatch.setattr(lazy._runtime.listing._postgres, "fetch_each", counted)
    order: Any
    for order in ("key", "-key"):
        given, ahead = list[str](), list[int]()
        async for state in lazy.list("runs/", order=order):
            ahead.append(sum(read) - 100 * len(given))
            given.append(state.key)
        assert given == (NAMES if order == "key" else NAMES[::-1])
        assert max(ahead) == 1000
        assert len(read) >= 4
        read.clear()
