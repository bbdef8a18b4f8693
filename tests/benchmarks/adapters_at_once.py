"""What adapters do in an event loop: many tasks' writes at one moment, and sessions of the OpenAI Agents SDK.

A superstep fans out: a hundred tasks end together, and each has written 10 KB. LangGraph's own saver for Postgres has a
pool of ten connections. The session is held against the one that the SDK brings for Redis, which keeps a list and
has no second tier.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from time import perf_counter
from typing import Any

from psycopg.rows import dict_row

from statecache import AsyncStateCache, Settings
from statecache.adapters.langgraph import StateCacheSaver
from statecache.adapters.openai_agents import StateCacheSession
from tests.benchmarks.graph_calls import Call, Words, config_of
from tests.benchmarks.measuring import Row, times_faster

TASKS, WRITE_BYTES = 100, 10 * 1024
CONNECTIONS = 10
TURNS = 40
GETS_A_TURN = 2
VENDOR, REDIS_SESSION = "langgraph-checkpoint-postgres, ten connections", "RedisSession of openai-agents"
Spent = tuple[list[list[float]], list[list[float]]]


class Turns:
    """Who goes first: each side as often as the other."""

    def __init__(self) -> None:
        self._turn = 0

    async def both(self, ours: Callable[[], Awaitable[Any]], theirs: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Await both, one after the other; return the seconds of each, and what they gave."""
        self._turn += 1
        found: list[Any] = [None, None, None, None]
        pair = (0, ours), (1, theirs)
        for at, call in pair if self._turn % 2 else reversed(pair):
            begun = perf_counter()
            found[2 + at] = await call()
            found[at] = perf_counter() - begun
        return found


def writes_at_once(settings: Settings, put: Call, words: Words, rounds: int) -> Row:
    """Measure a hundred tasks that end at one moment; a worker runs, and the other saver's tables are there."""
    return asyncio.run(_writes_at_once(settings, put, words, rounds))


async def _writes_at_once(settings: Settings, put: Call, words: Words, rounds: int) -> Row:
    spent: Spent = ([], [])
    turns, texts = Turns(), [words.text(WRITE_BYTES) for _ in range(TASKS)]
    async with AsyncStateCache(settings=settings) as cache, _theirs(settings) as theirs:
        ours: Any = StateCacheSaver(cache)
        for turn in range(rounds + 1):
            thread = f"at-once-{turn}"
            at = config_of(thread, put.arguments[0]["id"])

            async def superstep(saver: Any, at: Any = at) -> None:
                writes = (saver.aput_writes(at, [("text", [text])], f"task-{n}") for n, text in enumerate(texts))
                await asyncio.gather(*writes)

            for saver in (ours, theirs):
                await saver.aput(config_of(thread), *put.arguments)
            first, second, *_ = await turns.both(lambda: superstep(ours), lambda: superstep(theirs))
            found = [await saver.aget_tuple(at) for saver in (ours, theirs)]
            if any(len(one.pending_writes) != TASKS for one in found):
                raise RuntimeError("a saver lacks writes")
            if turn:
                spent[0].append([first])
                spent[1].append([second])
    name = f"LangGraph: {TASKS} parallel put_writes of {WRITE_BYTES // 1024} KB"
    return times_faster(name, VENDOR, spent, bound=1.0)


@asynccontextmanager
async def _theirs(settings: Settings) -> AsyncIterator[Any]:
    pool: Any = import_module("psycopg_pool").AsyncConnectionPool
    saver: Any = import_module("langgraph.checkpoint.postgres.aio").AsyncPostgresSaver
    told = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with pool(settings.postgres_url, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=told) as connections:
        yield saver(connections)


def sessions(settings: Settings, words: Words, rounds: int) -> Iterator[Row]:
    """Measure items that are added to sessions one turn after the other, and read after each."""
    yield from asyncio.run(_sessions(settings, words, rounds))


async def _sessions(settings: Settings, words: Words, rounds: int) -> list[Row]:
    memory: Any = import_module("agents.extensions.memory")
    added: Spent = ([], [])
    got: Spent = ([], [])
    turns = Turns()
    async with AsyncStateCache(settings=settings) as cache:
        for turn in range(rounds + 1):
            ours = StateCacheSession(f"chat-{turn}", cache)
            theirs = memory.RedisSession.from_url(f"chat-{turn}", url=settings.redis_url)
            for spent in (*added, *got):
                spent.append([])
            for _ in range(TURNS):
                items: Any = [{"role": "user", "content": words.between(20, 200)},
                              {"role": "assistant", "content": words.between(60, 400)}]  # fmt: skip
                pair = await turns.both(lambda: ours.add_items(items), lambda: theirs.add_items(items))  # noqa: B023
                _note(added, pair)
                for _ in range(GETS_A_TURN):
                    pair = await turns.both(ours.get_items, theirs.get_items)
                    if pair[2] != pair[3]:
                        raise RuntimeError("the two sessions hold different items")
                    _note(got, pair)
            await theirs.close()
    return [
        times_faster(f"OpenAI Agents: {name}", REDIS_SESSION, (spent[0][1:], spent[1][1:]), bound=1.0)
        for name, spent in (("add_items", added), ("get_items", got))
    ]


def _note(spent: Spent, pair: list[Any]) -> None:
    spent[0][-1].append(pair[0])
    spent[1][-1].append(pair[1])
