"""LangGraph's store, searched by a query: beside LangGraph's own for Postgres, both on the same pgvector.

Items have texts of which a function here makes vectors, as near to one another as they share words, so no model is
asked. Both stores keep a graph over them (HNSW, by cosine). What either finds is held against comparing all, and where
one finds less than eight of ten there is no row.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from random import Random
from time import perf_counter
from typing import Any
from zlib import crc32

import psycopg
from langchain_core.embeddings import Embeddings
from langgraph.store.base import PutOp

from statecache import StateCache
from statecache.adapters.langgraph import StateCacheStore
from statecache.core.postgres.vector_indexes import create
from tests.benchmarks.graph_calls import SEED, Words
from tests.benchmarks.measuring import Row, times_faster
from tests.support.polling import pause_thread

ITEMS, DIMS, QUERIES, FOUND = 2_000, 256, 20, 10
PUTS = 200
VENDOR = "PostgresStore of langgraph-checkpoint-postgres"
NAMESPACE = ("notes", "ada")


class SharedWords(Embeddings):
    """Vectors that are near where texts share words."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the sum of a direction for each word of each text."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the sum of a direction for each word of the text."""
        whole = array("d", bytes(8 * DIMS))
        for word in {*text.split()}:
            drawn = Random(crc32(word.encode()))
            for at in drawn.sample(range(DIMS), 8):
                whole[at] += drawn.choice((-1.0, 1.0))
        return [*whole]


def searches(cache: StateCache, words: Words, rounds: int) -> list[Row]:
    """Measure puts and searches; a worker runs."""
    vendor: Any = import_module("langgraph.store.postgres").PostgresStore
    index: Any = {"dims": DIMS, "embed": SharedWords(), "fields": ["text"]}
    url = cache.settings.postgres_url
    asyncio.run(create(cache.settings, "langgraph-store", member="vectors", dims=DIMS))
    with vendor.from_conn_string(url, index=index) as theirs, psycopg.connect(url, autocommit=True) as psql:
        theirs.setup()
        sides = StateCacheStore(cache, index=index), theirs
        texts = [words.between(60, 400) for _ in range(ITEMS)]
        puts = [PutOp(NAMESPACE, str(at), {"text": text}) for at, text in enumerate(texts)]
        put, found = _Spent(rounds), _Spent(rounds)
        for at in range(0, ITEMS, PUTS):
            put.note(at // PUTS % rounds, sides, lambda side, at=at: side.batch(puts[at : at + PUTS]))  # type: ignore[misc]
        _until_indexed(cache, psql)
        rng = Random(SEED)
        for turn in range(rounds):
            for query in rng.choices(texts, k=QUERIES):
                asked = " ".join(query.split()[:8])
                found.note(turn, sides, lambda side, asked=asked: side.search(NAMESPACE, query=asked, limit=FOUND))  # type: ignore[misc]
        _compare(sides, texts, [" ".join(one.split()[:8]) for one in rng.choices(texts, k=QUERIES)])
    return [
        times_faster(f"LangGraph store: {PUTS} puts with vectors of {DIMS}", VENDOR, put.sides, bound=None),
        times_faster(f"LangGraph store: the nearest {FOUND} of {ITEMS:,}", VENDOR, found.sides, bound=None),
    ]


class _Spent:
    """The seconds of calls on either side, one list a round."""

    def __init__(self, rounds: int) -> None:
        self.sides: tuple[list[list[float]], list[list[float]]] = (
            [[] for _ in range(rounds)], [[] for _ in range(rounds)],
        )  # fmt: skip
        self._turn = 0

    def note(self, turn: int, stores: Sequence[Any], call: Callable[[Any], Any]) -> None:
        """Make one call on either side, neither always first."""
        self._turn += 1
        for at in (0, 1) if self._turn % 2 else (1, 0):
            begun = perf_counter()
            call(stores[at])
            self.sides[at][turn].append(perf_counter() - begun)


def _until_indexed(cache: StateCache, psql: psycopg.Connection[Any]) -> None:
    """Wait until no vector waits to be indexed."""
    schema = cache.settings.postgres_schema
    query = f"SELECT (SELECT count(*) FROM {schema}.state WHERE key LIKE 'langgraph-store/%'), count(*) FROM {schema}.vector_pending"  # noqa: E501
    while psql.execute(query.encode()).fetchone() != (ITEMS, 0):
        pause_thread()
    psql.execute("ANALYZE")


def _compare(sides: Sequence[Any], texts: Sequence[str], queries: Sequence[str]) -> None:
    """Raise RuntimeError where a store finds less than eight of ten that comparing all finds."""
    embed = SharedWords()
    vectors = [_unit(embed.embed_query(text)) for text in texts]
    for side in sides:
        hits = 0
        for query in queries:
            asked = _unit(embed.embed_query(query))
            scores = sorted(
                (-sum(a * b for a, b in zip(asked, one, strict=True)), at) for at, one in enumerate(vectors)
            )
            best = {str(at) for score, at in scores if score <= scores[FOUND - 1][0] + 1e-6}
            hits += len(best & {item.key for item in side.search(NAMESPACE, query=query, limit=FOUND)})
        if hits < 0.8 * FOUND * len(queries):
            raise RuntimeError(f"{type(side).__name__} finds {hits} of {FOUND * len(queries)}")


def _unit(vector: Sequence[float]) -> list[float]:
    length = sum(one * one for one in vector) ** 0.5
    return [one / length for one in vector]
