"""A conversation store for Pydantic AI: the conversations of agents, hot in Redis and durable in Postgres.

    from statecache.adapters.pydantic_ai import StateCacheConversationStore

    store = StateCacheConversationStore(cache)                  # on an AsyncStateCache, which any number may share
    conversation = await store.load("42") or Conversation(conversation_id="42")
    result = await agent.run("Hello", conversation=conversation)
    await store.save(result)                                    # ConversationConflict where somebody else was first

A conversation is a group, and what one save adds is one commit: all of it or nothing, on every tier.

    pydantic-ai/42                            the record: where the history ends, usage, what a paused run waits for
    pydantic-ai/42/log/9c1f04e2/000001        a page: some of the messages by the ids of their entries, each with that
                                              of the entry before it

A page takes 64 messages or 16 KiB, so what a save writes does not grow with the conversation. Entries are added and
never changed, so a history is whole as soon as each entry is there that another one names. The log's number is drawn
when a conversation begins: what is left of an earlier one of its name is never taken for it.

Entries are asked for by their ids alone. Those that a store gives know their conversation; any other text is looked
for. A fork has a log of its own, with the entries that it shares under the same ids: so what is deleted, rolled back
or erased of one conversation is nothing to another.

All are JSON. A message that JSON's plain data cannot hold exactly is kept as a text in `{"$json": …}`.
It needs the extra `statecache[pydantic-ai]`.
"""

from __future__ import annotations

from statecache.adapters.versions import require

require(
    "pydantic-ai-slim", (2, 68), (3,), what="a conversation store for Pydantic AI", extra="pydantic-ai",
)  # fmt: skip

from statecache.adapters.pydantic_ai.store import StateCacheConversationStore  # noqa: E402

__all__ = ["StateCacheConversationStore"]
