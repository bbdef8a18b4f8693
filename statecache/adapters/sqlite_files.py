"""The files of SQLite that frameworks keep by themselves, opened to be read alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from statecache import ConfigurationError, UsageError


@contextmanager
def reading(
    source: Path, *, what: str, hint: str, unreadable: tuple[type[Exception], ...] = ()
) -> Iterator[sqlite3.Connection]:
    """Open a file, in which nothing is written.

    Raises UsageError where it is not there, and ConfigurationError where it does not hold what it should: that its
    tables are missing, that what they hold is no JSON, or is `unreadable`.
    """
    if not source.is_file():
        raise UsageError(f"{source} does not exist")
    caught: tuple[type[Exception], ...] = (sqlite3.DatabaseError, json.JSONDecodeError, *unreadable)
    with closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as rows:
        try:
            yield rows
        except caught as error:
            raise ConfigurationError(f"{source} holds no {what}: {error}", hint=hint) from error
