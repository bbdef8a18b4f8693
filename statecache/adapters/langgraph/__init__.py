"""A checkpointer and a store for LangGraph: what an agent's threads hold, and what outlasts them.

    from statecache.adapters.langgraph import StateCacheSaver

    with StateCacheSaver.from_conn_string(redis_url=…, postgres_url=…) as saver:      # or from STATECACHE_* variables
        graph = builder.compile(checkpointer=saver)
        graph.invoke(…, {"configurable": {"thread_id": "42"}})                        # or await graph.ainvoke(…)

A thread is a group, so what belongs to one checkpoint is one commit: all of it or nothing, on every tier.

    langgraph/42/head/-                which checkpoint is the latest; never an earlier one than was there
    langgraph/42/cp/-/oh…~1f0a…        a checkpoint: metadata, versions, small values, pending writes; its name begins
                                       with the id turned round, so the newest is listed first
    langgraph/42/ch/-/messages         the newest value of a channel above 4 KB; checkpoints name its versions, so
                                       Redis keeps one of them, and Postgres what parts each from the one before
    langgraph/42/ch/-/messages/beside  a value that is put while the latest checkpoint names the one above: with one
                                       that comes late, or ahead of a commit that has no room for all
    langgraph/42/w/-/oh…~1f0a…/t1/0    a task's pending writes, once they are more than 64 KB or of more than 8 tasks
                     ^ the namespace of a subgraph, `-` for the graph itself

All are JSON. What is plain data can be read there; anything else is what LangGraph's serializer makes of it, in base64.

    from statecache.adapters.langgraph import StateCacheStore

    with StateCacheStore.from_conn_string(redis_url=…, postgres_url=…) as store:
        graph = builder.compile(checkpointer=saver, store=store)
        store.put(("users", "ada"), "prefs", {"theme": "dark"})

    langgraph-store/users.ada/prefs        an item; all of one namespace are a group

It needs the extra `statecache[langgraph]`.
"""

from __future__ import annotations

from statecache.adapters.versions import require

require("langgraph-checkpoint", (4, 3), (5,), what="a checkpointer or a store for LangGraph", extra="langgraph")

from statecache.adapters.langgraph.saver import StateCacheSaver  # noqa: E402
from statecache.adapters.langgraph.store.store import StateCacheStore  # noqa: E402

__all__ = ["StateCacheSaver", "StateCacheStore"]
