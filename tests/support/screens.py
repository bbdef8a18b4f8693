"""What the live screen shows of a deployment that is made up."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from statecache.cli.status.sample import Sample, Server, Shard, WorkerSeen
from statecache.cli.top.view import View
from statecache.clock import wall
from statecache.settings import Settings

SETTINGS = Settings(redis_url="redis://x/0", postgres_url="postgresql://x/y", shards=64, backlog_entries_max=1000)


def sample(*, at_s: float = 0.0, **facts: Any) -> Sample:
    """Return what one look finds, with these facts instead of the usual ones."""
    given: dict[str, Any] = {
        "redis": Server(url="redis://x/0", version="Valkey 9.1", role="primary", keeps="append-only file"),
        "postgres": Server(url="postgresql://x/y", version="Postgres 18", role="primary"),
        "shards": [
            Shard(shard=n, epoch=1, open=True, owned=True, flushed=0, lag_entries=n * 10, lag_bytes=n, lag_s=1.0)
            for n in range(64)
        ],
        "workers": [WorkerSeen(id=f"host-{n}:{'x' * 40}", shards=3, heartbeat_s=0.5, up_s=9) for n in range(30)],
        "quarantined": 0, "conflicts": 1001, "committed_total": 0, "flushed_total": 0, "keys": [],
    }  # fmt: skip
    return Sample(at=wall(), at_s=at_s, **{**given, **facts})


def drawn(figures: Any, width: int, height: int) -> list[str]:
    """Return the lines of a screen of that size."""
    screen = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with screen.capture() as captured:
        screen.print(View(screen, figures))
    return [line.rstrip() for line in captured.get().split("\n")]
