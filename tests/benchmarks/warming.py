"""How fast an agent's process fills with states that only Postgres holds: `warm` beside one `get` after the other.

Ten thousand states of one kilobyte are laid and flushed; before each loading they are removed from Redis, where nobody
misses them, for they are clean. A new client loads all of them with `warm`; another new one gets a sample, one by one.
That many were not asked for one by one because it would take a minute. States a second are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import redis

from statecache import Settings, StateCache
from statecache.keys import KeySpace
from tests.benchmarks.backlog import PIPELINE, Backlog
from tests.benchmarks.measuring import Row, rates
from tests.benchmarks.values import Value

STATES, SAMPLE = 10_000, 400
ROUNDS_MAX = 5
BOUND = 10.0
TIMEOUT_S = 60.0


def warming(settings: Settings, values: Sequence[Value], rounds: int) -> Row:
    """Measure the row; one worker runs."""
    space, keys = KeySpace(settings.prefix, settings.shards), [f"warm/{number}" for number in range(STATES)]
    ours: list[float] = []
    theirs: list[float] = []
    with redis.Redis.from_url(settings.redis_url) as bare:
        backlog = Backlog(bare, space, values)
        backlog.lay(keys)
        backlog.until_flushed()
        sides = ((_at_once, keys, ours), (_one_by_one, keys[:: STATES // SAMPLE], theirs))
        for turn in range(min(rounds, ROUNDS_MAX)):
            for load, wanted, seen in sides[:: 1 if turn % 2 else -1]:
                _remove(bare, space, keys)
                with StateCache(settings=settings) as cache:
                    cache.get("bench/elsewhere")  # all connections stand now
                    begun = perf_counter()
                    load(cache, wanted)
                    seen.append(len(wanted) / (perf_counter() - begun))
                    _check(cache, bare, wanted, here=load is _at_once)
    subject = f"warm: states/s, {STATES:,} of 1 KB from Postgres"
    return rates((subject, ours), (f"get, one by one (a sample of {SAMPLE})", theirs), bound=BOUND)


def _at_once(cache: StateCache, keys: Sequence[str]) -> None:
    cache.warm(keys, timeout=TIMEOUT_S)


def _one_by_one(cache: StateCache, keys: Sequence[str]) -> None:
    for key in keys:
        cache.get(key)


def _remove(bare: Any, space: KeySpace, keys: Sequence[str]) -> None:
    for first in range(0, len(keys), PIPELINE):
        bare.unlink(*(space.state(key) for key in keys[first : first + PIPELINE]))


def _check(cache: StateCache, bare: Any, keys: Sequence[str], *, here: bool) -> None:
    """Raise RuntimeError where a state is missing, or is read from Redis though it should be in memory."""
    before = bare.info("stats")["total_commands_processed"]
    missing = sum(cache.get(key) is None for key in keys)
    asked = bare.info("stats")["total_commands_processed"] - before
    if missing or (here and asked > len(keys) // 10):
        raise RuntimeError(f"of {len(keys)} states {missing} are missing, and Redis was asked {asked} times")
