"""Two imports of the same at once: what the other has taken in is there already, whatever one was about to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest
from google.adk.sessions.session import Session

from statecache import AsyncNamespace, AsyncStateCache, Settings
from statecache.adapters import filling
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.adk import importing as adk_importing
from statecache.adapters.adk.documents import Of, Place
from statecache.adapters.adk.sources import OfAppOrUser, Stored
from statecache.adapters.openai_agents import StateCacheSession
from statecache.adapters.openai_agents import importing as openai_importing
from tests.support.adk_services import event, texts
from tests.support.openai_sessions import items

OF: list[Of] = ["app", "user"]
HELD = 5
Import = Callable[[AsyncStateCache, str], Awaitable[Any]]


async def _openai(cache: AsyncStateCache, name: str) -> Any:
    sessions = [openai_importing.StoredSession(name, items(HELD), 0)]
    return await openai_importing.import_sessions(sessions, cache, progress=lambda _: None)


async def _openai_texts(cache: AsyncStateCache, name: str) -> list[str]:
    return [str(one) for one in await StateCacheSession(name, cache).get_items()]


async def _adk(cache: AsyncStateCache, name: str) -> Any:
    events = [event(text, id=text, timestamp=1.0, invocation_id="i") for text in map(str, range(HELD))]
    session = Session(app_name=name, user_id="u", id=name, state={"n": 1}, events=events)
    states = [OfAppOrUser(Place(name, "u", ""), of, {"at": of}) for of in OF]
    stored = Stored(states, [session])
    return await adk_importing.import_sessions(stored, cache, progress=lambda _: None)


async def _adk_texts(cache: AsyncStateCache, name: str) -> list[str]:
    found = await StateCacheSessionService(cache).get_session(app_name=name, user_id="u", session_id=name)
    return [] if found is None else texts(found.events)


class Meeting:
    """Has something be done before the nth call of one client's verbs that read and write."""

    def __init__(self, cache: AsyncStateCache, at: int, does: Callable[[], Awaitable[Any]]) -> None:
        self._cache, self._left, self._does = cache, at, does
        self.did: Any = None

    async def come(self, view: Any) -> None:
        """Note a call, and do it where that is the one."""
        if view._runtime is self._cache._runtime:
            self._left -= 1
            if self._left == -1:
                self.did = await self._does()

    def on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Come before each of the verbs."""
        for verb in ("get", "get_many", "commit"):
            monkeypatch.setattr(AsyncNamespace, verb, self._awaited(getattr(AsyncNamespace, verb)))
        history = AsyncNamespace.history

        async def listed(view: Any, *given: Any, **more: Any) -> Any:
            await self.come(view)
            async for change in history(view, *given, **more):
                yield change

        monkeypatch.setattr(AsyncNamespace, "history", listed)

    def _awaited(self, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def called(view: Any, *given: Any, **more: Any) -> Any:
            await self.come(view)
            return await real(view, *given, **more)

        return called


@pytest.mark.parametrize(("takes", "reads"), [(_openai, _openai_texts), (_adk, _adk_texts)], ids=["openai", "adk"])
async def test_what_another_import_takes_in_meanwhile_is_the_same(
    takes: Import, reads: Import, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is through before each of the calls in turn: before the first, between two lots, at the end."""
    monkeypatch.setattr(filling, "_ITEMS_A_LOT", 2)
    async with AsyncExitStack() as opened:
        one, other = [await opened.enter_async_context(AsyncStateCache(settings=settings)) for _ in range(2)]
        for at in count():
            name = f"s{at}"
            meeting = Meeting(one, at, lambda name=name: takes(other, name))  # type: ignore[misc]
            with monkeypatch.context() as patched:
                meeting.on(patched)
                done = await takes(one, name)
            assert (done.kept, done.failed) == ([], {}), at
            if meeting.did is None:
                break
            assert (meeting.did.kept, meeting.did.failed) == ([], {}), at
            assert done.written + done.same == HELD, at
            assert done.written + meeting.did.written == HELD, at
            assert len(await reads(one, name)) == HELD, at
        assert at > 8


@pytest.mark.parametrize("takes", [_openai, _adk], ids=["openai", "adk"])
async def test_two_that_run_side_by_side_take_in_all_of_it_once(
    takes: Import, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "_ITEMS_A_LOT", 1)
    async with AsyncExitStack() as opened:
        caches = [await opened.enter_async_context(AsyncStateCache(settings=settings)) for _ in range(3)]
        for name in map(str, range(5)):
            done = await asyncio.gather(*(takes(cache, name) for cache in caches))
            assert [(one.kept, one.failed, one.written + one.same) for one in done] == [([], {}, HELD)] * 3
            assert sum(one.written for one in done) == HELD


async def test_a_session_that_an_agent_goes_on_with_meanwhile_is_left_alone_and_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "_ITEMS_A_LOT", 2)
    async with AsyncStateCache(settings=settings) as cache, AsyncStateCache(settings=settings) as elsewhere:

        async def add() -> bool:
            await StateCacheSession("s", elsewhere).add_items([{"role": "user", "content": "here"}])
            return True

        meeting = Meeting(cache, 5, add)
        with monkeypatch.context() as patched:
            meeting.on(patched)
            done = await _openai(cache, "s")
        assert (meeting.did, done.kept, done.same, done.written) == (True, ["s"], 0, 2)
        assert len(await _openai_texts(cache, "s")) == 3
