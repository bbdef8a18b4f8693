"""Telling a server that is silent from an event loop that has no time to listen: the latter blames no server.

* `Lateness` measures how late the loop was while a connection is opened.
* `no_answer` says of an exchange whose time is up how late the loop looked for the answer.
"""

from __future__ import annotations

import asyncio

_TICK_S = 0.02
"""How often the loop is looked at, in seconds."""
_SHARE = 0.5
"""From what share of the time on that the loop was late it is the loop that took too long."""


BUSY = "Have fewer calls under way at once in this process, use set_many and get_many, or give them more time."
"""What to do about a process that is too busy."""


class LoopBusy(TimeoutError):
    """The time was up, most of which the event loop of this process spent on other things."""


class Lateness:
    """A block in whose time it is measured how long the running loop had no time for it; LoopBusy where it was long."""

    __slots__ = ("_began", "_due", "_late_s", "_loop", "_timer")

    async def __aenter__(self) -> Lateness:
        self._loop = asyncio.get_running_loop()
        self._began, self._late_s = self._loop.time(), 0.0
        self._look_again()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if error is None or "imeout" not in type(error).__name__:
            return
        self._note()
        whole = self._loop.time() - self._began
        if self._late_s >= _SHARE * whole:
            raise LoopBusy(
                f"no answer within {whole:.2g} s, for {self._late_s:.2g} s of which this process was busy"
            ) from error

    def _look_again(self) -> None:
        self._due = self._loop.time() + _TICK_S
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._note()
        self._look_again()

    def _note(self) -> None:
        self._late_s += max(self._loop.time() - self._due, 0.0)


def no_answer(seconds: float, late_s: float) -> str:
    """Return what is said of an exchange whose time is up, and which this process saw so late."""
    late = f", and this process was busy: it looked {late_s:.2g} s too late" if late_s >= _TICK_S else ""
    return f"no answer within {seconds:.3g} s{late}"
