"""What it costs to wait for Postgres: one commit at a time on an idle system, beside a commit of Postgres alone.

Both write the same bytes. The difference is what Redis, the worker that is woken, its checks and the sign that it is
done add to the one commit with fsync that both have to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import psycopg

from statecache import StateCache
from tests.benchmarks.measuring import Row, in_turns
from tests.benchmarks.values import Value, encoded

CALLS = 60
KEY = "bench/durable"
TABLE = "CREATE TABLE IF NOT EXISTS bare_commit (id bigserial PRIMARY KEY, key text NOT NULL, value bytea NOT NULL)"
INSERT = "INSERT INTO bare_commit (key, value) VALUES (%b, %b)"


def durable_commit(cache: StateCache, postgres_url: str, values: Sequence[Value], *, rounds: int) -> Row:
    """Measure the row; one worker runs, and nobody else commits."""
    ours, theirs = cycle(values), cycle([encoded(value) for value in values])
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(TABLE)
        return in_turns(
            ("commit of 1 KB, durability postgres, idle", lambda: cache.set(KEY, next(ours), durability="postgres")),
            ("less: a bare Postgres commit of these bytes", lambda: connection.execute(INSERT, (KEY, next(theirs)))),
            bound=3.0, unit="ms", rounds=rounds, calls=CALLS,
        )  # fmt: skip
