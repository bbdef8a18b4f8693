"""A process that uses a conversation store, and tells on stdout what it has done: to be run beside others, or killed.

python -m tests.support.pydantic_ai_agent saves CONVERSATION NAME COUNT     saves that many turns of its own
python -m tests.support.pydantic_ai_agent runs CONVERSATION TEXT…           has the agent answer each text in a run;
                                                                            the tool that is asked for `stop` never does
"""

from __future__ import annotations

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from statecache import AsyncStateCache
from statecache.adapters.pydantic_ai import StateCacheConversationStore

STOP = "stop"


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Have what was asked looked up, and tell what was found, and how often it was asked in this conversation."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        asked = sum(isinstance(part, UserPromptPart) for message in messages for part in message.parts)
        return ModelResponse(parts=[TextPart(content=f"{asked}: {last.content}")])
    assert isinstance(last, UserPromptPart)
    return ModelResponse(parts=[ToolCallPart(tool_name="look_up", args={"what": str(last.content)})])


agent = Agent(FunctionModel(answer))


@agent.tool_plain
async def look_up(what: str) -> str:
    """Look something up."""
    _tell(f"looking up {what}")
    if what == STOP:
        await asyncio.Event().wait()
    return what[::-1]


async def saves(store: StateCacheConversationStore, conversation_id: str, name: str, count: int) -> None:
    """Save turns, one after the other, each again after a conflict."""
    for number in range(count):
        turn: list[ModelMessage] = [
            ModelRequest(parts=[UserPromptPart(content=f"{name} {number}")]),
            ModelResponse(parts=[TextPart(content=f"{name} {number}!")]),
        ]
        while True:
            conversation = await store.load(conversation_id) or Conversation(conversation_id=conversation_id)
            conversation.messages.extend(turn)
            try:
                await store.save(conversation)
                break
            except ConversationConflict:
                continue
        _tell(str(number))


async def runs(store: StateCacheConversationStore, conversation_id: str, texts: list[str]) -> None:
    """Have the agent answer texts."""
    for text in texts:
        conversation = await store.load(conversation_id) or Conversation(conversation_id=conversation_id)
        result = await agent.run(text, conversation=conversation)
        await store.save(result)
        _tell(result.output)


async def _main(what: str, conversation_id: str, *more: str) -> None:
    async with AsyncStateCache() as cache:
        store = StateCacheConversationStore(cache)
        if what == "saves":
            await saves(store, conversation_id, more[0], int(more[1]))
        else:
            await runs(store, conversation_id, [*more])


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
