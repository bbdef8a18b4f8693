"""What a worker logs: one JSON object a line, an event and its fields, never a value.

Alarms are lines at ERROR with `"alarm": true`: something that a person should look at, while the worker goes on.

A thread of its own writes the lines, in their order: whoever reads them may stop reading, as a log collector that hangs
or a terminal that is paused, and the event loop must not wait for that. `LINES_MAX` lines wait for the reader; what
comes on top of them is dropped, and a line in its place says how many. At the end of the process what waits is written
for as long as `END_S`; then the process ends, whether anybody reads or not: the thread cannot keep it, and holds no
lock of a stream that Python flushes at its end.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections import deque
from contextlib import suppress
from threading import Condition, Thread
from typing import Any

import msgspec

from statecache.concurrency.starting import start

LINES_MAX = 10_000
"""How many lines wait for who reads the log: some megabytes."""
END_S = 1.0
"""For how long what waits is written at the end of the process; the draining has taken its time before."""
LOGGER = "statecache.worker"
_logger = logging.getLogger(LOGGER)


class JsonLines(logging.Formatter):
    """A formatter that writes a record as one JSON object: at, level, event, then the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
        }
        if record.name == LOGGER:
            line |= {"event": record.getMessage(), **getattr(record, "fields", {})}
        else:
            line |= {"event": "log", "logger": record.name, "text": record.getMessage()}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class _Dropped:
    """How many lines are missing in one place of the log."""

    def __init__(self) -> None:
        self.lines = 1


class WaitingLines(logging.Handler):
    """A handler that keeps lines, `LINES_MAX` at most, until a thread has written them to the file of that number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self._number = number
        self._waiting: deque[str | _Dropped] = deque()
        self._writing = False
        self._changed = Condition()
        start(Thread(target=self._write_on, name="log", daemon=True))

    def emit(self, record: logging.LogRecord) -> None:
        """Have a line written, or counted where too many wait."""
        try:
            line = self.format(record)
        except Exception:  # as every handler of logging: a line that cannot be made is no reason to end
            self.handleError(record)
            return
        with self._changed:
            last = self._waiting[-1] if len(self._waiting) >= LINES_MAX else None
            if isinstance(last, _Dropped):
                last.lines += 1
            else:
                self._waiting.append(line if last is None else _Dropped())
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is written, for as long as `END_S`: `logging` calls it at the end of the process."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._writing), END_S)

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._waiting))
                line = self._waiting.popleft()
                self._writing = True
            text = line if isinstance(line, str) else self.format(_record_of(line))
            with suppress(OSError):  # the disk is full, or nobody will ever read it
                self._write(f"{text}\n".encode("utf-8", "backslashreplace"))  # as JSON is, whatever the locale says

    def _write(self, rest: bytes) -> None:
        """Write past Python's streams: one of them that waited would keep the process at its end."""
        while rest:
            try:
                rest = rest[os.write(self._number, rest) :]
            except BlockingIOError:  # the reader has it so: it is waited for all the same
                select.select([], [self._number], [])


def _record_of(dropped: _Dropped) -> logging.LogRecord:
    fields = {"fields": {"lines": dropped.lines}}
    return _logger.makeRecord(LOGGER, logging.WARNING, __file__, 0, "lines_dropped", (), None, extra=fields)


def _number_of_stderr() -> int | None:
    """Return the number of the file that standard error is; None where a program has put a stream of its own there."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # it is closed, or no file
        return None


def _handler() -> logging.Handler:
    number = _number_of_stderr()
    if number is not None:
        return WaitingLines(number)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    return handler


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send the worker's log, and what libraries warn of, to standard error as JSON lines."""
    if any(isinstance(one, WaitingLines) for one in _logger.handlers) and _number_of_stderr() is not None:
        return
    handler = _handler()
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(handler)
    _logger.handlers[:] = [handler]
    _logger.setLevel(level)
    _logger.propagate = False


def say(event: str, **fields: Any) -> None:
    """Log an event."""
    _logger.info(event, extra={"fields": fields})


def whisper(event: str, **fields: Any) -> None:
    """Log an event that only a developer wants to see."""
    if _logger.isEnabledFor(logging.DEBUG):
        _logger.debug(event, extra={"fields": fields})


def warn(event: str, **fields: Any) -> None:
    """Log an event that passes by itself: an outage, a retry."""
    _logger.warning(event, extra={"fields": fields})


def alarm(event: str, **fields: Any) -> None:
    """Log an event that somebody should look at."""
    _logger.error(event, extra={"fields": {"alarm": True, **fields}})


def crash(event: str, **fields: Any) -> None:
    """Log the error that is being handled, with its trace."""
    _logger.exception(event, extra={"fields": {"alarm": True, **fields}})
