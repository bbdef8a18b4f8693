"""A client's writes that are cut short at one of them, as where its process is killed or stopped there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from statecache import AsyncNamespace

VERBS = ("_updated", "commit")


class Killed(Exception):
    """The process ends here."""


def _patched(monkeypatch: pytest.MonkeyPatch, at: Callable[[], Any]) -> None:
    for verb in VERBS:
        called = getattr(AsyncNamespace, verb)

        async def instead(view: Any, *arguments: Any, called: Any = called, **more: Any) -> Any:
            here = at()
            await here(False)
            made = await called(view, *arguments, **more)
            await here(True)
            return made

        monkeypatch.setattr(AsyncNamespace, verb, instead)


def killing(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> None:
    """Have the write of that number, and all behind it, end in Killed: before it is done, or after it."""
    count = -1

    def at() -> Any:
        nonlocal count
        count += 1
        mine = count

        async def here(done: bool) -> None:
            if mine > number or (mine == number and done is after):
                raise Killed

        return here

    _patched(monkeypatch, at)


def stopping(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> tuple[asyncio.Event, asyncio.Event]:
    """Have the write of that number wait; return what is set once it does, and what lets it go on."""
    stopped, go_on, count = asyncio.Event(), asyncio.Event(), -1

    def at() -> Any:
        nonlocal count
        count += 1
        mine = count

        async def here(done: bool) -> None:
            if mine == number and done is after:
                stopped.set()
                await go_on.wait()

        return here

    _patched(monkeypatch, at)
    return stopped, go_on
