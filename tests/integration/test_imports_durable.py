"""An import that counts once Postgres has it: what one that was cut off left in Redis alone is not done yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from google.adk.sessions.session import Session
from langgraph.checkpoint.memory import InMemorySaver

from statecache import AsyncStateCache, OutcomeUnknown
from statecache.adapters.adk import importing as adk_importing
from statecache.adapters.adk.documents import Place
from statecache.adapters.adk.sources import OfAppOrUser, Stored
from statecache.adapters.langgraph import StateCacheSaver
from statecache.adapters.langgraph.importing import import_checkpoints
from statecache.adapters.openai_agents import importing as openai_importing
from statecache.cli.states.transfer import imported
from tests.fixtures.servers import MakeSettings
from tests.support.adk_services import event
from tests.support.langgraph_imports import play
from tests.support.langgraph_stories import config
from tests.support.openai_sessions import items
from tests.support.workers import at_work

pytestmark = pytest.mark.counts_seconds

SHORT_S = 0.3
MORE = {"durability": None, "actor": "", "reason": ""}
Import = Callable[[AsyncStateCache], Awaitable[Any]]


async def _openai(client: AsyncStateCache) -> Any:
    sessions = [openai_importing.StoredSession("s", items(5), 0)]
    return await openai_importing.import_sessions(sessions, client, progress=lambda _: None)


async def _adk_state(client: AsyncStateCache) -> Any:
    stored = Stored([OfAppOrUser(Place("s", "", ""), "app", {"at": 1})], [])
    return await adk_importing.import_sessions(stored, client, progress=lambda _: None)


async def _adk_session(client: AsyncStateCache) -> Any:
    events = [event("hello", id="1", timestamp=1.0, invocation_id="i")]
    stored = Stored([], [Session(app_name="s", user_id="u", id="1", events=events)])
    return await adk_importing.import_sessions(stored, client, progress=lambda _: None)


@cache
def _played() -> InMemorySaver:
    saver = InMemorySaver()
    play(saver, "s")
    return saver


async def _langgraph(client: AsyncStateCache) -> Any:
    oldest = [one.config for one in _played().list(config("s"))][-1:]
    target = StateCacheSaver(client)
    return await asyncio.to_thread(import_checkpoints, oldest, _played(), target, progress=lambda _: None)


async def _lines(client: AsyncStateCache) -> Any:
    lines = [b'{"key":"runs/%d","value":1}' % number for number in range(5)]
    return await imported(client, lines, replace=False, dry_run=False, more=MORE, progress=lambda _: None)


@pytest.mark.parametrize("takes", [_openai, _adk_state, _adk_session, _langgraph, _lines])
async def test_an_import_is_done_once_postgres_has_what_an_earlier_one_has_left_in_redis(
    takes: Import, make_settings: MakeSettings
) -> None:
    short = make_settings(durability="postgres", timeout_s=SHORT_S, hydrate_token_s=SHORT_S)
    async with AsyncStateCache(settings=short) as client:
        for _ in range(3):  # a session is begun, and then filled
            with suppress(OutcomeUnknown):
                await takes(client)
        for _ in range(2):
            with pytest.raises(OutcomeUnknown, match="is not known"):
                await takes(client)
    patient = short.model_copy(update={"timeout_s": 30.0})
    async with at_work(patient), AsyncStateCache(settings=patient) as client:
        done = await takes(client)
    assert (done.kept, done.failed) == ([], {})
