"""Command boundaries of this process: every exchange with Redis and with Postgres has a name, and can meet a fault.

Installed in a process of a test, and only there, this stands around the few methods through which every command of the
client and of the worker goes. It changes nothing but at the one boundary that a plan names:

    kill before     the process kills itself before the exchange
    kill after      it kills itself when the reply has been read
    drop request    the connection ends before the server sees anything
    drop reply      the server has executed it, the connection ends before the reply is read
    stop            the process freezes before the exchange; somebody else lets it go on

A client's boundary counts once in every situation of its story, a worker's when it comes by for the first time (`#1`)
and for the second (`#2`), when nothing is new to it any more.
"""

from __future__ import annotations

import contextvars
import os
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import psycopg

from statecache import lua, sql
from statecache.concurrency.tasks import Tasks
from statecache.core.epoch.requests import Calls
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.connection import Link
from statecache.errors import PostgresUnavailable, RedisUnavailable
from statecache_workers.database import Database

Kind = Literal["kill before", "kill after", "drop request", "drop reply", "stop"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ROUNDS = 2
"""How often a worker's boundary counts."""

Call = Callable[[], Awaitable[Any]]
Report = Callable[[str], object]

situation: contextvars.ContextVar[str] = contextvars.ContextVar("situation", default="")
"""What a client's story is just telling; empty for a worker."""
_statement: contextvars.ContextVar[str] = contextvars.ContextVar("statement", default="")
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside", default=False)


class Plan(NamedTuple):
    """The one fault that a process meets."""

    boundary: str
    kind: Kind


class Boundaries:
    """The boundaries of one process: each name is reported once, and the planned fault happens at its own."""

    def __init__(self, schema: str, report: Report, plan: Plan | None) -> None:
        self._report = report
        self._plan = plan
        self._met: Counter[str] = Counter()
        self._scripts = _by_text(schema)

    def script_of(self, command: Sequence[Any]) -> str:
        """Return the name of a command: a script's file, else the verb."""
        verb = str(command[0])
        return self._scripts.get(str(command[1]), verb) if verb in ("EVAL", "EVALSHA") else verb

    def statement_of(self, text: Any) -> str:
        """Return the name of an SQL statement: its file, else its first word."""
        spelled = text.decode() if isinstance(text, bytes) else str(text)
        return self._scripts.get(spelled) or ("limit" if "set_config" in spelled else spelled.split()[0])

    async def pass_by(self, exchange: str, call: Call, *, lose_request: Call, lose_reply: Call) -> Any:
        """Carry out an exchange, with the planned fault if this is its boundary."""
        met = self._named(exchange)
        plan = self._plan
        if met is None or plan is None or met != plan.boundary:
            return await call()
        self._plan = None
        self._report(f"hit {met}")
        if plan.kind == "kill before":
            os.kill(os.getpid(), signal.SIGKILL)
        elif plan.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif plan.kind == "drop request":
            await lose_request()
        answer = await call()
        if plan.kind == "kill after":
            os.kill(os.getpid(), signal.SIGKILL)
        elif plan.kind == "drop reply":
            await lose_reply()
        return answer

    def _named(self, exchange: str) -> str | None:
        told = situation.get()
        times = self._met[told + exchange] = self._met[told + exchange] + 1
        if told:
            name = f"{told}: {exchange}"
            new = times == 1 and told != "ending"
        else:
            name = f"{exchange} #{times}"
            new = times <= ROUNDS
        if not new:
            return None
        self._report(f"boundary {name}")
        return name


def _by_text(schema: str) -> dict[str, str]:
    """Map the texts and digests of scripts and the texts of statements, as sent, to their names."""
    found = {}
    for name in lua.names():
        found[lua.script(name).sha] = found[lua.script(name).text] = name
    for name in sql.names():
        found[sql.statement(name, schema)] = name
    return found


def install(schema: str, report: Report, plan: Plan | None = None) -> None:
    """Wrap the exchanges of this process, until it ends."""
    boundaries = Boundaries(schema, report, plan)
    _install_redis(boundaries)
    _install_postgres(boundaries)
    _install_database(boundaries)


def _lost(detail: str) -> NoReturn:
    raise RedisUnavailable("connection", detail=detail)


def _install_redis(boundaries: Boundaries) -> None:
    run, send, dial = Link.run, Link.send, Link.open.__func__  # type: ignore[attr-defined]

    async def run_by(link: Link, commands: Sequence[Any], *, seconds: float, **more: Any) -> Any:
        async def lose_reply() -> None:
            await link.close()
            _lost("the reply was lost")

        exchange = " ".join(dict.fromkeys(boundaries.script_of(command) for command in commands))
        return await boundaries.pass_by(
            exchange, lambda: run(link, commands, seconds=seconds, **more), lose_request=link.close,
            lose_reply=lose_reply,
        )  # fmt: skip

    async def send_by(link: Link, *commands: Any, seconds: float, **more: Any) -> None:
        await boundaries.pass_by(
            " ".join(dict.fromkeys(boundaries.script_of(command) for command in commands)),
            lambda: send(link, *commands, seconds=seconds, **more), lose_request=link.close, lose_reply=link.close,
        )  # fmt: skip

    async def open_by(kind: type[Link], *args: Any, **more: Any) -> Link:
        opened: list[Link] = []

        async def call() -> Link:
            opened.append(await dial(kind, *args, **more))
            return opened[0]

        async def lose() -> None:
            for link in opened:
                await link.close()
            raise RedisUnavailable("connect", detail="the connection was lost")

        link: Link = await boundaries.pass_by("connect to Redis", call, lose_request=lose, lose_reply=lose)
        return link

    Link.run, Link.send = run_by, send_by  # type: ignore[method-assign,assignment]
    Link.open = classmethod(open_by)  # type: ignore[method-assign,assignment]


def _install_postgres(boundaries: Boundaries) -> None:
    connect = psycopg.AsyncConnection.connect.__func__  # type: ignore[attr-defined]
    execute, rows = psycopg.AsyncConnection.execute, Tasks.rows
    enter, leave = psycopg.AsyncTransaction.__aenter__, psycopg.AsyncTransaction.__aexit__

    async def by(connection: Any, exchange: str, call: Call) -> Any:
        if _inside.get():
            return await call()
        named = _statement.get()
        return await boundaries.pass_by(
            f"{named} {exchange}" if named and exchange != named else exchange,
            call,
            lose_request=lambda: _cut(connection),
            lose_reply=lambda: _cut(connection, psycopg.OperationalError("the reply was lost")),
        )

    async def connect_by(kind: Any, *args: Any, **more: Any) -> Any:
        async def lose() -> NoReturn:
            raise psycopg.OperationalError("the connection was lost")

        return await boundaries.pass_by(
            "connect to Postgres", lambda: connect(kind, *args, **more), lose_request=lose, lose_reply=lose
        )

    async def execute_by(connection: Any, query: Any, *args: Any, **more: Any) -> Any:
        return await by(connection, boundaries.statement_of(query), lambda: execute(connection, query, *args, **more))

    async def enter_by(transaction: Any) -> Any:
        return await by(transaction.connection, "BEGIN", lambda: enter(transaction))

    async def leave_by(transaction: Any, kind: Any, error: Any, trace: Any) -> Any:
        if kind is not None:
            return await leave(transaction, kind, error, trace)
        return await by(transaction.connection, "COMMIT", lambda: leave(transaction, kind, error, trace))

    async def rows_by(io: Tasks, connection: Any, text: bytes, beside: Any) -> Any:
        exchange = _statement.get() or boundaries.statement_of(text)
        return await by(connection, exchange, lambda: rows(io, connection, text, beside))

    changed: Any = psycopg.AsyncConnection
    changed.connect, changed.execute = classmethod(connect_by), execute_by
    changed = Tasks
    changed.rows = rows_by
    changed = psycopg.AsyncTransaction
    changed.__aenter__, changed.__aexit__ = enter_by, leave_by
    _name_statements(PostgresTier, "_run", 1)
    _name_statements(Calls, "fetch", 0)


def _name_statements(kind: Any, method: str, at: int) -> None:
    """Name the exchanges that belong to a statement after it: its BEGIN, its limit, its COMMIT."""
    original = getattr(kind, method)

    async def by(self: Any, *args: Any, **more: Any) -> Any:
        token = _statement.set(args[at] if isinstance(args[at], str) else " ".join(args[at]))
        try:
            return await original(self, *args, **more)
        finally:
            _statement.reset(token)

    setattr(kind, method, by)


def _install_database(boundaries: Boundaries) -> None:
    exchange, commit = Database.exchange, Database.commit

    async def by(database: Database, name: str, call: Call) -> Any:
        async def alone() -> Any:
            token = _inside.set(True)
            try:
                return await call()
            finally:
                _inside.reset(token)

        return await boundaries.pass_by(
            name,
            alone,
            lose_request=lambda: _cut(database.session.connection),
            lose_reply=lambda: _cut(
                database.session.connection, PostgresUnavailable("connection", detail="the reply was lost")
            ),
        )

    last = {"exchange": ""}

    async def exchange_by(database: Database, statements: Any) -> Any:
        names = (boundaries.statement_of(text) for text, _ in statements)
        last["exchange"] = name = " ".join(name for name in names if name != "local_limits")
        return await by(database, name, lambda: exchange(database, statements))

    async def commit_by(database: Database, statements: Any = ()) -> None:
        names = " ".join(boundaries.statement_of(text) for text, _ in statements)
        name = names or last["exchange"].removeprefix("BEGIN ")
        await by(database, f"{name} COMMIT", lambda: commit(database, statements))

    changed: Any = Database
    changed.exchange, changed.commit = exchange_by, commit_by


async def _cut(connection: Any, error: Exception | None = None) -> None:
    """Shut the connection down at once, and raise the error that its user would get."""
    with suppress(OSError, ValueError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
    if error is not None:
        raise error
