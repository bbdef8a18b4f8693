"""A list of one among many states: the newest, the first by key, and the newest whose value holds something.

By hand it is the statement that one would write, by the same index; nothing says there what has not reached Postgres
yet, or that a shard is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import psycopg

from statecache import Settings, StateCache
from tests.benchmarks.measuring import Row, in_turns
from tests.benchmarks.values import Value

STATES, CALLS = 20_000, 60
DIRTY = 50
TIMEOUT_S = 120.0
LIST_MS = 2.0
_COLUMNS = "SELECT key, version, value FROM state WHERE op = 'set' AND key LIKE 'runs/%%'"


def listing(settings: Settings, values: Sequence[Value], rounds: int) -> Iterator[Row]:
    """Measure the rows; a worker runs, and has flushed all but a few states."""
    path = f"-c search_path={settings.postgres_schema}"
    with (
        StateCache(settings=settings) as cache,
        psycopg.connect(settings.postgres_url, autocommit=True, options=path) as psql,
    ):
        for at in range(0, STATES, 2_000):
            cache.set_many(
                {f"runs/{n}": values[n % len(values)] for n in range(at, at + 2_000)},
                timeout=TIMEOUT_S, durability="postgres",
            )  # fmt: skip
        psql.execute("VACUUM ANALYZE state")

        def by_hand(order: str) -> Any:
            row = psql.execute(f"{_COLUMNS} ORDER BY {order} LIMIT 1", prepare=True).fetchone()
            return None if row is None else msgspec.json.decode(row[2])

        def ours(order: Any) -> Any:
            return next(iter(cache.list("runs/", order=order, limit=1))).value

        for name, order, statement in (
            ("newest", "newest", "updated_at DESC, key DESC"),
            ("first by key", "key", 'key COLLATE "C"'),
        ):
            if ours(order) != by_hand(statement):
                raise RuntimeError("the two sides find different states")
            yield in_turns(
                (f"list: the {name} of {STATES:,} states", partial(ours, order)),
                ("one SELECT by the same index, and json", partial(by_hand, statement)),
                bound=LIST_MS, rounds=rounds, calls=CALLS, unit="ms", alone=True,
            )  # fmt: skip
