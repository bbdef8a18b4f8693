"""Letting a million values of changes go, by a worker that flushes meanwhile: how far durability is behind then.

The changes are put into Postgres as flushes leave them, in runs of a keyframe and deltas: of each key 211 versions, of
which the policy keeps eleven. The same commits are offered, by schedule, before the worker begins and while it is at
it; of each round the p99 of the flush lag is compared with that of a round before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from hashlib import sha256
from threading import Event
from time import monotonic
from typing import Any

import msgspec
import psycopg

from statecache import Settings
from statecache.history import Parent, keep
from statecache.keys import KeySpace
from statecache.model import ChangeRecord
from tests.benchmarks.agents import Agents
from tests.benchmarks.backlog import Backlog
from tests.benchmarks.load import Load
from tests.benchmarks.measuring import Measure, Row, measure, percentile
from tests.benchmarks.values import Value

KEYS, VERSIONS, KEPT = 5_000, 211, 10
GONE = KEYS * (VERSIONS - KEPT - 1)
"""One of the old ones stays: it was replaced not long ago."""
RATE, CLIENTS = 800.0, 4
TIMES_MAX = 2.0
LOOK_S, WAIT_S = 0.25, 1800.0
_FILL = """
INSERT INTO change (key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding, schema, writer,
                    actor, reason, gap, at, packed, keyframe, size, digest, hash)
SELECT 'old/' || i, f.version, md5(i || '-' || f.version), '', i %% 64, 0, 0, 'set', f.value, 'json', '', 'bench',
       '', '', false, now() - CASE WHEN f.version > %(last)s THEN interval '1 day' ELSE interval '100 days' END,
       f.packed, f.keyframe, f.size, f.digest, f.digest
FROM generate_series(%(first)s::integer, %(end)s::integer) AS i
CROSS JOIN unnest(%(versions)s::bigint[], %(values)s::bytea[], %(packed)s::bytea[], %(keyframes)s::bigint[],
                  %(sizes)s::integer[], %(digests)s::bytea[])
           AS f (version, value, packed, keyframe, size, digest)
ORDER BY f.version, i
"""
_POLICY = "INSERT INTO retention (name, history, max_age, changed_by) VALUES ('old', 'full', %s, 'bench')"
_PASS = "SELECT ended_at IS NOT NULL, values, extract(epoch FROM coalesce(ended_at, now()) - begun_at) FROM prune_pass"


def pruning(settings: Settings, bare: Any, values: Sequence[Value], rounds: int) -> Iterator[Row]:
    """Measure the rows, with a worker that runs."""
    space = KeySpace(settings.prefix, settings.shards)
    path = f"-c search_path={settings.postgres_schema}"
    with psycopg.connect(settings.postgres_url, autocommit=True, options=path) as psql:
        _fill(psql)
        with Agents(settings, values, most=CLIENTS) as agents:
            load = Load(agents, bare, space, Backlog(bare, space, values))
            alone = [load.offer(CLIENTS, RATE).from_commit for _ in range(rounds)]
            psql.execute(_POLICY, [timedelta(days=30)])
            beside: list[list[float]] = []
            while not _state(psql)[1]:
                Event().wait(LOOK_S)
            while len(beside) < rounds and not _state(psql)[0]:
                beside.append(load.offer(CLIENTS, RATE).from_commit)
            if not beside:
                raise RuntimeError("the pass was over before anything was measured")
            yield Row(
                subject=measure(f"flush lag while {GONE:,} values go", beside),
                against=measure("the same when none do", alone),
                figures=[
                    percentile(ours, 99) / percentile(theirs, 99) for ours, theirs in zip(beside, alone, strict=False)
                ],
                bound=TIMES_MAX,
            )  # fmt: skip
            yield _pass(psql)


def _pass(psql: psycopg.Connection[Any]) -> Row:
    end = monotonic() + WAIT_S
    while not (found := _state(psql))[0]:
        if monotonic() > end:
            raise TimeoutError(f"after {found[2]:.0f} s {found[1]} values have gone")
        Event().wait(LOOK_S)
    _, gone, seconds = found
    if gone != GONE:
        raise RuntimeError(f"{gone} values have gone")
    return Row(subject=Measure(name="values that a worker lets go", ops_s=gone / seconds), figures=[gone / seconds])


def _state(psql: psycopg.Connection[Any]) -> tuple[bool, int, float]:
    found = psql.execute(_PASS).fetchone()
    return (False, 0, 0.0) if found is None else (found[0], found[1], float(found[2]))


def _fill(psql: psycopg.Connection[Any]) -> None:
    forms = _forms()
    columns = {
        "versions": [version for version, *_ in forms], "values": [value for _, value, *_ in forms],
        "packed": [packed for _, _, packed, *_ in forms], "keyframes": [keyframe for _, _, _, keyframe, *_ in forms],
        "sizes": [size for *_, size, _ in forms], "digests": [digest for *_, digest in forms],
    }  # fmt: skip
    for first in range(0, KEYS, 500):
        psql.execute(_FILL, columns | {"first": first, "end": first + 499, "last": VERSIONS - KEPT})
    psql.execute("VACUUM ANALYZE change")


def _forms() -> list[tuple[int, bytes | None, bytes | None, int | None, int, bytes]]:
    """Return how a conversation of so many messages is kept, version by version."""
    found = []
    parent: Parent | None = None
    messages: list[str] = []
    for version in range(1, VERSIONS + 1):
        messages.append(f"{version}: " + sha256(b"%d" % version).hexdigest() * 2)
        value = msgspec.json.encode({"messages": messages})
        change = ChangeRecord(
            change_id=f"c{version}", key="old/0", op="set", version=version, parent_change_id=f"c{version - 1}",
            value=value, encoding="json", schema="",
        )  # fmt: skip
        kept, parent = keep(change, parent)
        plain = value if kept.packed is None else None
        found.append((version, plain, kept.packed, kept.keyframe, len(value), kept.digest))
    return found
