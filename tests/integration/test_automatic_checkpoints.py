"""Checkpoints that a policy has made: when, by whom, and that no write ever fails or waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from statecache import (
    AsyncStateCache,
    Checkpoint,
    CheckpointPolicy,
    Create,
    LockHeld,
    RedisUnavailable,
    Set,
    Settings,
    UsageError,
)
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing
from tests.fixtures.servers import MakeClient
from tests.support.histories import pruned
from tests.support.local_reads import LIMIT_S
from tests.support.polling import pause

KEY = "runs/42"


async def _made(client: AsyncStateCache, count: int, key: str = KEY) -> list[Checkpoint]:
    """Return the checkpoints of a key once there are so many."""
    async with asyncio.timeout(LIMIT_S):
        while len(found := await client.checkpoints(key)) < count:
            await pause()
    return found


async def _rest(client: AsyncStateCache) -> None:
    """Return once none is under way."""
    automatic = (client if isinstance(client, AsyncStateCache) else getattr(client, "_client"))._runtime.due_checkpoints  # noqa: B009
    async with asyncio.timeout(LIMIT_S):
        while automatic.under_way:
            await pause()


async def test_every_so_many_changes(client: AsyncStateCache) -> None:
    runs = client.namespace("runs", checkpoint=CheckpointPolicy(every_changes=5))
    for number in range(1, 13):
        await runs.set("42", number)
        await _rest(client)
    found = await client.checkpoints(KEY)
    assert [one.version for one in found] == [5, 10]
    assert all(one.automatic and one.pinned and "-changes-" in one.label for one in found)
    assert [one.label for one in found] == sorted(one.label for one in found)


async def test_whatever_verb_has_written_it(client: AsyncStateCache, worker: Worker) -> None:
    runs = client.namespace("runs", checkpoint=CheckpointPolicy(every_changes=1))
    calls: list[Callable[[], Any]] = [
        lambda: runs.create("42", 1),
        lambda: runs.update("42", lambda value: value + 1),
        lambda: runs.set_many({"42": 3}),
        lambda: runs.commit([Set("42", 4), Create("42/other", 0)]),
        lambda: runs.transact(["42"], lambda tx: tx.set("42", 5)),
        lambda: runs.touch("42", ttl=3600),
        lambda: runs.rollback("42", 1),
        lambda: runs.undo("42"),
        lambda: runs.copy("42/other", "42", replace=True),
        lambda: runs.step("42", "charge", lambda step: 7, apply=lambda value, result: result),
    ]
    async with flushing(worker):
        for version, call in enumerate(calls, 1):
            await call()
            await _rest(client)
            assert [one.version for one in await client.checkpoints(KEY)][-1] == version
        await runs.delete("42")
        await runs.branch("42", "43", at=5)
        await _rest(client)
    assert len(await client.checkpoints(KEY)) == len(calls)
    assert len(await client.checkpoints("runs/43")) == 1
    assert [one.key async for one in client.list("runs/42/steps/")] == ["runs/42/steps/charge"]


async def test_once_in_a_span_of_time_by_whichever_of_many_clients(make_client: MakeClient, settings: Settings) -> None:
    policy = CheckpointPolicy(every_s=100_000_000)
    clients = [make_client(settings) for _ in range(3)]
    views = [client.namespace("runs", checkpoint=policy) for client in clients]
    for number in range(9):
        await views[number % 3].set("42", number)
    for client in clients:
        await _rest(client)
    (one,) = await _made(clients[0], 1)
    assert one.version == 1
    assert one.label.endswith("-every-1e+08s")
    assert one.automatic


async def test_before_a_step_and_of_its_whole_group(
    make_client: MakeClient, settings: Settings, worker: Worker
) -> None:
    client = make_client(settings)
    runs = client.namespace("runs", checkpoint=CheckpointPolicy(before_step=True, group=True))
    seen: list[Any] = []
    await runs.set("42", "before")
    async with flushing(worker):
        await runs.step("42", "charge", lambda step: seen.append(step.name), apply=lambda value, result: "after")
        await runs.step("42", "charge", lambda step: seen.append(step.name))
        (one,) = await client.checkpoints(KEY)
        assert (one.scope, one.key, "-step-" in one.label) == ("group", KEY, True)
        await client.rollback(KEY, one, group=True)
    state = await client.get(KEY)
    assert state is not None
    assert (state.value, seen) == ("before", ["charge"])


@pytest.mark.parametrize("drain", [None, 5.0])
async def test_at_shutdown_of_what_was_written_since(
    make_client: MakeClient, settings: Settings, worker: Worker, drain: float | None
) -> None:
    client, reader = make_client(settings), make_client(settings)
    runs = client.namespace("runs", checkpoint=CheckpointPolicy(at_shutdown=True, every_changes=3))
    for number in range(3):
        await runs.set("42", number)
    await runs.set("43", 1)
    await runs.set("44", 1)
    await runs.delete("44")
    await client.set("runs/45", "by another view")
    await _rest(client)
    async with flushing(worker):
        await client.close(**({} if drain is None else {"drain": drain}))
    assert [one.version for one in await reader.checkpoints(KEY)] == [3]
    (one,) = await reader.checkpoints("runs/43")
    assert "-shutdown-" in one.label
    for key in ("runs/44", "runs/45"):
        assert await reader.checkpoints(key) == []


async def test_none_that_fails_is_anything_to_the_write(
    make_client: MakeClient, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(settings)
    policy = CheckpointPolicy(every_changes=1, at_shutdown=True)
    runs = client.namespace("runs", checkpoint=policy)
    long = "x" * 490  # with a label it would be too long for a key
    assert (await runs.set(long, 1)).version == 1
    await _rest(client)
    assert "was not made" in caplog.text

    async def refuses(*_: Any) -> None:
        raise RedisUnavailable("down")

    monkeypatch.setattr("statecache.core.history.automatic.make", refuses)
    assert (await runs.set("42", 1)).version == 1
    await _rest(client)
    await client.close()


@pytest.mark.parametrize("group", [False, True])
async def test_each_that_is_due_is_made_and_names_the_version_that_made_it_due(
    make_client: MakeClient, settings: Settings, worker: Worker, group: bool
) -> None:
    client = make_client(settings)
    runs = client.namespace("runs", checkpoint=CheckpointPolicy(every_changes=2, group=group))
    async with flushing(worker):
        for number in range(1, 101):
            await runs.set("42", number)
        found = await _made(client, 50)
        await _rest(client)
    assert len(found) == 50
    if group:
        held = [await client.get_group_at(KEY, position=one.position) for one in found]
        assert sorted(one[KEY].value for one in held) == [*range(2, 101, 2)]
        return
    assert sorted(one.version for one in found if one.version) == [*range(2, 101, 2)]
    for one in found:
        state = await client.get_at(KEY, version=one.version)
        assert state is not None
        assert (state.change_id, state.value) == (one.change_id, one.version)
        assert one.sha256 == sha256(str(one.version).encode()).hexdigest()


async def test_those_that_wait_are_made_when_a_client_is_closed(
    make_client: MakeClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statecache.core.history.due.UNDER_WAY_MAX", 0)
    client, reader = make_client(settings), make_client(settings)
    runs = client.namespace("runs", checkpoint=CheckpointPolicy(every_changes=1))
    for number in range(3):
        await runs.set("42", number)
    assert await reader.checkpoints(KEY) == []
    await client.close()
    assert sorted(one.version or 0 for one in await reader.checkpoints(KEY)) == [1, 2, 3]


@pytest.mark.parametrize("group", [False, True])
async def test_one_whose_values_were_let_go_while_it_waited_is_of_what_is_current(
    make_client: MakeClient, settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch, group: bool
) -> None:
    """It would pin nothing, and nobody could go back to it."""
    monkeypatch.setattr("statecache.core.history.due.UNDER_WAY_MAX", 0)
    client, reader = make_client(settings), make_client(settings)
    policy = CheckpointPolicy(every_changes=1, group=group)
    runs = client.namespace("runs", checkpoint=policy, retention_count=1)
    for number in (1, 2):
        await runs.set("42", number)
    await flush(worker)
    await pruned(settings)  # where the worker has not done so yet
    assert [change.kept async for change in reader.history(KEY)] == [False, True]
    async with flushing(worker):
        await client.close()
        found = await _made(reader, 2)
        states = [await reader.get_at(KEY, checkpoint=one.label) for one in found]
    assert [state and state.value for state in states] == [2, 2]
    assert all(one.pinned for one in found)


async def test_more_than_may_wait_are_left_out_and_that_is_logged(
    make_client: MakeClient, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("statecache.core.history.due.UNDER_WAY_MAX", 0)
    monkeypatch.setattr("statecache.core.history.due.WAITING_MAX", 1)
    runs = make_client(settings).namespace("runs", checkpoint=CheckpointPolicy(every_changes=1))
    for number in range(2):
        await runs.set("42", number)
    assert "of 'runs/42' was not made: too many wait for their turn" in caplog.text


async def test_what_one_that_failed_was_of_is_still_made_at_shutdown(
    make_client: MakeClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, reader = make_client(settings), make_client(settings)
    runs = client.namespace("runs", checkpoint=CheckpointPolicy(every_changes=1, at_shutdown=True))
    with monkeypatch.context() as patched:

        async def refuses(*_: Any) -> None:
            raise RedisUnavailable("down")

        patched.setattr("statecache.core.history.automatic.make", refuses)
        await runs.set("42", 1)
        await _rest(client)
    await client.close()
    (one,) = await reader.checkpoints(KEY)
    assert "-shutdown-" in one.label


@pytest.mark.parametrize("locking", [None, "enforced"])
async def test_that_of_the_last_write_under_a_lease_is_made(
    make_client: MakeClient, settings: Settings, caplog: pytest.LogCaptureFixture, locking: Any
) -> None:
    client = make_client(settings)
    runs = client.namespace("runs", locking=locking, checkpoint=CheckpointPolicy(every_changes=1))
    for number in range(5):
        async with runs.lock("42") as lease:
            await lease.set("42", number)
    assert sorted(one.version or 0 for one in await _made(client, 5)) == [1, 2, 3, 4, 5]
    assert caplog.text == ""


async def test_a_locked_group_takes_none_of_others(make_client: MakeClient, settings: Settings) -> None:
    policy = CheckpointPolicy(every_changes=1)
    runs = make_client(settings).namespace("runs", locking="enforced", checkpoint=policy)
    async with runs.lock("42") as lease:
        await lease.set("42", 1)
        await _made(make_client(settings), 1)
        with pytest.raises(LockHeld):
            await runs.set("42", 2)
    assert [one.version for one in await runs.checkpoints("42")] == [1]


async def test_a_cancelled_call_is_noted_also_behind_its_commit(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = cache.namespace("runs", checkpoint=CheckpointPolicy(every_changes=1))
    begun, never = asyncio.Event(), asyncio.Event()

    async def beside(*_: Any) -> None:
        begun.set()
        await never.wait()

    monkeypatch.setattr(type(cache._runtime.io), "beside", lambda self, *given: beside(*given))
    call = asyncio.create_task(runs.set("42", 1))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    (one,) = cache.unknown_outcomes()
    assert (await cache.outcome(one.change_id, KEY)).verdict == "applied"


@pytest.fixture
async def plain(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """A client of which nothing is asked."""
    async with AsyncStateCache(settings=settings) as client:
        yield client


@pytest.mark.parametrize(
    "policy",
    [
        {"every_changes": 0}, {"every_changes": -1}, {"every_changes": True}, {"every_changes": "5"}, {"every_s": 0.5},
        {"every_s": float("inf")}, {"every_s": float("nan")}, {"every_s": "60"}, {"every_s": True}, {"group": True}, {},
        {"every_s": timedelta(hours=1)}, {"before_step": "yes"}, {"at_shutdown": 1}, {"every_s": 5, "group": None},
    ],
)  # fmt: skip
def test_a_policy_that_is_none_is_refused_when_it_is_made(policy: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CheckpointPolicy(**policy)


def test_what_is_no_policy_is_refused(plain: AsyncStateCache) -> None:
    with pytest.raises(UsageError, match="is no CheckpointPolicy"):
        plain.namespace("runs", checkpoint={"every_changes": 5})  # type: ignore[call-overload]
