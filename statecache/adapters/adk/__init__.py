"""A session service for Google's Agent Development Kit: sessions are hot in Redis, and durable in Postgres.

    from statecache.adapters.adk import StateCacheSessionService

    service = StateCacheSessionService(cache)                   # on an AsyncStateCache, which any number may share
    runner = Runner(app_name="orders", agent=agent, session_service=service)

A session is a group, and an event that is appended is one commit of it, with what it changes in the session's state.

    adk/orders:alice:42                            the head: the session's state, its revision, how many events
    adk/orders:alice:42/events/9c1f04e2/000001     a page: some of the events, in order
    adk/orders:alice                               the state of a user, which all of their sessions share (`user:`)
    adk/orders                                     the state of the app, which all of its sessions share (`app:`)

A page takes 64 events or 16 KiB, so what an append writes does not grow with the conversation. Each append compares the
revision that its session object was read at: one that somebody else has gone on with is refused.

What an event changes beyond its session is of other groups, so it is no part of that commit. It is prepared there
first, where nobody sees it, and takes effect once the session holds the event: whoever reads the user's or the app's
state looks which of the two it is. So a process may die at any point, and all of an event counts, or none.

All are JSON. What JSON's plain data cannot hold exactly is kept as a text in `{"$json": …}`.
It needs the extra `statecache[adk]`.
"""

from __future__ import annotations

from statecache.adapters.versions import require

require("google-adk", (2, 13), (2, 14), what="a session service for ADK", extra="adk")

from statecache.adapters.adk.service import StateCacheSessionService  # noqa: E402

__all__ = ["StateCacheSessionService"]
