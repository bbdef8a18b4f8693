"""The commands. Each one reads settings, calls what does the work, and gives the exit status."""

import asyncio
import getpass
import json
import platform
from importlib.resources import as_file, files
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Any

import msgspec
import typer

from statecache import __version__
from statecache.cli.status import FINDING, OK, USAGE
from statecache.errors import UsageError
from statecache.model import DURABILITIES
from statecache.settings import Settings, masked
from statecache.sql import CODE

RedisUrl = Annotated[str | None, typer.Option("--redis-url", metavar="URL", help="Else STATECACHE_REDIS_URL.")]
PostgresUrl = Annotated[str | None, typer.Option("--postgres-url", metavar="URL", help="Else STATECACHE_POSTGRES_URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 ok, 1 finding, 2 usage, 3 configuration, 4 unreachable. Settings: STATECACHE_* variables.",
)
epoch = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look after the shards' epochs.")
app.add_typer(epoch, name="epoch")


def _settings(**given: Any) -> Settings:
    return Settings(**{name: value for name, value in given.items() if value is not None})


@app.callback()
def statecache(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; also STATECACHE_DEBUG=1.")] = False,
) -> None:
    """Agent state that every worker can share: hot in Redis, durable in Postgres.

    \b
    Examples:
      statecache dev                        servers to develop against
      statecache replay                     see it survive kills, on throwaway servers
      statecache migrate && statecache worker
      statecache where runs/42
    """


@app.command(short_help="Show the version.")
def version() -> int:
    """Show the version and the level of the schema that this code understands.

    \b
    Example:
      statecache version
    """
    print(f"statecache {__version__} (schema code {CODE}, Python {platform.python_version()})")
    return OK


@app.command(short_help="Bring the Postgres schema up to date.")
def migrate(
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    redis: Annotated[bool, typer.Option("--redis/--no-redis", help="Also adopt a fresh Redis.")] = True,
) -> int:
    """Bring the Postgres schema up to date and adopt a fresh Redis; safe to repeat, safe twice at once.

    \b
    Examples:
      statecache migrate
      statecache migrate --no-redis         the schema only
    """
    from statecache._async.migrate import migrate as run

    settings = _settings(redis_url=redis_url, postgres_url=postgres_url)
    report = asyncio.run(run(settings, redis=redis))
    for step in report.applied:
        print(f"applied {step}")
    if report.pinned:
        print(f"pinned {settings.shards} shards and the prefix {settings.prefix!r}")
    if report.shards_added:
        print(f"added {report.shards_added} shard rows")
    if report.shards_opened:
        print(f"opened {report.shards_opened} shards at {masked(settings.redis_url)}")
    if report.newer:
        print(f"left alone what a newer release has applied: {', '.join(map(str, report.newer))}")
    if not report.did_something:
        print("nothing to do")
    return OK


@app.command(short_help="Run a worker until SIGTERM.")
def worker(redis_url: RedisUrl = None, postgres_url: PostgresUrl = None) -> int:
    """Run a worker: it flushes changes into Postgres until SIGTERM, and shares the shards with the other workers.

    \b
    Example:
      STATECACHE_REDIS_URL=redis://… STATECACHE_POSTGRES_URL=postgresql://… statecache worker
    """
    from statecache_workers.runner import run_worker

    return int(asyncio.run(run_worker(_settings(redis_url=redis_url, postgres_url=postgres_url))))


@app.command(short_help="Run servers to develop against.")
def dev(
    folder: Annotated[Path | None, typer.Option(help="Where the data live; else the user's data folder.")] = None,
    redis_port: Annotated[int | None, typer.Option(help="Insist on this port.")] = None,
    postgres_port: Annotated[int | None, typer.Option(help="Insist on this port.")] = None,
) -> int:
    """Run a Valkey, a Postgres and a worker to develop against, until Ctrl-C. No Docker, no root.

    \b
    Examples:
      statecache dev
      statecache dev --folder ./state --redis-port 6380
    """
    from statecache.dev import run_dev

    return run_dev(folder=folder, redis_port=redis_port, postgres_port=postgres_port)


@app.command(short_help="Tell where a key lives.")
def where(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Like runs/42.")],
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Tell where a key lives, with lines for redis-cli and psql to paste.

    \b
    Examples:
      statecache where runs/42
      statecache where runs/42 --json
    """
    from statecache.cli.where import where as look

    found = look(_settings(redis_url=redis_url, postgres_url=postgres_url), key)
    if as_json:
        print(msgspec.json.encode(found).decode())
        return OK
    print(f"key        {found.key}")
    print(f"shard      {found.shard} of {found.shards}")
    print(f"Redis key  {found.redis_key}")
    for note in found.notes:
        print(f"# {note}")
    print("# what agents see now")
    print(found.redis_cli)
    print("# what Postgres holds")
    print(found.psql)
    return OK


@epoch.command(short_help="Declare this Redis the primary of shards.")
def claim(
    shards: Annotated[list[str], typer.Argument(metavar="SHARD…|all", help="Shard numbers, or all.")],
    yes: Annotated[bool, typer.Option("--yes", help="Say that this Redis is the primary.")] = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
) -> int:
    """Declare this Redis the primary of shards that nobody else may open, and open them.

    What it holds that is not the current lineage's goes to `conflict`; what it lacks is loaded from Postgres.

    \b
    Examples:
      statecache epoch claim all --yes
      statecache epoch claim 7 12 --yes
    """
    from statecache.cli.epochs import claim as run
    from statecache.cli.epochs import numbers

    settings = _settings(redis_url=redis_url, postgres_url=postgres_url)
    asked = numbers(shards, settings.shards)
    if not yes:
        raise UsageError(
            f"this declares {masked(settings.redis_url)} the primary of {len(asked)} shards, whatever other Redis "
            f"still serves agents of {masked(settings.postgres_url)}",
            hint="Say --yes if it is.",
        )
    opened = asyncio.run(run(settings, asked, by=f"operator {getpass.getuser()}"))
    for one in opened:
        print(f"shard {one.shard}: epoch {one.epoch}, {one.dropped} states dropped, {one.conflicts} conflicts")
    if not opened:
        print("nothing to do: these shards are open")
    return OK


@app.command(short_help="Replay agent runs, kill, audit.")
def replay(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Recorded runs; else a sample.")] = None,
    agents: Annotated[int, typer.Option(min=1, max=64, help="Agent processes.")] = 4,
    workers: Annotated[int, typer.Option(min=0, max=16, help="Flusher processes to start.")] = 2,
    kill: Annotated[str, typer.Option(metavar="KINDS", help="Of agent,flusher,redis,postgres; each three times.")] = "",
    seed: Annotated[int | None, typer.Option(min=0, help="Fixes the moments of the kills.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="RUNS", help="Only the first runs.")] = None,
    durability: Annotated[str | None, typer.Option(help="Else disk, or postgres where that is refused.")] = None,
    think_ms: Annotated[float | None, typer.Option(min=0, help="Before each message; else as kills need.")] = None,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="For all of it.")] = 900.0,
    journals: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Keep journals and logs there.")] = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Replay recorded agent runs, kill what they stand on, and audit that nothing is lost, doubled or forked.

    Without URLs, in settings or here, it runs on throwaway servers of its own, which it may kill. Exit status 1 where
    the audit fails, 2 where something could not be killed three times with commits in flight.

    \b
    Examples:
      statecache replay
      statecache replay --kill agent,flusher,redis,postgres --seed 7
      statecache replay runs.jsonl --agents 8 --durability postgres --json
    """
    from statecache.cli import replay_view
    from statecache.replay.nemesis import KILLS_EACH
    from statecache.replay.supervisor import Options, refuse_unfit
    from statecache.replay.supervisor import replay as run

    if durability is not None and durability not in DURABILITIES:
        raise UsageError(f"durability {durability!r} is not one of {', '.join(DURABILITIES)}")
    settings = _settings(redis_url=redis_url, postgres_url=postgres_url)
    options = Options(
        runs=_runs(file, limit),
        seed=SystemRandom().randrange(1_000_000) if seed is None else seed,
        agents=agents,
        flushers=workers,
        kills=tuple(dict.fromkeys(kind.strip() for kind in kill.split(",") if kind.strip())),
        durability=durability,
        think_s=None if think_ms is None else think_ms / 1000,
        timeout_s=timeout,
        journals=journals,
    )
    refuse_unfit(options, settings)
    typer.echo(f"seed {options.seed}: {len(options.runs)} runs, {options.messages} messages", err=True)
    with replay_view.View(options.messages) as view:
        report = run(options, settings, show=view)
    replay_view.show(report, on_stderr=as_json)
    if as_json:
        print(json.dumps(msgspec.to_builtins(report)))
    if not report.audit_ok:
        return FINDING
    if not report.kills_reached:
        few = ", ".join(f"{kind} {count}" for kind, count in report.kills.items() if count < KILLS_EACH)
        typer.echo(f"statecache: not killed {KILLS_EACH} times with commits in flight: {few}", err=True)
        return USAGE
    return OK


def _runs(file: Path | None, limit: int | None) -> list[Any]:
    from statecache.replay.runs import read_runs

    if file is None:
        with as_file(files("statecache.replay") / "sample.jsonl") as sample:
            return read_runs(sample.read_bytes(), name="the sample", limit=limit)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    return read_runs(data, name=str(file), limit=limit)
