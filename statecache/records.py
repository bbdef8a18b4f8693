"""How a state's hash reads and is spelled: from Redis' bytes or a row of Postgres to a `Record`, and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from statecache.errors import ForeignData
from statecache.expiry import stored
from statecache.model import Position, Record, State, Write

FIELDS = (
    "key", "op", "value", "version", "epoch", "change_id", "parent_change_id", "position", "encoding", "schema",
    "updated_at", "writer",
)  # fmt: skip
"""The fields of a state's hash that a reader asks for, in the order in which `record_of` takes them."""


def record_of(redis_key: str, key: str, reply: Sequence[bytes | None]) -> Record | None:
    """Read the reply to an HMGET of FIELDS; return None for an absent hash, raise ForeignData for a foreign one."""
    if None in reply:
        absent = [name for name, part in zip(FIELDS, reply, strict=False) if part is None]
        if len(absent) == len(FIELDS):
            return None
        raise ForeignData(redis_key, reason=f"the fields {', '.join(absent)} are missing")
    try:
        found, op, value, version, epoch, change_id, parent, position, encoding, schema, updated_at, writer = reply
        record = Record(
            key=found.decode(),  # type: ignore[union-attr]
            op=op.decode(),  # type: ignore[union-attr]
            value=value,  # type: ignore[arg-type]
            version=int(version),  # type: ignore[arg-type]
            epoch=int(epoch),  # type: ignore[arg-type]
            change_id=change_id.decode(),  # type: ignore[union-attr]
            parent_change_id=parent.decode(),  # type: ignore[union-attr]
            position=position.decode(),  # type: ignore[union-attr]
            encoding=encoding.decode(),  # type: ignore[union-attr]
            schema=schema.decode(),  # type: ignore[union-attr]
            updated_at=updated_at.decode(),  # type: ignore[union-attr]
            writer=writer.decode(),  # type: ignore[union-attr]
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ForeignData(redis_key, reason=str(error)) from error
    if record.key != key:
        raise ForeignData(redis_key, reason=f"it holds the state of {record.key!r}")
    return record


def hash_of(record: Record, recent: str, ttl_ms: int, *, lost: bool, parts: str = "") -> list[Any]:
    """Return a record as hydration installs it, with `recent`, the time to live in ms, and whether changes are lost.

    `parts` tells of its commit (see `entries`), where there is anything to tell.
    """
    return [
        record.key, record.op, record.value, record.version, record.epoch, record.change_id, record.parent_change_id,
        record.position, record.encoding, record.schema, record.updated_at, record.writer, recent, ttl_ms,
        "1" if lost else "", parts,
    ]  # fmt: skip


def record_of_row(row: Sequence[Any]) -> tuple[Record, str]:
    """Read a row of the statement `states`; return its record and its `recent`."""
    key, op, value, version, epoch, n, change_id, parent, encoding, schema, writer, updated_at, recent = row
    record = Record(
        key=key,
        op=op,
        value=bytes(value),
        version=version,
        epoch=epoch,
        change_id=change_id,
        parent_change_id=parent,
        position=str(Position(epoch, n)),
        encoding=encoding,
        schema=schema,
        updated_at=text_of(updated_at),
        writer=writer,
    )
    return record, " ".join(recent)


def record_of_write(write: Write, state: State[Any]) -> Record:
    """Return the record that a commit's write has left, made from the write and its state."""
    return Record(
        key=write.key,
        op=write.op,
        value=write.value,
        version=state.version,
        epoch=state.epoch,
        change_id=state.change_id,
        parent_change_id=state.parent_change_id,
        position=str(state.position),
        encoding=stored(write.encoding, state.updated_at),
        schema=write.schema,
        updated_at=text_of(state.updated_at),
        writer=state.writer,
    )


def absence(key: str, epoch: int) -> Record:
    """Return the record of a key that nobody ever wrote."""
    return Record(
        key=key, op="absent", value=b"", version=0, epoch=epoch, change_id="", parent_change_id="", position="",
        encoding="", schema="", updated_at="", writer="",
    )  # fmt: skip


def text_of(at: datetime) -> str:
    """Return a time as the scripts write it: UTC, microseconds, Z."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def time_of(text: str) -> datetime:
    """Read a time as the scripts write it, aware and in UTC; 1970-01-01 for an empty text."""
    return datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)
