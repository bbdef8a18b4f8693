"""Statements and migrations live in files, in folders by what they are for; this module reads them.

A statement's name is its file's stem, unique among all folders, and its metric's label. `{schema}` stands for the
quoted schema name.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

CODE = 1
"""The level of this code; it refuses a schema whose `min_code` is above it."""


class Migration(NamedTuple):
    """One numbered step of the schema."""

    number: int
    name: str
    text: str


@cache
def statement(name: str, schema: str) -> str:
    """Return the named statement for that schema."""
    text = _paths()[name].read_text(encoding="utf-8")
    return text.replace("{schema}", f'"{schema}"')


def names() -> list[str]:
    """Return the names of all statements."""
    return sorted(_paths())


@cache
def _paths() -> dict[str, Traversable]:
    folders = [path for path in files(__name__).iterdir() if path.is_dir() and path.name != "migrations"]
    found = [path for folder in folders for path in folder.iterdir() if path.name.endswith(".sql")]
    return {path.name.removesuffix(".sql"): path for path in found}


def migrations(schema: str) -> list[Migration]:
    """Return every migration for that schema, in order."""
    found = []
    for path in files(__name__).joinpath("migrations").iterdir():
        number, _, name = path.name.removesuffix(".sql").partition("_")
        if path.name.endswith(".sql"):
            text = path.read_text(encoding="utf-8").replace("{schema}", f'"{schema}"')
            found.append(Migration(int(number), name, text))
    return sorted(found)
