"""Persistence for flows of CrewAI: what a flow has come to is hot in Redis, and durable in Postgres.

    from statecache.adapters.crewai import StateCacheFlowPersistence

    @persist(StateCacheFlowPersistence(cache))                  # on a StateCache, which any number may share
    class Review(Flow[ReviewState]): ...

A flow is a group, and what one save writes is one commit.

    crewai/42             the flow's state, as it was after the method that finished last
    crewai/42/pending     what a flow waits for that was paused for somebody's feedback, and its state then

Every version of the state stays in its history, with the method's name as the reason: `statecache log crewai/42` lists
them, `get_at` reads one, and a rollback or a branch goes on from one. All are JSON, and hold what CrewAI's own
persistence would: what JSON has no form for becomes a list or a text.
It needs the extra `statecache[crewai]`.
"""

from __future__ import annotations

from statecache.adapters.versions import require

require("crewai", (1, 15), (2,), what="persistence for flows of CrewAI", extra="crewai")

from statecache.adapters.crewai.persistence import StateCacheFlowPersistence  # noqa: E402

__all__ = ["StateCacheFlowPersistence"]
