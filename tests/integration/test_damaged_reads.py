"""A version is read only if its row says what its hash is over: another one's data is never given in its place."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, HistoryDamaged
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush

Psql = psycopg.Connection[Any]
ROW = "WHERE key = 'runs/1' AND version = "
SWAP = (
    "UPDATE change a SET value = b.value, digest = b.digest, size = b.size FROM change b"
    " WHERE a.key = 'runs/1' AND b.key = a.key AND a.version + b.version = 5 AND a.version IN (2, 3)"
)
DAMAGES = [
    f"UPDATE change SET op = 'delete' {ROW} 2",
    f"UPDATE change SET encoding = 'raw' {ROW} 2",
    f"UPDATE change SET schema = 'other:9' {ROW} 2",
    f"UPDATE change SET parent_change_id = 'x' {ROW} 2",
    f"UPDATE change SET digest = NULL, value = '{{}}' {ROW} 2",
    f"UPDATE change SET hash = sha256('another') {ROW} 2",
    SWAP,
]


@pytest.fixture
async def written(cache: AsyncStateCache, worker: Worker) -> AsyncStateCache:
    """A client, and four versions of a key that Postgres holds."""
    for number in range(1, 5):
        await cache.set("runs/1", {"n": number})
    await flush(worker)
    return cache


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_row_that_does_not_fit_its_hash_is_never_read(
    written: AsyncStateCache, psql: Psql, damage: str
) -> None:
    state = await written.get_at("runs/1", version=2)
    assert state is not None
    assert state.position is not None
    psql.execute(damage.encode())
    for read in (
        written.get_at("runs/1", version=2),
        written.get_at("runs/1", position=state.position),
        written.get_group_at("runs/1", position=state.position),
        written.rollback("runs/1", 2),
        written.branch("runs/1", "runs/2", at=2),
    ):
        with pytest.raises(HistoryDamaged) as caught:
            await read
        assert (caught.value.key, caught.value.version) == ("runs/1", 2)
    last = await written.get_at("runs/1", version=4)
    assert last is not None
    assert last.value == {"n": 4}
    now = await written.get("runs/1")
    assert now is not None
    assert (now.version, await written.get("runs/2")) == (4, None)


async def test_rows_without_a_hash_or_behind_one_that_is_not_there_are_read(
    written: AsyncStateCache, psql: Psql
) -> None:
    """As those of an earlier release, and those behind rows that an operator has deleted, or an erasure has blanked."""
    psql.execute(f"DELETE FROM change {ROW} 1".encode())
    psql.execute(f"UPDATE change SET hash = NULL, digest = NULL {ROW} 3".encode())
    for version in (2, 3, 4):
        state = await written.get_at("runs/1", version=version)
        assert state is not None
        assert state.value == {"n": version}
