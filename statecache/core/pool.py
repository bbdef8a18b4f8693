"""A bounded pool of connections, fair and fork-safe, for Redis and Postgres alike.

Who waits longest is served first: a pool without that starves some of many tasks for seconds. Whatever takes several
exchanges goes on before others begin, or of very many callers none would come to an end in time. A connection is idle,
or lent to exactly one caller, who closes it where it fails. Who keeps one while he waits for something else, as a
transaction does for user code, holds it: half of them may be held at once. One connection's fault is most often every
connection's: one that broke, or was silent for a while, takes those idle ones with it that were not heard since. A
caller who waits for an answer for a few milliseconds only learns nothing of the others.

After a fork the child starts with an empty pool and leaves the parent's sockets alone. A pool belongs to the event loop
that it was opened in, or else to the one that first used it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Generic

from statecache._process import begins_anew_after_fork
from statecache.clock import monotonic
from statecache.concurrency import SILENCE_S, Concurrency, Slot
from statecache.core.idle import C, Idle, closed
from statecache.errors import StateCacheError, Unavailable, UsageError

LEFT_S = 0.2
"""How much of its time a call that waits for a connection has left for the server, in seconds: else nothing is sent."""


def silent_since(sent: float) -> float:
    """Return the moment up to which idle connections are doubted, when a request sent at `sent` was not answered."""
    return sent if monotonic() - sent >= SILENCE_S else -inf


def _patience(seconds: float) -> float:
    """Return how long a caller waits for a connection who has so much time in all."""
    return seconds - min(LEFT_S, seconds / 2)


def _is_too_late(waited: float, seconds: float) -> bool:
    """Return whether a caller was told so late of his connection that hardly any of his time is left for the server."""
    return seconds - waited < (seconds - _patience(seconds)) / 2


class Pool(Generic[C]):
    """A pool that lends at most `size` connections.

    `open_one` makes one, in so many seconds or in `connect_timeout_s`, or raises the reason; `late` returns the error
    of who waited in vain for that.
    """

    def __init__(
        self,
        open_one: Callable[[float | None], Awaitable[C]],
        *,
        io: Concurrency,
        size: int,
        busy: type[Unavailable],
        late: Callable[[TimeoutError], StateCacheError],
        connect_timeout_s: float,
        what: str,
    ) -> None:
        self._io = io
        self._open_one = open_one
        self._size = size
        self._holds_max = max(1, size // 2)
        self._busy = busy
        self._late = late
        self._long_s = connect_timeout_s / 4
        self._what = what
        self._closed = False
        self._parents: list[C] = []
        self._inherited: list[C | Idle[C]] = []
        self._begin()
        begins_anew_after_fork(self)

    def _begin(self) -> None:
        self._place: object = None
        self._slots = self._io.slots(self._size)
        self._holds = self._io.slots(self._holds_max)
        self._idle: Idle[C] = Idle(
            self._open_one, io=self._io, size=self._size, late=self._late, long_s=self._long_s
        )  # fmt: skip
        self._silent_since = -inf
        self.longest_wait_s = 0.0

    def begin_anew(self, _: AbstractContextManager[Any]) -> None:
        """Empty the pool of a forked child, which parts with its parent's connections once it uses the pool."""
        for connection in (*self._idle, *self._idle.lent()):
            connection.slot = connection.hold = None
            self._parents.append(connection)
        self._inherited.append(self._idle)  # whose tasks nothing may end
        self._begin()

    @property
    def lent(self) -> int:
        """The number of connections that are lent by this process."""
        return len(self._idle.lent())

    async def take(self, seconds: float, *, ahead: bool = False) -> C:
        """Lend a connection, waiting for at most that many seconds for one to be free.

        Who goes on with what he has begun is `ahead` of those who have not.
        """
        if self._parents:
            self._part()
        self._check_open()
        self.open_here()
        slot = self._slots.acquire_now()
        if slot is None:
            slot, seconds = await self._wait_for_slot(seconds, ahead)
        try:
            self._check_open()
            connection = self._idle.revived() or await self._idle.get(seconds)
            if self._closed:  # meanwhile
                await connection.close()
                raise closed()
        except BaseException:  # whatever hindered it, the slot is free again
            slot.release()
            raise
        connection.slot = slot
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise closed()

    @property
    def place(self) -> object | None:
        """The event loop that the pool belongs to; None where nothing has opened or used it."""
        return self._place

    def open_here(self) -> None:
        """Have the pool belong to this event loop; raise UsageError where it belongs to another one."""
        self.check_place()
        self._place = self._io.place()

    def check_place(self) -> None:
        """Raise UsageError where the pool belongs to another event loop."""
        here = self._io.place()
        if self._place is not None and self._place is not here:
            raise UsageError("it belongs to another event loop", hint="Make one client for each event loop.")

    async def hold(self, seconds: float, waited: float = 0.0) -> C:
        """Lend a connection that is kept while something else is waited for; at most half of them may be at once.

        `waited` is for how many seconds it was asked for already.
        """
        begun = monotonic()
        slot = await self._holds.acquire(_patience(seconds))
        if slot is None:
            what = f"one of the {self._holds_max} connections that transactions may hold"
            raise self.all_in_use(waited + monotonic() - begun, what)
        try:
            connection = await self.take(max(seconds - (monotonic() - begun), 0.001))
        except BaseException:  # whatever hindered it, another one may hold one
            slot.release()
            raise
        connection.hold = slot
        return connection

    def hold_now(self) -> Slot | None:
        """Return a slot for a connection that is to be held, for the caller to release; None where none is free."""
        return self._holds.acquire_now() if self._size > 1 else None

    def _part(self) -> None:
        """Part with a parent's connections, and keep them: even to collect them could harm the parent."""
        while self._parents:
            connection = self._parents.pop()
            self._inherited.append(connection)
            connection.abandon()

    def _note(self, connection: C) -> None:
        """Note what the failure of a connection says about the others."""
        if not connection.alive:
            self._silent_since = max(self._silent_since, connection.silent_since)

    async def _wait_for_slot(self, seconds: float, ahead: bool) -> tuple[Slot, float]:
        """Return a slot once a connection is free, and the seconds that are left."""
        started = monotonic()
        slot = await self._slots.acquire(_patience(seconds), ahead=ahead)
        waited = monotonic() - started
        if slot is not None and _is_too_late(waited, seconds):
            slot.release()
            slot = None
        if slot is None:
            raise self.all_in_use(waited)
        self.longest_wait_s = max(self.longest_wait_s, waited)
        return slot, max(seconds - waited, 0.001)

    def all_in_use(self, waited: float, what: str = "") -> Unavailable:
        """Return the error of who waited so many seconds in vain: the server knows nothing of it.

        Where nobody has a connection, their number is not what is in the way.
        """
        told, trouble = f"waited {waited:.2g} s for {what or f'a connection of {self._size}'}", self._idle.trouble
        stands = any(one.alive for one in self._idle.all())
        hint = (
            f"This process has more calls under way than connections to {self._what}: raise "
            f"{self._what.lower()}_connections_max, have fewer calls under way at once, or use set_many, get_many."
        )
        if not stands and trouble is None:
            told += ", none of which is open yet"
        elif not stands and trouble is not None:
            told, hint = f"{told}, none of which could be opened: {trouble[0]}", trouble[1]
        return self._busy("pool", detail=told, hint=hint)

    def give(self, connection: C) -> None:
        """Take a connection back, unless it is a forked parent's; whether it is alive is checked when it is lent."""
        slot, connection.slot = connection.slot, None
        hold, connection.hold = connection.hold, None
        if slot is None:
            return
        self._note(connection)
        self._idle.put(connection)
        slot.release()
        if hold is not None:
            hold.release()

    async def drop_idle(self, *, all_of_them: bool = False) -> None:
        """Close the idle connections that are doubted since another one failed, or all of them."""
        for connection in self._idle.lent():
            self._note(connection)
        for connection in self._idle:
            doubted = all_of_them or connection.heard_at <= self._silent_since
            if doubted and self._idle.remove(connection):
                await connection.close()

    def let_go(self) -> None:
        """Close the idle connections, when nobody can borrow any more; a finalizer calls it too."""
        self._idle.let_go()

    async def close(self) -> None:
        """Close the idle connections, and shut the lent ones, which who uses them closes; no more can be taken.

        Closed under a thread that waits on it, a connection of libpq would take the process along.
        """
        self._closed = True
        self._part()
        await self._idle.close()
        for connection in self._idle.lent():
            await connection.sever()
