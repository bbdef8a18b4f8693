"""`import` from what agents' frameworks keep by themselves: read there as it is, written as their adapters here do.

langgraph-postgres URL     checkpoints of LangGraph's own saver on Postgres, for `StateCacheSaver`
openai-sqlite FILE         sessions of the OpenAI Agents SDK in SQLite, for `StateCacheSession`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.cli.connecting import client, patient
from statecache.cli.exits import FINDING, OK
from statecache.cli.screen import Counting, counted, plain, print_json, say, tell
from statecache.settings import Settings

if TYPE_CHECKING:
    from statecache.model import Durability


class Asked(NamedTuple):
    """What is taken in: from where, into which deployment and namespace, and whether it is only compared."""

    where: str
    settings: Settings
    namespace: str | None
    durability: Durability | None
    dry_run: bool

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


def _langgraph(asked: Asked) -> Taken:
    from statecache.adapters.langgraph import StateCacheSaver
    from statecache.adapters.langgraph.importing import import_checkpoints, postgres_checkpoints

    with (
        StateCacheSaver(asyncio.run(patient(asked.settings)), **asked.how) as target,
        postgres_checkpoints(asked.where) as (source, configs),
        Counting("importing checkpoints") as progress,
    ):
        done = import_checkpoints(configs, source, target, dry_run=asked.dry_run, progress=progress)
    return Taken(done, "checkpoint", counted(done.threads, "thread"), [])


def _openai(asked: Asked) -> Taken:
    from statecache.adapters.openai_agents.importing import import_sessions, sqlite_sessions

    async def run() -> Any:
        async with client(asked.settings) as cache:
            with Counting("importing items") as progress:
                sessions = sqlite_sessions(Path(asked.where))
                return await import_sessions(
                    sessions, cache, progress=progress, dry_run=asked.dry_run, **asked.how
                )  # fmt: skip

    done = asyncio.run(run())
    notes = [f"{plain(name)}: left alone, for the session of this name holds something else" for name in done.kept]
    if done.unreadable:
        notes.insert(0, f"{counted(done.unreadable, 'item')} left out: no JSON")
    return Taken(done, "item", counted(done.sessions, "session"), notes, finding=bool(done.kept))


FRAMEWORKS: dict[str, Callable[[Asked], Taken]] = {
    "langgraph-postgres": _langgraph,
    "openai-sqlite": _openai,
}
"""What `import` takes from beside files, by the word for it."""
