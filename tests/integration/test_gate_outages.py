"""Calls that open a gate themselves, while the connection to Redis ends: one fault is no reason to give up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statecache import AsyncStateCache, RedisUnavailable, Settings
from statecache.clock import monotonic
from statecache.keys import KeySpace
from tests.fixtures.faults import through
from tests.fixtures.servers import MakeClient
from tests.support.fault_proxy import FaultProxy, Kind

LOOK = b"Tells what a shard's data set says of itself"
KEY = "runs/1"


async def _in_a_transaction(client: AsyncStateCache) -> None:
    async with client.transaction(KEY) as tx:
        await tx.get(KEY)
        tx.set(KEY, 2)


async def _locked(client: AsyncStateCache) -> None:
    async with client.lock(KEY):
        pass


CALLS: dict[str, Callable[[AsyncStateCache], Awaitable[Any]]] = {
    "update": lambda client: client.update(KEY, lambda value: value + 1),
    "transaction": _in_a_transaction,
    "set": lambda client: client.set(KEY, 2),
    "lock": _locked,
}


@pytest.fixture
def faulty(make_client: MakeClient, settings: Settings, proxy: FaultProxy) -> AsyncStateCache:
    """A client whose way to Redis leads through the proxy."""
    return make_client(through(settings, redis=proxy))


def close_the_gate(redis_raw: Any, keys: KeySpace) -> None:
    """Let the shard look as after a restart of its server."""
    continues = redis_raw.info("replication")["master_replid"]
    redis_raw.hset(keys.meta(keys.shard(KEY)), mapping={"replid": "", "continues": continues})


@pytest.mark.parametrize("kind", ["drop_request", "drop_reply"])
@pytest.mark.parametrize("call", CALLS)
async def test_a_connection_that_ends_while_the_gate_is_opened_is_made_anew(
    call: str, kind: Kind, faulty: AsyncStateCache, proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    await faulty.set(KEY, 1)
    close_the_gate(redis_raw, keys)
    lost = proxy.arm(kind, at=LOOK)
    await CALLS[call](faulty)
    assert lost.struck
    state = await faulty.get(KEY, read="primary")
    assert state is not None
    assert state.value == (1 if call == "lock" else 2)


async def test_who_cannot_open_it_in_time_is_told_why(
    faulty: AsyncStateCache, proxy: FaultProxy, redis_raw: Any, keys: KeySpace
) -> None:
    await faulty.set(KEY, 1)
    close_the_gate(redis_raw, keys)
    proxy.arm("drop_request", at=LOOK).then(lambda: setattr(proxy, "refusing", True))
    begun = monotonic()
    with pytest.raises(RedisUnavailable):
        await faulty.update(KEY, lambda value: value + 1, timeout=0.6)
    assert monotonic() - begun < 10
