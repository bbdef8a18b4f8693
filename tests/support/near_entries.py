"""A near cache by itself, without a client: what is read into it, and what a local read gets."""

from __future__ import annotations

import threading

from statecache.concurrency.waking import ThreadSignal
from statecache.model import Record
from statecache.near import Near

WINDOW_S = 2.0
KEY = "runs/1"


def record(version: int, *, key: str = KEY, epoch: int = 1, value: bytes = b"1") -> Record:
    """Return a record of that version."""
    return Record(
        key=key, op="set", value=value, version=version, epoch=epoch, change_id=f"c{version}", parent_change_id="",
        position=f"{epoch}-{version}", encoding="json", schema="", updated_at="", writer="",
    )  # fmt: skip


def made(*, bytes_max: int = 1_000_000, entries_max: int = 100) -> Near:
    """Return a near cache whose connection last answered at 0."""
    near = Near(
        bytes_max=bytes_max,
        entries_max=entries_max,
        window_s=WINDOW_S,
        mutex=threading.Lock(),
        server_ms=lambda at: at * 1000,
    )
    near.answered(0.0)
    return near


def fill(near: Near, one: Record) -> None:
    """Read a state as the tracked connection does."""
    reading, mine = near.reserve(one.key, ThreadSignal(), 0.0)
    assert mine
    near.settle(reading, one)


def version_at(near: Near, now: float = 0.5, *, stale_s: float = 10.0, key: str = KEY) -> int | None:
    """Return the version that a local read gets, None where it gets nothing."""
    entry = near.look(key, now, stale_s)
    return None if entry is None else entry.record.version
