"""How the flush goes with 1, 2 and 4 workers, each with an even part of the shards, over a backlog that stands ready.

Workers are processes: on a machine with fewer cores than workers, Redis and Postgres need, more of them bring nothing.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from statistics import median

import psycopg

from statecache.testing.embedded import Servers
from tests.benchmarks.backlog import Backlog, until
from tests.benchmarks.flushing import flush_rate
from tests.benchmarks.measuring import Measure, Row

WORKERS = (1, 2, 4)
CHANGES = 10_000
ROUNDS_MAX = 5
OWNED = "SELECT count(*) FROM statecache.shard WHERE lease_until > now() GROUP BY owner"


def workers(running: Servers, backlog: Backlog, *, shards: int, rounds: int) -> list[Row]:
    """Measure each number of workers in every round; leave one worker running."""
    rates: dict[int, list[float]] = defaultdict(list)
    with psycopg.connect(running.postgres_url, autocommit=True) as connection:
        for turn in range(min(rounds, ROUNDS_MAX)):
            for count in WORKERS[:: 1 if turn % 2 else -1]:
                running.stop_workers()
                running.start_workers(count)
                until(partial(_shared_out, connection, shards, count), "an even part for each worker")
                rates[count].append(flush_rate(running, backlog, CHANGES))
    return [
        Row(
            subject=Measure(name=f"flush by {count} worker{'s' if count > 1 else ''}", ops_s=median(rates[count])),
            figures=[ours / one for ours, one in zip(rates[count], rates[1], strict=True)],
        )
        for count in WORKERS
    ]


def _shared_out(connection: psycopg.Connection[tuple[int]], shards: int, count: int) -> bool:
    return sorted(owned for (owned,) in connection.execute(OWNED)) == [shards // count] * count
