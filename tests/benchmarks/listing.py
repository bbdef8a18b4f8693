"""Lists: of one among many states, the newest and the first by key, and of thousands.

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
MANY, MANY_CALLS = 2_000, 6
TIMEOUT_S = 120.0
LIST_MS, MANY_MAX = 2.0, 4.0
_COLUMNS = """SELECT key, version, value FROM state
WHERE split_part(key, '/', 1) = 'runs' AND key >= 'runs/' AND key < 'runs0' AND op = 'set'"""


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
            ("first by key", "key", "key"),
        ):
            if ours(order) != by_hand(statement):
                raise RuntimeError("the two sides find different states")
            yield in_turns(
                (f"list: the {name} of {STATES:,} states", partial(ours, order)),
                ("one SELECT by the same index, and json", partial(by_hand, statement)),
                bound=LIST_MS, rounds=rounds, calls=CALLS, unit="ms", alone=True,
            )  # fmt: skip

        def whole() -> int:
            return sum(state.value is not None for state in cache.list("runs/", limit=MANY))

        def whole_by_hand() -> int:
            rows = psql.execute(f"{_COLUMNS} ORDER BY key LIMIT {MANY}", prepare=True).fetchall()
            return len([msgspec.json.decode(row[2]) for row in rows])

        if (whole(), whole_by_hand()) != (MANY, MANY):
            raise RuntimeError("the two sides find different states")
        yield in_turns(
            (f"list: {MANY:,} states of 1 KB", whole), ("one SELECT, and json", whole_by_hand),
            bound=MANY_MAX, rounds=rounds, calls=MANY_CALLS,
        )  # fmt: skip
