"""A writer of the roles' chaos: `replica` among the levels, `fenced` among the reads, and outcomes are asked for.

    python -m tests.simulation.roles_writer FOLDER NAME SEED SESSIONS async|sync

A write that did not reach its level is sent again under its change_id, as the documentation says. The process whose
name begins with `r` only reads: none of its connections is ever told that its server takes no writes any more.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.simulation.writer import VERBS, Session, main

ASKED_S = 3.0
READ = {"get": 40, "list": 3, "wait_durable": 3}


class RolesSession(Session):
    """What a session does where servers change their roles."""

    verbs = VERBS | {"ask": 5}
    levels = ("memory", "memory", "replica", "replica", "disk", "postgres")
    modes = ("primary", "local", "fenced")
    repeats_unmet = True

    async def _ask(self, _: str) -> None:
        """Ask what became of a commit of this session whose end it did not learn."""
        if not self._doubts:
            return
        change_id, key = self._doubts.pop(self._rng.randrange(len(self._doubts)))
        sent = self._begin("ask", [key], "ask", change_id=change_id)
        with self._noting(sent):
            outcome: Any = await self._cache.outcome(change_id, key, timeout=ASKED_S)
            verdict = "durable" if outcome.durable else outcome.verdict
            self._recorder.ok(sent, change_id=change_id, verdict=verdict)


class RolesReader(RolesSession):
    """What a session does that only reads."""

    verbs = READ


if __name__ == "__main__":
    main(sys.argv[1:], RolesReader if sys.argv[2].startswith("r") else RolesSession)
