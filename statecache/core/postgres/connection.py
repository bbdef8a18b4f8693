"""The only place that opens connections to Postgres, and what every transaction on them relies on.

A role, a database, the environment or the URL may have defaults of their own. What would do harm is set by us:

    at the connection      client_encoding: keys are UTF-8 whatever the database thinks of its clients
                           keepalives and the user timeout: a silent network is noticed within seconds
    in the transaction     timeouts; the forms in which times are sent; that warnings are sent at all; that COMMIT
                           waits for the disk (`local_limits`). All local, so it works behind a transaction-mode pooler.

A commit counts where Postgres answers COMMIT to COMMIT **and** says no warning that may be the COMMIT's own:

* after an error that somebody swallowed, Postgres answers ROLLBACK to COMMIT, and psycopg raises nothing;
* a COMMIT whose wait for a synchronous standby is cancelled succeeds, with a warning: the rows are visible here and may
  be lost with this server.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as pg
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.conninfo import conninfo_to_dict

from statecache._tls import is_tls_refused_by_libpq
from statecache.concurrency import TASKS, Concurrency, TooLittleTime
from statecache.concurrency.addresses import CONNECT_S_MIN
from statecache.core.postgres.row_security import is_hidden_from_owner
from statecache.errors import ConfigurationError, PostgresUnavailable
from statecache.settings import masked
from statecache.signal_errors import pass_on_below
from statecache.sql import statement

if TYPE_CHECKING:
    from statecache.settings import Settings

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
LOCK_TIMEOUT_S = 2.0
KEEPALIVES_IDLE_S = 2
KEEPALIVES_INTERVAL_S = 1
KEEPALIVES_COUNT = 3
SILENCE_S = KEEPALIVES_IDLE_S + KEEPALIVES_INTERVAL_S * KEEPALIVES_COUNT
"""How long the other machine may be silent, without even acknowledging what was sent, in seconds."""
STATEMENTS_MAX = 6
"""How many times as long as one statement a transaction may take."""
_MILLISECONDS_MAX = 2**31 - 1
_NO_ENTRY = ("authentication", "no password supplied", "pg_hba.conf")
_CLOSED = ("is not permitted to log in", "permission denied for database")
"""What Postgres says to a role that it knows, and that may not come in."""
_WHO = "Check user and password."
_NO_LINE = "Add a line to the server's pg_hba.conf; sslmode= of postgres_url says whether TLS is used."
_LET_IN = "Give this role LOGIN, and CONNECT on the database."
_TLS = "Check sslmode=, sslrootcert=, sslcert= and sslkey= of postgres_url, and the server's name in it."
_UP = "Is the server up, the URL right?"
_REFUSES = (
    "The server is up, and says that itself: unless it passes, check the database, user and password in the URL, and "
    "that this role has LOGIN, and CONNECT on the database."
)
_OTHER_KIND = re.compile(r"\bsession is (?:not )?read-only|\bserver is (?:not )?in hot standby mode")
"""What libpq says of a server that is not what target_session_attrs asks for."""
_PRIMARY = (
    "The server is up, and is not what target_session_attrs of postgres_url asks for. `primary` asks for the primary; "
    "`read-write` refuses it too where default_transaction_read_only is on, as for a role that only looks."
)
_SERVER_SAYS = re.compile(r"failed: \w+:  ")
"""How libpq begins what a server says, by its severity; both are in the server's language."""
_DIRECT = " sslnegotiation=direct is understood by Postgres 17 and later, with TLS."
_INVALID = re.compile(r'\binvalid "?\w+"? value\b|\binvalid port number\b|\bmay not be used with\b')
"""What libpq says of a value in the URL, before it asks a server."""
_UNKNOWN = re.compile(
    r"definition of service|service file|unrecognized configuration parameter|invalid value for parameter"
    r"|no such database|unsupported startup parameter"
)
"""What libpq says of a service, its file, a server of an option, a pooler of that or a database: they do not fit."""
_RAISE = "exec_stmt_raise"
"""Where Postgres' source says what a function of PL/pgSQL has it say."""
_READ_ONLY = " (it is a standby, or default_transaction_read_only is on for the role, the database or the server)"
_FROM_OWNER = " (its owner, as which the schema's functions run, has no BYPASSRLS, and row-level security is forced)"
_QUOTED = '"'
"""A quote in libpq's message about a conninfo that it cannot read: what is quoted may be a piece of a password."""


async def connect(
    settings: Settings, name: str, *, seconds: float | None = None, io: Concurrency = TASKS
) -> psycopg.AsyncConnection[Any]:
    """Return a new connection under that application_name; raise ConfigurationError or PostgresUnavailable.

    Keepalives that the URL names stay as they are. With several hosts or addresses the time is for all of them.
    """
    where = masked(settings.postgres_url)
    connect_s = settings.connect_timeout_s if seconds is None else min(seconds, settings.connect_timeout_s)

    options: dict[str, Any] = {
        "autocommit": True,
        "prepare_threshold": None,
        "connect_timeout": max(CONNECT_S_MIN, round(connect_s)),
        "application_name": name,
        "client_encoding": "utf8",
        "context": _IsoTimes(),
    }
    try:
        options |= _keepalives(settings.postgres_url)
        connection: psycopg.AsyncConnection[Any] = await io.postgres(settings.postgres_url, options, seconds)
        return connection
    except TimeoutError as error:
        pass_on_below(error)
        raise not_answered(error, settings) from None
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(f"postgres_url {where}: {_unquoted(brief(error))}") from None
    except psycopg.OperationalError as error:
        over_tls = is_tls_refused_by_libpq(brief(error))
        if "does not exist" in str(error) and not over_tls:
            raise ConfigurationError(f"postgres_url {where}: {brief(error)}", hint="Create it first.") from None
        if (_INVALID.search(brief(error)) and "FATAL" not in str(error)) or _UNKNOWN.search(brief(error)):
            raise ConfigurationError(f"postgres_url {where}: {brief(error)}") from None
        closed = any(words in str(error) for words in _CLOSED)
        refused = closed or any(words in str(error) for words in _NO_ENTRY)
        direct = _DIRECT if "sslnegotiation=direct" in settings.postgres_url else ""
        away = _REFUSES if _SERVER_SAYS.search(brief(error)) else _UP
        away = _PRIMARY if _OTHER_KIND.search(brief(error)) else away
        let_in = _LET_IN if closed else _NO_LINE if "no pg_hba.conf entry" in str(error) else _WHO
        reason, hint = ("authentication", let_in) if refused else ("connect", away + direct)
        if not refused and over_tls:
            reason, hint = "tls", _TLS
        raise PostgresUnavailable(reason, detail=f"{where}: {brief(error)}", hint=hint) from None


def not_answered(error: TimeoutError, settings: Settings) -> PostgresUnavailable:
    """Return the error for a connection that could not be opened in the time that there was."""
    hint = error.hint if isinstance(error, TooLittleTime) else _UP
    return PostgresUnavailable("connect", detail=f"{masked(settings.postgres_url)}: {error}", hint=hint)


class _IsoTime(Loader):
    """Reads a time in the form in which every transaction of ours has it sent.

    Psycopg's own asks the connection what form the server uses, after the transaction, when that is the role's again.
    """

    def load(self, data: Buffer) -> datetime:
        """Return the time, aware."""
        return datetime.fromisoformat(bytes(data).decode())


class _IsoTimes:
    """How a connection reads what the server sends: as psycopg does, but for times."""

    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_loader("timestamptz", _IsoTime)
    connection = None


def _keepalives(url: str) -> dict[str, Any]:
    ours = {
        "keepalives": 1,
        "keepalives_idle": KEEPALIVES_IDLE_S,
        "keepalives_interval": KEEPALIVES_INTERVAL_S,
        "keepalives_count": KEEPALIVES_COUNT,
        "tcp_user_timeout": SILENCE_S * 1000,
    }
    given = conninfo_to_dict(url)
    return {name: value for name, value in ours.items() if name not in given}


def limits(seconds: float) -> dict[str, str]:
    """Return the parameters of `local_limits` for a transaction whose statements may take so many seconds each."""
    whole = milliseconds(seconds)
    return {
        "statement": whole,
        "lock": milliseconds(min(LOCK_TIMEOUT_S, seconds)),
        "idle": whole,
        "transaction": milliseconds(seconds * STATEMENTS_MAX),
        "keepalives_idle": str(KEEPALIVES_IDLE_S),
        "keepalives_interval": str(KEEPALIVES_INTERVAL_S),
        "keepalives_count": str(KEEPALIVES_COUNT),
        "silence": milliseconds(SILENCE_S),
    }


def milliseconds(seconds: float) -> str:
    """Return a time in seconds as text that Postgres reads, in milliseconds: at most as many as it can count."""
    return f"{max(1, round(min(seconds * 1000, _MILLISECONDS_MAX)))}ms"


class Warnings:
    """The warnings that arrive over one connection, and that may be a COMMIT's own.

    A COMMIT that was not replicated is told by its warning alone (SyncRepWaitForLSN). That is said after all triggers
    have run, those of COMMIT too, so no function is at work, and it has no context. A warning with one comes from a
    function, as of an operator's trigger (RAISE WARNING), and speaks of the function's affairs: each batch would be
    done again for it. What has none may be the COMMIT's, whoever says it: texts are in the server's language, and
    where in its source a warning is said changes between versions.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.texts: list[str] = []
        self._connection = connection
        connection.add_notice_handler(self._noticed)

    def end(self) -> None:
        """Stop collecting."""
        self._connection.remove_notice_handler(self._noticed)

    def _noticed(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING" and not _is_of_a_function(diagnostic):
            self.texts.append(diagnostic.message_primary or "a warning")


def _is_of_a_function(diagnostic: psycopg.errors.Diagnostic) -> bool:
    return bool(diagnostic.context) or diagnostic.source_function == _RAISE


def doubt_of(tag: str | None, warnings: Warnings) -> str:
    """Return why a commit may not be relied on, given the answer to COMMIT; '' where it may."""
    if tag != "COMMIT":
        return f"Postgres answered {tag} to COMMIT"
    return next(iter(warnings.texts), "")


@asynccontextmanager
async def committed(
    connection: psycopg.AsyncConnection[Any], settings: Settings, *, seconds: float
) -> AsyncIterator[None]:
    """Run the block in a transaction; when it is left without an error, Postgres holds what was written.

    Raises PostgresUnavailable where that is doubtful: whoever writes the same again finds out.
    """
    warnings = Warnings(connection)
    try:
        await connection.execute(BEGIN)
        await connection.execute(statement("local_limits", settings.postgres_schema), limits(seconds))
        try:
            yield
        except BaseException:  # whatever it is, nothing of the block may stay open
            await _roll_back(connection)
            raise
        tag = (await connection.execute("COMMIT")).statusmessage
    finally:
        warnings.end()
    if doubt := doubt_of(tag, warnings):
        raise PostgresUnavailable("commit", detail=f"{masked(settings.postgres_url)}: {doubt}")


async def _roll_back(connection: psycopg.AsyncConnection[Any]) -> None:
    try:
        await connection.execute("ROLLBACK")
    except psycopg.Error:
        await connection.close()


def brief(error: BaseException) -> str:
    """Return the first line of an error's message, and who says so where it is read-only or sees too little."""
    lines = str(error).strip().splitlines()
    said = lines[0] if lines else type(error).__name__
    if isinstance(error, pg.InsufficientPrivilege) and is_hidden_from_owner(error):
        return said + _FROM_OWNER
    return said + _READ_ONLY if isinstance(error, pg.ReadOnlySqlTransaction) else said


def _unquoted(text: str) -> str:
    return "…".join(text.split(_QUOTED)[::2])
