"""What an adapter keeps in several keys is branched with its group: no merge and no copy takes its head alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from statecache import AsyncStateCache, MergeConflict, Settings, UsageError
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.langgraph import StateCacheSaver
from statecache.adapters.llama_index import StateCacheChatStore, StateCacheKVStore
from statecache.adapters.openai_agents import StateCacheSession
from statecache.adapters.pydantic_ai import StateCacheConversationStore
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.adk_services import WHOSE, event, texts
from tests.support.command_line import CommandLine
from tests.support.llama_index_stores import messages
from tests.support.openai_sessions import items
from tests.support.pydantic_ai_stores import saved, told, turn

MAIN, SIDE = "main", "side"


class Kept(NamedTuple):
    """What an adapter keeps: its group and its head by an id, what adds to it, and what reads how much there is."""

    group: Callable[[str], str]
    add: Callable[[str], Awaitable[object]]
    found: Callable[[str], Awaitable[int]]
    head: str = ""


def openai(cache: AsyncStateCache) -> Kept:
    """Return sessions of the OpenAI SDK."""

    async def found(name: str) -> int:
        return len(await StateCacheSession(name, cache).get_items())

    return Kept(
        lambda name: StateCacheSession(name, cache).group,
        lambda name: StateCacheSession(name, cache).add_items(items(1)), found,
    )  # fmt: skip


def adk(cache: AsyncStateCache) -> Kept:
    """Return sessions of ADK."""
    service = StateCacheSessionService(cache)

    async def add(name: str) -> None:
        session = await service.get_session(**WHOSE, session_id=name)
        session = session or await service.create_session(**WHOSE, session_id=name)
        await service.append_event(session, event("one", changes={"n": len(session.events)}))

    async def found(name: str) -> int:
        session = await service.get_session(**WHOSE, session_id=name)
        assert session is not None
        return len(texts(session.events))

    return Kept(lambda name: service.group_of(**WHOSE, session_id=name), add, found)


def llama_index(cache: AsyncStateCache) -> Kept:
    """Return chats of LlamaIndex."""
    store = StateCacheChatStore(cache)

    async def found(name: str) -> int:
        return len(await store.aget_messages(name))

    return Kept(store.group_of, lambda name: store.async_add_message(name, messages(1)[0]), found)


def pydantic_ai(cache: AsyncStateCache) -> Kept:
    """Return conversations of Pydantic AI."""
    store = StateCacheConversationStore(cache)

    async def add(name: str) -> None:
        before = await store.load(name)
        if before is None:
            await saved(store, name, turn(0))
        else:
            before.messages.extend(turn(len(before.messages)))
            await store.save(before)

    async def found(name: str) -> int:
        loaded = await store.load(name)
        assert loaded is not None
        return len(told(loaded.messages)) // 2

    return Kept(store.group_of, add, found)


def langgraph(cache: AsyncStateCache) -> Kept:
    """Return threads of LangGraph, whose head is no state of the group's own key."""
    saver = StateCacheSaver(cache)

    async def add(name: str) -> None:
        await saver.aput({"configurable": {"thread_id": name, "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})

    async def found(name: str) -> int:
        return len([one async for one in saver.alist({"configurable": {"thread_id": name}})])

    return Kept(saver.group_of, add, found, "/head/-")


ADAPTERS = [openai, adk, llama_index, pydantic_ai, langgraph]


@pytest.fixture(autouse=True)
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """A worker that flushes beside the test."""
    async with flushing(worker):
        yield


@pytest.fixture(params=ADAPTERS, ids=lambda made: made.__name__)
def kept(request: pytest.FixtureRequest, cache: AsyncStateCache) -> Kept:
    """What an adapter keeps."""
    made: Kept = request.param(cache)
    return made


async def test_a_branch_of_a_head_alone_is_refused_and_one_of_the_group_is_not(
    kept: Kept, cache: AsyncStateCache
) -> None:
    await kept.add(MAIN)
    await kept.add(MAIN)
    main, side = kept.group(MAIN) + kept.head, kept.group(SIDE) + kept.head
    for view in (cache, cache.namespace(main.partition("/")[0], type=dict)):
        name, new = (main, side) if view is cache else (main.partition("/")[2], side.partition("/")[2])
        for at in (None, 1):
            with pytest.raises(UsageError, match=r"names other keys of its group.*group=True") as refused:
                await view.branch(name, new, at=at)
            assert main in str(refused.value)
    assert await cache.get(side, read="primary") is None
    await cache.branch(kept.group(MAIN), kept.group(SIDE), group=True)
    assert (await kept.found(MAIN), await kept.found(SIDE)) == (2, 2)


async def test_a_copy_of_a_head_is_refused_and_says_what_to_do_instead(kept: Kept, cache: AsyncStateCache) -> None:
    for name in (MAIN, SIDE, SIDE):
        await kept.add(name)
    main, side, new = (kept.group(name) + kept.head for name in (MAIN, SIDE, "new"))
    for view in (cache, cache.namespace(main.partition("/")[0], type=dict)):
        for to, replace in (new, False), (side, True), (f"{main}/beside", False):
            names = (main, to) if view is cache else (main.partition("/")[2], to.partition("/")[2])
            with pytest.raises(UsageError, match=r"names other keys of its group.*branch.*group=True") as refused:
                await view.copy(*names, replace=replace)
            assert main in str(refused.value)
    assert await cache.get(new, read="primary") is None
    assert (await kept.found(MAIN), await kept.found(SIDE)) == (1, 2)


async def test_a_merge_of_a_head_is_refused_unless_it_would_change_nothing(kept: Kept, cache: AsyncStateCache) -> None:
    await kept.add(MAIN)
    await cache.branch(kept.group(MAIN), kept.group(SIDE), group=True)
    main, side = kept.group(MAIN) + kept.head, kept.group(SIDE) + kept.head
    before = await cache.get(main, read="primary")
    assert before is not None
    assert (await cache.merge(side, main)).version == before.version
    await kept.add(SIDE)
    for _ in range(2):
        for function in (None, lambda _, __, theirs: theirs):
            with pytest.raises(UsageError, match="names other keys of its group"):
                await cache.merge(side, main, function=function)
        current = await cache.get(main, read="primary")
        assert current is not None
        assert current.change_id == before.change_id
        await kept.add(MAIN)  # both have gone on
        before = await cache.get(main, read="primary")
        assert before is not None
    assert (await kept.found(MAIN), await kept.found(SIDE)) == (3, 2)


async def test_what_stands_in_one_key_is_branched_copied_and_merged(cache: AsyncStateCache) -> None:
    """A value of LlamaIndex, what a user of ADK shares, and what is only like a head."""
    values = StateCacheKVStore(cache)
    await values.aput("a", {"items": 1, "pages": 2})
    service = StateCacheSessionService(cache)
    await service.create_session(**WHOSE, session_id="42", state={"user:n": 1})
    await cache.set("runs/1", {"items": [1], "pages": 1, "revision": "a"})
    await cache.set("runs/2", {"thread_id": "a", "checkpoint_id": "b", "items": 1})
    for key in ("llama-index/data/kv/a", "adk/orders:alice", "runs/1", "runs/2"):
        state = await cache.get(key, read="primary")
        assert state is not None
        assert (await cache.copy(key, f"{key}-c")).value == state.value
        await cache.branch(key, f"{key}-b")
        await cache.update(f"{key}-b", _with_more)
        assert (await cache.merge(f"{key}-b", key)).value["more"] == 1


def _with_more(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"more": 1}


async def test_the_command_line_says_what_to_do(
    settings: Settings, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli, kept = CommandLine(settings, monkeypatch, capsys), openai(cache)
    main, side = kept.group(MAIN), kept.group(SIDE)
    await kept.add(MAIN)
    refused = await cli.beside("branch", main, side)
    assert refused.status == 2
    assert "names other keys of its group" in refused.err
    assert "--group, with the groups" in refused.err
    assert (await cli.beside("branch", main, side, "--group")).status == 0
    assert (await cli.beside("merge", side, main, "--dry-run")).status == 0
    await kept.add(SIDE)
    for more in (["--dry-run"], ["--yes"], ["--prefer", "theirs", "--dry-run"]):
        refused = await cli.beside("merge", side, main, *more)
        assert (refused.status, refused.out) == (2, "")
        assert "names other keys of its group" in refused.err
    await kept.add(MAIN)
    assert (await cli.beside("merge", side, main, "--dry-run")).status == 2


async def test_what_both_changed_elsewhere_still_conflicts(cache: AsyncStateCache) -> None:
    await cache.set("runs/1", {"n": 1})
    await cache.branch("runs/1", "runs/2")
    await cache.set("runs/1", {"n": 2})
    await cache.set("runs/2", {"n": 3})
    with pytest.raises(MergeConflict):
        await cache.merge("runs/2", "runs/1")
