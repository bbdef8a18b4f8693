"""Measures statecache against hand-written code on throwaway servers, and prints a table.

    make bench                      or python -m tests.benchmarks
    make bench JSON=bench.json      writes the numbers as JSON too
    make bench RUNS=runs.jsonl      takes the values from recorded agent runs instead of the sample that is shipped
    make bench ROUNDS=9             5 or more

It only informs: the exit status is 0 whether or not the bounds are met, for a ratio on a busy machine is no verdict.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import redis

from statecache import StateCache
from statecache.keys import KeySpace
from statecache.testing import servers
from tests.benchmarks.exchanges import Exchanges
from tests.benchmarks.flushing import Flushing
from tests.benchmarks.measuring import Row
from tests.benchmarks.report import document, table
from tests.benchmarks.values import SAMPLE, values_of

ROUNDS_MIN = 5


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """This is what was asked for."""

    json: Path | None = None
    runs: Path = SAMPLE
    rounds: int = 7


def choices_of(arguments: Sequence[str], environment: Mapping[str, str]) -> Choices:
    """This reads NAME=value arguments, which win over the environment; ValueError where they are wrong."""
    given = {name: environment[name] for name in ("JSON", "RUNS", "ROUNDS") if environment.get(name)}
    for argument in arguments:
        name, sign, value = argument.partition("=")
        if name not in ("JSON", "RUNS", "ROUNDS") or not sign:
            raise ValueError(f"{argument!r} is not JSON=path, RUNS=path or ROUNDS=number")
        given[name] = value
    rounds = int(given.get("ROUNDS", Choices().rounds))
    if rounds < ROUNDS_MIN:
        raise ValueError(f"ROUNDS={rounds} is below {ROUNDS_MIN}")
    runs, json = Path(given.get("RUNS", SAMPLE)), Path(given["JSON"]) if "JSON" in given else None
    if not runs.is_file():
        raise ValueError(f"RUNS={runs} is not a file")
    if json is not None and not json.parent.is_dir():
        raise ValueError(f"JSON={json}: its folder does not exist")
    return Choices(json=json, runs=runs, rounds=rounds)


def measure(choices: Choices) -> tuple[list[Row], dict[str, str]]:
    """This gives the rows, and what the servers are."""
    values = values_of(choices.runs)
    with servers(workers=0) as running:
        bare: Any = redis.Redis.from_url(running.redis_url)
        with bare, StateCache(redis_url=running.redis_url, postgres_url=running.postgres_url) as cache:
            rows = list(Exchanges(cache, bare, values).rows(choices.rounds))
            space = KeySpace(cache.settings.prefix, cache.settings.shards)
            running.start_workers(1)
            rows += Flushing(running, bare, space, values).rows(choices.rounds)
            return rows, {"redis": _version(bare.info("server"))}


def _version(about: Mapping[str, Any]) -> str:
    return f"{about.get('server_name', 'redis')} {about.get('valkey_version', about['redis_version'])}"


def main(arguments: Sequence[str]) -> int:
    """This gives the exit status: 0 measured, 2 wrongly called."""
    try:
        choices = choices_of(arguments, os.environ)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    rows, versions = measure(choices)
    sys.stdout.write(table(rows))
    if choices.json is not None:
        choices.json.write_bytes(document(rows, rounds=choices.rounds, versions=versions))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
