"""Vectors of a few dimensions, and what an index of them holds."""

from __future__ import annotations

import math
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache
from tests.fixtures.flusher import rows

DIMS = 8
QUERY = [1.0] + [0.0] * (DIMS - 1)
Vector = Sequence[float]


def need_pgvector(psql: psycopg.Connection[Any]) -> None:
    """Leave a test out on a server that has no pgvector."""
    if not rows(psql, "SELECT FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("this Postgres has no pgvector")


def near(cosine: float, rest: int = 1) -> list[float]:
    """Return a vector whose cosine with QUERY is that."""
    return [cosine, *(math.sqrt(1 - cosine**2) if at == rest else 0.0 for at in range(1, DIMS))]


def packed(vector: Vector) -> str:
    return b64encode(array("f", vector).tobytes()).decode()


def cosine(one: Vector, other: Vector) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths


def take_in(psql: psycopg.Connection[Any]) -> None:
    """Have all vectors indexed that wait."""
    while rows(psql, "SELECT index_vectors(1000)") != [(0,)]:
        pass
    assert rows(psql, "SELECT FROM vector_pending") == []


def refuse(psql: psycopg.Connection[Any], namespace: str, sqlstate: str, *, rows_of: str = "") -> None:
    """Have Postgres refuse what is added to an index, or a key's part of it, with an error of that SQLSTATE."""
    ((name,),) = rows(psql, "SELECT relation FROM vector_index WHERE namespace = %s", namespace)
    psql.execute(
        f"""
        CREATE OR REPLACE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.key LIKE '{rows_of}%' THEN RAISE 'it has {sqlstate}' USING ERRCODE = '{sqlstate}'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER refused BEFORE INSERT ON "{name}" FOR EACH ROW EXECUTE FUNCTION refused()
    """.encode()
    )


def refuse_no_more(psql: psycopg.Connection[Any]) -> None:
    """Have Postgres take all again."""
    psql.execute("DROP FUNCTION refused CASCADE")


def table(psql: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """Return the keys and places that the one index holds."""
    ((name,),) = rows(psql, "SELECT relation FROM vector_index")
    return rows(psql, f'SELECT key, place FROM "{name}" ORDER BY key, place')


async def found(client: AsyncStateCache, query: Vector = QUERY, prefix: str = "notes/", **more: Any) -> list[str]:
    return [state.key for state, _ in await client.nearest(query, prefix, **more)]
