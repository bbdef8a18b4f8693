"""The Postgres tier as a client sees it: named statements on a pool of connections, opened when first needed.

A statement, or several, and what they rely on (`transactions`), a statement timeout above all, go there in one message
of the simple protocol, which Postgres takes for one transaction: that costs one exchange, and works behind a
transaction-mode pooler.
The `cluster` row is compared on every new connection, and the schema's name with the one that its functions name: those
of a schema that was renamed write to whatever has its old name.

Only a primary is asked: a standby may lag, and what it holds of a state must never be installed over what the primary
has flushed since. Every transaction asks what it met, a standby or another cluster: behind a pooler the server may
change between two of them, and a dump may be restored in place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import Escaping

from statecache.backoff import LATE_S, Backoff
from statecache.clock import monotonic
from statecache.concurrency import TASKS, Concurrency, no_answer
from statecache.concurrency.bounding import shut
from statecache.core.pool import Pool, silent_since
from statecache.core.postgres.connection import brief, connect, milliseconds, not_answered
from statecache.core.postgres.row_security import remedy_of
from statecache.core.postgres.transactions import beginning, message
from statecache.errors import ConfigurationError, PostgresUnavailable
from statecache.keys import GROUP_RULE, HASH
from statecache.settings import masked, pin_difference, renaming
from statecache.sql import CODE, statement

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

    from statecache.concurrency import Beside, Slot
    from statecache.keys import KeySpace
    from statecache.settings import Settings

Row = tuple[Any, ...]
_GRACE_S = 0.05
"""How much longer than the server's own timeout its answer is waited for, in seconds."""
_MISFITS = (
    pg.UndefinedTable, pg.InvalidSchemaName, pg.UndefinedColumn, pg.UndefinedFunction, pg.InsufficientPrivilege,
)  # fmt: skip
_LOOKING = frozenset(("watermarks", "state_keys", "lost_keys"))
"""Statements that give no times and read no ranges: less has to be set for them."""
SPELLED = _LOOKING | {"list_by_key", "list_by_key_down", "list_newest", "list_oldest"}
"""Statements that take nothing but texts, numbers, true or false, and arrays of texts or numbers of a known type."""
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_MIGRATE = "Run `statecache migrate`."
_GRANT = "Grant this role what it needs."
_GRANT_OWNER = "Grant the schema's owner what it needs, for the schema's functions run as it."
_ANEW = "Where it was made anew, for the one before is lost for good, `statecache doctor` says which command to run."
_WHOLE_AGAIN = "Restore the backup again, all of it, into an empty database."


def array_text(values: Sequence[str | int]) -> str:
    """Return texts or numbers as Postgres reads an array; psycopg takes longer for a list than for all the rest."""
    texts = [str(one).replace("\\", "\\\\").replace('"', '\\"') for one in values]
    return '{"' + '","'.join(texts) + '"}' if texts else "{}"


@cache
def _parts(names: tuple[str, ...], schema: str) -> list[bytes | str]:
    """Return the text of statements, in parts: every second one is the name of what stands there."""
    parts = _PLACEHOLDER.split(";\n".join(statement(name, schema) for name in names))
    return [part if at % 2 else part.encode() for at, part in enumerate(parts)]


def spelled(pgconn: PGconn, names: tuple[str, ...], schema: str, parameters: Mapping[str, Any]) -> bytes:
    """Return statements with these parameters as literals; psycopg's cursor takes several times as long.

    Libpq quotes each as the connection needs it, whatever the server takes a backslash for. A list is an array of texts
    or numbers, of the type that stands beside it.
    """
    quote = Escaping(pgconn).escape_literal
    literals = {name: _literal(value, quote) for name, value in parameters.items()}
    parts = _parts(names, schema)
    return b"".join([literals[part] if isinstance(part, str) else part for part in parts])


def _literal(value: str | bool | int | Sequence[str | int] | None, quote: Callable[[bytes], Any]) -> bytes:
    if value is None:
        return b"NULL"
    if isinstance(value, int):  # which false and true are
        return str(value).lower().encode()
    return bytes(quote((value if isinstance(value, str) else array_text(value)).encode()))


def _hint(error: psycopg.Error) -> str:
    """Return what is to be done where the schema, or a right, does not fit; one with a context is a function's."""
    if not isinstance(error, pg.InsufficientPrivilege):
        return _MIGRATE
    return _GRANT_OWNER if error.diag.context else _GRANT


class Session:
    """One connection to Postgres, as a pool lends it."""

    __slots__ = ("__weakref__", "cluster", "connection", "heard_at", "hold", "silent_since", "slot")

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection
        self.cluster: str | None = None
        """The cluster that was compared when the connection was made."""
        self.heard_at = monotonic()
        self.silent_since = -inf
        self.slot: Slot | None = None
        self.hold: Slot | None = None

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if kind is not None:  # it may be in the middle of an exchange, where nothing can be rolled back
            await self.close()

    @property
    def alive(self) -> bool:
        """Whether the connection still stands, as far as this side knows."""
        return not (self.connection.closed or self.connection.broken)

    def abandon(self) -> None:
        """End a forked parent's connection in this process, with its socket replaced by /dev/null first."""
        with suppress(OSError, psycopg.Error):
            nowhere = os.open(os.devnull, os.O_RDWR)
            try:
                os.dup2(nowhere, self.connection.fileno(), inheritable=False)
            finally:
                os.close(nowhere)
            self.connection.pgconn.finish()

    def let_go(self) -> None:
        """Close a connection that nobody uses any more."""
        self.connection.pgconn.finish()

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()

    async def sever(self) -> None:
        """Shut the socket of a connection that another thread may be using."""
        shut(self.connection)

    async def end(self) -> None:
        """Close the connection, which libpq does at once."""
        await self.close()


def refuse_misfit(row: Row, schema: str, keys: KeySpace) -> str:
    """Return which cluster a schema is of, by its row of the statement `cluster`.

    Raises ConfigurationError where it is of other settings or a later release, or was renamed: its functions would
    write to the schema that has its old name.
    """
    cluster, shards, hashed, rule, prefix, min_code, named = row
    if min_code > CODE:
        raise ConfigurationError(
            f"the schema asks for code level {min_code}, this program has {CODE}", hint="Upgrade statecache."
        )
    found = {"shards": shards, "hash": hashed, "group rule": rule, "prefix": prefix}
    ours = (keys.shards, HASH, GROUP_RULE, keys.prefix)
    difference, remedy = pin_difference(found, dict(zip(found, ours, strict=True)))
    renamed, back = renaming(schema, named)
    if difference or renamed:
        told = renamed or f"this schema is {difference}"
        mend = back or remedy
        raise ConfigurationError(told, hint=f"{mend[0].upper()}{mend[1:]}.")
    return str(cluster)


class PostgresTier:
    """Named statements on the Postgres primary; with `standby_too`, for those who only look, on a standby too."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        *,
        cluster: Callable[[], str] = str,
        ask_redis: Callable[[float], Awaitable[None]] | None = None,
        standby_too: bool = False,
        name: str = "statecache",
        io: Concurrency = TASKS,
    ) -> None:
        self.io = io
        self._settings = settings
        self._name = name
        self._keys = keys
        self._redis_cluster = cluster
        self._ask_redis = ask_redis
        self._standby_too = standby_too
        self.cluster = ""
        self._worked: set[str] = set()
        """Names of the statements that this process has run: what they need was there once."""
        self.pool = Pool(
            self._bounded_session, io=io, size=settings.postgres_connections_max, busy=PostgresUnavailable,
            late=self.late, connect_timeout_s=settings.connect_timeout_s, what="Postgres",
        )  # fmt: skip

    def late(self, error: TimeoutError) -> PostgresUnavailable:
        """Return the error of who had no time to wait for a connection."""
        return not_answered(error, self._settings)

    async def _bounded_session(self, seconds: float | None) -> Session:
        return await self.session(self._settings.connect_timeout_s if seconds is None else seconds)

    async def session(self, seconds: float | None = None) -> Session:
        """Open one connection and compare the cluster's pin.

        Raises PostgresUnavailable, and ConfigurationError where the pin is another one.
        """
        end = inf if seconds is None else monotonic() + seconds
        try:
            connection = await connect(self._settings, self._name, seconds=seconds, io=self.io)
        except ConfigurationError as error:
            if not self.cluster:
                raise
            raise self._missing(error.reason) from error
        session = Session(connection)
        try:
            await self._compare(session, max(min(end - monotonic(), self._settings.timeout_s), 0.001))
        except BaseException:  # a connection that was not compared is never used
            await session.close()
            raise
        return session

    async def _compare(self, session: Session, seconds: float) -> None:
        (rows,) = await self._run(session, ("cluster",), {}, seconds)
        if not rows:
            raise self._missing("the schema holds no cluster row", _WHOLE_AGAIN)
        cluster = refuse_misfit(rows[0], self._settings.postgres_schema, self._keys)
        if self._ask_redis is not None and self._fitted(cluster):
            await self._ask_redis(seconds)  # an operator may have given it this Postgres since
        self._check_pair(cluster)
        self.cluster = session.cluster = cluster

    def check_pair(self) -> None:
        """Raise ConfigurationError where Redis and Postgres are known to be of two clusters.

        A connection to Postgres compares when it is made; the handshake with Redis may have been made only since.
        """
        if self.cluster:
            self._check_pair(self.cluster)

    def _fitted(self, cluster: str) -> bool:
        """Return whether Redis belongs to another cluster than this one, to the one that Postgres was of before."""
        return self._redis_cluster() not in ("", cluster) and self._redis_cluster() == self.cluster

    def _check_pair(self, cluster: str) -> None:
        apart = f"Redis belongs to cluster {self._redis_cluster()}, Postgres to {cluster}"
        if self._fitted(cluster):
            detail = f"{masked(self._settings.postgres_url)}: it is another one than before: {apart}"
            raise PostgresUnavailable("schema", detail=detail, hint=_ANEW)
        if self._redis_cluster() not in ("", cluster):
            hint = f"redis_url and postgres_url must name the two tiers of one deployment. {_ANEW}"
            raise ConfigurationError(apart, hint=hint)

    async def fetch(self, name: str, parameters: Mapping[str, Any], *, seconds: float) -> list[Row]:
        """Return the rows of a statement; repeat it after a fault, for that many seconds."""
        (rows,) = await self.fetch_each((name,), parameters, seconds=seconds)
        return rows

    async def fetch_each(
        self, names: Sequence[str], parameters: Mapping[str, Any], *, seconds: float, beside: Beside | None = None
    ) -> list[list[Row]]:
        """Return the rows of each statement, run one after the other in one exchange, as `fetch` does.

        While Postgres works, `beside` is awaited, at most once: it must be short, and not need Postgres itself.
        """
        end, backoff = monotonic() + seconds, Backoff(0.01, 0.25)
        telling: PostgresUnavailable | None = None
        while True:
            left = max(end - monotonic(), 0.001)
            try:
                session = await self.pool.take(left)
                try:
                    work, beside = beside, None
                    return await self._run(session, names, parameters, max(end - monotonic(), 0.001), work)
                finally:
                    self.pool.give(session)
            except PostgresUnavailable as error:
                await self.pool.drop_idle()
                if telling is not None and monotonic() + LATE_S > end:  # the end cut it off: it says nothing
                    raise telling from error
                if error.reason not in ("connect", "connection", "standby", "schema") or backoff.outlasts(end):
                    raise
                telling = error
            await self.io.sleep(backoff.take())

    async def _run(
        self, session: Session, names: Sequence[str], parameters: Mapping[str, Any], seconds: float,
        beside: Beside | None = None,
    ) -> list[list[Row]]:  # fmt: skip
        connection = session.connection
        limit = self.io.timeout(seconds + _GRACE_S, connection)
        whole, begun = False, monotonic()
        try:
            async with limit, session:
                text = self._spelled(connection, names, parameters, milliseconds(seconds))
                _, (met, *_), *found = await self.io.rows(connection, text, beside)
                *_, cluster, standby = met
                if not self._standby_too and standby:
                    raise self._standby()
                if session.cluster not in (None, cluster):
                    raise self._moved(session, cluster)
            whole, session.heard_at = True, monotonic()
            self._worked.update(names)
        except _MISFITS as error:
            raise self.misfit(error, _hint(error), worked=self._worked.issuperset(names)) from error
        except psycopg.Error as error:
            where = masked(self._settings.postgres_url)
            broken = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
            late = limit.expired or isinstance(error, pg.QueryCanceled)
            reason = "timeout" if late else "connection" if broken else "refused"
            if late or broken:
                session.silent_since = silent_since(begun) if late else monotonic()
            told = no_answer(seconds, limit.late_s) if limit.expired else brief(error)
            raise PostgresUnavailable(reason, detail=f"{where}: {told}") from error
        finally:
            if not whole:
                await session.close()
        return found

    def _spelled(
        self, connection: Any, names: Sequence[str], parameters: Mapping[str, Any], statement_timeout: str
    ) -> bytes:
        """Return what bounds the statements, and each of them, spelled out."""
        schema, asked = self._settings.postgres_schema, {**parameters, "statement": statement_timeout}
        if SPELLED.issuperset(names):
            limits = "look_limits" if _LOOKING.issuperset(names) else "read_limits"
            return spelled(connection.pgconn, beginning(limits, names), schema, asked)
        return self.io.spelled(connection, message("read_limits", names, schema), asked)

    def _moved(self, session: Session, cluster: str | None) -> PostgresUnavailable:
        """Return the error for a connection behind which another cluster answers; a new one compares, and says it."""
        now = f"cluster {cluster}" if cluster else "a schema without a cluster"
        detail = f"{masked(self._settings.postgres_url)}: {now} answers where {session.cluster} did"
        return PostgresUnavailable("connection", detail=detail)

    def misfit(self, error: psycopg.Error, hint: str, *, worked: bool) -> PostgresUnavailable | ConfigurationError:
        """Return the error for a statement that the schema, or a right there, does not fit.

        What worked before, and a table that belongs to a schema which was there, may come back by itself.
        """
        hint = remedy_of(error) or hint
        if worked or isinstance(error, (pg.UndefinedTable, pg.InvalidSchemaName)):
            return self._missing(brief(error), hint)
        return ConfigurationError(f"Postgres: {brief(error)}", hint=hint)

    def _missing(self, what: str, hint: str = _MIGRATE) -> PostgresUnavailable | ConfigurationError:
        """Return the error for a database or a schema that is not there; where it was, it may just be restored."""
        if self.cluster:
            told = f"Where it is being restored, wait; else {hint[0].lower()}{hint[1:]}"
            return PostgresUnavailable("schema", detail=f"{masked(self._settings.postgres_url)}: {what}", hint=told)
        return ConfigurationError(f"Postgres: {what}", hint=hint)

    def _standby(self) -> PostgresUnavailable:
        return PostgresUnavailable(
            "standby",
            detail=f"{masked(self._settings.postgres_url)}: it is a standby, which may lack what the primary holds",
            hint="Name the primary in postgres_url; where it names several hosts, add target_session_attrs=primary.",
        )
