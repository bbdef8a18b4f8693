"""A change as readers of the feed get it: one write of one state, with its value decoded."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, Literal, TypeVar

import msgspec

from statecache.model import Position

T = TypeVar("T")


class Change(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One write of one state in the current lineage.

    `op` is `set` or `delete`; the `value` of a delete is None. `version` counts the key's commits. `position` is the
    commit's place in its `shard`: changes of one commit share it. `parent_change_id` is the change before it. `at` is
    the Redis server's clock at the commit. `writer` is the process that committed, `actor` and `reason` are what it was
    told. `expires_at` is when the value was to end. `late` says that the change came out of quarantine after its
    position had been passed: newer ones of its key may have been given before it.

    `size` is that of the value in bytes, `sha256` its digest in hexadecimal, '' where it is not known. `kept` says
    whether the history still has the value; `durable` whether Postgres holds the change: what it does not hold yet may
    still be set aside as a conflict.
    """

    key: str
    op: str
    value: T | None
    version: int
    epoch: int
    change_id: str
    parent_change_id: str
    position: Position
    shard: int
    at: datetime
    writer: str
    actor: str
    reason: str
    schema: str = ""
    expires_at: datetime | None = None
    late: bool = False
    size: int = 0
    sha256: str = ""
    durable: bool = True
    kept: bool = True

    @property
    def deleted(self) -> bool:
        """Whether the state was deleted."""
        return self.op == "delete"


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was made from one of another key: `branch` began with it, `merge` took into it what was done there.

    `version` of `key` was made by `change_id`, from `origin_version` of `origin`, which `origin_change_id` made. That
    is empty as long as Postgres, which has gone back, does not hold it again. Of a group's branch `origin_version` is
    then the newest that is there of those up to where it began, or 0: it changes once the others are there.
    """

    kind: Literal["branch", "merge"]
    key: str
    version: int
    change_id: str
    origin: str
    origin_version: int
    origin_change_id: str
    at: datetime
    writer: str
    actor: str
    reason: str
