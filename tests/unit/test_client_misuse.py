"""Calls that cannot be meant, in memory: each is refused at once by an error that says what is taken."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from statecache import AsyncStateCache, NotFound, StateCacheError, UsageError
from statecache.testing import memory
from tests.support.awaited import awaited
from tests.support.misuse import AFTER_CLOSE, KEY, MISUSES, Call


@pytest.fixture(params=["async", "sync"])
async def cache(request: pytest.FixtureRequest) -> AsyncIterator[AsyncStateCache]:
    """A client in memory: the asynchronous one, and again the synchronous one."""
    deployment = memory()
    client: Any = deployment.async_client() if request.param == "async" else awaited(deployment.client())
    yield client
    await client.close()


@pytest.mark.parametrize(("told", "call"), MISUSES)
async def test_what_cannot_be_meant_is_refused(cache: AsyncStateCache, told: str, call: Call) -> None:
    before = await cache.set(KEY, 1)
    with pytest.raises(StateCacheError) as caught:
        await call(cache)
    assert told in str(caught.value)
    assert await cache.get(KEY) == before


@pytest.mark.parametrize("call", AFTER_CLOSE)
async def test_a_closed_client_refuses_what_asks_no_server_too(cache: AsyncStateCache, call: Call) -> None:
    await cache.close()
    with pytest.raises(UsageError, match="it is closed"):
        await call(cache)


async def test_a_list_that_was_begun_ends_with_its_client() -> None:
    async with memory() as cache:
        await cache.set_many({f"runs/{number}": number for number in range(3)})
        states = cache.list("runs/")
        assert (await anext(states)).value == 0
        await cache.close()
        with pytest.raises(UsageError, match="it is closed"):
            await anext(states)


def test_a_list_that_was_begun_ends_with_a_synchronous_client_too() -> None:
    with memory() as cache:
        cache.set_many({f"runs/{number}": number for number in range(3)})
        states = iter(cache.list("runs/"))
        assert next(states).value == 0
        cache.close()
        with pytest.raises(UsageError, match="it is closed"):
            next(states)


@pytest.mark.parametrize("there", [True, False])
async def test_a_transaction_deletes_what_is_there_once(cache: AsyncStateCache, there: bool) -> None:
    if there:
        await cache.set(KEY, 1)
    async with cache.transaction(KEY) as tx:
        if not there:
            tx.create(KEY, 1)
        tx.delete(KEY)
        with pytest.raises(NotFound):
            tx.delete(KEY)
        tx.create(KEY, 2)
        tx.delete(KEY)
        tx.set(KEY, 3)
    state = await cache.get(KEY)
    assert state is not None
    assert state.value == 3


async def _grown(*_: Any) -> int:
    return 1


@pytest.mark.parametrize(
    "call",
    [
        lambda cache: cache.update(KEY, _grown),
        lambda cache: cache.update(KEY, lambda value: _grown(value)),
        lambda cache: cache.transact([KEY], _grown),
        lambda cache: cache.step(KEY, "s", _grown),
        lambda cache: cache.step(KEY, "s", lambda step: 1, apply=_grown),
    ],
    ids=["update", "update that awaits", "transact", "step", "apply"],
)
def test_the_synchronous_client_refuses_async_functions(call: Call) -> None:
    with memory() as cache:
        before = cache.set(KEY, 1)
        with pytest.raises(UsageError, match=r"plain functions, not async ones. AsyncStateCache takes both"):
            call(cache)
        assert cache.get(KEY) == before
