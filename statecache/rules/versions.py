"""A change of a key without its value: what is listed of history, and what a value is asked for by."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from statecache.expiry import expires_at
from statecache.model import ChangeRecord, ChangeSet, Position


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a key; `unflushed` is its value where Postgres does not hold it yet, `kept` whether it has one."""

    key: str
    version: int
    op: str
    change_id: str
    parent_change_id: str
    position: Position
    at: datetime
    writer: str
    actor: str
    reason: str
    encoding: str
    schema: str
    size: int
    digest: bytes | None
    gap: bool = False
    kept: bool = True
    unflushed: bytes | None = None

    @property
    def epoch(self) -> int:
        """The epoch in which it was committed."""
        return self.position.epoch

    @property
    def durable(self) -> bool:
        """Whether Postgres holds it."""
        return self.unflushed is None


def at_moment(version: Version, time: datetime | None) -> Version:
    """Return a version as it was at a moment: as `expired`, where the end of what it holds had come by then."""
    ends = None if time is None or version.op != "set" else expires_at(version.encoding)
    return version if ends is None or time is None or time < ends else msgspec.structs.replace(version, op="expired")


def version_of_row(row: Sequence[Any]) -> Version:
    """Read a row of `history_versions` or `history_at`."""
    epoch, _, version, op, change_id, parent, n, at, writer, actor, reason, encoding, schema, size, digest, *more = row
    gap, kept, key = more[:3]
    return Version(
        key=key, version=version, op=op, change_id=change_id, parent_change_id=parent,
        position=Position(epoch, n), at=at,
        writer=writer, actor=actor, reason=reason, encoding=encoding, schema=schema, size=size or 0,
        digest=None if digest is None else bytes(digest), gap=gap, kept=kept,
    )  # fmt: skip


def version_of_change(change_set: ChangeSet, change: ChangeRecord) -> Version:
    """Return the version that a change in the stream is."""
    return Version(
        key=change.key, version=change.version, op=change.op, change_id=change.change_id,
        parent_change_id=change.parent_change_id, position=change_set.position, at=change_set.at,
        writer=change_set.writer, actor=change_set.actor, reason=change_set.reason, encoding=change.encoding,
        schema=change.schema, size=len(change.value), digest=sha256(change.value).digest(), unflushed=change.value,
    )  # fmt: skip
