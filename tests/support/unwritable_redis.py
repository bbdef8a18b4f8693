"""A Redis that takes no writes: without memory, without the replicas that it asks for, or without a disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.polling import pause_thread


@contextmanager
def configured(raw: Any, **values: str) -> Iterator[None]:
    """Have the server go by other settings."""
    before = {name: raw.config_get(name)[name] for name in values}
    for name, value in values.items():
        raw.config_set(name, value)
    try:
        yield
    finally:
        for name, value in reversed(before.items()):
            raw.config_set(name, value)


@contextmanager
def replicas_away(raw: Any) -> Iterator[None]:
    """Have the server ask for a replica that is not there."""
    with configured(raw, **{"min-replicas-to-write": "1"}):
        yield


@contextmanager
def disk_full(raw: Any) -> Iterator[None]:
    """Put a folder where the snapshot is to go."""
    target = Path(raw.config_get("dir")["dir"]) / raw.config_get("dbfilename")["dbfilename"]
    kept = target.read_bytes() if target.exists() else None
    target.unlink(missing_ok=True)
    target.mkdir()
    try:
        with configured(raw, save="3600 1"):
            raw.bgsave()
            _saved(raw, "err")
            yield
    finally:
        target.rmdir()
        if kept is not None:
            target.write_bytes(kept)
        raw.bgsave()
        _saved(raw, "ok")


def _saved(raw: Any, status: str) -> None:
    while True:
        told = raw.info("persistence")
        if not told["rdb_bgsave_in_progress"] and told["rdb_last_bgsave_status"] == status:
            return
        pause_thread()
