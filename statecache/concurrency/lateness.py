"""Telling a server that is silent from a caller who had no time to listen: the latter blames no server.

* `Lateness` measures how late the loop was while a connection is opened.
* `unanswered` is the error of who opened one and heard nothing.
* `no_answer` says of an exchange whose time is up how late the loop looked for the answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

_TICK_S = 0.002
"""How often the loop is looked at, in seconds."""
_SHARE = 0.5
"""From what share of the time on that the loop was late it is the loop that took too long."""
_LOOKS_MAX = 40
"""A server whose answer was looked for more often than this is silent, however late each look came."""
SILENCE_S = 0.2
"""How long a server may leave a request unanswered and count as slow only, in seconds."""
_LATE_S = 0.02
"""From how many seconds on it is told that an answer was looked for too late."""
_BUSY = (
    "Whether the server is up is not known. Have fewer calls under way at once in this process, use set_many and "
    "get_many, or give them more time."
)
_SHORT = "Whether the server is up is not known after so short a time. Give the call more."


class TooLittleTime(TimeoutError):
    """The time was up, too little of which was there to listen: the hint says what to do about it."""

    def __init__(self, told: str, hint: str) -> None:
        super().__init__(told)
        self.hint = hint


def unanswered(seconds: float) -> TimeoutError:
    """Return the error of who heard nothing in that many seconds."""
    told = no_answer(seconds, 0.0)
    return TooLittleTime(told, _SHORT) if seconds < SILENCE_S else TimeoutError(told)


class Lateness:
    """A block that bounds what is done in it to so many seconds: TimeoutError past it.

    Of these, TooLittleTime says that it was too short to hear anything, or that most of the time the running loop had
    other things to do, and looked for an answer but a few times.
    """

    __slots__ = ("_began", "_bound", "_due", "_late_s", "_looks", "_loop", "_seconds", "_timer")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._bound = asyncio.timeout(seconds)

    async def __aenter__(self) -> Lateness:
        self._loop = asyncio.get_running_loop()
        self._began, self._late_s, self._looks = self._loop.time(), 0.0, 0
        self._look_again()
        await self._bound.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._timer.cancel()
        try:
            await self._bound.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise self._busy() or (late if self._seconds is None else unanswered(self._seconds)) from None
        if error is not None and "imeout" in type(error).__name__ and (busy := self._busy()) is not None:
            raise busy from error

    def _busy(self) -> TooLittleTime | None:
        """Return the error where the loop was busy."""
        self._note()
        whole = self._loop.time() - self._began
        late = max(self._late_s, 0.0 if self._seconds is None else whole - self._seconds)
        if self._looks > _LOOKS_MAX or late < _SHARE * whole:
            return None
        told = f"no answer within {whole:.2g} s, for {late:.2g} s of which this process was busy"
        return TooLittleTime(told, _BUSY)

    def _look_again(self) -> None:
        self._due = self._loop.time() + _TICK_S
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._looks += 1
        self._note()
        self._look_again()

    def _note(self) -> None:
        self._late_s += max(self._loop.time() - self._due, 0.0)


def no_answer(seconds: float, late_s: float) -> str:
    """Return what is said of an exchange whose time is up, and which this process saw so late."""
    late = f", and this process was busy: it looked {late_s:.2g} s too late" if late_s >= _LATE_S else ""
    return f"no answer within {seconds:.3g} s{late}"
