"""What becomes of turns that are not passed on, that come too late, or that cannot be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from statecache import AsyncStateCache, Settings
from statecache.clock import monotonic
from statecache.concurrency import Concurrency, Tasks, Threads
from tests.fixtures.servers import MakeClient
from tests.fixtures.turns import LIMIT_S, THEIRS, Count, Street, counted_reads, quicker
from tests.support.local_reads import KEY


async def test_who_does_not_pass_it_on_is_not_waited_for_for_ever(
    one: AsyncStateCache, street: Street, patience: Callable[[float], None]
) -> None:
    await one.set(KEY, 1)
    street.take()
    patience(0.5)
    one._runtime.shared_queues.crowd(KEY)
    before = one._runtime.shared_queues._crowded[KEY]
    assert (await one.update(KEY, Count())).value == 2
    assert one._runtime.shared_queues._crowded[KEY] > before, "who had to wait will ask for it the next time too"
    assert (street.token, street.calls) == (THEIRS, []), "it is not passed on by whoever does not have it"


async def test_a_turn_ends_by_itself(one: AsyncStateCache, street: Street) -> None:
    await one.set(KEY, 1)
    one._runtime.shared_queues.crowd(KEY)
    lasted: list[int] = []
    await one.update(KEY, Count(lambda: lasted.append(street.lasts_ms()[0])))
    await one.update(KEY, Count())
    assert 0 < lasted[0] <= 1000
    assert all(0 < left <= 1000 for left in street.lasts_ms())


async def test_who_comes_too_late_passes_nothing_on(one: AsyncStateCache, street: Street) -> None:
    state = await one.set(KEY, 1)
    assert street.pass_on() == 0
    street.take()
    assert street.pass_on(change_id="a" * 24) == 0, "its commit is not the state's last one"
    assert street.pass_on(change_id=state.change_id) == 1
    assert street.pass_on() == 0, "it is passed on once"
    assert street.calls[0] == b"the-next-token"
    assert all(0 < left <= 60_000 for left in street.lasts_ms())


@pytest.mark.usefixtures("no_hurry")
async def test_whoever_waits_leaves_itself_time_for_the_update(one: AsyncStateCache, street: Street) -> None:
    await one.set(KEY, 1)
    street.take()
    one._runtime.shared_queues.crowd(KEY)
    async with asyncio.timeout(LIMIT_S / 2):
        assert (await one.update(KEY, Count(), timeout=2)).value == 2


async def test_whoever_has_waited_leaves_its_place_to_the_next(
    make_client: MakeClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two connections one is to spare for waiting, again and again."""
    client = make_client(settings.model_copy(update={"redis_connections_max": 2}))
    await client.set(KEY, 1)
    sent = counted_reads(client, monkeypatch)
    for value in (2, 3, 4):
        client._runtime.shared_queues.crowd(KEY)
        assert (await client.update(KEY, Count())).value == value
    assert sent == []


async def test_where_no_connection_is_to_spare_nobody_waits(
    make_client: MakeClient, settings: Settings, street: Street, patience: Callable[[float], None]
) -> None:
    """One connection waits, and is not waited for by whoever works: that would wait for itself."""
    patience(LIMIT_S)
    client = make_client(settings.model_copy(update={"redis_connections_max": 1}))
    await client.set(KEY, 1)
    street.take()
    client._runtime.shared_queues.crowd(KEY)
    begun = monotonic()
    assert (await client.update(KEY, Count(), timeout=2 * LIMIT_S)).value == 2
    assert monotonic() - begun < LIMIT_S


@pytest.mark.parametrize(("connections", "pauses"), [(1, 3), (2, 0)])
async def test_where_no_turn_is_to_be_had_a_pause_follows_every_conflict(
    make_client: MakeClient,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    connections: int,
    pauses: int,
) -> None:
    """Of one connection none is to spare for waiting."""
    paused = list[float]()
    client = make_client(settings.model_copy(update={"redis_connections_max": connections}))

    async def pause(_: Concurrency, seconds: float) -> None:
        paused.append(seconds)

    for kind in (Tasks, Threads):
        monkeypatch.setattr(kind, "sleep", pause)
    await client.set(KEY, 1)
    somebody, given = quicker(settings, 10), list[int]()

    def add(value: int) -> int:
        given.append(value)
        if len(given) < 4:
            somebody()
        return value + 1

    assert (await client.update(KEY, add)).value == 11
    assert len(paused) == pauses


@pytest.mark.own_servers("it counts all who wait")
@pytest.mark.usefixtures("no_hurry")
async def test_a_client_that_is_closed_waits_no_longer(one: AsyncStateCache, street: Street) -> None:
    await one.set(KEY, 1)
    street.take()
    one._runtime.shared_queues.crowd(KEY)
    begun = monotonic()
    update = asyncio.create_task(one.update(KEY, Count(), timeout=2 * LIMIT_S))
    await street.waited_for_by(1)
    await one.close()
    with pytest.raises(Exception, match="closed"):
        await update
    assert monotonic() - begun < LIMIT_S


async def test_an_update_that_was_cancelled_while_its_turn_is_passed_on_is_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the turn could not be passed on together with the commit."""
    passes = asyncio.Event()

    async def never(*_: object) -> None:
        passes.set()
        await asyncio.Event().wait()

    async with AsyncStateCache(settings=settings) as client:
        monkeypatch.setattr("statecache.core.update.shared_queue.SharedTurn.held", True)
        monkeypatch.setattr("statecache.core.update.shared_queue.SharedTurn.passed", lambda *_: None)
        monkeypatch.setattr(client._runtime.redis.io, "beside", never)
        writing = asyncio.create_task(client.update(KEY, lambda value: value + 1, default=0))
        await passes.wait()
        writing.cancel()
        await asyncio.wait([writing])
        (lost,) = client.unknown_outcomes()
        assert (lost.keys, (await client.outcome(lost.change_id, KEY)).verdict) == ((KEY,), "applied")
