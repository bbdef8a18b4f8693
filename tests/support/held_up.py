"""Attempts that a network holds up: their connections break as they are sent, and they arrive when a test says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from statecache import (
    AsyncStateCache,
    RedisUnavailable,
)
from statecache.core.redis.connection import Link
from statecache.lua import parts_of


class Stray:
    """The first attempts of a write: its connection breaks as each is sent, but a network still has it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[object]], attempts: int = 1
    ) -> None:
        self._sent = list[Sequence[Any]]()
        self._meanwhile = meanwhile
        run = Link.run

        async def run_or_lose(link: Link, commands: Sequence[Any], *, seconds: float) -> Any:
            if len(self._sent) == attempts or "overdue" not in repr(commands[0]):
                return await run(link, commands, seconds=seconds)
            self._sent.append(commands)
            await link.close()
            if len(self._sent) == attempts:
                await self._meanwhile()
            raise RedisUnavailable("connection", detail="lost on the way")

        monkeypatch.setattr(Link, "run", run_or_lose)

    async def arrives(self, cache: AsyncStateCache, later_ms: int = 0) -> bytes:
        """Let the attempts reach the server at last; return the last one's verdict, which nobody waits for.

        By another clock they may be executed so much later.
        """
        for commands in self._sent:
            words = [[word + later_ms if type(word) is int and word > 10**12 else word for word in one]
                     for one in commands]  # fmt: skip
            reply = await cache._runtime.redis.exchange([tuple(one) for one in words], seconds=5)
        verdict: bytes = parts_of(reply[0])[1]
        return verdict
