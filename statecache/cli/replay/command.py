"""`replay`: the command around the replay of recorded agent runs."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Any

import typer

from statecache.cli.exits import FINDING, OK, USAGE
from statecache.cli.interrupts import Interrupts
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, settings_of
from statecache.cli.screen import print_json
from statecache.errors import UsageError
from statecache.model import DURABILITIES


def replay(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Recorded runs; else a sample.")] = None,
    agents: Annotated[int, typer.Option(min=1, max=64, help="Agent processes.")] = 4,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Flusher processes to start.")] = 2,
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

    Without URLs, in settings or here, it runs on throwaway servers of its own, which it may kill. On yours it makes a
    key prefix and a Postgres schema of its own beside what is there, and removes them at its end. Exit status 1 where
    the audit fails, 2 where something could not be killed three times with commits in flight.

    \b
    Examples:
      statecache replay
      statecache replay --kill agent,flusher,redis,postgres --seed 7
      statecache replay runs.jsonl --agents 8 --durability postgres --json
    """
    from statecache.cli.replay import view as replay_view
    from statecache.replay.nemesis import KILLS_EACH
    from statecache.replay.supervisor import Options, refuse_unfit
    from statecache.replay.supervisor import replay as run

    if durability is not None and durability not in DURABILITIES:
        raise UsageError(f"durability {durability!r} is not one of {', '.join(DURABILITIES)}")
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
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
    with Interrupts(), replay_view.View(options.messages) as view:
        report = run(options, settings, show=view)
    replay_view.show(report, on_stderr=as_json)
    if as_json:
        print_json(report)
    if not report.audit_ok:
        return FINDING
    if not report.kills_reached:
        few = ", ".join(f"{kind} {count}" for kind, count in report.kills.items() if count < KILLS_EACH)
        typer.echo(f"statecache: not killed {KILLS_EACH} times with commits in flight: {few}", err=True)
        return USAGE
    return OK


def sample(limit: int | None = None) -> list[Any]:
    """Return the recorded runs that come along."""
    from statecache.replay.runs import read_runs

    with as_file(files("statecache.replay") / "sample.jsonl") as file:
        return read_runs(file.read_bytes(), name="the sample", limit=limit)


def _runs(file: Path | None, limit: int | None) -> list[Any]:
    from statecache.replay.runs import read_runs

    if file is None:
        return sample(limit)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    return read_runs(data, name=str(file), limit=limit)
