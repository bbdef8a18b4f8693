"""What stands between an adapter and its commits: exchanges that are counted, answers that are lost, slow commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statecache import AsyncNamespace, OutcomeUnknown
from statecache.core.redis.connection import Link


def counting_exchanges(monkeypatch: pytest.MonkeyPatch, group: str) -> Callable[[Awaitable[Any]], Awaitable[int]]:
    """Return what awaits a call, and says how many exchanges with Redis named that group meanwhile."""
    run, count = Link.run, 0

    async def noted(link: Link, commands: Any, *, seconds: float) -> list[Any]:
        nonlocal count
        count += any(group in str(word) for command in commands for word in command)
        return await run(link, commands, seconds=seconds)

    async def exchanges(does: Awaitable[Any]) -> int:
        nonlocal count
        count = 0
        await does
        return count

    monkeypatch.setattr(Link, "run", noted)
    return exchanges


def losing_an_outcome(monkeypatch: pytest.MonkeyPatch, verdict: str) -> list[str]:
    """Have nobody know what became of the next commit, which is applied or not, as the verdict says.

    Return a list that its change_id is added to.
    """
    commit, unknown = AsyncNamespace.commit, list[str]()

    async def lost(view: Any, writes: Any, **more: Any) -> Any:
        if unknown:
            return await commit(view, writes, **more)
        applied = await commit(view, writes, **more) if verdict == "applied" else [None]
        unknown.append(applied[0].change_id if applied[0] else "f" * 24)
        raise OutcomeUnknown(unknown[0])

    async def never(view: Any, change_id: str, name: str) -> Any:
        return type("Outcome", (), {"verdict": verdict})

    monkeypatch.setattr(AsyncNamespace, "commit", lost)
    if verdict == "not applied":
        monkeypatch.setattr(AsyncNamespace, "outcome", never)
    return unknown


def holding_commits(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Have commits wait; return what is set once one has begun, and what lets them go on."""
    begun, may_end, commit = asyncio.Event(), asyncio.Event(), AsyncNamespace.commit

    async def slow(view: Any, writes: Any, **more: Any) -> Any:
        begun.set()
        await may_end.wait()
        return await commit(view, writes, **more)

    monkeypatch.setattr(AsyncNamespace, "commit", slow)
    return begun, may_end
