"""Connections that are held while something else is waited for: half of them, and the others are lent all the same."""

from __future__ import annotations

import pytest

from statecache._process import mutex
from statecache.core.pool import Pool
from statecache.errors import RedisUnavailable
from tests.support.pooled import Line, pool_of


class Dialed:
    """A dialer that fails when told to."""

    failing = False

    async def __call__(self, _: float | None = None) -> Line:
        if self.failing:
            raise RedisUnavailable("connect", detail="told to")
        return Line()


def _pool(size: int, dialed: Dialed | None = None) -> Pool[Line]:
    return pool_of(size, dialed or Dialed())


async def test_who_asks_again_is_told_how_long_he_has_waited_in_all() -> None:
    pool = _pool(2)
    held = await pool.hold(1)
    with pytest.raises(RedisUnavailable, match=r"waited 7\.\d* s for one of the 1 connections"):
        await pool.hold(0.01, waited=7.3)
    pool.give(held)


async def test_half_of_the_connections_may_be_held_and_the_others_are_lent_all_the_same() -> None:
    pool = _pool(4)
    held = [await pool.hold(1), await pool.hold(1)]
    with pytest.raises(RedisUnavailable, match="for one of the 2 connections that transactions may hold") as caught:
        await pool.hold(0.01)
    assert caught.value.reason == "pool"
    assert pool.hold_now() is None
    lent = [await pool.take(0.01), await pool.take(0.01)]
    pool.give(held[0])
    assert await pool.hold(0.01) is held[0]
    for line in (*held, *lent):
        pool.give(line)
    spare = pool.hold_now()
    assert spare is not None
    spare.release()


async def test_whoever_cannot_be_lent_a_connection_holds_none() -> None:
    dialed = Dialed()
    pool = _pool(2, dialed)
    dialed.failing = True
    with pytest.raises(RedisUnavailable, match="told to"):
        await pool.hold(10)
    dialed.failing = False
    held = await pool.hold(0.01)
    assert held.alive
    pool.give(held)
    taken = [await pool.take(0.01), await pool.take(0.01)]
    with pytest.raises(RedisUnavailable, match="for a connection of 2"):
        await pool.hold(0.01)
    pool.give(taken[0])
    assert await pool.hold(0.01) is taken[0]


async def test_of_a_single_connection_none_is_to_spare() -> None:
    pool = _pool(1)
    assert pool.hold_now() is None
    pool.give(await pool.hold(0.01))


async def test_a_forked_child_may_hold_as_many_again() -> None:
    pool = _pool(2)
    parents = await pool.hold(1)
    pool.begin_anew(mutex())
    held = await pool.hold(0.01)
    assert held is not parents
    pool.give(parents)
    with pytest.raises(RedisUnavailable):
        await pool.hold(0.01)
