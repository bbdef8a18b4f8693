"""Conversation stores of Pydantic AI on all that they may stand on, turns for them, and one that is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from statecache.adapters.pydantic_ai import StateCacheConversationStore
from tests.support.openai_sessions import World
from tests.support.standing_on import kinds

MakeStore = Callable[..., StateCacheConversationStore]


def turn(number: int, *, size: int = 0) -> list[ModelMessage]:
    """Return a question and its answer, told apart by their number."""
    asked = ModelRequest(parts=[UserPromptPart(content=f"{number}? {'x' * size}")])
    return [asked, ModelResponse(parts=[TextPart(content=f"{number}!")])]


def turns(count: int, *, since: int = 0, size: int = 0) -> list[ModelMessage]:
    """Return several turns."""
    return [message for number in range(since, count) for message in turn(number, size=size)]


def told(messages: Sequence[Any]) -> list[str]:
    """Return what messages say, shortly."""
    return [str(part.content).strip() for message in messages for part in message.parts]


async def saved(store: ConversationStore, conversation_id: str, messages: Sequence[ModelMessage]) -> Conversation:
    """Add messages to a conversation, as a run does, and return it."""
    conversation = await store.load(conversation_id) or Conversation(conversation_id=conversation_id)
    conversation.messages.extend(messages)
    await store.save(conversation)
    return conversation


async def said(store: ConversationStore, conversation_id: str = "42") -> list[str]:
    """Return what the messages of a conversation say."""
    return told([entry.message for entry in await store.load_entries(conversation_id) or ()])


class Emptied(StateCacheConversationStore):
    """A store whose Redis is emptied before every read."""

    world: World

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Empty Redis, and read."""
        await self.world.empty()
        return await super().read_record(conversation_id)

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Empty Redis, and read."""
        await self.world.empty()
        return await super().read_history(head_id, limit=limit)


KINDS = kinds(StateCacheConversationStore, Emptied)


class Compared(ConversationStore):
    """A store that asks another one and the framework's own the same, and raises where the answers differ."""

    def __init__(self, store: ConversationStore) -> None:
        self._store, self._own = store, InMemoryConversationStore()
        self.calls = 0

    async def _both(self, verb: str, *arguments: Any, **options: Any) -> Any:
        answers = list[Any]()
        for store in (self._own, self._store):
            try:
                answers.append(await getattr(store, verb)(*arguments, **options))
            except (ConversationConflict, KeyError) as error:
                answers.append(error)
        self.calls += 1
        own, answer = answers
        if isinstance(own, Exception):
            assert type(answer) is type(own), (verb, arguments, own, answer)
            raise own
        assert answer == own, (verb, arguments, own, answer)
        return answer

    async def read_record(self, conversation_id: str) -> Any:
        """Ask both."""
        return await self._both("read_record", conversation_id)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Any:
        """Ask both."""
        return await self._both("read_records", scope=scope, limit=limit)

    async def write_record(
        self, record: Any, *, new_entries: Sequence[ConversationEntry] = (), expected_revision: str | None
    ) -> None:
        """Ask both."""
        await self._both("write_record", record, new_entries=new_entries, expected_revision=expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Ask both."""
        await self._both("delete_record", conversation_id, expected_revision=expected_revision)

    async def read_entry(self, entry_id: str) -> Any:
        """Ask both."""
        return await self._both("read_entry", entry_id)

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> Any:
        """Ask both."""
        return await self._both("read_history", head_id, limit=limit)
