"""Runs the machine that compares the cache with a plain dict: how many examples, of how many steps, from which seed.

python -m tests.simulation.model --examples 500 --seed 7        # on servers of its own
"""

from __future__ import annotations

import argparse
import logging
import sys
from itertools import count
from typing import Any

import hypothesis
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test

from statecache import Settings
from statecache.clock import monotonic
from statecache.concurrency import THREADS, run
from statecache.core.postgres.migrate import migrate
from statecache_workers.logs import LOGGER
from tests.fixtures.servers import Site
from tests.simulation.machine import CacheMachine, MakeDeployment

_numbers = count(1)


def deployment(site: Site, prefix: str = "m") -> Settings:
    """Migrate a deployment of its own for one example, whose entries leave the stream as soon as they may."""
    name = f"{prefix}{next(_numbers)}"
    settings = Settings(
        redis_url=site.redis_url("embedded"), postgres_url=site.postgres_url, prefix=name, postgres_schema=name,
        shards=2, timeout_s=10.0, hydrate_token_s=0.1, retention_s=0.0, lease_renew_s=0.05, read="primary",
        redis_connections_max=4,
    )  # fmt: skip
    run(migrate(settings, io=THREADS))
    return settings


def check(
    make_deployment: MakeDeployment, *, examples: int, steps: int, seed: int | None, shrink: bool = False
) -> None:
    """Check that many examples: always the same ones without a seed."""

    def machine() -> CacheMachine:
        return CacheMachine(make_deployment)

    chosen = hypothesis_settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=seed is None, database=None,
        print_blob=True, suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if shrink else [])],
    )  # fmt: skip
    factory: Any = machine if seed is None else hypothesis.seed(seed)(machine)
    run_state_machine_as_test(factory, settings=chosen)


def main() -> None:
    """Run from the command line, on servers of its own."""
    parser = argparse.ArgumentParser(description="Check the cache against a plain dict.")
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shrink", action="store_true", help="look for a shorter example that fails too")
    given = parser.parse_args()
    logging.getLogger(LOGGER).setLevel(logging.CRITICAL + 1)
    sys.stdout.write(f"{given.examples} examples of {given.steps} steps, seed {given.seed}\n")
    site, started = Site(), monotonic()
    try:
        check(
            lambda: deployment(site), examples=given.examples, steps=given.steps, seed=given.seed, shrink=given.shrink
        )
    finally:
        site.close()
    sys.stdout.write(f"passed in {monotonic() - started:.0f} s\n")


if __name__ == "__main__":
    main()
