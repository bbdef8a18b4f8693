"""Statements and migrations live in files, one a name; this module reads them.

A statement's name is its file's stem and its metric's label. `{schema}` stands for the quoted schema name.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
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
    text = files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return text.replace("{schema}", f'"{schema}"')


def migrations(schema: str) -> list[Migration]:
    """Return every migration for that schema, in order."""
    found = []
    for path in files(__name__).joinpath("migrations").iterdir():
        number, _, name = path.name.removesuffix(".sql").partition("_")
        if path.name.endswith(".sql"):
            text = path.read_text(encoding="utf-8").replace("{schema}", f'"{schema}"')
            found.append(Migration(int(number), name, text))
    return sorted(found)
