"""The files of SQLite that frameworks keep by themselves, opened to be read alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from statecache import ConfigurationError, UsageError


@contextmanager
def reading(source: Path, *, what: str, hint: str) -> Iterator[sqlite3.Connection]:
    """Open a file, in which nothing is written.

    Raises UsageError where it is not there, and ConfigurationError where it does not hold the tables that it should.
    """
    if not source.is_file():
        raise UsageError(f"{source} does not exist")
    with closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as rows:
        try:
            yield rows
        except sqlite3.DatabaseError as error:
            raise ConfigurationError(f"{source} holds no {what}: {error}", hint=hint) from error


@contextmanager
def moment(rows: sqlite3.Connection) -> Iterator[None]:
    """Have what is read in a block be of one moment; read it to its end there, for it holds up who writes."""
    rows.execute("BEGIN")
    try:
        yield
    finally:
        rows.rollback()
