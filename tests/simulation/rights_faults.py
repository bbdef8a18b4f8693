"""The chaos of rights: what a Redis user may do is taken away in the middle of its life, and given back.

    rights_lost    one of the commands that a commit runs is refused for a while, for everybody

Nothing is half applied by that, what is refused is not applied, and when the right is back all goes on by itself. A
worker that is started in between says what it may not run and ends, as with any configuration that does not fit; who
runs it starts it again. One that has been ready goes on.
"""

from __future__ import annotations

from typing import Any

from statecache.testing.process import Process
from statecache_workers.runner import CONFIGURATION
from tests.simulation.arena import EXPECTED_ERRORS, Arena
from tests.simulation.faults import Faults
from tests.simulation.nemesis import Strike

COMMANDS = ("hset", "persist", "zadd", "hdel", "hincrby", "xadd", "unlink", "zremrangebyscore", "pexpire", "publish")
"""What the scripts of a commit, of its acknowledgement and of the tidying run."""


class RightsArena(Arena):
    """Writers who are told that their rights do not suffice."""

    expected_errors = (*EXPECTED_ERRORS, "ConfigurationError", "DurabilityRefused")

    def may_end(self, worker: Process) -> bool:
        """Say whether a worker ended because it was started without a right, and said so."""
        said = worker.written()
        return worker.returncode == CONFIGURATION and b"Redis user may not run" in said and b'"ready"' not in said


class RightsFaults(Faults):
    """The faults of rights: a command is taken from the Redis user for a while."""

    async def _rights_lost(self, strike: Strike) -> bool:
        command = COMMANDS[int(strike.pick * len(COMMANDS))]
        async with self._arena.redis_turn:
            await self._at_redis(lambda raw: _given(raw, f"-{command}"))
            await self._wait(strike.lasts_s)
            return await self._at_redis(lambda raw: _given(raw, f"+{command}"))


def _given(raw: Any, right: str) -> bool:
    return bool(raw.execute_command("ACL", "SETUSER", "default", right))
