"""The only place that reads a clock or sleeps on one.

Clocks are never mixed: `monotonic` for waiting, `boottime` (which counts suspend) for trust, `wall` for records.
Durable order never comes from any of them.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial

monotonic = time.monotonic
sleep = time.sleep
boottime = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Seconds on a clock that goes on while the machine is suspended, where the system has one."""


def wall() -> datetime:
    """Return the current time, aware and in UTC."""
    return datetime.now(UTC)
