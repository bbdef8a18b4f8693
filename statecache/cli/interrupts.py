"""Being told to stop by a signal, for commands that have something to clear away at their end."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self


class Interrupts:
    """A block in which the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, and none disturbs the end.

    Where Python has dropped that one, for it was raised in a finalizer, the block ends with it when all is done.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._over = self._wanted = self._interrupted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in self._NUMBERS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = self._interrupted or (kind is not None and issubclass(kind, KeyboardInterrupt))
        for number, before in self._before.items():  # an impatient second one must not change the exit status
            signal.signal(number, signal.SIG_IGN if interrupted else before)
        if self._interrupted and kind is None:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore signals from now on."""
        self._over = True

    def ignore_unless(self, wanted: bool) -> None:
        """Ignore signals from now on, unless one more is wanted: the block itself is not ended by that one."""
        self._over, self._wanted = not wanted, wanted

    def _handle(self, _: int, __: FrameType | None) -> None:
        if not self._over:
            self._over, self._interrupted = True, not self._wanted
            raise KeyboardInterrupt
