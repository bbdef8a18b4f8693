"""Waiting for what was begun for a caller who is cancelled: what writes is not left to write later."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


async def until_ended(begun: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until all of it has ended, however often the caller is cancelled meanwhile."""
    left = [one for one in begun if not one.done()]
    with _undisturbed():
        while left:
            with suppress(asyncio.CancelledError):
                await asyncio.wait(left)
            left = [one for one in left if not one.done()]


def _undisturbed() -> AbstractContextManager[object]:
    """Return what keeps a cancelled scope of anyio from cancelling the caller at every turn of the event loop.

    Where anyio's part for asyncio was never loaded there is no such scope. It is not loaded here: in a forked child the
    lock of its import may be held for ever, by a thread that its parent has.
    """
    backend = getattr(sys.modules.get("anyio._backends._asyncio"), "backend_class", None)
    return nullcontext() if backend is None else backend.create_cancel_scope(shield=True)
