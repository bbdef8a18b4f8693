"""Looking again and again until something holds, where nothing gives a signal.

A loop that looks without a pause takes the processor from whatever it waits for, and from the tests beside it.
"""

from __future__ import annotations

import asyncio
import time

PAUSE_S = 0.005


async def pause() -> None:
    """Let others run for a moment, and look again."""
    await asyncio.sleep(PAUSE_S)


def pause_thread() -> None:
    """Do the same in a thread."""
    time.sleep(PAUSE_S)
