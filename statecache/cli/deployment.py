"""`migrate`, `worker`, `dev`, `version`: what runs the product."""

from __future__ import annotations

import asyncio
import platform
from pathlib import Path
from typing import Annotated

import typer

from statecache import __version__
from statecache.cli.exits import OK
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, settings_given, settings_of
from statecache.cli.screen import counted, print_json, say
from statecache.errors import UsageError
from statecache.settings import masked, unknown_variables
from statecache.sql import CODE

Port = Annotated[int | None, typer.Option(min=1, max=65535, metavar="PORT", help="Insist on this port.")]


def version(as_json: AsJson = False) -> int:
    """Show the version and the level of the schema that this code understands.

    \b
    Example:
      statecache version
    """
    if as_json:
        print_json({"version": __version__, "schema_code": CODE, "python": platform.python_version()})
    else:
        print(f"statecache {__version__} (schema code {CODE}, Python {platform.python_version()})")
    return OK


def migrate(
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    redis: Annotated[bool, typer.Option("--redis/--no-redis", help="Also adopt a fresh Redis.")] = True,
    as_json: AsJson = False,
) -> int:
    """Bring the Postgres schema up to date and adopt a fresh Redis; safe to repeat, safe twice at once.

    \b
    Examples:
      statecache migrate
      statecache migrate --no-redis         the schema only
    """
    from statecache.core.postgres.migrate import migrate as run

    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    report = asyncio.run(run(settings, redis=redis))
    if as_json:
        print_json(report)
        return OK
    for step in report.applied:
        print(f"applied {step}")
    if report.pinned:
        print(f"pinned {counted(settings.shards, 'shard')} and the prefix {settings.prefix!r}")
    if report.shards_added:
        print(f"added {counted(report.shards_added, 'shard row')}")
    if report.shards_opened:
        say(f"opened {counted(report.shards_opened, 'shard')} at {masked(settings.redis_url)}")
    if report.newer:
        say(f"left alone what a newer release has applied: {', '.join(map(str, report.newer))}")
    if not report.did_something:
        print("nothing to do")
    return OK


def worker(redis_url: RedisUrl = None, postgres_url: PostgresUrl = None) -> int:
    """Run a worker: it flushes changes into Postgres until SIGTERM, and shares the shards with the other workers.

    It logs to stderr, one JSON object a line.

    \b
    Example:
      STATECACHE_REDIS_URL=redis://… statecache worker
    """
    from statecache_workers.logs import log_to_stderr, warn
    from statecache_workers.runner import run_worker

    settings = settings_given(redis_url=redis_url, postgres_url=postgres_url)
    if unknown := unknown_variables():
        log_to_stderr()
        warn("unknown_settings", variables=sorted(unknown))
    return int(asyncio.run(run_worker(settings)))


def dev(
    folder: Annotated[Path | None, typer.Option(help="Where the data live; else the user's data folder.")] = None,
    redis_port: Port = None,
    postgres_port: Port = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line for all that happens.")] = False,
) -> int:
    """Run a Valkey, a Postgres and a worker to develop against, until Ctrl-C. No Docker, no root.

    With --json the first object holds the folders, `redis_url` and `postgres_url`: the servers answer when it is there.

    \b
    Examples:
      statecache dev
      statecache dev --folder ./state --redis-port 6380
      statecache dev --json | jq -r --unbuffered .redis_url
    """
    from statecache.dev import run_dev

    if redis_port is not None and redis_port == postgres_port:
        raise UsageError(f"two servers cannot share port {redis_port}", hint="Give two ports, or none.")
    return run_dev(folder=folder, redis_port=redis_port, postgres_port=postgres_port, as_json=as_json)
