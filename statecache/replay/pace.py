"""How long agents think before a message: a number that the supervisor writes and the agents read.

Slower where kills are due and their victims are still being started again, so that a short input does not end before
every kill had its moment.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Self

_SECONDS = struct.Struct("<d")


class Pace:
    """The think time that a replay's processes share: eight bytes in a file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._last = 0.0

    @classmethod
    def shared(cls, folder: Path) -> Self:
        """Open the think time of the replay in that folder."""
        return cls(os.open(folder / "pace", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._descriptor)

    def think_s(self) -> float:
        """Return the seconds to think before a message; 0 until they are set."""
        data = os.pread(self._descriptor, _SECONDS.size, 0)
        return float(_SECONDS.unpack(data)[0]) if len(data) == _SECONDS.size else 0.0

    def set_think_s(self, seconds: float) -> None:
        """Set the seconds for all agents, from their next message on."""
        if seconds != self._last:
            os.pwrite(self._descriptor, _SECONDS.pack(seconds), 0)
            self._last = seconds


def think_s_for(messages: int, kills: int, at_once: int) -> float:
    """Return the seconds to think so that every kill gets about 0.4 s of the replay; 0 where nothing is killed."""
    if not kills:
        return 0.0
    per_second = 0.75 * messages / kills / 0.4
    return min(0.5, at_once / per_second)
