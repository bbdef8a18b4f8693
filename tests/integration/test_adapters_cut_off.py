"""Long conversations whose process is killed, or told of too few copies, once a first commit has deleted the head."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from llama_index.core.llms import ChatMessage
from pydantic_ai.conversation import Conversation

from statecache import AsyncNamespace, AsyncStateCache, DurabilityNotMet
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.filling import PAGE_BYTES_MAX
from statecache.adapters.llama_index import StateCacheChatStore
from statecache.adapters.openai_agents import StateCacheSession
from statecache.adapters.pydantic_ai import StateCacheConversationStore
from tests.support.adk_services import GROUP, ID, event, texts
from tests.support.llama_index_stores import messages
from tests.support.openai_sessions import items
from tests.support.pydantic_ai_stores import told, turns

PAGES = 300
LARGE = "x" * PAGE_BYTES_MAX


class Killed(Exception):
    """The end of a process."""


class Talk(NamedTuple):
    """A conversation of some adapter: its group, and what makes it long or short, reads and deletes it."""

    group: str
    grow: Callable[[], Awaitable[object]]
    begin: Callable[[], Awaitable[object]]
    read: Callable[[], Awaitable[list[str]]]
    delete: Callable[[], Awaitable[object]]


def openai(cache: AsyncStateCache) -> Talk:
    """Return a session of the OpenAI SDK."""
    session = StateCacheSession("42", cache)

    async def grow() -> None:
        for _ in range(PAGES // 60):
            await session.add_items([{"role": "user", "content": LARGE}] * 60)

    async def read() -> list[str]:
        return [str(item["content"]) for item in await session.get_items()]  # type: ignore[typeddict-item]

    return Talk(session.group, grow, lambda: session.add_items(items(1)), read, session.clear_session)


def adk(cache: AsyncStateCache) -> Talk:
    """Return a session of ADK."""
    service = StateCacheSessionService(cache)

    async def append(count: int, text: str) -> None:
        session = await service.create_session(**ID)
        for _ in range(count):
            await service.append_event(session, event(text))

    async def read() -> list[str]:
        found = await service.get_session(**ID)
        return [] if found is None else texts(found.events)

    return Talk(GROUP, lambda: append(PAGES, LARGE), lambda: append(1, "0"), read, lambda: service.delete_session(**ID))


def pydantic_ai(cache: AsyncStateCache) -> Talk:
    """Return a conversation of Pydantic AI."""
    store = StateCacheConversationStore(cache)

    async def save(count: int, size: int) -> None:
        conversation = Conversation(conversation_id="42")
        for at in range(0, count, 60):
            conversation.messages.extend(turns(min(count, at + 60), since=at, size=size))
            await store.save(conversation)

    async def read() -> list[str]:
        found = await store.load("42")
        return [] if found is None else told(found.messages)

    return Talk(store.group_of("42"), lambda: save(PAGES, 70_000), lambda: save(1, 0), read, lambda: store.delete("42"))


def llama(cache: AsyncStateCache) -> Talk:
    """Return a chat of LlamaIndex."""
    store = StateCacheChatStore(cache)

    async def grow() -> None:
        for one in messages(PAGES, size=PAGE_BYTES_MAX):
            await store.async_add_message("42", one)

    async def read() -> list[str]:
        return [str(one.content) for one in await store.aget_messages("42")]

    return Talk(
        store.group_of("42"), grow, lambda: store.async_add_message("42", ChatMessage(content="0")), read,
        lambda: store.adelete_messages("42"),
    )  # fmt: skip


TALKS = pytest.mark.parametrize("made", [openai, adk, pydantic_ai, llama], ids=lambda made: made.__name__)
Made = Callable[[AsyncStateCache], Talk]


async def below(cache: AsyncStateCache, group: str) -> int:
    """Return how many states a group has."""
    return len([state async for state in cache.list(f"{group}/", values=False)])


def _ended_by(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each commit be applied, and end in that error."""
    commit = AsyncNamespace.commit

    async def ended(view: Any, writes: Any, **more: Any) -> Any:
        await commit(view, writes, **more)
        raise error

    monkeypatch.setattr(AsyncNamespace, "commit", ended)


async def _cut_off(talk: Talk, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a long conversation, and delete it in a process that is killed meanwhile."""
    await talk.grow()
    with monkeypatch.context() as patched:
        _ended_by(Killed(), patched)
        with pytest.raises(Killed):
            await talk.delete()
    assert await talk.read() == []
    assert await below(cache, talk.group) > 0


@TALKS
async def test_what_a_delete_that_was_cut_off_has_left_is_deleted_by_the_next(
    made: Made, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = made(cache)
    await _cut_off(talk, cache, monkeypatch)
    await talk.delete()
    assert await below(cache, talk.group) == 0


@TALKS
async def test_a_conversation_that_was_begun_since_keeps_what_it_has_and_goes_without_the_rest(
    made: Made, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is deleted without a look for more; once it is gone, the next delete looks."""
    talk, other = made(cache), made(cache)
    await _cut_off(talk, cache, monkeypatch)
    real, begun = AsyncNamespace.list, list[str]()

    async def begins_meanwhile(view: Any, *given: Any, **more: Any) -> Any:
        found = [state async for state in real(view, *given, **more)]
        with monkeypatch.context() as patched:
            patched.setattr(AsyncNamespace, "list", real)
            await other.begin()
            begun.extend(await other.read())
        for state in found:
            yield state

    with monkeypatch.context() as patched:
        patched.setattr(AsyncNamespace, "list", begins_meanwhile)
        await talk.delete()
    assert begun
    assert await talk.read() == begun
    for _ in range(2):
        await talk.delete()
    assert await below(cache, talk.group) == 0


@TALKS
async def test_a_delete_that_too_few_copies_have_leaves_nothing(
    made: Made, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = made(cache)
    await talk.grow()
    with monkeypatch.context() as patched:
        _ended_by(DurabilityNotMet("f" * 24, level="replica", reached=0, wanted=1), patched)
        with pytest.raises(DurabilityNotMet):
            await talk.delete()
    assert await below(cache, talk.group) == 0


@pytest.mark.parametrize("again", [300, 600])
async def test_a_long_session_that_grows_again_while_it_is_cleared_keeps_what_is_added(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """What the commit that cleared it had no room for is deleted behind it, by a process that may be held up."""
    session = StateCacheSession("42", cache)
    large: list[Any] = [{"role": "user", "content": f"{number} {'x' * PAGE_BYTES_MAX}"} for number in range(again)]
    for _ in range(9):
        await session.add_items(large[:60])
    transact = AsyncNamespace.transact

    async def held_up(view: Any, *given: Any, **more: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(AsyncNamespace, "transact", transact)
            if not await session.get_items(1):
                for at in range(0, again, 60):
                    await StateCacheSession("42", cache).add_items(large[at : at + 60])
            return await transact(view, *given, **more)

    monkeypatch.setattr(AsyncNamespace, "transact", held_up)
    await session.clear_session()
    assert await session.get_items() == large
    assert len([name async for name in cache.list("openai-agents/42", values=False)]) == again + 1
