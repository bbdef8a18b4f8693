"""`top`: a deployment as it lives, looked at every second.

Each look is one pipeline to Redis and one query to Postgres. Rates are differences of the shards' running totals. Hot
keys are counted from the newest entries of the streams over the last ten looks, a few of each shard, so a key that is
written often stands high up, and the numbers are a sample. A server that is away is named, and the rest goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statecache.cli.exits import OK, UNREACHABLE
from statecache.cli.options import PostgresUrl, RedisUrl, settings_of
from statecache.cli.screen import console, draws, is_terminal, print_json, print_table
from statecache.cli.status.command import WORST_MAX, uncounted
from statecache.cli.status.rates import EVERY_S, Figures, Looks
from statecache.errors import UsageError

if TYPE_CHECKING:
    from statecache.cli.status.sample import Sampler
    from statecache.settings import Settings

PATIENCE_S = 1.5
ONCE_MAX = 20
"""How many rows of a table --once prints."""


def top(
    once: Annotated[bool, typer.Option("--once", help="Two looks a second apart, printed once.")] = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, every second.")] = False,
) -> int:
    """Watch a deployment live: shards, lag, rates, workers, hot keys, backlog. `q` or Ctrl-C ends it.

    Without a terminal it needs --once or --json. With --json it goes on until it is ended or nobody reads on; with
    --once and --json it prints one object. A server that is away is named, and the rest is shown. With --once the exit
    status is 4 when a server does not answer.

    \b
    Examples:
      statecache top
      statecache top --once
      statecache top --json | jq -c '[.commits_per_s, .lag.entries]'
    """
    if not (once or as_json or (is_terminal() and sys.stdin.isatty())):
        raise UsageError("top needs a terminal", hint="Say --once or --json.")
    if not (once or as_json or draws(console())):
        raise UsageError("this terminal (TERM=dumb) cannot be drawn on", hint="Say --once or --json.")
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    return asyncio.run(_top(settings, once=once, as_json=as_json))


async def _top(settings: Settings, *, once: bool, as_json: bool) -> int:
    from statecache.cli.status.sample import Sampler

    sampler = Sampler(settings, patience_s=PATIENCE_S)
    looks = Looks(settings)
    ending = asyncio.Event()
    try:
        first = looks.add(await sampler.take(strict=True))
        if as_json and not once:
            return await _lines(sampler, looks, first)
        if once:
            await _pause(ending, EVERY_S)
            return _once(looks.add(await sampler.take()), as_json=as_json)
        with _keyboard(ending):
            await _watch(sampler, looks, first, ending)
        return OK
    finally:
        await sampler.close()


def _once(figures: Figures, *, as_json: bool) -> int:
    if as_json:
        print_json(_plain_facts(figures))
    else:
        _print_once(figures)
    sample = figures.sample
    return OK if sample.redis.reachable and sample.postgres.reachable else UNREACHABLE


def _print_once(figures: Figures) -> None:
    """Print the head and the tables, nothing of them shortened."""
    from statecache.cli.top.view import folded, hot_rows, lines_of, worker_rows, worst_rows

    screen = console()
    for line in lines_of(figures):
        for part in folded(screen, line, screen.width) if screen.is_terminal else [line]:
            screen.print(part, soft_wrap=True)
    lacking = "which workers live is not known" if figures.sample.workers is None else "no worker lives"
    for columns, rows, otherwise in (
        (("shard behind", "entries", "bytes", "oldest"), worst_rows(figures), ""),
        (("worker", "shards", "heartbeat"), worker_rows(figures), lacking),
        (("writes", "hot key"), hot_rows(figures), "no key was written between the two looks"),
    ):
        if rows:
            print()
            print_table(columns, rows[:ONCE_MAX])
        elif otherwise:
            print(f"\n{otherwise}")


async def _lines(sampler: Sampler, looks: Looks, figures: Figures) -> int:
    ending = asyncio.Event()
    try:
        while True:
            print_json(_plain_facts(figures))
            sys.stdout.flush()
            await _pause(ending, EVERY_S)
            figures = looks.add(await sampler.take())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on: that is how it ends
        return OK


async def _watch(sampler: Sampler, looks: Looks, figures: Figures, ending: asyncio.Event) -> None:
    """Draw until it is ended; a new size of the terminal is drawn at once."""
    from rich.live import Live

    from statecache.cli.top.view import View

    screen = console()
    view = View(screen, figures)
    loop = asyncio.get_running_loop()
    with Live(view, console=screen, screen=True, auto_refresh=False, redirect_stderr=False) as live:
        loop.add_signal_handler(signal.SIGWINCH, live.refresh)
        try:
            live.refresh()
            while not await _pause(ending, EVERY_S):
                taking = asyncio.ensure_future(sampler.take())
                ended = asyncio.ensure_future(ending.wait())
                await asyncio.wait({taking, ended}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    taking.cancel()
                    await asyncio.wait({taking})
                    return
                ended.cancel()
                view.figures = looks.add(taking.result())
                live.refresh()
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)


async def _pause(ending: asyncio.Event, seconds: float) -> bool:
    """Wait for the end, at most so many seconds, and return whether it came."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ending.wait()
    return ending.is_set()


@contextlib.contextmanager
def _keyboard(ending: asyncio.Event) -> Iterator[None]:
    """Let `q`, Ctrl-C and signals set `ending` until the block ends; then leave the terminal as it was."""
    import termios
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def pressed() -> None:
        if any(key in os.read(keyboard, 64) for key in (b"q", b"Q", b"\x03", b"\x04")):
            ending.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ending.set)
    loop.add_reader(keyboard, pressed)
    tty.setcbreak(keyboard)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _plain_facts(figures: Figures) -> dict[str, Any]:
    """Return a line of --json: the shards in sum, not each."""
    sample = figures.sample
    facts = {name: getattr(sample, name) for name in ("at", "redis", "postgres", "workers", "quarantined", "conflicts")}
    facts |= {name: getattr(figures, name) for name in ("shards", "backlog", "commits_per_s", "flushed_per_s")}
    facts["at_least"] = uncounted(sample)
    facts["lag"] = figures.lag | {"worst": figures.lag["worst"][:WORST_MAX]}
    facts["hot"] = [{"key": key, "writes": count} for key, count in figures.hot]
    return facts
