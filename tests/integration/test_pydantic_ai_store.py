"""What every conversation store of Pydantic AI has to do, whatever it stands on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

from statecache import Settings
from statecache_workers.worker import Worker
from tests.support.openai_sessions import World
from tests.support.pydantic_ai_agent import answer
from tests.support.pydantic_ai_stores import KINDS, Compared, MakeStore, saved, told, turn, turns
from tests.support.standing_on import Kind

HARD: list[ModelMessage] = [
    ModelRequest(
        parts=[SystemPromptPart(content="日本語 🌍 café \u2028 \0 \x7f"), UserPromptPart(content="{7} %s \\n")]
    ),
    ModelRequest(parts=[UserPromptPart(content="cut \ud83d off")]),
    ModelRequest(parts=[UserPromptPart(content=["see", ImageUrl(url="https://a/b.png")])], instructions="Be kind."),
    ModelResponse(parts=[ThinkingPart(content="hm", signature="s"), TextPart(content='{"nested": "json"}')]),
    ModelResponse(parts=[ToolCallPart(tool_name="pay", args='{"n": 1}', tool_call_id="1")]),
    ModelResponse(parts=[ToolCallPart(tool_name="pay", args={"$json": "{}", "n": [2**64 + 1, 1.0, -0.0, 1e300]})]),
    ModelRequest(
        parts=[ToolReturnPart(tool_name="pay", content={"": [None, {}]}, tool_call_id="1", metadata={"a": 1})]
    ),
    ModelRequest(parts=[ToolReturnPart(tool_name="pay", content="again", tool_call_id="1", outcome="retried")]),
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
async def make(
    request: pytest.FixtureRequest, settings: Settings, worker: Worker, redis_raw: Any
) -> AsyncIterator[MakeStore]:
    """A maker of stores, over everything that they may stand on."""
    kind: Kind = request.param
    async with kind(World(settings, worker, redis_raw)) as made:
        yield made


async def test_it_is_a_store_and_begins_empty(make: MakeStore) -> None:
    store = make()
    assert isinstance(store, ConversationStore)
    assert await store.load("42") is None
    assert await store.load_entries("42") is None
    assert await store.list_conversations() == []
    await store.delete("42")
    assert await store.ping()
    with pytest.raises(KeyError):
        await store.read_entry("none")
    with pytest.raises(UserError):
        await store.fork("42")
    conversation = Conversation(conversation_id="42")
    assert await store.save(conversation) == []
    loaded = await store.load("42")
    assert loaded is not None
    assert (loaded.messages, loaded.revision) == ([], conversation.revision)


async def test_messages_come_in_order_and_no_more_of_them_than_asked_for(make: MakeStore) -> None:
    store, messages = make(), turns(70)
    for begin in range(0, 140, 20):
        await saved(store, "42", messages[begin : begin + 20])
    loaded = await store.load("42")
    assert loaded is not None
    assert loaded.messages == messages
    for limit in (0, 1, 2, 21, 63, 64, 65, 139, 140, 10_000):
        part = await store.load("42", limit=limit)
        assert part is not None
        assert part.messages == (messages[-limit:] if limit else [])
    part = await store.load("42", limit=2)
    assert part is not None
    part.messages.extend(turn(70))
    assert len(await store.save(part)) == 2
    assert told(await history(store, "42")) == told(turns(71))


async def history(store: ConversationStore, conversation_id: str) -> list[ModelMessage]:
    """Return the messages of a conversation."""
    return [entry.message for entry in await store.load_entries(conversation_id) or ()]


async def test_messages_come_back_as_the_framework_itself_reads_them(make: MakeStore) -> None:
    store = make()
    for message in HARD:
        await saved(store, "42", [message])
    await saved(store, "42", HARD)
    assert await history(store, "42") == [*HARD, *HARD]
    picture = ModelRequest(
        parts=[UserPromptPart(content=[BinaryContent(data=b"\0\xff" * 9000, media_type="image/png")])]
    )
    result = ModelRequest(parts=[ToolReturnPart(tool_name="x", content={1: {2}, "b": b"\xff"}, tool_call_id="1")])
    await saved(store, "43", [picture, result])
    dumped = ModelMessagesTypeAdapter.dump_json([picture, result])
    assert await history(store, "43") == ModelMessagesTypeAdapter.validate_json(dumped)


@pytest.mark.parametrize("seed", range(2))
async def test_it_answers_as_the_frameworks_own_store(make: MakeStore, seed: int) -> None:
    store, drawn, number = Compared(make()), random.Random(seed), 0
    held: list[Conversation] = []
    entries: list[ConversationEntry] = []
    for _ in range(60):
        what = drawn.choice(
            ["begin", "save", "save", "save", "load", "rewrite", "branch", "back", "fork", "list", "delete"]
        )
        one = drawn.choice(held) if held else Conversation()
        scope = drawn.choice([None, None, "ada", "bob"])
        try:
            if what == "begin":
                held.append(Conversation(messages=turns(number + 2, since=number)))
                entries += await store.save(held[-1], scope=scope)
            elif what == "save":
                one.messages.extend(turns(number + 1, since=number, size=drawn.choice([1, 9000])))
                entries += await store.save(one, scope=scope)
            elif what == "rewrite" and len(one.messages) > 1:
                one.messages[1:2] = turn(number)
                entries += await store.save(one)
            elif what == "load" and (loaded := await store.load(one.conversation_id, limit=drawn.choice([None, 1, 3]))):
                held.append(loaded)
            elif what == "branch":
                at = drawn.randrange(len(one.messages) + 1)
                held.append(await store.branch(one.conversation_id, at=at, expected_revision=one.revision, scope=scope))
            elif what == "back" and entries:
                entry_id = drawn.choice(entries).id
                await store.branch(one.conversation_id, from_entry=entry_id, expected_revision=one.revision)
            elif what == "fork":
                held.append(await store.fork(one.conversation_id, scope=scope))
            elif what == "list":
                await store.list_conversations(scope=scope, limit=drawn.choice([None, 0, 1, 2]))
            elif what == "delete" and drawn.random() < 0.5:
                await store.delete(one.conversation_id, scope=scope)
            if entries and drawn.random() < 0.3:
                await store.read_entry(str(drawn.choice(entries).id))
        except (UserError, KeyError):
            pass
        number += 2
    for one in held:
        await store.load(one.conversation_id)
    assert store.calls > 100


async def test_a_fork_keeps_what_it_shares_when_the_other_is_deleted(make: MakeStore) -> None:
    store = make()
    await saved(store, "42", turns(40))
    fork = await store.fork("42", at=60, new_conversation_id="43")
    entries = await store.load_entries("42")
    assert entries is not None
    assert [entry.id for entry in await store.load_entries("43") or ()] == [entry.id for entry in entries[:60]]
    with pytest.raises(ConversationConflict):
        await store.fork("42", new_conversation_id="43")
    fork.messages.extend(turn(99))
    await store.save(fork)
    await store.delete("42")
    assert await store.load("42") is None
    assert told(await history(store, "43")) == told([*turns(30), *turn(99)])
    assert (await store.read_entry(str(entries[59].id))).message == entries[59].message
    with pytest.raises(KeyError):
        await store.read_entry(entries[60].id)
    again = await saved(store, "42", turn(7))
    assert told(await history(store, "42")) == told(turn(7)) == told(again.messages)


async def test_conversations_are_apart_whatever_their_ids(make: MakeStore) -> None:
    ids = ["", "-", "/", "a/b", "a", "a/log/1/000001", "a%2Fb", "用户 1", "\ud83d", "{1}", "a.b", "x" * 120, "x" * 600]
    for conversation_id in ids:
        await saved(make(), conversation_id, [ModelRequest(parts=[UserPromptPart(content=ascii(conversation_id))])])
    for conversation_id in ids:
        assert told(await history(make(), conversation_id)) == [ascii(conversation_id)]
    assert sorted(one.conversation_id for one in await make().list_conversations()) == sorted(ids)
    await make().delete("a")
    assert await make().load("a") is None
    assert told(await history(make(), "a/b")) == ["'a/b'"]
    assert await make(namespace="others").load("a/b") is None
    assert await make(namespace="others").list_conversations() == []


async def test_conversations_are_listed_by_scope_and_the_newest_first(make: MakeStore) -> None:
    store = make()
    for number in range(30):
        conversation = Conversation(conversation_id=str(number), messages=turn(number))
        await store.save(conversation, scope="ada" if number % 3 else "bob")
    await saved(store, "4", turn(99))
    listed = [one.conversation_id for one in await store.list_conversations()]
    assert listed == ["4", *(str(number) for number in reversed(range(30)) if number != 4)]
    assert [one.conversation_id for one in await store.list_conversations(limit=3)] == ["4", "29", "28"]
    assert [one.conversation_id for one in await store.list_conversations(scope="bob", limit=2)] == ["27", "24"]
    assert len(await store.list_conversations(scope="ada")) == 20
    assert await store.load("4", scope="bob") is None
    with pytest.raises(ConversationConflict):
        await store.save(Conversation(conversation_id="4"), scope="bob")


async def test_of_those_who_save_at_once_one_is_first_and_nothing_is_lost(make: MakeStore) -> None:
    stores, conflicts = [make() for _ in range(3)], 0

    async def add(number: int) -> None:
        nonlocal conflicts
        for step in range(3):
            while True:
                try:
                    await saved(stores[number % 3], "42", turn(number * 10 + step))
                    break
                except ConversationConflict:
                    conflicts += 1

    await asyncio.gather(*map(add, range(5)))
    said = told(await history(stores[0], "42"))
    assert conflicts > 0
    assert len(said) == 30
    assert all(answer == f"{question[:-1]}!" for question, answer in zip(said[::2], said[1::2], strict=True))
    for number in range(5):
        assert [one for one in said[::2] if int(one[:-1]) // 10 == number] == [
            f"{number * 10 + step}?" for step in range(3)
        ]


async def test_an_agent_goes_on_where_it_was(make: MakeStore) -> None:
    agent = Agent(FunctionModel(answer))

    @agent.tool_plain
    def look_up(what: str) -> str:
        return what[::-1]

    for number, word in enumerate(["abc", "def"], 1):
        store = make()
        conversation = await store.load("42") or Conversation(conversation_id="42")
        result = await agent.run(word, conversation=conversation)
        assert result.output == f"{number}: {word[::-1]}"
        assert len(await store.save(result)) == 4
    loaded = await make().load("42")
    assert loaded is not None
    assert (len(loaded.messages), loaded.usage.requests, loaded.usage.tool_calls) == (8, 4, 2)


async def test_a_run_that_waits_for_approval_goes_on_elsewhere(make: MakeStore) -> None:
    agent = Agent(FunctionModel(answer), output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def look_up(what: str) -> str:
        return what[::-1]

    result = await agent.run("abc", conversation=Conversation(conversation_id="42"))
    await make().save(result)
    loaded = await make().load("42")
    assert loaded is not None
    assert isinstance(result.output, DeferredToolRequests)
    assert loaded.deferred_tool_requests == result.output
    approvals: dict[str, Any] = {call.tool_call_id: True for call in result.output.approvals}
    done = await agent.run(conversation=loaded, deferred_tool_results=DeferredToolResults(approvals=approvals))
    assert done.output == "1: cba"
    await make().save(done)
    last = await make().load("42")
    assert last is not None
    assert last.deferred_tool_requests is None
