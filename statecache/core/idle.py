"""The connections of a pool that nobody uses: those that are idle, and those that are being opened for who waits.

Whoever waits for a connection may have less time than it takes to open one, or be cancelled. What he began goes on
without him, for as long as the settings allow, and is there for the next one: of callers who all have little time none
would ever get through otherwise. So who opens a connection does not matter to who gets it. Each goes to whoever waits
longest, given back or just opened; an error goes to whom the opening was begun for.

No mutex guards this, for a signal handler may use a client in the middle of each step. Whoever adds a connection and
whoever begins to wait first says so and then looks whether the two fit together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from statecache.errors import StateCacheError, Unavailable

if TYPE_CHECKING:
    from statecache.concurrency import Background, Concurrency, Slot


class Pooled(Protocol):
    """A connection that a pool can lend: it knows whether it is alive, and can be closed.

    `heard_at` is when something was last heard on it; `silent_since`, of one that failed, the moment up to which others
    that were not heard later are doubted with it. `slot` and `hold` are the pool's: the connection's place among those
    lent, and among those held. So a borrower who is interrupted keeps no place.
    """

    heard_at: float
    silent_since: float
    slot: Slot | None
    hold: Slot | None

    @property
    def alive(self) -> bool:
        """Whether the connection still stands, as far as this side knows."""

    def abandon(self) -> None:
        """Let go of a connection that belongs to the parent of this process, without a word to the server."""

    def let_go(self) -> None:
        """Close an idle connection whose client nobody uses any more; take no lock and wait for nothing."""

    async def close(self) -> None:
        """Close the connection at once."""

    async def sever(self) -> None:
        """Shut the socket of a connection that another caller may be using: he gets an error, and closes it."""

    async def end(self) -> None:
        """Close an idle connection, and wait until it is closed."""


C = TypeVar("C", bound=Pooled)


class _Waiter(Generic[C]):
    """Who waits for a connection; `begun` says whether one is being opened for him.

    Whoever takes the outcome out has it: he himself, or once he is `gone` whoever hands something over.
    """

    __slots__ = ("begun", "gone", "outcome", "signal")

    def __init__(self, signal: Any) -> None:
        self.signal = signal
        self.begun = False
        self.outcome: list[C | Exception] = []
        self.gone = False


class Idle(Generic[C]):
    """The idle connections of a pool of `size`, and those that `open_one` opens, or raises the reason.

    `lent` returns how many are in use, and `late` the error of who waited too long for an answer.
    """

    def __init__(
        self,
        open_one: Callable[[], Awaitable[C]],
        *,
        io: Concurrency,
        size: int,
        late: Callable[[TimeoutError], StateCacheError],
    ) -> None:
        self._open_one = open_one
        self._io = io
        self._size = size
        self._late = late
        self._idle: list[C] = []
        self._waiting: deque[_Waiter[C]] = deque()
        self._openings: list[Background] = []
        self._closed = False
        self._opened: WeakKeyDictionary[C, None] = WeakKeyDictionary()
        self.trouble: tuple[str, str] | None = None
        """What the last opening failed with, detail and hint; the error itself would keep its callers."""

    def all(self) -> list[C]:
        """Return all connections that were opened and not forgotten since, those in use too."""
        opened = (known() for known in self._opened.keyrefs())  # of a set that other threads change meanwhile
        return [one for one in opened if one is not None]

    def lent(self) -> list[C]:
        """Return the connections in use."""
        return [one for one in self.all() if one.slot is not None]

    def __iter__(self) -> Any:
        return iter(list(self._idle))

    def revived(self) -> C | None:
        """Return the idle connection that was used last and still stands; several threads may call it at once."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.alive:
                return connection

    def put(self, connection: C) -> None:
        """Keep a connection for whoever wants one next, or hand it to who waits."""
        self._idle.append(connection)
        if self._closed:
            self.let_go()
        elif self._waiting:
            self._match()

    def remove(self, connection: C) -> bool:
        """Return whether the connection was idle still, which now it is no more: another thread may have taken it."""
        with suppress(ValueError):
            self._idle.remove(connection)
            return True
        return False

    async def get(self, seconds: float) -> C:
        """Wait for that many seconds at most for a connection to be opened, or given back.

        Raises the error of the opening, or `late`'s.
        """
        waiter = _Waiter[C](self._io.signal())
        try:
            self._waiting.append(waiter)
            self._match()
            if not waiter.outcome and self._has_room():
                await self._begin(waiter)
            await self._io.answered(waiter.signal, seconds)
        except BaseException as error:  # whatever ended the wait, a connection that came meanwhile is another one's
            self._leave(waiter)
            if isinstance(error, TimeoutError):
                raise self._late(error) from error
            raise
        outcome = waiter.outcome.pop()  # an error that is kept would keep its callers
        try:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            del outcome  # for the same reason

    def _has_room(self) -> bool:
        """Return whether one more may be opened: those that go on by themselves count, too."""
        self._openings = [one for one in self._openings if one.alive]
        return not self._openings or len(self._openings) + len(self.lent()) + len(self._idle) < self._size

    async def _begin(self, waiter: _Waiter[C]) -> None:
        waiter.begun = True
        opening = self._io.background(partial(self._open, waiter), name="statecache-connecting")
        self._openings.append(opening)
        try:
            opening.start()
        except RuntimeError:  # no thread can be started any more: this one has to do it
            await self._open(waiter, opening)

    async def _open(self, waiter: _Waiter[C], opening: Background) -> None:
        """Open a connection for whoever waits longest; tell the waiter what hindered it."""
        trouble: Exception = self._late(TimeoutError("its opening was cancelled"))
        connection = None
        try:
            connection = await self._open_one()
        except Exception as error:  # whatever it is, it is raised by who waits
            trouble = error
        finally:
            with suppress(ValueError):
                self._openings.remove(opening)
            if connection is None:
                self._tell(waiter, trouble)
            del waiter, opening, trouble  # an error refers to this frame, which must not refer to it
        if connection is None:
            return
        if self._closed:
            await connection.close()
            return
        self._opened[connection], self.trouble = None, None
        self.put(connection)

    def _tell(self, waiter: _Waiter[C], error: Exception) -> None:
        """Hand an error to whom the opening was begun for; if he has left, to one for whom none was begun."""
        if isinstance(error, Unavailable):
            self.trouble = error.detail, error.hint
        for one in (waiter, *(other for other in list(self._waiting) if not other.begun)):
            with suppress(ValueError):
                self._waiting.remove(one)
                self._hand(one, error)
                return

    def _match(self) -> None:
        """Hand idle connections to those who wait."""
        while self._waiting and (connection := self.revived()) is not None:
            try:
                waiter = self._waiting.popleft()
            except IndexError:  # another thread was quicker
                self._idle.append(connection)
            else:
                self._hand(waiter, connection)

    def _hand(self, waiter: _Waiter[C], outcome: C | Exception) -> None:
        waiter.outcome.append(outcome)
        waiter.signal.set()
        if waiter.gone:
            self._take_back(waiter)

    def _leave(self, waiter: _Waiter[C]) -> None:
        """Stop waiting; what was handed over meanwhile goes to the next one."""
        waiter.gone = True
        with suppress(ValueError):
            self._waiting.remove(waiter)
        self._take_back(waiter)

    def _take_back(self, waiter: _Waiter[C]) -> None:
        try:
            outcome = waiter.outcome.pop()
        except IndexError:  # nothing was, or another thread has it
            return
        if not isinstance(outcome, Exception):
            self.put(outcome)

    def let_go(self) -> None:
        """Close the idle connections, when nobody can borrow any more; a finalizer calls it too."""
        self._closed = True
        for opening in list(self._openings):
            opening.let_go()
        while (idle := self.revived()) is not None:
            idle.let_go()

    async def close(self, error: Exception) -> None:
        """Close the idle connections, and what is being opened; raise the error where somebody waits for one."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._hand(self._waiting.popleft(), error)
        for opening in list(self._openings):
            await opening.stop(0.0)
        while (idle := self.revived()) is not None:
            await idle.end()
