"""What a worker logs: one JSON object a line, an event and its fields, never a value.

Alarms are lines at ERROR with `"alarm": true`: something that a person should look at, while the worker goes on.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

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


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send the worker's log, and what libraries warn of, to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
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
