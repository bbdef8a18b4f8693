"""A writer of the Postgres chaos: keys that are not ASCII, and a look past the product at what is said to be durable.

    python -m tests.simulation.postgres_writer FOLDER NAME SEED SESSIONS async|sync

The folder's file `postgres-url` says where the Postgres is that is the primary at the moment.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import psycopg

from tests.simulation.writer import GROUPS, VERBS, Session, main

URL_FILE = "postgres-url"
LOOK_S = 2
HOLDS = b"SELECT count(*) FROM statecache.change WHERE change_id = %s"
EVERY_GROUP = {
    **GROUPS,
    "runs/réunion": ("runs/réunion", "runs/réunion/план"),
    "users/日本": ("users/日本",),
}


class PostgresSession(Session):
    """What a session does where Postgres is what fails."""

    groups = EVERY_GROUP
    verbs = VERBS | {"wait_durable": 12, "ask": 4}
    levels = ("memory", "memory", "postgres", "postgres")
    modes = ("primary", "local", "fenced")

    async def _wait_durable(self, _: str) -> None:
        """Wait until a change is durable, and look whether Postgres holds it."""
        if not self._known:
            return
        state = self._rng.choice([*self._known.values()])
        sent = self._begin("wait_durable", [state.key], "confirm", change_id=state.change_id)
        with self._noting(sent):
            await self._cache.wait_durable(state)
            held = await asyncio.to_thread(_held, Path(sys.argv[1]) / URL_FILE, state.change_id)
            self._recorder.ok(sent, change_id=state.change_id, held=held)

    async def _ask(self, _: str) -> None:
        """Ask what became of a commit of this session whose end it did not learn."""
        if not self._unknown:
            return
        change_id, key = self._unknown.pop(self._rng.randrange(len(self._unknown)))
        sent = self._begin("ask", [key], "ask", change_id=change_id)
        with self._noting(sent):
            outcome: Any = await self._cache.outcome(change_id, key, timeout=3.0)
            self._recorder.ok(sent, change_id=change_id, verdict="durable" if outcome.durable else outcome.verdict)


def _held(url_file: Path, change_id: str) -> str:
    """Say whether Postgres holds the change; nothing where it does not answer."""
    try:
        with psycopg.connect(
            url_file.read_text(), autocommit=True, connect_timeout=LOOK_S, application_name="witness",
            options=f"-c statement_timeout={LOOK_S * 1000}",
        ) as connection:  # fmt: skip
            rows = connection.execute(HOLDS, (change_id,)).fetchone()
    except psycopg.Error:
        return ""
    return "yes" if rows and rows[0] else "no"


if __name__ == "__main__":
    main(sys.argv[1:], PostgresSession)
