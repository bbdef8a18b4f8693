"""A worker's one connection to Postgres, and what counts as committed on it.

A transaction is opened with its first statements and bounded by local settings only, so it works behind a
transaction-mode pooler. What counts as committed is said in `statecache.core.postgres.connection`.

An answer that does not come soon is asked after over another connection: a session that waits for us while we wait for
it, or that is gone, will never answer. It is given up at once, and ended there, for it may hold rows. One to which
something is still being sent, or whose answer has come and was not read yet, is waited for: this side is late. Behind a
pooler the session of a transaction is known once its first statements are answered, and is not asked after before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus

from statecache.concurrency import TASKS
from statecache.concurrency.bounding import TaskTimeout
from statecache.core.postgres.connection import BEGIN, Warnings, connect, doubt_of, limits, milliseconds
from statecache.core.postgres.transactions import asked
from statecache.errors import ConfigurationError, PostgresUnavailable
from statecache.settings import masked
from statecache.sql import statement
from statecache_workers.logs import whisper
from statecache_workers.postgres_arrays import register
from statecache_workers.postgres_errors import translated

if TYPE_CHECKING:
    from statecache.core.postgres.tier import Session
    from statecache.settings import Settings

SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
PROBE_S = 2.0
"""After how many seconds without an answer another connection is asked whether one can come."""
_LOOK_AGAIN_S = 0.5
"""After how many seconds it is asked again before a session is ended."""
_GRACE_S = 2.0
"""How much longer than Postgres itself this side waits before it gives a connection up."""


Control = Literal[
    "SAVEPOINT", "ROLLBACK TO", "RELEASE", "SET CONSTRAINTS ALL IMMEDIATE", "SET CONSTRAINTS ALL DEFERRED"
]
"""What controls a transaction: its one savepoint is set, gone back to, forgotten; constraints are checked, or wait."""
CHECK: tuple[Control, Control] = ("SET CONSTRAINTS ALL IMMEDIATE", "SET CONSTRAINTS ALL DEFERRED")
"""Checks the constraints that wait for the COMMIT, and lets those of what follows wait for the next check."""


class Call(NamedTuple):
    """A named statement with its parameters."""

    name: str
    parameters: Mapping[str, Any]


class Transaction:
    """One READ COMMITTED transaction, or one of a snapshot; what was not committed when it is left is rolled back."""

    def __init__(self, database: Database, begin: str, bounds: Mapping[str, str]) -> None:
        self._database = database
        self._begin, self._bounds = begin, bounds
        self._begun = False

    async def run(self, *calls: Call | Control) -> list[list[tuple[Any, ...]]]:
        """Run statements in one round trip and return the rows of each; what controls the transaction has none."""
        texts = self._texts(calls)
        if self._begun:
            return await self._database.exchange(texts)
        self._begun = True
        return await self._database.begin(self._begin, self._bounds, texts)

    async def commit(self, *calls: Call | Control) -> None:
        """Run the last statements and commit, in one round trip.

        It returns when Postgres holds what was written, as safely as it is set up to hold anything. Where one of the
        statements fails, nothing is committed.
        """
        await self._database.commit(self._texts(calls))

    def _texts(self, calls: Sequence[Call | Control]) -> list[tuple[str, Any]]:
        return [
            (_spelled(call), None) if isinstance(call, str) else (self._database.text(call.name), call.parameters)
            for call in calls
        ]


def _spelled(control: Control) -> str:
    """Return the text of a control: a savepoint has a name."""
    return control if control in CHECK else f"{control} piece"


class Database:
    """One connection on which transactions run; it is used by one task at a time."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self.session = session
        self._connection = session.connection
        self._settings = settings
        self._warnings = Warnings(session.connection)
        self._told_pid = session.connection.info.backend_pid
        self._pid: int | None = None
        self._probing: asyncio.Task[None] | None = None
        self._sending = self._silent = self._of_data = self._has_begun = False
        register(self._connection)

    @property
    def alive(self) -> bool:
        """Whether the connection still stands, as far as this side knows."""
        return self.session.alive

    @property
    def lease(self) -> timedelta:
        """How long a lease stands."""
        return timedelta(seconds=self._settings.lease_s)

    def text(self, name: str) -> str:
        """Return the text of a named statement."""
        return statement(name, self._settings.postgres_schema)

    @contextlib.asynccontextmanager
    async def transaction(
        self, *, snapshot: bool = False, of_data: bool = False, lock_s: float | None = None
    ) -> AsyncIterator[Transaction]:
        """Open a transaction, which begins with the first statement run in it, and roll back what was not committed.

        With `snapshot` it only reads, and all of it of one moment. With `of_data` it raises Poison where Postgres
        refuses the data; of what is the worker's own that is an outage like others: a trigger may freeze the tables.
        With `lock_s` it waits no longer than that for a lock. Of one that only reads each step is bounded, not the
        whole: it holds up nobody, however many pages there are.
        """
        self._of_data = of_data
        bounds = limits(self._settings.timeout_s) | ({"transaction": "0"} if snapshot else {})
        if lock_s is not None:
            bounds["lock"] = milliseconds(lock_s)
        transaction = Transaction(self, SNAPSHOT if snapshot else BEGIN, bounds)
        try:
            yield transaction
        finally:  # cancelled or failed, nothing of it may stay open
            await self._roll_back()

    async def begin(
        self, begin: str, bounds: Mapping[str, str], statements: list[tuple[str, Any]]
    ) -> list[list[tuple[Any, ...]]]:
        """Begin a transaction, bounded, and run its first statements in the same round trip.

        The connection's first one is begun by itself: a pooler that takes single statements only says so, and closes
        the connection, by which psycopg loses what it said among several.
        """
        opening: list[tuple[str, Any]] = [(begin, None), (self.text("local_limits"), bounds)]
        if not self._has_begun:
            await self.exchange([opening.pop(0)])
            self._has_begun = True
        if self._pid != self._told_pid:  # a pooler's: nobody knows yet which session it takes
            self._pid = None
        answers = await self.exchange([*opening, *statements])
        ((*_, self._pid, _),), *found = answers[len(opening) - 1 :]
        return found

    async def exchange(self, statements: list[tuple[str, Any]]) -> list[list[tuple[Any, ...]]]:
        """Run statements in one round trip and return their rows; raise Poison or PostgresUnavailable if one fails."""
        async with self._translated():
            return [
                await cursor.fetchall() if cursor.description else [] for cursor in await self._pipelined(statements)
            ]

    async def commit(self, statements: Sequence[tuple[str, Any]] = ()) -> None:
        """Run the last statements and commit, in one round trip, or raise: nothing may be acknowledged then.

        Poison blames one of the statements, or what a deferred constraint says at the COMMIT: nothing was committed. A
        warning of any of them raises as well, unless a function said it.
        """
        self._warnings.texts.clear()
        async with self._translated():
            tag = (await self._pipelined([*statements, ("COMMIT", None)]))[-1].statusmessage
        if doubt := doubt_of(tag, self._warnings):
            await self.close()
            raise PostgresUnavailable("commit", detail=f"{self._where()}: {doubt}")

    async def _pipelined(self, statements: Sequence[tuple[str, Any]]) -> list[psycopg.AsyncCursor[Any]]:
        if len(statements) == 1:
            return [await self._connection.execute(*statements[0])]
        try:
            async with self._connection.pipeline():
                self._sending = True
                cursors = [await self._connection.execute(*one) for one in statements]
                self._sending = False
                return cursors
        finally:
            self._sending = False

    async def _roll_back(self) -> None:
        if not self.alive or self._connection.info.transaction_status == TransactionStatus.IDLE:
            return
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._connection.execute("ROLLBACK")
        except (psycopg.Error, TimeoutError):
            await self.close()
        except asyncio.CancelledError:
            await self.close()
            raise

    @contextlib.asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        """Bound an exchange, and translate its errors: one whose socket had to be shut was not answered in time."""
        limit = TaskTimeout(self._settings.timeout_s + _GRACE_S, self._connection)
        try:
            async with limit:
                with self._probed(limit):
                    yield
        except psycopg.Error as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # leaving a pipeline can put its own error over the cancellation
                await self.close()
                raise asyncio.CancelledError from error
            if limit.expired:
                await self.close()
                why = "its session waits for us, or is gone" if self._silent else "no answer"
                raise PostgresUnavailable("timeout", detail=f"{self._where()}: {why}") from error
            raise translated(error, self._where(), of_data=self._of_data) from error
        except asyncio.CancelledError:
            await self.close()
            raise

    @contextlib.contextmanager
    def _probed(self, limit: TaskTimeout) -> Iterator[None]:
        """Ask over another connection, where the answer does not come soon, whether it ever will."""
        timer = asyncio.get_running_loop().call_later(PROBE_S, self._start_probing, limit)
        try:
            yield
        finally:
            timer.cancel()
            if self._probing is not None:
                self._probing.cancel()
                self._probing = None

    def _start_probing(self, limit: TaskTimeout) -> None:
        self._probing = asyncio.create_task(self._probe_now_and_then(limit), name="probe")

    async def _probe_now_and_then(self, limit: TaskTimeout) -> None:
        await self._probe(limit)
        while not self._silent:
            await TASKS.sleep(PROBE_S)
            await self._probe(limit)

    async def _probe(self, limit: TaskTimeout) -> None:
        """End the exchange where its session waits for us as we wait for it; a busy one is waited for."""
        if self._pid is None:
            return
        whom = {"pid": self._pid, "name": self._connection.info.get_parameters().get("application_name", "")}
        try:
            async with await connect(self._settings, "statecache probe") as other:
                for pause in (_LOOK_AGAIN_S, 0.0):  # what was sent last may not have been noticed yet
                    waits = self._waits()
                    found = await self._probed_on(other, whom | {"end": False})
                    if found and not (waits and found[0][0] and self._waits()):
                        return
                    await TASKS.sleep(pause)
                self._silent = limit.expired = True  # before the session is ended: the exchange may fail by that
                await self._probed_on(other, whom | {"end": True})
        except (psycopg.Error, PostgresUnavailable, ConfigurationError) as error:
            whisper("not_probed", detail=str(error).partition("\n")[0])
        if self._silent:
            limit.expire()

    async def _probed_on(self, other: psycopg.AsyncConnection[Any], whom: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        seconds = self._settings.timeout_s
        return await asked(other, self._settings.postgres_schema, "session_probe", whom, seconds=seconds)

    def _waits(self) -> bool:
        """Return whether this side has nothing to do but to wait: all is sent, and no answer is there to be read."""
        if self._sending or self._connection.pgconn.flush():
            return False
        answers = select.poll()
        answers.register(self._connection.fileno(), select.POLLIN)
        return not answers.poll(0)

    def _where(self) -> str:
        return masked(self._settings.postgres_url)

    async def close(self) -> None:
        """Close the connection; Postgres rolls back what was open on it."""
        with contextlib.suppress(psycopg.Error, OSError):
            await self.session.close()
