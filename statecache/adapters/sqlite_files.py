"""The files of SQLite that frameworks keep by themselves, opened to be read alone.

SQLite holds any bytes as text. What is no UTF-8 is no error of the file, but of what it belongs to, as what is no JSON:
a UnicodeError where it is read, or where a name that is no UTF-8 is asked for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from statecache import ConfigurationError, StateCacheError, Unavailable, UsageError

_LOCKED_S_MAX = 5.0
"""How long who writes to a file is waited for."""
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_AGAIN = "Repeat the import: what it has taken in is there already."


@contextmanager
def reading(source: Path, *, what: str, hint: str) -> Iterator[sqlite3.Connection]:
    """Open a file, in which nothing is written.

    Raises UsageError where it is not there or no file, ConfigurationError where it cannot be opened, or does not hold
    the tables that it should, and Unavailable where another process has locked it.
    """
    refuse_no_file(source)
    try:
        opened = sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True, timeout=_LOCKED_S_MAX)
        with closing(opened) as rows:
            refuse_no_text(rows)
            yield rows
    except sqlite3.DatabaseError as error:
        raise refusal(error, str(source), what=what, hint=hint) from error


def refuse_no_file(source: Path) -> None:
    """Raise UsageError for what is not there, and for a directory."""
    if not source.is_file():
        raise UsageError(f"{source} is no file" if source.exists() else f"{source} does not exist")


def refuse_no_text(rows: sqlite3.Connection) -> None:
    """Have what is no UTF-8 raise a UnicodeError where it is read."""
    rows.text_factory = bytes.decode


@contextmanager
def names(rows: sqlite3.Connection) -> Iterator[None]:
    """Have names be read in a block whatever they are: a byte that is no UTF-8 is half of a surrogate pair there."""
    rows.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    try:
        yield
    finally:
        refuse_no_text(rows)


def refusal(error: sqlite3.Error, where: str, *, what: str, hint: str) -> StateCacheError:
    """Return what an error of SQLite says about a file that is taken in."""
    code = getattr(error, "sqlite_errorcode", -1) & 0xFF  # what is above says more about the same
    if code in _LOCKED:
        return Unavailable("locked", detail=f"another process is writing to {where}: {error}", hint=_AGAIN)
    if code == sqlite3.SQLITE_IOERR:
        return Unavailable("read", detail=f"{where}: {error}", hint=_AGAIN)
    if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB):
        return ConfigurationError(f"{where} holds no {what}: {error}", hint=hint)
    return ConfigurationError(f"{where} cannot be read: {error}")


@contextmanager
def moment(rows: sqlite3.Connection) -> Iterator[None]:
    """Have what is read in a block be of one moment; read it to its end there, for it holds up who writes."""
    rows.execute("BEGIN")
    try:
        yield
    finally:
        rows.rollback()
