"""`import` from what agents' frameworks keep by themselves: read there as it is, written as their adapters here do.

langgraph-postgres URL     checkpoints of LangGraph's own saver on Postgres, for `StateCacheSaver`
langgraph-redis URL        those of its saver on Redis, for the same
openai-sqlite FILE         sessions of the OpenAI Agents SDK in SQLite, for `StateCacheSession`
adk-sqlite FILE            sessions of ADK in SQLite, for `StateCacheSessionService`
adk-database URL           sessions of ADK in a database, for the same
crewai-sqlite FILE         flows of CrewAI in SQLite, for `StateCacheFlowPersistence`
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.cli.connecting import client, patient
from statecache.cli.exits import FINDING, OK
from statecache.cli.screen import Counting, counted, plain, print_json, say, tell
from statecache.settings import Settings

if TYPE_CHECKING:
    from statecache.adapters.adk.sources import Stored
    from statecache.model import Durability


class Asked(NamedTuple):
    """What is taken in: from where, into which deployment and namespace, and whether it is only compared."""

    where: str
    settings: Settings
    namespace: str | None
    durability: Durability | None
    dry_run: bool
    prefixes: Mapping[str, str] = {}
    """What keys begin with at LangGraph's saver on Redis, by `prefix` and `write_prefix`, where it was given them."""

    @property
    def how(self) -> dict[str, Any]:
        """The options of an adapter's constructor."""
        named = {"namespace": self.namespace} if self.namespace is not None else {}
        return named | {"durability": self.durability}


class Taken(NamedTuple):
    """What was taken in: its counts, of which things of how many others they are, and what is to be told beside."""

    done: Any
    noun: str
    of: str
    notes: list[str]
    finding: bool = False


def take_in_from(source: str, asked: Asked, *, as_json: bool) -> int:
    """Take in what one of FRAMEWORKS keeps, tell what came of it, and return the exit status."""
    done, noun, of, notes, finding = FRAMEWORKS[source](asked)
    if as_json:
        print_json(done)
    else:
        would = "would be " if asked.dry_run else ""
        say(f"{counted(done.written, noun)} of {of} {would}written, {done.same:,} there already")
        for note in notes:
            tell(note)
    return FINDING if finding else OK


def _langgraph_postgres(asked: Asked) -> Taken:
    from statecache.adapters.langgraph.importing import postgres_checkpoints

    return _langgraph(asked, postgres_checkpoints)


def _langgraph_redis(asked: Asked) -> Taken:
    from statecache.adapters.langgraph.redis_source import redis_checkpoints

    return _langgraph(asked, partial(redis_checkpoints, **asked.prefixes))


def _langgraph(asked: Asked, checkpoints: Callable[[str], AbstractContextManager[Any]]) -> Taken:
    from statecache.adapters.langgraph import StateCacheSaver
    from statecache.adapters.langgraph.importing import import_checkpoints

    with (
        StateCacheSaver(asyncio.run(patient(asked.settings)), **asked.how) as target,
        checkpoints(asked.where) as (source, configs),
        Counting("importing checkpoints") as progress,
    ):
        done = import_checkpoints(configs, source, target, dry_run=asked.dry_run, progress=progress)
    return _taken(done, "checkpoint", counted(done.threads, "thread"), [])


def _openai(asked: Asked) -> Taken:
    from statecache.adapters.openai_agents.importing import import_sessions, sqlite_sessions

    done = _run(asked, "importing items", partial(import_sessions, sqlite_sessions(Path(asked.where))))
    left = [f"{counted(done.unreadable, 'item')} left out: no JSON"] if done.unreadable else []
    return _taken(done, "item", counted(done.sessions, "session"), left)


def _adk(asked: Asked, stored: AbstractContextManager[Stored]) -> Taken:
    from statecache.adapters.adk.importing import import_sessions

    with stored as found:
        done = _run(asked, "importing events", partial(import_sessions, found))
    would = "would be " if asked.dry_run else ""
    states = [f"{counted(done.states, 'state')} of apps and users {would}written"] if done.states else []
    return _taken(done, "event", counted(done.sessions, "session"), states)


def _adk_sqlite(asked: Asked) -> Taken:
    from statecache.adapters.adk.sources import sqlite_sessions

    return _adk(asked, sqlite_sessions(Path(asked.where)))


def _adk_database(asked: Asked) -> Taken:
    from statecache.adapters.adk.sources import database_sessions

    return _adk(asked, database_sessions(asked.where))


def _crewai(asked: Asked) -> Taken:
    from statecache.adapters.crewai.importing import import_flows, sqlite_flows

    done = _run(asked, "importing saves", partial(import_flows, sqlite_flows(Path(asked.where))))
    return _taken(done, "save", counted(done.flows, "flow"), [])


def _run(asked: Asked, what: str, work: Callable[..., Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with client(asked.settings) as cache:
            with Counting(what) as progress:
                return await work(cache, progress=progress, dry_run=asked.dry_run, **asked.how)

    return asyncio.run(run())


def _taken(done: Any, noun: str, of: str, notes: list[str]) -> Taken:
    left = [
        f"{plain(name)}: left alone, in whole or in part, for it was changed or deleted, here or at its source"
        for name in done.kept
    ]
    refused = [f"{plain(name)}: not taken in: {plain(why)}" for name, why in done.failed.items()]
    return Taken(done, noun, of, [*notes, *left, *refused], finding=bool(done.kept or done.failed))


FRAMEWORKS: dict[str, Callable[[Asked], Taken]] = {
    "langgraph-postgres": _langgraph_postgres,
    "langgraph-redis": _langgraph_redis,
    "openai-sqlite": _openai,
    "adk-sqlite": _adk_sqlite,
    "adk-database": _adk_database,
    "crewai-sqlite": _crewai,
}
"""What `import` takes from beside files, by the word for it."""
