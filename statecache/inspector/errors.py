"""Errors as pages: what happened, what to do about it, and the status that says so to programs."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from statecache.errors import (
    AlreadyExists,
    Backpressure,
    ChangeIdReused,
    CodecError,
    Forked,
    InvalidKey,
    LeaseLost,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Quarantined,
    StaleToken,
    StateCacheError,
    Unavailable,
    UsageError,
    VersionConflict,
)
from statecache.history_errors import AlreadyCurrent, CheckpointNotFound, HistoryIncomplete, VersionNotFound
from statecache.inspector.rendering import page, told

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_STATUS = (
    ((NotFound, VersionNotFound, CheckpointNotFound), 404),
    ((InvalidKey, UsageError, LimitExceeded, CodecError), 400),
    ((VersionConflict, AlreadyCurrent, AlreadyExists, ChangeIdReused, Forked, Quarantined, StaleToken, LeaseLost), 409),
    ((Unavailable, HistoryIncomplete, Backpressure, OutcomeUnknown), 503),
)


def status_of(error: StateCacheError) -> int:
    """Return the HTTP status that an error leads to."""
    return next((status for kinds, status in _STATUS if isinstance(error, kinds)), 500)


async def refused(request: Request, error: Exception) -> Response:
    """Return the page of an error of ours."""
    assert isinstance(error, StateCacheError)
    return await page(
        request, "error.html", status=status_of(error), name=type(error).__name__, text=told(error),
        nearest=getattr(error, "nearest", None), key=getattr(error, "key", None),
    )  # fmt: skip


async def failed(request: Request, error: Exception) -> Response:
    """Return the page of what is not there, or of what was not expected; the latter is logged with its traceback."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = "There is no such page."
    if isinstance(error, HTTPException) and error.detail != HTTPStatus(status).phrase:
        text = error.detail
    elif status == 500:
        text = f"The inspector failed with {type(error).__name__}: its output has the traceback."
    return await page(
        request, "error.html", status=status, name=HTTPStatus(status).phrase, text=text, nearest=None, key=None
    )
