"""The connections of a pool that nobody uses: those that are idle, and those that are being opened for who waits.

Whoever waits for a connection may have less time than it takes to open one, or be cancelled. What he began goes on
without him, for as long as the settings allow, and is there for the next one: of callers who all have little time none
would ever get through otherwise. So who opens a connection does not matter to who gets it. Each goes to whoever waits
longest, given back or just opened; an error goes to whom the opening was begun for.

What is being opened counts with what stands: together they are never more than the pool may have. Where that leaves no
room, what nobody waits for any more and has taken long is given up for a new attempt: the server may have changed.

No mutex guards this, for a signal handler may use a client in the middle of each step. Whoever adds a connection and
whoever begins to wait first says so and then looks whether the two fit together. A handler that raises between two
steps may leave somebody out: at the end of each opening its beginner is seen to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from statecache.clock import monotonic
from statecache.concurrency import NoThread, unanswered
from statecache.errors import StateCacheError, Unavailable, UsageError
from statecache.signal_errors import pass_on_below

if TYPE_CHECKING:
    from statecache.concurrency import Background, Concurrency, Slot

_LOOK_S = 0.1
"""How often who waits without an opening of his own looks whether there is room for one, in seconds."""


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
    """Who waits for a connection; `begun` says whether one is being opened for him, `gone` that he waits no more."""

    __slots__ = ("begun", "gone", "outcomes", "signal")

    def __init__(self, signal: Any) -> None:
        self.signal = signal
        self.begun = False
        self.gone = False
        self.outcomes: list[C | Exception] = []
        """What was handed over, one thing but for races; whoever takes it out has it."""


class _Opening(Generic[C]):
    """A connection that is being opened since that moment; `given_up` where it is to be closed once it is open."""

    __slots__ = ("background", "began", "given_up", "started", "waiter")

    def __init__(self, waiter: _Waiter[C]) -> None:
        self.waiter = waiter
        self.began = monotonic()
        self.background: Background | None = None
        self.started = False
        self.given_up = False

    @property
    def has_ended(self) -> bool:
        """Whether it is listed and does not run: cancelled, or its beginner interrupted, before it did."""
        if not self.started:
            return self.waiter.gone
        return self.background is not None and not self.background.alive

    def let_go(self) -> None:
        """Have it end, without waiting."""
        if (background := self.background) is not None:
            background.let_go()


class Idle(Generic[C]):
    """The idle connections of a pool of `size`, and those that are being opened.

    `open_one` opens one, in so many seconds or in the time that the settings allow, or raises the reason. `late`
    returns the error of who waited too long for an answer. What takes more than `long_s` seconds has taken long.
    """

    def __init__(
        self,
        open_one: Callable[[float | None], Awaitable[C]],
        *,
        io: Concurrency,
        size: int,
        late: Callable[[TimeoutError], StateCacheError],
        long_s: float,
    ) -> None:
        self._open_one = open_one
        self._io = io
        self._size = size
        self._late = late
        self._long_s = long_s
        self._idle: list[C] = []
        self._waiting: deque[_Waiter[C]] = deque()
        self._openings: list[_Opening[C]] = []
        self._gave_up_at = -inf
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
        end, bound, waiter = monotonic() + seconds, seconds, _Waiter[C](self._io.signal())
        try:
            self._waiting.append(waiter)
            if self._closed:
                raise closed()
            self._match()
            await self._work_for(waiter, end)
            bound = max(end - monotonic(), 0.0)
            await self._io.answered(waiter.signal, bound)
        except TimeoutError as error:
            self._leave(waiter)
            pass_on_below(error)
            raise self._late(error if bound > seconds / 2 else unanswered(seconds)) from error
        except BaseException:  # whatever ended the wait, a connection that came meanwhile is another one's
            self._leave(waiter)
            raise
        outcome = self._taken(waiter)
        try:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            del outcome  # an error refers to this frame, which must not refer to it

    async def _work_for(self, waiter: _Waiter[C], end: float) -> None:
        """Begin to open a connection, once there is room for one; until then, wait for another one's."""
        while not waiter.outcomes and (left := end - monotonic()) > 0:
            if (opening := self._room_for(waiter)) is not None:
                await self._begin(opening, left)
                return
            await waiter.signal.wait(min(left, _LOOK_S))

    def _room_for(self, waiter: _Waiter[C]) -> _Opening[C] | None:
        """Return a new opening, listed; None where there would be more connections than there may be.

        It is listed first, and of several that are listed at once the earlier ones have the room.
        """
        for one in list(self._openings):
            if one.has_ended:
                self._unlist(one)
        opening = _Opening(waiter)
        self._openings.append(opening)
        if self._is_within(opening) or (self._give_one_up() and self._is_within(opening)):
            return opening
        self._unlist(opening)
        return None

    def _is_within(self, opening: _Opening[C]) -> bool:
        return self._openings.index(opening) + sum(one.alive for one in self.all()) < self._size

    def _give_one_up(self) -> bool:
        """Give up the oldest opening that has taken long and that nobody waits for, one in `long_s`; return whether."""
        now = monotonic()
        for one in list(self._openings):
            if one.waiter.gone and now - max(one.began, self._gave_up_at) >= self._long_s:
                self._gave_up_at, one.given_up = now, True
                self._unlist(one)
                one.let_go()
                return True
        return False

    def _unlist(self, opening: _Opening[C]) -> None:
        with suppress(ValueError):
            self._openings.remove(opening)

    async def _begin(self, opening: _Opening[C], seconds: float) -> None:
        opening.waiter.begun = True
        opening.background = background = self._io.background(
            partial(self._open, opening), name="statecache-connecting"
        )
        try:
            background.start()
            opening.started = True
        except NoThread:  # as at the end of the interpreter: this one has to do it, and in his time
            await self._open(opening, background, seconds)
        except BaseException:  # a signal handler raised; if it runs nevertheless, it lands by itself
            self._unlist(opening)
            raise

    async def _open(self, opening: _Opening[C], background: Background, seconds: float | None = None) -> None:
        """Open a connection for whoever waits longest; tell the waiter what hindered it."""
        waiter, connection, trouble = opening.waiter, None, None
        try:
            connection = await self._open_one(seconds)
        except Exception as error:  # whatever it is, it is raised by who waits
            trouble = error
        finally:
            if connection is None:
                self._unlist(opening)
                self._tell(opening, trouble or self._late(TimeoutError("its opening was cancelled")))
            opening.background = None
            del background, trouble  # an error refers to this frame, which must not refer to it
        if connection is None:
            return
        if self._closed or opening.given_up:
            await connection.close()
            self._unlist(opening)
            self._tell(opening, closed())
            return
        self._opened[connection], self.trouble = None, None
        self._unlist(opening)  # only now, so that it is counted all the time
        if not waiter.gone and waiter not in self._waiting:
            if waiter.outcomes:
                waiter.signal.set()
            else:
                self._waiting.appendleft(waiter)
        self.put(connection)

    def _tell(self, opening: _Opening[C], error: Exception) -> None:
        """Hand an error to whom the opening was begun for; if he has left, to one for whom none was begun."""
        if isinstance(error, Unavailable):
            self.trouble = error.detail, error.hint
        if not opening.waiter.gone:
            self._hand(opening.waiter, error)
        elif not opening.given_up:
            for one in [other for other in list(self._waiting) if not other.begun][:1]:
                self._hand(one, error)

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
        waiter.outcomes.append(outcome)
        waiter.signal.set()
        with suppress(ValueError):
            self._waiting.remove(waiter)
        if waiter.gone:
            self._take_back(waiter)

    def _taken(self, waiter: _Waiter[C]) -> C | Exception:
        """Return what was handed over, a connection rather than an error."""
        outcome = waiter.outcomes.pop(0)  # an error that is kept would keep its callers
        if isinstance(outcome, Exception) and waiter.outcomes:
            outcome = waiter.outcomes.pop(0)
        self._leave(waiter)
        return outcome

    def _leave(self, waiter: _Waiter[C]) -> None:
        """Stop waiting; what was handed over meanwhile goes to the next one."""
        waiter.gone = True
        with suppress(ValueError):
            self._waiting.remove(waiter)
        self._take_back(waiter)

    def _take_back(self, waiter: _Waiter[C]) -> None:
        while True:
            try:
                outcome = waiter.outcomes.pop()
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

    async def close(self) -> None:
        """Close the idle connections, and what is being opened; whoever waits for one is told that it is closed."""
        self._closed = True
        for waiter in list(self._waiting):
            self._hand(waiter, closed())
        for opening in list(self._openings):
            if (background := opening.background) is not None:
                await background.stop(0.0)
        while (idle := self.revived()) is not None:
            await idle.end()


def closed() -> UsageError:
    """Return the error of who wants a connection of a closed client."""
    return UsageError("it is closed", hint="Make a new client.")
