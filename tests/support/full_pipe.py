"""A pipe that nobody reads for now: what writes into it waits."""

from __future__ import annotations

import json
import os
from typing import Any


class FullPipe:
    """A pipe that is full of empty lines until it is read; what was written behind them comes next."""

    def __init__(self) -> None:
        out, self.end = os.pipe()
        self._out = os.fdopen(out, "rb")
        os.set_blocking(self.end, False)
        for size in (4096, 1):
            try:
                while True:
                    os.write(self.end, b"\n" * size)
            except BlockingIOError:
                pass
        os.set_blocking(self.end, True)

    def line(self) -> Any:
        """Read the next object."""
        while not (line := self._out.readline()).strip():
            pass
        return json.loads(line)

    def close(self) -> None:
        """Close both ends."""
        os.close(self.end)
        self._out.close()
