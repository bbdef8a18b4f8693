"""Slots for tasks and slots for threads, handed out first come first served: the pair behind pools and turns.

A thread may be interrupted anywhere, by a signal handler that raises: before it has noted what it was given, or on its
way to give it back. So a thread's slot belongs to whoever refers to it, and is free again once nobody does.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from weakref import ref

from statecache import _process


class TaskSlot:
    """A slot that a task has."""

    __slots__ = ("_slots", "taken")

    def __init__(self, slots: TaskSlots) -> None:
        self._slots = slots
        self.taken = True

    def release(self) -> None:
        """Give the slot to whoever waits longest; once."""
        if self.taken:
            self.taken = False
            self._slots._free_one()


class TaskSlots:
    """A number of slots for tasks, handed out first come first served."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[TaskSlot]] = deque()

    def acquire_now(self) -> TaskSlot | None:
        """Return a slot if one is free and nobody waits for it."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return TaskSlot(self)
        return None

    async def acquire(self, seconds: float, *, ahead: bool = False) -> TaskSlot | None:
        """Return a slot, waiting for at most that many seconds for one to be free, or ahead of all who wait."""
        if (slot := self.acquire_now()) is not None:
            return slot
        turn: asyncio.Future[TaskSlot] = asyncio.get_running_loop().create_future()
        if ahead:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        try:
            async with asyncio.timeout(seconds):
                return await turn
        except BaseException as error:  # cancelled or out of time: a turn that came is passed on
            if turn.done() and not turn.cancelled():
                turn.result().release()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(error, TimeoutError):
                return None
            raise

    def _free_one(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(TaskSlot(self))
                return
        self._free += 1


class ThreadSlot:
    """A slot that a thread waits for, or had."""

    __slots__ = ("__weakref__", "_called", "_slots")

    def __init__(self, slots: ThreadSlots) -> None:
        self._slots = slots
        self._called = threading.Lock()

    def release(self) -> None:
        """Give the slot to whoever waits longest; once."""
        self._slots._pass_on(self)


class TakenThreadSlot(ThreadSlot):
    """A slot that a thread has. No other has a finalizer, which swallows what a handler raises."""

    __slots__ = ()

    def __del__(self) -> None:
        self.release()


class ThreadSlots:
    """A number of slots for threads, handed out first come first served."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._mutex = _process.mutex()
        self._waiting: deque[ref[ThreadSlot]] = deque()
        self._pid = _process.pid

    def acquire_now(self) -> ThreadSlot | None:
        """Return a slot if one is free and nobody waits for it."""
        slot = ThreadSlot(self)
        with self._mutex:
            return slot if self._take(slot) else None

    async def acquire(self, seconds: float, *, ahead: bool = False) -> ThreadSlot | None:
        """Return a slot, waiting for at most that many seconds for one to be free, or ahead of all who wait."""
        slot = ThreadSlot(self)
        waiting = ref(slot)
        try:
            with self._mutex:
                if self._take(slot):
                    return slot
                slot._called.acquire()
                if ahead:
                    self._waiting.appendleft(waiting)
                else:
                    self._waiting.append(waiting)
            slot._called.acquire(timeout=max(seconds, 0.0))
            self._leave(slot, waiting)
        except BaseException:  # a signal handler raised: a turn that came is passed on
            self._leave(slot, waiting)
            slot.release()
            raise
        return slot if type(slot) is TakenThreadSlot else None

    def _take(self, slot: ThreadSlot) -> bool:
        if self._free > 0 and not self._waiting:
            self._free, slot.__class__ = self._free - 1, TakenThreadSlot
            return True
        return False

    def _leave(self, slot: ThreadSlot, waiting: ref[ThreadSlot]) -> None:
        with self._mutex:
            if type(slot) is ThreadSlot:
                with suppress(ValueError):
                    self._waiting.remove(waiting)

    def _pass_on(self, slot: ThreadSlot) -> None:
        if self._pid != _process.pid:  # in a forked child these slots are nobody's, and who knows who has the mutex
            return
        with self._mutex:
            taken = type(slot) is TakenThreadSlot
            if not taken:
                return
            heir = self._heir()
            if heir is None:
                self._free, slot.__class__ = self._free + 1, ThreadSlot
                return
            heir.__class__, slot.__class__ = TakenThreadSlot, ThreadSlot
        heir._called.release()

    def _heir(self) -> ThreadSlot | None:
        while self._waiting:
            if (heir := self._waiting.popleft()()) is not None:
                return heir
        return None
