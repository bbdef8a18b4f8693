"""The session service beside ADK's own for databases, on the same Postgres: one conversation after the other.

Theirs acknowledges when Postgres has committed; ours, as it comes, when Redis has. What either reads back is compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

from google.adk.sessions.database_session_service import DatabaseSessionService

from statecache import AsyncStateCache, Settings
from statecache.adapters.adk import StateCacheSessionService
from tests.benchmarks.adapters_at_once import Spent, Turns
from tests.benchmarks.graph_calls import Words
from tests.benchmarks.measuring import Row, times_faster
from tests.support.adk_services import WHOSE, event

TURNS = 30
VENDOR = "DatabaseSessionService of google-adk"
APPEND, SHARED, GET, LIST = (
    "append_event", "append_event that changes the app's and the user's state", "get_session", "list_sessions",
)  # fmt: skip


def adk_sessions(settings: Settings, words: Words, rounds: int) -> Iterator[Row]:
    """Measure events that are appended to sessions one turn after the other, and sessions that are read after each."""
    yield from asyncio.run(_measured(settings, words, rounds))


async def _measured(settings: Settings, words: Words, rounds: int) -> list[Row]:
    spent: dict[str, Spent] = {what: ([], []) for what in (APPEND, SHARED, GET, LIST)}
    turns = Turns()
    driven = settings.postgres_url.replace("postgresql://", "postgresql+psycopg://", 1)
    async with AsyncStateCache(settings=settings) as cache, DatabaseSessionService(driven) as theirs:
        sides: Any = StateCacheSessionService(cache), theirs
        for turn in range(rounds + 1):
            for pair in spent.values():
                pair[0].append([])
                pair[1].append([])
            await _conversation(sides, f"chat-{turn}", turns, words, spent)
    return [times_faster(f"ADK: {what}", VENDOR, (pair[0][1:], pair[1][1:]), bound=1.0) for what, pair in spent.items()]


async def _conversation(sides: Any, session_id: str, turns: Turns, words: Words, spent: dict[str, Spent]) -> None:
    sessions = [await side.create_session(**WHOSE, session_id=session_id) for side in sides]
    for number in range(TURNS):
        shared = number % 5 == 4
        changes = {"n": number, **({"app:last": number, "user:last": number} if shared else {})}
        made = event(words.between(60, 400), changes=changes)
        ours, theirs = (
            partial(side.append_event, session, made.model_copy(deep=True))
            for side, session in zip(sides, sessions, strict=True)
        )
        _note(spent[SHARED if shared else APPEND], await turns.both(ours, theirs))
        ours, theirs = (partial(side.get_session, **WHOSE, session_id=session_id) for side in sides)
        pair = await turns.both(ours, theirs)
        if any(one is None for one in pair[2:]) or _told(pair[2]) != _told(pair[3]):
            raise RuntimeError("the two services hold different sessions")
        _note(spent[GET], pair)
        sessions = pair[2:]
    for _ in range(5):
        ours, theirs = (partial(side.list_sessions, **WHOSE) for side in sides)
        _note(spent[LIST], await turns.both(ours, theirs))


def _told(session: Any) -> Any:
    return session.state, [one.model_dump() for one in session.events]


def _note(spent: Spent, pair: list[Any]) -> None:
    spent[0][-1].append(pair[0])
    spent[1][-1].append(pair[1])
