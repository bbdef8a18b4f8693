"""`demo`: agents at work on throwaway servers, everything is killed, and an audit looks at what is left.

It is the replay of the recorded runs that come along, made to be watched. Ctrl-C ends it at any time: one interrupt is
enough, further ones are ignored while processes and folders go. Once the last screen is there, its status stands:
with --keep Ctrl-C is how a person goes home.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from statecache.cli.exits import FINDING, OK
from statecache.cli.interrupts import Interrupts
from statecache.cli.options import AsJson, settings_of
from statecache.cli.screen import console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from statecache.cli.demo.afterwards import Afterwards
    from statecache.replay.report import Report
    from statecache.replay.stage import Stage
    from statecache.replay.supervisor import Played

AGENTS, WORKERS = 4, 2
TIMEOUT_S = 300.0
THINK_S = 1.0
"""An agent's pause before each message: slow enough to see who is killed and who comes back."""
_WAIT_S = 3600.0


def demo(
    seed: Annotated[int | None, typer.Option(min=0, help="Fixes the moments of the kills.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the servers up at the end, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> int:
    """Watch agents at work while agents, workers, Redis and Postgres are killed; then an audit. Takes half a minute.

    Four agents replay recorded runs with two workers on throwaway servers, whatever the settings name. Each kind is
    killed three times with SIGKILL while commits are in flight. In the end one run goes back to before its agent was
    killed, and goes another way from there on a branch. Exit status 1 where the audit fails, or where one of
    the kinds was not killed; 130 after Ctrl-C, but for the one that ends --keep.

    \b
    Examples:
      statecache demo
      statecache demo --seed 7        the same kills again
      statecache demo --keep          servers to look into
      statecache demo --json > demo.json
    """
    from statecache.cli.demo import view as demo_view
    from statecache.cli.replay.command import sample
    from statecache.replay.nemesis import KINDS
    from statecache.replay.supervisor import Options, replayed

    options = Options(
        runs=sample(),
        seed=SystemRandom().randrange(1_000_000) if seed is None else seed,
        agents=AGENTS,
        flushers=WORKERS,
        kills=KINDS,
        think_s=THINK_S,
        timeout_s=TIMEOUT_S,
        throwaway=True,
    )
    settings = settings_of()
    screen = console(on_stderr=as_json)
    with Interrupts() as interrupts:
        with demo_view.View(screen, options) as view, replayed(options, settings, show=view) as played:
            view.goes_on("going back with one run")
            after = _gone_back(played)
            interrupts.ignore_unless(keep)
            seconds = view.close()
            lines = [] if keep else lines_to_try(options.seed)
            demo_view.show(screen, played, lines, seconds=seconds, after=after)
            if as_json:
                print_json(facts(played, seconds=seconds, after=after))
                sys.stdout.flush()
            if keep:
                _keep(played, screen, interrupts, after)
        return status_of(played.report)


def status_of(report: Report) -> int:
    """Return the exit status that a report leads to."""
    return OK if report.audit_ok and all(report.kills.values()) else FINDING


def _gone_back(played: Played) -> Afterwards | None:
    """Go back with the run that is told of; where the audit failed, all is left as it was found."""
    import asyncio

    from statecache.cli.demo.afterwards import gone_back

    servers = played.stage.servers
    if servers is None or played.story is None or not played.report.audit_ok:
        return None
    servers.start_workers(1)
    return asyncio.run(gone_back(played.stage.settings, played.story))


def facts(played: Played, *, seconds: float, after: Afterwards | None = None) -> dict[str, Any]:
    """Return the object of --json: the replay's report, the seconds of it, one run's story, where that went back to."""
    found: dict[str, Any] = msgspec.to_builtins(played.report)
    back = None if after is None else {"key": after.key, "version": after.version, "branch": after.branch}
    return found | {"seconds": round(seconds, 1), "story": msgspec.to_builtins(played.story), "went_back": back}


def lines_to_try(seed: int) -> list[str]:
    """Return commands to go on with; each works as it stands."""
    name = program()
    return [
        f"{name} demo --seed {seed} --keep",
        f"{name} replay --kill redis,postgres --agents 8",
        f"{name} dev",
    ]


def program() -> str:
    """Return how a shell here finds this very command: by its name, by its path, or through Python."""
    beside = Path(sys.executable).with_name("statecache")
    found = shutil.which("statecache")
    if found is not None and beside.exists() and Path(found).samefile(beside):
        return "statecache"
    if not os.access(beside, os.X_OK):
        return f"{shlex.quote(sys.executable)} -m statecache"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


def lines_to_look(stage: Stage, key: str) -> list[str]:
    """Return lines for another terminal while the servers are up; the first two set the servers' URLs."""
    from statecache.keys import KeySpace
    from statecache.testing.binaries import postgres_install

    settings = stage.settings
    state = KeySpace(settings.prefix, settings.shards).state(key)
    changes = f"{settings.postgres_schema}.change"
    query = f"select version, epoch, writer from {changes} where key = '{key}' order by 1"  # noqa: S608 - to be read
    psql = shutil.which("psql") or str(postgres_install(None, scratch=Path()).program("psql"))
    lines = [f"export {name}={shlex.quote(stage.environment[name])}" for name in _URLS]
    lines += [f"{program()} get {shlex.quote(key)}", f"{program()} log {shlex.quote(key)}", f"{program()} top"]
    redis_cli = shutil.which("redis-cli") or shutil.which("valkey-cli")
    if redis_cli is not None:
        lines.append(f'{_short(redis_cli)} -u "$STATECACHE_REDIS_URL" HGETALL {shlex.quote(state)}')
    return [*lines, f'{_short(psql)} "$STATECACHE_POSTGRES_URL" -c "{query}"']


_URLS = ("STATECACHE_REDIS_URL", "STATECACHE_POSTGRES_URL")


def _short(path: str) -> str:
    name = Path(path).name
    return name if shutil.which(name) == path else shlex.quote(path)


def _keep(played: Played, screen: Console, interrupts: Interrupts, after: Afterwards | None) -> None:
    """Leave the servers up until the interrupt, with a worker so that what is written reaches Postgres."""
    import threading

    from statecache.cli.demo import view as demo_view

    servers, never = played.stage.servers, threading.Event()
    try:
        if servers is not None and after is None:
            servers.start_workers(1)
        key = played.story.key if played.story is not None else ""
        demo_view.keep_lines(screen, lines_to_look(played.stage, key))
        while not never.wait(_WAIT_S):
            pass
    except KeyboardInterrupt:
        screen.print("Stopping.")
    finally:
        interrupts.ignore()
