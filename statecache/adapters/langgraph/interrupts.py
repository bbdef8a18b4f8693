"""Interrupts that a serializer loses: what a signal's handler raises while a value is decoded.

A decoder in C that calls Python for a part of a value makes an error of its own of whatever that raises, and does not
say of what. LangGraph's serializer takes None for a part of a part that fails. So a Ctrl-C would have a value blamed
that is whole, or spoilt, and what was to end would go on.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType


class Interrupts:
    """A block in which what the handler of SIGINT raises is not lost: at its end, or where it is asked for."""

    def __init__(self) -> None:
        self._before: Any = None
        self._raised: BaseException | None = None

    def __enter__(self) -> Self:
        before = signal.getsignal(signal.SIGINT)
        if callable(before) and threading.current_thread() is threading.main_thread():  # else nothing is raised here
            self._before = before
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self.raise_again()

    def raise_again(self) -> None:
        """Raise what the handler has raised, if it has."""
        if self._raised is not None:
            raise self._raised

    def _handle(self, number: int, frame: FrameType | None) -> None:
        try:
            self._before(number, frame)
        except BaseException as error:  # whatever it is, it is raised, and noted
            self._raised = error
            raise
