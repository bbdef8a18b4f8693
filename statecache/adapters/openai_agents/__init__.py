"""A session for the OpenAI Agents SDK: what an agent's conversations hold, hot in Redis and durable in Postgres.

    from statecache.adapters.openai_agents import StateCacheSession

    session = StateCacheSession("42", cache)                        # on an AsyncStateCache, which any number may share
    await Runner.run(agent, "Hello", session=session)

A session is a group, and what one call adds, pops or clears is one commit: all of it or nothing, on every tier.

    openai-agents/42                   the head: how many items there are, in how many pages, the last one's revision
    openai-agents/42/items/000001      a page: some of the items, in order; its revision, and that of the page before

A page takes 64 items or 16 KiB, so what an addition writes does not grow with the conversation. Every commit compares
the head with the one that was read, and gives what it writes a revision of its own. So pages that were read one after
the other are known to belong together, from whichever tier they are, and whoever comes second decides anew.

All are JSON. An item that JSON's plain data cannot hold exactly is kept as a text in `{"$json": …}`.
It needs the extra `statecache[openai-agents]`.
"""

from __future__ import annotations

from statecache.adapters.versions import require

require(
    "openai-agents", (0, 24), (0, 25), what="a session for the OpenAI Agents SDK", extra="openai-agents",
)  # fmt: skip

from statecache.adapters.openai_agents.session import StateCacheSession  # noqa: E402

__all__ = ["StateCacheSession"]
