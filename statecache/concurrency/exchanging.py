"""Several statements in one message to Postgres, and their rows: psycopg's cursor costs as much as the exchange.

What it does beside belongs to statements that are prepared, named or fetched in part, and to connections that several
share. Here a connection has one user, who sends text and takes all rows.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


def sent(connection: Any, text: bytes) -> Generator[Any, Any, list[PGresult]]:
    """Send statements, and return what to wait for: a result for each, as far as they came."""
    connection.pgconn.send_query(text)
    return execute(connection.pgconn)  # type: ignore[no-any-return]


def rows_of(connection: Any, results: Sequence[PGresult]) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each statement; raise psycopg's error where one failed."""
    for result in results:
        if result.status not in _GOOD:
            raise error_from_result(result)
    return [_loaded(connection, result) if result.ntuples else [] for result in results]


def _loaded(connection: Any, result: PGresult) -> list[tuple[Any, ...]]:
    transformer = Transformer(connection)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)
