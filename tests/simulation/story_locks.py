"""What the story tells of locks, steps and reads that are proven or near; see `story`.

    fenced     reads that are proven against Postgres
    near       reads from the process, while its connection is heard of
    locked     two clients count under one lock, one after the other
    stepped    two clients want one step, whose function is slow
    crowded    two clients update one state at once, until they take turns

What a step has done stands in a file, one line a call of its function.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statecache import AsyncStateCache

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.simulation.actor import Actor

LOCKED, JOBS, CROWD = "locked/l", "jobs/", "crowd/c"
EFFECTS = "effects"
SLOW_S = 0.25
HEARD_S = 0.5
"""Within this time a heartbeat goes by."""
ROUNDS = 4


class LockStory:
    """Situations of one agent with a second client beside its own."""

    _actor: Actor
    folder: Path

    async def _fenced(self) -> None:
        actor = self._actor
        await actor.set(CROWD)
        await actor.get(CROWD, mode="fenced")
        await actor.set(CROWD)
        await actor.get(CROWD, mode="fenced")

    async def _near(self) -> None:
        actor = self._actor
        for _ in range(2):
            await actor.set(CROWD)
            await actor.get(CROWD, mode="local")
            await _passing(HEARD_S)
            await actor.get(CROWD, mode="local")

    async def _locked(self) -> None:
        async with self._second() as other:
            for _ in range(2):
                await asyncio.gather(self._actor.counted(LOCKED), other.counted(LOCKED))

    async def _stepped(self) -> None:
        key = f"{JOBS}a"
        async with self._second() as other:
            await asyncio.gather(self._actor.step(key, "slow", self._effect), other.step(key, "slow", self._effect))
            await self._actor.step(key, "slow", self._effect)

    async def _effect(self, step: Any) -> str:
        journal = os.open(self.folder / EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(journal, f"{step.key}/{step.name}\n".encode())
        os.close(journal)
        await _passing(SLOW_S)
        return str(step.idempotency_key)

    async def _crowded(self) -> None:
        async with self._second() as other:
            for _ in range(ROUNDS):
                await asyncio.gather(*(actor.update(CROWD) for actor in (self._actor, other, self._actor.between)))

    @asynccontextmanager
    async def _second(self) -> AsyncIterator[Actor]:
        """Give another client, of the same process, which notes what it does as well."""
        async with AsyncStateCache(settings=self._actor.cache.settings) as cache:
            yield self._actor.beside(cache)


def repeated_effects(folder: Path) -> list[str]:
    """Return the steps whose function was called more than once."""
    path = folder / EFFECTS
    lines = path.read_text().split() if path.exists() else []
    return sorted({line for line in lines if lines.count(line) > 1})


async def _passing(seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()
