"""Postgres is restored to what it held before, beside a Redis that remembers more: what is repeated is not durable."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.errors import OutcomeUnknown
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.fixtures.servers import MakeClient
from tests.fixtures.steps import Bank, Receipt
from tests.simulation.backups import Backup

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
        await client.set(KEY, 2, change_id=CHANGE, durability="postgres", timeout=0.5)
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
    assert await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, timeout=5) == receipt
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
        await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, timeout=0.5)
    given = await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt, durability="memory")
    assert given == receipt
    async with flushing(worker):
        assert await client.step(KEY, "charge", bank.charge, "order 7", type=Receipt) == receipt
    assert len(bank.charged) == 1
