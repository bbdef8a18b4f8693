"""A writer of the roles' chaos: `replica` among the levels, `fenced` among the reads, and outcomes are asked for.

    python -m tests.simulation.roles_writer FOLDER NAME SEED SESSIONS async|sync

After some writes at `replica` all servers are asked, past the product, which of them hold the change; the folder's file
`nodes` has their URLs. A write that did not reach its level is sent again under its change_id, as the documentation
says. The process whose name begins with `r` only reads: none of its connections is ever told that its server takes no
writes any more.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

import redis

from statecache.keys import KeySpace
from statecache.model import State
from tests.simulation.history import seen_of
from tests.simulation.writer import VERBS, Session, main

ASKED_S = 3.0
LOOK_S = 0.5
NODES_FILE = "nodes"
READ = {"get": 40, "list": 3, "wait_durable": 3}


class RolesSession(Session):
    """What a session does where servers change their roles."""

    verbs = VERBS | {"ask": 5, "copied": 4}
    levels = ("memory", "memory", "replica", "replica", "disk", "postgres")
    modes = ("primary", "local", "fenced")
    repeats_unmet = True

    async def _ask(self, _: str) -> None:
        """Ask what became of a commit of this session whose end it did not learn."""
        if not self._unknown:
            return
        change_id, key = self._unknown.pop(self._rng.randrange(len(self._unknown)))
        sent = self._begin("ask", [key], "ask", change_id=change_id)
        with self._noting(sent):
            outcome: Any = await self._cache.outcome(change_id, key, timeout=ASKED_S)
            verdict = "durable" if outcome.durable else outcome.verdict
            self._recorder.ok(sent, change_id=change_id, verdict=verdict)

    async def _copied(self, key: str) -> None:
        """Write at `replica`, and look which servers hold the change when that is acknowledged."""
        sent = self._recorder.invoke(self._name, "set", [key], kind="write", level="replica")
        with self._noting(sent):
            state = await self._cache.set(
                key, self._value(sent), durability="replica", reason=sent.tag, timeout=self._timeout()
            )
            keys = KeySpace(self._cache.settings.prefix, self._cache.settings.shards)
            held = await asyncio.to_thread(_copies, keys, state)
            self._known[key] = state
            self._recorder.ok(sent, written=[seen_of(state)], held=held)


def _copies(keys: KeySpace, state: State[Any]) -> str:
    """Say whether a second server holds the change; nothing where one of them does not answer."""
    holding, asked = 0, (Path(sys.argv[1]) / NODES_FILE).read_text().split()
    for url in asked:
        try:
            with redis.Redis.from_url(url, socket_timeout=LOOK_S, socket_connect_timeout=LOOK_S, retry=None) as raw:
                position = str(state.position)
                recent = cast("bytes | None", raw.hget(keys.state(state.key), "recent")) or b""
                entries: Any = raw.xrange(keys.changes(keys.shard(state.key)), position, position)
        except redis.RedisError:
            return ""
        holding += bool(entries) or state.change_id.encode() in recent
    return "yes" if holding > 1 else "no"


class RolesReader(RolesSession):
    """What a session does that only reads."""

    verbs = READ


if __name__ == "__main__":
    main(sys.argv[1:], RolesReader if sys.argv[2].startswith("r") else RolesSession)
