"""Whatever finds a change in the end, `replica` and `disk` are acknowledged only where copies of it were counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

import pytest

from statecache import (
    AsyncStateCache,
    DurabilityNotMet,
    DurabilityRefused,
    OutcomeUnknown,
    Settings,
    StateCacheError,
    Step,
    Unavailable,
)
from statecache.clock import monotonic
from statecache.keys import KeySpace
from statecache.lua import script
from statecache.testing import servers
from statecache.testing.embedded import Servers
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, MakeSettings, plain_client
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause_thread
from tests.support.workers import at_work

pytestmark = pytest.mark.counts_seconds

KEY = "runs/42"
ACTOR = "the-unlucky"
TIMEOUT_S = 2.0
Level = Literal["replica", "disk"]


@pytest.fixture
def settings(paired: Settings) -> Settings:
    """The settings of a deployment on the pair."""
    return paired


async def _others(cache: AsyncStateCache) -> None:
    """Commit more often than a state remembers."""
    for number in range(7):
        await cache.set(KEY, f"other {number}", durability="memory")


class Copies:
    """What acknowledges copies at a level: it can be taken away and given back."""

    def __init__(self, pair: Servers, raw: Any, level: Level) -> None:
        self._pair = pair
        self._raw = raw
        self._level = level

    def take_away(self) -> None:
        """Let no copy be acknowledged from now on, while the server stands and says that it can."""
        if self._level == "replica":
            self._pair.pause("replica-1")
        else:
            self._raw.config_set("appendfsync", "no")

    def give_back(self) -> None:
        """Let copies be acknowledged again."""
        if self._level == "replica":
            self._pair.resume("replica-1")
        else:
            self._raw.config_set("appendfsync", "everysec")


@pytest.fixture(params=["replica", "disk"])
def level(request: pytest.FixtureRequest) -> Level:
    """A level that copies acknowledge."""
    found: Level = request.param
    return found


@pytest.fixture
def copies(pair: Servers, pair_raw: Any, level: Level) -> Iterator[Copies]:
    """What acknowledges copies at that level."""
    made = Copies(pair, pair_raw, level)
    yield made
    made.give_back()


@pytest.fixture
async def behind(make_client: MakeClient, settings: Settings, proxy: FaultProxy, level: Level) -> AsyncStateCache:
    """A client behind a proxy, to which the level was given already."""
    client = make_client(through(settings, redis=proxy))
    await client.set(KEY, "first", durability=level)
    return client


@pytest.mark.parametrize("verb", ["set", "transaction"])
async def test_a_change_that_is_looked_up_after_its_connection_broke_is_no_copy_by_itself(
    behind: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy, copies: Copies, level: Level, verb: str
) -> None:
    async def write() -> None:
        if verb == "set":
            await behind.set(KEY, "mine", durability=level, actor=ACTOR, timeout=TIMEOUT_S * 2)
            return
        async with behind.transaction(KEY, durability=level, actor=ACTOR, timeout=TIMEOUT_S * 2) as tx:
            tx.set(KEY, "mine")

    copies.take_away()
    fault = proxy.arm("hold_reply", at=ACTOR.encode())
    writing = asyncio.create_task(write())
    await fault.wait()
    await _others(cache)
    proxy.cut_all()
    met: tuple[type[StateCacheError], str] = (DurabilityNotMet, "0 of 1 copies")
    if level == "disk":  # the new connection's server says at once that it cannot
        met = OutcomeUnknown, "never syncs its append-only file"
    with pytest.raises(met[0], match=met[1]) as caught:
        await writing
    copies.give_back()
    again = await behind.set(KEY, "mine", durability=level, change_id=caught.value.facts["change_id"])
    assert again.version == 2


@pytest.mark.parametrize("found_in", ["stream", "Postgres"])
async def test_the_repeat_after_copies_were_missing_counts_them_again(
    behind: AsyncStateCache, cache: AsyncStateCache, copies: Copies, level: Level, found_in: str, worker: Worker,
    pair_raw: Any, keys: KeySpace,
) -> None:  # fmt: skip
    copies.take_away()
    with pytest.raises(DurabilityNotMet) as caught:
        await behind.set(KEY, "mine", durability=level, timeout=TIMEOUT_S)
    await _others(cache)
    if found_in == "Postgres":
        await flush(worker)
        pair_raw.xtrim(keys.changes(keys.shard(KEY)), maxlen=0)
    change_id = caught.value.change_id
    with pytest.raises(DurabilityNotMet, match="0 of 1 copies"):
        await behind.set(KEY, "mine", durability=level, change_id=change_id, timeout=TIMEOUT_S * 2)
    copies.give_back()
    assert (await behind.set(KEY, "mine", durability=level, change_id=change_id)).version == 2


async def test_only_the_server_that_holds_a_change_confirms_it(
    cache: AsyncStateCache, pair_raw: Any, keys: KeySpace
) -> None:
    state = await cache.set(KEY, 1)
    shard, written = keys.shard(KEY), "repeats"

    def confirmed(change_id: str, position: str) -> list[bytes]:
        names = keys.meta(shard), keys.changes(shard)
        reply: list[bytes] = pair_raw.eval(script("confirm").text, 2, *names, "nonce", change_id, "on", position)
        return reply

    assert confirmed(state.change_id, str(state.position)) == [b"nonce", b"OK"]
    assert pair_raw.hget(keys.meta(shard), written) == b"1"
    assert confirmed(state.change_id, "") == [b"nonce", b"OK"]
    assert confirmed("another", str(state.position)) == [b"nonce", b"GONE"]
    assert confirmed(state.change_id, "1-99") == [b"nonce", b"GONE"]
    pair_raw.hset(keys.meta(shard), "replid", "another-server")
    assert confirmed(state.change_id, str(state.position)) == [b"nonce", b"GONE"]
    assert pair_raw.hget(keys.meta(shard), written) == b"2"


# Steps.


async def test_a_step_that_is_called_again_gives_its_result_once_copies_of_it_are_counted(
    make_client: MakeClient, settings: Settings, pair: Servers
) -> None:
    """The first call was told that they are lacking; who calls it again is not given the result without them."""
    ran: list[Step] = []
    async with at_work(settings):
        pair.pause("replica-1")
        try:
            for _ in range(2):
                with pytest.raises(DurabilityNotMet, match="0 of 1 copies"):
                    await make_client(settings).step(KEY, "charge", ran.append, durability="replica", timeout=2)
        finally:
            pair.resume("replica-1")
        await make_client(settings).step(KEY, "charge", ran.append, durability="replica")
    assert len(ran) == 1


# What a server can give.


async def test_too_few_replicas_are_refused_at_the_call_with_nothing_written(
    make_client: MakeClient, settings: Settings, pair: Servers, pair_raw: Any
) -> None:
    """The level was given a moment ago on the same connection: each commit asks how many are connected."""
    client = make_client(settings)
    await client.set(KEY, 1, durability="replica")
    with plain_client(pair.url("replica-1")) as replica:
        follows = [replica.info("replication")[name] for name in ("master_host", "master_port")]
        replica.replicaof("NO", "ONE")
    while pair_raw.info("replication")["connected_slaves"]:
        pause_thread()
    try:
        begun = monotonic()
        for _ in range(2):
            with pytest.raises(DurabilityRefused, match="0 replicas are connected and 1 must acknowledge"):
                await client.set(KEY, 2, durability="replica")
            with pytest.raises(DurabilityRefused):
                async with client.transaction(KEY, durability="replica") as tx:
                    tx.set(KEY, 3)
        assert monotonic() - begun < TIMEOUT_S, "nothing is waited for behind a refusal"
        assert (await client.get(KEY)).version == 1  # type: ignore[union-attr]
        assert (await client.set(KEY, 4)).version == 2
    finally:
        with plain_client(pair.url("replica-1")) as replica:
            replica.replicaof(*follows)
        while pair_raw.info("replication").get("slave0", {}).get("state") != "online":
            pause_thread()
    assert (await client.set(KEY, 5, durability="replica")).version == 3


def _cut_connections(raw: Any) -> None:
    raw.client_kill_filter(_type="normal", skipme=True)


def _change_replid(raw: Any) -> None:
    """Give the server a new replid and keep its connections, as a failover there and back does."""
    raw.execute_command("REPLICAOF", "127.0.0.1", "1")
    raw.execute_command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("failover", [_cut_connections, _change_replid])
async def test_what_a_server_can_give_is_believed_of_no_other(
    make_client: MakeClient, make_settings: MakeSettings, failover: Callable[[Any], None]
) -> None:
    """It is as with an address that leads to another primary from now on, which keeps nothing over a restart."""
    with servers(workers=0, fsync=False, settings={"shards": "4"}) as own:
        settings = make_settings(redis_url=own.redis_url, postgres_url=own.postgres_url)
        client = make_client(settings)
        with plain_client(own.redis_url) as raw:
            await client.set(KEY, 1, durability="disk")
            raw.config_set("appendonly", "no")
            failover(raw)
            with suppress(Unavailable):  # its gate is closed, but a connection that is cut is noticed
                await client.get(KEY, timeout=1)
            with pytest.raises(DurabilityRefused, match="no append-only file"):
                await client.set(KEY, 2, durability="disk")
            assert (await client.set(KEY, 3)).version == 2, "what was refused is not applied; who writes opens the gate"
