"""Postgres is restored to what it held before, beside a Redis that remembers more: what is repeated is not durable."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.clock import monotonic
from statecache.errors import OutcomeUnknown
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, flushing, rows
from tests.fixtures.servers import MakeClient
from tests.fixtures.steps import Bank, Receipt
from tests.simulation.backups import Backup
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.counts_seconds

KEY = "runs/42"
CHANGE = "c" * 24

Psql = psycopg.Connection[Any]


def _asked(client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that will tell what is asked of Postgres."""
    asked, fetch = list[str](), client._runtime.postgres.fetch_each

    def noted(names: tuple[str, ...], *given: Any, **more: Any) -> Any:
        asked.extend(names)
        return fetch(names, *given, **more)

    monkeypatch.setattr(client._runtime.postgres, "fetch_each", noted)
    return asked


@pytest.mark.parametrize("who", ["writer", "another"])
async def test_a_repeat_is_acknowledged_by_postgres_itself(
    make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql, who: str
) -> None:
    """Redis remembers that the change was flushed; that was into a Postgres that has gone back since."""
    writer = make_client(settings)
    await writer.set(KEY, 1)
    await flush(worker)
    backup = Backup(psql)
    async with flushing(worker):
        state = await writer.set(KEY, 2, change_id=CHANGE, durability="postgres")
    backup.put_back()
    client = writer if who == "writer" else make_client(settings)
    with pytest.raises(OutcomeUnknown, match="not yet known to be in Postgres"):
        await client.set(KEY, 2, change_id=CHANGE, durability="postgres", timeout=2)
    assert await client.set(KEY, 2, change_id=CHANGE) == state
    async with flushing(worker):
        assert await client.set(KEY, 2, change_id=CHANGE, durability="postgres") == state
    assert rows(psql, "SELECT version FROM state") == [(state.version,)]


async def test_a_repeat_asks_postgres_once_and_a_first_time_does_not(
    make_client: MakeClient, settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client(settings)
    await client.set(KEY, 1)
    async with flushing(worker):
        asked = _asked(client, monkeypatch)
        state = await client.set(KEY, 2, change_id=CHANGE, durability="postgres")
        assert asked == []
        assert await client.set(KEY, 2, change_id=CHANGE, durability="postgres") == state
        assert asked == ["lookup_change"]


@pytest.mark.counts_seconds
async def test_while_postgres_is_away_what_was_flushed_is_given(
    make_client: MakeClient, settings: Settings, worker: Worker, bank: Bank
) -> None:
    """An agent that begins anew comes to where it was."""
    one = make_client(settings)
    async with flushing(worker):
        state = await one.set(KEY, 2, change_id=CHANGE, durability="postgres")
        receipt = await one.step(KEY, "charge", bank.charge, "order 7", type=Receipt)
    client = make_client(settings.model_copy(update={"postgres_url": "postgresql://127.0.0.1:1/none"}))
    assert await client.set(KEY, 2, change_id=CHANGE, durability="postgres", timeout=5) == state
    begun = monotonic()
    assert await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, timeout=20) == receipt
    assert monotonic() - begun < 5
    assert len(bank.charged) == 1


@pytest.mark.parametrize("who", ["its own", "another"])
async def test_the_result_of_a_step_is_given_as_durable_by_postgres_itself(
    make_client: MakeClient, settings: Settings, worker: Worker, psql: Psql, bank: Bank, who: str
) -> None:
    one = make_client(settings)
    await one.set(KEY, 1)
    await flush(worker)
    backup = Backup(psql)
    async with flushing(worker):
        receipt = await one.step(KEY, "charge", bank.charge, "order 7", type=Receipt)
    backup.put_back()
    client = one if who == "its own" else make_client(settings)
    with pytest.raises(OutcomeUnknown, match="not yet known to be in Postgres"):
        await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, timeout=2)
    given = await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, durability="memory")
    assert given == receipt
    async with flushing(worker):
        assert await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt) == receipt
    assert len(bank.charged) == 1


# What the state has forgotten, and whose entry has left the stream.


class Forgotten:
    """A change that nobody but its writer knows: Postgres held it, and was put back to what it held before."""

    def __init__(self, client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql) -> None:
        self.client, self.worker, self.raw, self.psql = client, worker, redis_raw, psql
        self.shard = keys.shard(KEY)
        self.meta, self._stream = keys.meta(self.shard), keys.changes(self.shard)
        self._backup: Backup | None = None

    async def begin(self) -> None:
        """Write the state some times, and take the backup."""
        for number in range(3):
            await self.client.set(KEY, f"before {number}")
        await flush(self.worker)
        self._backup = Backup(self.psql)

    async def bury(self) -> None:
        """Write as many times as makes the state forget what was written last, and have all of it leave the stream."""
        for number in range(9):
            await self.client.set(KEY, f"after {number}")
        await flush(self.worker)
        self.raw.xtrim(self._stream, maxlen=0)

    def restore(self) -> None:
        assert self._backup is not None
        self._backup.put_back()

    async def stands(self) -> bool:
        """Return whether the newest state is as it was buried."""
        state = await self.client.get(KEY, read="primary")
        return state is not None and state.value == "after 8"


@pytest.fixture
async def forgotten(
    make_client: MakeClient, settings: Settings, worker: Worker, redis_raw: Any, keys: KeySpace, psql: Psql
) -> Forgotten:
    """The state before the change, with the backup taken."""
    made = Forgotten(make_client(settings), worker, redis_raw, keys, psql)
    await made.begin()
    return made


def _remembers_by_watermark(_: Forgotten) -> None:
    """Have Redis as it is: its watermark is beyond Postgres'."""


def _remembers_what_was_retired(forgotten: Forgotten) -> None:
    """Have an epoch begun with the Postgres that went back: only what was retired tells that more was flushed."""
    flushed = forgotten.raw.hget(forgotten.meta, "flushed")
    ((held,),) = forgotten.psql.execute("SELECT flushed FROM shard WHERE shard = %s", [forgotten.shard]).fetchall()
    forgotten.raw.hset(forgotten.meta, mapping={"retired": flushed, "flushed": held})


def _is_in_a_later_epoch(forgotten: Forgotten) -> None:
    """Have Redis opened since the backup, in an epoch of which Postgres knows nothing."""
    forgotten.raw.hset(forgotten.meta, "flushed", 0)
    forgotten.raw.hset(forgotten.meta, "retired", 0)
    forgotten.raw.hincrby(forgotten.meta, "epoch", 1)


@pytest.mark.parametrize(
    "redis", [_remembers_by_watermark, _remembers_what_was_retired, _is_in_a_later_epoch],
    ids=["watermark", "retired", "later epoch"],
)  # fmt: skip
async def test_a_repeat_by_another_is_not_applied_on_the_word_of_a_postgres_that_went_back(
    make_client: MakeClient, settings: Settings, forgotten: Forgotten, redis: Any
) -> None:
    """That it holds nothing of the change proves nothing: it held it before."""
    await forgotten.client.set(KEY, "mine", change_id=CHANGE)
    await forgotten.bury()
    forgotten.restore()
    redis(forgotten)
    with pytest.raises(OutcomeUnknown, match="holds less than was flushed"):
        await make_client(settings).set(KEY, "mine", change_id=CHANGE)
    assert await forgotten.stands()


async def test_a_rollback_is_not_repeated_on_the_word_of_a_postgres_that_went_back(
    make_client: MakeClient, settings: Settings, forgotten: Forgotten
) -> None:
    await forgotten.client.rollback(KEY, 1, change_id=CHANGE)
    await forgotten.bury()
    forgotten.restore()
    with pytest.raises(OutcomeUnknown, match="holds less than was flushed"):
        await make_client(settings).rollback(KEY, 1, change_id=CHANGE)
    assert await forgotten.stands()


async def test_its_writer_is_not_told_that_it_was_never_applied(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, forgotten: Forgotten
) -> None:
    behind = make_client(through(settings, redis=proxy).model_copy(update={"redis_connections_max": 1}))
    await behind.get(KEY)
    proxy.arm("drop_reply", at=b"mine").then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown):
        await behind.set(KEY, "mine", change_id=CHANGE, timeout=0.5)
    proxy.refusing = False
    await forgotten.bury()
    forgotten.restore()
    found = await behind.outcome(CHANGE, KEY, timeout=3)
    assert (found.verdict, "holds less than was flushed" in found.reason) == ("unknown", True)
    with pytest.raises(OutcomeUnknown, match="holds less than was flushed"):
        await behind.set(KEY, "mine", change_id=CHANGE)
    assert await forgotten.stands()


async def test_a_first_time_is_applied_once_postgres_was_asked_once(
    make_client: MakeClient, settings: Settings, forgotten: Forgotten, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis tells how far it was flushed along with its stream."""
    await forgotten.bury()
    client = make_client(settings)
    await client.get(KEY)
    asked, reads, read = _asked(client, monkeypatch), list[list[Any]](), client._runtime.redis.read

    def noted(commands: Any, **more: Any) -> Any:
        reads.append([command[0] for command in commands])
        return read(commands, **more)

    monkeypatch.setattr(client._runtime.redis, "read", noted)
    assert (await client.set(KEY, "mine", change_id=CHANGE)).value == "mine"
    assert asked == ["lookup_change"]
    assert reads == [["HMGET"], ["XRANGE", "HMGET"]], "the states, and the stream"
