"""Slots for tasks and slots for threads, handed out first come first served: the pair behind pools and turns."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from statecache._process import mutex


class AsyncSlots:
    """This hands out a number of slots to tasks, first come first served."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def acquire_now(self) -> bool:
        """This takes a slot if one is free and nobody waits for it, and says whether it did."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return True
        return False

    async def acquire(self, seconds: float) -> bool:
        """This waits for a slot for at most that many seconds and says whether it got one."""
        if self.acquire_now():
            return True
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:  # cancelled or out of time: a turn that came is passed on
            if turn.done() and not turn.cancelled():
                self.release()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def release(self) -> None:
        """This gives a slot to whoever waits longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Slots:
    """This hands out a number of slots to threads, first come first served."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._mutex = mutex()
        self._waiting: deque[threading.Lock] = deque()

    def acquire_now(self) -> bool:
        """This takes a slot if one is free and nobody waits for it, and says whether it did."""
        with self._mutex:
            if self._free > 0 and not self._waiting:
                self._free -= 1
                return True
        return False

    def acquire(self, seconds: float) -> bool:
        """This waits for a slot for at most that many seconds and says whether it got one."""
        with self._mutex:
            if self._free > 0 and not self._waiting:
                self._free -= 1
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            got = turn.acquire(timeout=max(seconds, 0.0))
        except BaseException:  # a signal handler raised: a turn that came is passed on
            if not self._withdrawn(turn):
                self.release()
            raise
        return got or not self._withdrawn(turn)

    def _withdrawn(self, turn: threading.Lock) -> bool:
        with self._mutex:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
        return True

    def release(self) -> None:
        """This gives a slot to whoever waits longest."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
