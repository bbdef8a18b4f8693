"""Calls that cannot be meant, on servers: each is refused at once by an error that says what is taken."""

from __future__ import annotations

import pytest

from statecache import AsyncStateCache, StateCacheError, UsageError
from tests.support.misuse import AFTER_CLOSE, KEY, MISUSES


async def test_what_cannot_be_meant_is_refused(client: AsyncStateCache) -> None:
    before = await client.set(KEY, 1)
    for told, call in MISUSES:
        with pytest.raises(StateCacheError) as caught:
            await call(client)
        assert told in str(caught.value)
    assert await client.get(KEY) == before


async def test_a_list_that_was_begun_ends_with_its_client(cache: AsyncStateCache) -> None:
    await cache.set_many({f"runs/{number}": number for number in range(3)})
    states = cache.list("runs/")
    assert (await anext(states)).value == 0
    await cache.close()
    with pytest.raises(UsageError, match="it is closed"):
        await anext(states)


async def test_a_closed_client_refuses_every_verb(client: AsyncStateCache) -> None:
    await client.set(KEY, 1)
    await client.close()
    for call in AFTER_CLOSE:
        with pytest.raises(UsageError, match="it is closed"):
            await call(client)
