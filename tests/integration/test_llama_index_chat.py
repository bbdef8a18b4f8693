"""What a chat store for LlamaIndex has to do, whatever it stands on, compared with LlamaIndex's own."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage, ImageBlock, MessageRole, TextBlock
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.storage.chat_store.base import BaseChatStore

from statecache import Settings
from statecache.adapters.llama_index import StateCacheChatStore
from statecache_workers.worker import Worker
from tests.support.llama_index_stores import VARIANTS, Asked, asked, messages
from tests.support.openai_sessions import World

NAMES = ["", "-", "/", "a/b", "a", "a/pages/1/000001", "a%2Fb", "用户 1", "\ud83d", "{1}", "x" * 120, "x" * 600]


@pytest.fixture(params=VARIANTS)
async def make(
    request: pytest.FixtureRequest, settings: Settings, worker: Worker, redis_raw: Any
) -> AsyncIterator[Callable[..., Asked]]:
    """A maker of stores, over everything that they may stand on, called or awaited."""
    async with asked(request.param, StateCacheChatStore, World(settings, worker, redis_raw)) as made:
        yield made


def own_answer(store: SimpleChatStore, verb: str, arguments: list[Any]) -> Any:
    """Return what the framework's own store answers; where it finds no such message in a chat, None."""
    try:
        answer = getattr(store, verb)(*arguments)
    except IndexError:
        return None
    return [*answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("seed", range(2))
async def test_it_answers_as_the_frameworks_own_store(make: Callable[..., Asked], seed: int) -> None:
    store, own, drawn = make(), SimpleChatStore(), random.Random(seed)
    assert isinstance(store.stores[0], BaseChatStore)
    for number in range(70):
        verb = drawn.choice(
            ["add_message"] * 4 + ["insert", "get_messages", "get_keys", "delete_message", "delete_last_message"]
            + ["set_messages", "delete_messages"] * (drawn.random() < 0.4)
        )  # fmt: skip
        arguments: list[Any] = [] if verb == "get_keys" else [drawn.choice("ab")]
        at = drawn.choice([0, 1, 2, 30, 59, 60, 61, 300, -1, -2, -30, -400])
        if verb in ("add_message", "insert"):
            arguments += messages(number + 1, since=number, size=drawn.choice([1, 9000]))
            arguments += [at] * (verb == "insert")
        elif verb == "delete_message":
            arguments.append(at)
        elif verb == "set_messages":
            arguments.append(messages(drawn.choice([0, 1, 64, 200]), size=200))
        verb = "add_message" if verb == "insert" else verb
        answer, wanted = await getattr(store, verb)(*arguments), own_answer(own, verb, arguments)
        assert answer == (sorted(wanted) if verb == "get_keys" else wanted), (verb, arguments)
    for key in "abc":
        assert await store.get_messages(key) == own.get_messages(key)


async def test_messages_come_back_as_they_were(make: Callable[..., Asked]) -> None:
    store = make()
    hard = [
        ChatMessage(content="日本語 🌍 café \u2028 \0 \x7f", role=MessageRole.SYSTEM),
        ChatMessage(content="cut \ud83d off", role="user"),
        ChatMessage(blocks=[TextBlock(text="see"), ImageBlock(image=b"\x89PNG\0\xff", image_mimetype="image/png")]),
        ChatMessage(content=None, role="assistant", additional_kwargs={"tool_calls": [{"id": "1", "n": [2**64, 1.5]}]}),
        ChatMessage(content="", role="tool", additional_kwargs={"$json": "{}", "tool_call_id": "1"}),
    ]
    for one in hard:
        await store.add_message("42", one)
    await store.set_messages("43", hard)
    for key in ("42", "43"):
        assert await store.get_messages(key) == hard
    assert [await store.delete_last_message("42") for _ in hard] == hard[::-1]
    await store.add_message(
        "44", ChatMessage(role="user", additional_kwargs={"scores": [math.inf, -math.inf, math.nan]})
    )
    assert [one.additional_kwargs for one in await store.get_messages("44")] == [{"scores": [None] * 3}]


async def test_chats_are_apart_whatever_their_keys(make: Callable[..., Asked]) -> None:
    store = make()
    for key in NAMES:
        await store.add_message(key, ChatMessage(content=ascii(key)))
    for key in NAMES:
        assert [one.content for one in await store.get_messages(key)] == [ascii(key)]
    assert sorted(await store.get_keys()) == sorted(NAMES)
    assert await store.delete_messages("a") == [ChatMessage(content="'a'")]
    assert await store.delete_messages("a") is None
    assert await store.get_messages("a") == []
    assert [one.content for one in await store.get_messages("a/b")] == ["'a/b'"]
    other = make(namespace="others")
    assert await other.get_messages("a/b") == []
    assert await other.get_keys() == []


async def test_adds_of_many_tasks_are_all_there(make: Callable[..., Asked]) -> None:
    stores = [make() for _ in range(3)]

    async def add(number: int) -> None:
        for step in range(3):
            await stores[number % 3].add_message("42", ChatMessage(content=f"{number} {step}"))

    await asyncio.gather(*map(add, range(6)))
    found = [one.content for one in await stores[0].get_messages("42")]
    assert len(found) == 18
    for number in range(6):
        assert [one for one in found if one.startswith(f"{number} ")] == [f"{number} {step}" for step in range(3)]


async def test_the_memory_of_an_agent_stands_on_it(make: Callable[..., Asked]) -> None:
    store = make().stores[0]
    memory = ChatMemoryBuffer.from_defaults(token_limit=10_000, chat_store=store, chat_store_key="ada/1")
    for one in messages(4):
        await memory.aput(one)
    again = ChatMemoryBuffer.from_defaults(token_limit=10_000, chat_store=store, chat_store_key="ada/1")
    assert await again.aget() == messages(4)
    assert await again.aget_all() == messages(4)
    await again.aset(messages(2))
    assert await memory.aget_all() == messages(2)
    told = {"namespace": "llama-index-chat", "durability": None, "class_name": "StateCacheChatStore"}
    assert store.to_dict() == told | {"servers": store.servers}
