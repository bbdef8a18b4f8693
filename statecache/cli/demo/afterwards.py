"""What the demo does after the audit: one run goes back to before its agent was killed, and another way on a branch.

All of it is done by the verbs that anybody has, on the servers that were killed; what is shown is the run's log.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from statecache._async.client import AsyncStateCache
from statecache.cli.history.log_view import GraphLog, lines_of
from statecache.cli.history.logged import Entry, Log, Range
from statecache.clock import wall

if TYPE_CHECKING:
    from rich.console import Console

    from statecache.replay.story import Story
    from statecache.settings import Settings

ACTOR = "demo"
ANOTHER_WAY = {"role": "user", "content": "Let us try it another way from here."}
ROWS_MIN = 3


class Afterwards(msgspec.Struct, frozen=True, kw_only=True):
    """What was done: the run's key, the version it went back to, the branch of that, and their log, as of `at`."""

    key: str
    version: int
    branch: str
    entries: Sequence[Entry]
    at: datetime


async def gone_back(settings: Settings, story: Story) -> Afterwards:
    """Go back with a run to before its agent was first killed, and go another way on a branch of that version."""
    key, branch = story.key, f"{story.key}-b"
    version = max(one.last for one in story.stretches if one.writer == story.stretches[0].writer)
    if not story.resumed:
        version = max(1, version // 2)
    async with AsyncStateCache(settings=settings) as cache:
        await cache.branch(key, branch, at=version, actor=ACTOR)
        await cache.update(branch, _another_way, actor=ACTOR, durability="postgres")
        await cache.rollback(key, version, actor=ACTOR, durability="postgres")
        entries = [entry async for entry in Log(cache, key, Range(first=version)).entries()]
        return Afterwards(key=key, version=version, branch=branch, entries=entries, at=wall())


def _another_way(run: dict[str, Any]) -> dict[str, Any]:
    return {**run, "step": run["step"] + 1, "messages": [*run["messages"], ANOTHER_WAY]}


def told(after: Afterwards, screen: Console, *, most: int) -> list[Text]:
    """Return the lines that tell it, on at most so many rows of the graph, but for those of the newest changes."""
    newest = after.entries[0].newest
    graph = GraphLog(after.key, newest, after.at)
    lines = [line for entry in after.entries for row, text in graph.rows(entry) for line in lines_of(row, text, screen)]
    head = Text(f"It goes back to version {after.version}; a branch goes another way:")
    room = max(most, ROWS_MIN)
    if len(lines) <= room:
        return [head, *lines]
    last = lines[-2:] if room >= ROWS_MIN + 3 else []
    first = lines[: room - len(last) - bool(last)]
    left_out = [Text(f"┆ ┆ … {len(lines) - len(first) - len(last)} more", "dim")] if last else []
    return [head, *first, *left_out, *last]
