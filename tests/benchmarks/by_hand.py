"""A flusher as one would write it by hand: no ownership, no epochs, no checks, and so no promise.

XREAD a thousand entries; one statement that inserts the changes and upserts the last state of each key, from arrays in
binary form, into tables of the same definition with the same indexes; XTRIM. And its simplest form: every change in a
transaction of its own.
"""

from __future__ import annotations

from datetime import datetime
from time import perf_counter
from typing import Any, NamedTuple

import psycopg

BATCH = 1000
STREAM = "by-hand:changes"

TABLES = """
    CREATE SCHEMA IF NOT EXISTS by_hand;
    CREATE TABLE IF NOT EXISTS by_hand.change (LIKE statecache.change INCLUDING ALL);
    CREATE TABLE IF NOT EXISTS by_hand.state (LIKE statecache.state INCLUDING ALL)
"""
_COLUMNS = """
    key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding, schema, writer, actor, reason,
    gap, at
"""
_STATE = """
    INSERT INTO by_hand.state AS s (key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding,
                                    schema, writer, updated_at)
    SELECT key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding, schema, writer, at
    FROM batch WHERE last ORDER BY key
    ON CONFLICT (key) DO UPDATE SET
        version = excluded.version, change_id = excluded.change_id, parent_change_id = excluded.parent_change_id,
        epoch = excluded.epoch, n = excluded.n, op = excluded.op, value = excluded.value, encoding = excluded.encoding,
        schema = excluded.schema, writer = excluded.writer, updated_at = excluded.updated_at
"""
_INSERT = f"""
    ), added AS (
        INSERT INTO by_hand.change ({_COLUMNS}) SELECT {_COLUMNS} FROM batch
    )
    {_STATE}
"""
MANY = f"""
    WITH batch AS MATERIALIZED (
        SELECT * FROM unnest(%b::text[], %b::bigint[], %b::text[], %b::text[], %b::integer[], %b::bigint[],
                             %b::bigint[], %b::text[], %b::bytea[], %b::text[], %b::text[], %b::text[], %b::text[],
                             %b::text[], %b::boolean[], %b::timestamptz[], %b::boolean[])
        AS b ({_COLUMNS}, last)
    {_INSERT}
"""
ONE = f"""
    WITH batch ({_COLUMNS}, last) AS MATERIALIZED (
        SELECT %b::text, %b::bigint, %b::text, %b::text, %b::integer, %b::bigint, %b::bigint, %b::text, %b::bytea,
               %b::text, %b::text, %b::text, %b::text, %b::text, %b::boolean, %b::timestamptz, true
    {_INSERT}
"""


class Change(NamedTuple):
    """A row of the table of changes."""

    key: str
    version: int
    change_id: str
    parent_change_id: str
    shard: int
    epoch: int
    n: int
    op: str
    value: bytes
    encoding: str
    schema: str
    writer: str
    actor: str
    reason: str
    gap: bool
    at: datetime


def flush_in_batches(bare: Any, connection: psycopg.Connection[Any]) -> float:
    """Empty the stream into Postgres and return the seconds that it took."""
    started = perf_counter()
    last: bytes = b"0-0"
    while entries := _read(bare, last):
        changes = [_change(entry_id, fields) for entry_id, fields in entries]
        lasts = {change.key: at for at, change in enumerate(changes)}
        columns = [list(column) for column in zip(*changes, strict=True)]
        connection.execute(MANY, [*columns, [lasts[change.key] == at for at, change in enumerate(changes)]])
        last = entries[-1][0]
        epoch, _, n = last.partition(b"-")
        bare.xtrim(STREAM, minid=f"{int(epoch)}-{int(n) + 1}", approximate=False)
    return perf_counter() - started


def flush_one_by_one(bare: Any, connection: psycopg.Connection[Any], count: int) -> float:
    """Move that many changes, a transaction each, and return the seconds that it took."""
    started = perf_counter()
    entries: Any = bare.xrange(STREAM, count=count)
    for entry_id, fields in entries:
        change = _change(entry_id, fields)
        connection.execute(ONE, change)
    bare.delete(STREAM)
    return perf_counter() - started


def _read(bare: Any, last: bytes) -> list[Any]:
    found: Any = bare.xread({STREAM: last}, count=BATCH)
    return found[0][1] if found else []


def _change(entry_id: bytes, fields: dict[bytes, bytes]) -> Change:
    epoch, _, n = entry_id.partition(b"-")
    return Change(
        key=fields[b"key1"].decode(),
        version=int(fields[b"version1"]),
        change_id=fields[b"change_id"].decode(),
        parent_change_id=fields[b"parent1"].decode(),
        shard=0,
        epoch=int(epoch),
        n=int(n),
        op=fields[b"op1"].decode(),
        value=fields[b"value1"],
        encoding=fields[b"encoding1"].decode(),
        schema=fields[b"schema1"].decode(),
        writer=fields[b"writer"].decode(),
        actor=fields.get(b"actor", b"").decode(),
        reason=fields.get(b"reason", b"").decode(),
        gap=False,
        at=datetime.fromisoformat(fields[b"at"].decode()),
    )
