"""The options that many commands share, and what becomes of them."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from statecache.cli.screen import plain, tell
from statecache.errors import UsageError
from statecache.model import DURABILITIES, Durability
from statecache.settings import Settings, unknown_variables

UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
"""The seconds of each unit of time."""
_span = re.compile(rf"(\d{{1,9}}) ?({'|'.join(UNITS)})", re.ASCII).fullmatch


def span_of(text: str, option: str, *, hint: str) -> timedelta:
    """Return a span of time that was spelt as 90d or 12h, or raise UsageError."""
    found = _span(text)
    if found is None:
        raise UsageError(f"{option} {text!r} is no span of time", hint=hint)
    return timedelta(seconds=int(found[1]) * UNITS[found[2]])


def one_of(words: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what completes a word on the command line to one of these."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


RedisUrl = Annotated[str | None, typer.Option("--redis-url", metavar="URL", help="Else STATECACHE_REDIS_URL.")]
PostgresUrl = Annotated[str | None, typer.Option("--postgres-url", metavar="URL", help="Else STATECACHE_POSTGRES_URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")]
_LEVELS = one_of(DURABILITIES)
Level = Annotated[
    str | None,
    typer.Option("--durability", help=f"One of {', '.join(DURABILITIES)}; else as set.", autocompletion=_LEVELS),
]
SafeLevel = Annotated[
    str, typer.Option("--durability", help=f"One of {', '.join(DURABILITIES)}.", autocompletion=_LEVELS)
]
Actor = Annotated[str, typer.Option(metavar="NAME", help="Who does it; else the user of this system.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the change.")]
DASHED = {"ignore_unknown_options": True, "allow_extra_args": True}
"""The settings of a command that takes -1 for a version, and so looks for unknown options itself: `refuse_unknown`."""
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def settings_of(**given: Any) -> Settings:
    """Return the settings; the options that were given win over the environment.

    A variable that looks like one of ours and is none is told on stderr: a setting that was misspelt is not in force.
    """
    if unknown := unknown_variables():
        told = [f"{plain(name)} (did you mean {meant}?)" if meant else plain(name) for name, meant in unknown.items()]
        tell(f"there is no setting {', '.join(told)}")
    return settings_given(**given)


def settings_given(**given: Any) -> Settings:
    """Return what `settings_of` does, without a word about unknown variables."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


def operator() -> str:
    """Return the name of this system's user, or the number where it has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return f"uid {os.getuid()}"


def refuse_unknown(context: typer.Context, *words: str | None) -> None:
    """Raise UsageError for options that a command does not have, and words too many, where -1 is not an option."""
    given = [word for word in (*words, *context.args) if word is not None]
    unknown = next((word for word in given if word.startswith("-") and not word[1:].isdecimal()), None)
    if unknown is None and not context.args:
        return
    what = f"unexpected: {' '.join(context.args)}" if unknown is None else f"there is no option {unknown}"
    raise UsageError(what, hint=f"See `{context.command_path} --help`.")


def checked_durability(level: str | None) -> Durability | None:
    """Return the level, None as well; raise UsageError for one that there is not."""
    for known in DURABILITIES:
        if level == known:
            return known
    if level is None:
        return None
    raise UsageError(f"durability {level!r} is not one of {', '.join(DURABILITIES)}")
