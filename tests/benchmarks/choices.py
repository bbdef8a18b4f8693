"""What was asked for: options, or the same as NAME=value in capitals, as `make` hands them on by the environment."""

from __future__ import annotations

from argparse import ArgumentError, ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.benchmarks.values import SAMPLE

SECTIONS = (
    "commit", "transaction", "get", "durable", "flush", "clients", "lag", "workers", "memory", "rss", "import",
    "near", "contention", "locks", "steps", "warm", "first", "list", "bulk", "feed", "watchers", "history", "stream",
    "prune", "inspector", "adapters",
)  # fmt: skip
ROUNDS_MIN = 5
CHANGES_MIN = 10_000
_NO = ("", "0", "no", "false")


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run."""

    json: Path | None = None
    runs: Path = SAMPLE
    rounds: int = 7
    changes: int = 1_000_000
    only: tuple[str, ...] = SECTIONS
    strict: bool = False

    def wants(self, *sections: str) -> bool:
        """Return whether any of these sections is to be measured."""
        return not set(sections).isdisjoint(self.only)


def choices_of(arguments: Sequence[str], environment: Mapping[str, str]) -> Choices:
    """Read the arguments, which win over the environment; raise ValueError where they are wrong."""
    given: dict[str, Any] = {name: environment[name.upper()] for name in _NAMES if environment.get(name.upper())}
    words = []
    for argument in arguments:
        name, sign, value = argument.partition("=")
        if not sign or argument.startswith("-"):
            words.append(argument)
        elif name.lower() in _NAMES and name.isupper():
            given[name.lower()] = value
        else:
            raise ValueError(f"{argument!r} is none of {', '.join(f'{one.upper()}=' for one in _NAMES)}")
    try:
        found, rest = _parser().parse_known_args(words)
    except ArgumentError as error:
        raise ValueError(str(error)) from None
    if rest:
        raise ValueError(f"{rest[0]!r} is not an option")
    given |= {name: value for name, value in vars(found).items() if value is not None}
    choices = Choices(**{name: _READ[name](value) for name, value in given.items()})
    _check(choices)
    return choices


def _check(choices: Choices) -> None:
    if choices.rounds < ROUNDS_MIN:
        raise ValueError(f"ROUNDS={choices.rounds} is below {ROUNDS_MIN}")
    if choices.changes < CHANGES_MIN:
        raise ValueError(f"CHANGES={choices.changes} is below {CHANGES_MIN}")
    if not choices.only:
        raise ValueError(f"ONLY= names none of {', '.join(SECTIONS)}")
    if unknown := [name for name in choices.only if name not in SECTIONS]:
        raise ValueError(f"ONLY={unknown[0]} is none of {', '.join(SECTIONS)}")
    if not choices.runs.is_file():
        raise ValueError(f"RUNS={choices.runs} is not a file")
    if choices.json is not None and not choices.json.parent.is_dir():
        raise ValueError(f"JSON={choices.json}: its folder does not exist")


def _sections(given: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(given.replace(",", " ").split() if isinstance(given, str) else given)


_READ: dict[str, Any] = {
    "json": Path,
    "runs": Path,
    "rounds": int,
    "changes": int,
    "only": _sections,
    "strict": lambda given: str(given).lower() not in _NO,
}
_NAMES = tuple(_READ)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("python -m tests.benchmarks", description=__doc__, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"only these: {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", help=f"{ROUNDS_MIN} or more; otherwise {Choices().rounds}")
    parser.add_argument("--changes", help=f"how many changes rss flushes; otherwise {Choices().changes:,}")
    parser.add_argument("--json", metavar="PATH", help="writes the numbers as JSON too")
    parser.add_argument("--runs", metavar="PATH", help="takes values from these recorded runs")
    parser.add_argument("--strict", action="store_const", const="1", help="ends with status 1 where a bound is not met")
    return parser
