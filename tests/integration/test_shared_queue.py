"""Processes that update one state take turns once they have met: whoever has the turn goes next, with what came."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statecache import AsyncStateCache, NotFound, Settings
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, every_redis
from tests.fixtures.turns import LIMIT_S, Count, Street, counted_reads, quicker, scripts_sent
from tests.support.local_reads import KEY, until

# After a conflict.


@every_redis
async def test_after_a_conflict_the_state_comes_with_the_turn_and_is_not_read_again(
    one: AsyncStateCache, settings: Settings, street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.set(KEY, 1)
    add, sent = Count(quicker(settings, 10)), counted_reads(one, monkeypatch)
    assert (await one.update(KEY, add)).value == 11
    assert add.given == [1, 10]
    assert sent == [KEY]
    assert street.calls[3] == b"11", "it was passed on with what it had become"
    assert (await one.update(KEY, add)).value == 12
    assert sent == [KEY]


async def test_nobody_asks_for_a_turn_without_a_reason(
    one: AsyncStateCache, street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.set(KEY, 1)
    sent = scripts_sent(one, monkeypatch)
    for _ in range(3):
        await one.update(KEY, Count())
    assert (street.token, sent) == (None, [])


async def test_a_tombstone_comes_with_the_turn_like_any_state(one: AsyncStateCache, settings: Settings) -> None:
    await one.set(KEY, 1)
    add = Count(quicker(settings, None))
    assert (await one.update(KEY, add, default=100)).value == 101
    assert add.given == [1, 100]
    add = Count(quicker(settings, None))
    with pytest.raises(NotFound):
        await one.update(KEY, add)
    assert add.given == [101]


async def test_a_known_absence_comes_with_the_turn(one: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await one.get(KEY) is None
    sent = counted_reads(one, monkeypatch)
    one._runtime.shared_queues.crowd(KEY)
    with pytest.raises(NotFound):
        await one.update(KEY, Count())
    assert (await one.update(KEY, Count(), default=100)).value == 101
    assert sent == []


async def test_a_state_that_is_not_in_redis_is_read(
    one: AsyncStateCache, street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = counted_reads(one, monkeypatch)
    street.take()
    assert street.pass_on() == 1
    assert street.calls == [b"the-next-token"]
    one._runtime.shared_queues.crowd(KEY)
    with pytest.raises(NotFound):
        await one.update(KEY, Count())
    assert sent == [KEY]


async def test_what_comes_with_the_turn_is_not_believed_below_what_was_seen(
    one: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = await one.set(KEY, 1)
    one._runtime.near.seen(KEY, (state.epoch, state.version + 1))
    one._runtime.shared_queues.crowd(KEY)
    sent = counted_reads(one, monkeypatch)
    assert (await one.update(KEY, Count())).value == 2
    assert sent == [KEY], "it is read, which finds out what is true"


@pytest.mark.own_servers("it counts all who wait")
@pytest.mark.usefixtures("no_hurry")
async def test_a_large_value_does_not_go_with_the_call_and_is_read(
    one: AsyncStateCache, street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = "x" * (64 * 1024)
    await one.set(KEY, large)
    one._runtime.shared_queues.crowd(KEY)
    sent = counted_reads(one, monkeypatch)
    street.take()
    update = asyncio.create_task(one.update(KEY, lambda value: value, timeout=2 * LIMIT_S))
    await street.waited_for_by(1)
    assert street.pass_on() == 1
    assert (await update).value == large
    assert sent == [KEY]
    assert len(street.calls) == 1


# One after the other.


@pytest.mark.own_servers("it counts all who wait")
@every_redis
@pytest.mark.usefixtures("no_hurry")
async def test_who_waits_is_called_in_order_of_arrival_and_begins_with_what_the_one_before_has_left(
    make_client: MakeClient, settings: Settings, street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [make_client(settings) for _ in range(4)]
    await clients[0].set(KEY, 1)
    adds, sent = [Count() for _ in clients], [counted_reads(client, monkeypatch) for client in clients]
    street.take()
    updates = []
    for number, (client, add) in enumerate(zip(clients, adds, strict=True), 1):
        client._runtime.shared_queues.crowd(KEY)
        updates.append(asyncio.create_task(client.update(KEY, add, timeout=2 * LIMIT_S)))
        await street.waited_for_by(number)
    assert street.pass_on() == 1
    states = await asyncio.gather(*updates)
    assert [state.value for state in states] == [2, 3, 4, 5]
    assert [add.given for add in adds] == [[1], [2], [3], [4]]
    assert sent == [[], [], [], []]


@pytest.mark.own_servers("it counts all who wait")
@pytest.mark.usefixtures("no_hurry")
async def test_who_met_a_conflict_keeps_the_turn_until_its_commit_is_applied(
    one: AsyncStateCache, other: AsyncStateCache, settings: Settings, street: Street
) -> None:
    """Somebody who asks for no turn writes while it is held: whoever waits is not called for that."""
    await one.set(KEY, 1)
    for client in (one, other):
        client._runtime.shared_queues.crowd(KEY)
    street.take()
    somebody = quicker(settings, 10)
    first, second = Count(somebody), Count()
    updates = [asyncio.create_task(one.update(KEY, first, timeout=2 * LIMIT_S))]
    await street.waited_for_by(1)
    updates.append(asyncio.create_task(other.update(KEY, second, timeout=2 * LIMIT_S)))
    await street.waited_for_by(2)
    street.pass_on()
    await asyncio.gather(*updates)
    assert (first.given, second.given) == ([1, 10], [11])


async def test_who_raises_passes_the_turn_on(one: AsyncStateCache, street: Street) -> None:
    await one.set(KEY, 1)
    one._runtime.shared_queues.crowd(KEY)

    def refuse(value: int) -> int:
        assert street.calls == []
        raise ZeroDivisionError(str(value))

    with pytest.raises(ZeroDivisionError):
        await one.update(KEY, refuse)
    assert street.calls[3] == b"1"


@pytest.mark.usefixtures("no_hurry")
async def test_whoever_is_cancelled_passes_the_turn_on(cache: AsyncStateCache, street: Street) -> None:
    await cache.set(KEY, 1)
    cache._runtime.shared_queues.crowd(KEY)
    inside = asyncio.Event()

    async def endless(value: int) -> int:
        inside.set()
        await asyncio.Event().wait()
        return value

    update = asyncio.create_task(cache.update(KEY, endless))
    await inside.wait()
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    assert street.calls[3] == b"1"


async def test_what_lies_there_is_as_the_state_is_by_now(
    one: AsyncStateCache, other: AsyncStateCache, street: Street
) -> None:
    await one.set(KEY, 1)
    for client in (one, other):
        client._runtime.shared_queues.crowd(KEY)
    await one.update(KEY, Count())
    assert street.calls[3] == b"2"
    await one.set(KEY, 20)
    add = Count()
    assert (await other.update(KEY, add)).value == 21
    assert add.given == [20]


@pytest.mark.own_servers("it changes settings of the server")
async def test_a_commit_that_waits_for_its_durability_has_passed_the_turn_on(
    one: AsyncStateCache, street: Street, redis_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk's answer comes behind that of the passing: neither is taken for the other."""
    redis_raw.config_set("appendfsync", "always")
    await one.set(KEY, 1)
    one._runtime.shared_queues.crowd(KEY)
    sent = scripts_sent(one, monkeypatch)
    assert (await one.update(KEY, Count(), durability="disk")).value == 2
    assert street.calls[3] == b"2"
    assert sent == [], "all of it went with the asking and with the commit"


async def test_a_commit_that_waits_for_postgres_has_passed_the_turn_on(
    one: AsyncStateCache, street: Street, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.set(KEY, 1)
    one._runtime.shared_queues.crowd(KEY)
    sent = scripts_sent(one, monkeypatch)
    updating = asyncio.ensure_future(one.update(KEY, Count(), durability="postgres", timeout=LIMIT_S))
    await until(lambda: street.calls[3:4] == [b"2"])
    assert not updating.done()
    assert sent == [], "all of it went with the asking and with the commit"
    await flush(worker)
    assert (await updating).value == 2
