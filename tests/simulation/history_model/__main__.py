"""`python -m tests.simulation.history_model` plays one history, on servers of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from random import Random

import msgspec

from statecache_workers.logs import LOGGER
from tests.fixtures.servers import Site
from tests.simulation.history_model.run import SECONDS, STEPS_MAX, run
from tests.simulation.model import deployment


def main() -> int:
    """Run from the command line, on servers of its own; return the exit status."""
    parser = argparse.ArgumentParser(description="Play random histories, and compare them with a plain model.")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--steps", type=int, default=STEPS_MAX)
    parser.add_argument("--seed", type=int, default=Random().randrange(10_000))
    given = parser.parse_args()
    for logger in (LOGGER, "statecache"):
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    _say(f"seed {given.seed}, {given.seconds:g} s")
    site = Site()
    try:
        result = asyncio.run(run(deployment(site, "h"), given.seed, seconds=given.seconds, steps=given.steps, say=_say))
    finally:
        site.close()
    for finding in result.findings:
        _say(f"VIOLATED seed {given.seed}: {finding}")
    _say(msgspec.json.encode(result).decode())
    return result.status


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
