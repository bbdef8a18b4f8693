"""Deployments for single tests: each begins empty, on servers that are shared, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings, StateCache
from statecache.clock import monotonic
from statecache.testing.deployments import Deployments


@pytest.fixture
def deployments(settings: Settings) -> Iterator[Deployments]:
    """Deployments beside the test's own, on the same servers."""
    made = Deployments(settings.redis_url, settings.postgres_url)
    yield made
    made.close()


def _schemas(settings: Settings) -> set[str]:
    with psycopg.connect(settings.postgres_url) as postgres:
        return {name for (name,) in postgres.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'test_%'")}


def test_each_begins_empty_and_flushes_what_is_written(deployments: Deployments, settings: Settings) -> None:
    names = set()
    for _ in range(3):
        with deployments.fresh() as fresh, StateCache(settings=fresh) as cache:
            names.add(fresh.postgres_schema)
            assert [*cache.list("runs/")] == []
            assert [*cache.changes("runs/", follow=False)] == []
            assert cache.set("runs/42", {"step": 1}, durability="postgres").version == 1
            assert [change.version for change in cache.changes("runs/", follow=False)] == [1]
    assert len(names) == 1  # it was emptied, not made anew
    assert names <= _schemas(settings)


def test_a_test_waits_less_than_50_ms_for_one(deployments: Deployments) -> None:
    """The first one makes the schema; of the others one counts that is not slowed down by tests beside this one."""
    waited_s: list[float] = []
    while len(waited_s) < 2 or (waited_s[-1] >= 0.05 and len(waited_s) < 100):
        begun = monotonic()
        with deployments.fresh():
            waited_s.append(monotonic() - begun)
    assert waited_s[-1] < 0.05, waited_s


def test_nothing_is_left_behind(settings: Settings, redis_raw: Any) -> None:
    before, deployments = _schemas(settings), Deployments(settings.redis_url, settings.postgres_url)
    with deployments.fresh() as fresh, StateCache(settings=fresh) as cache:
        cache.set("runs/42", 1, durability="postgres")
        assert [*redis_raw.scan_iter(f"{fresh.prefix}:*")]
    assert not [*redis_raw.scan_iter(f"{fresh.prefix}:*")]
    deployments.close()
    assert fresh.postgres_schema not in _schemas(settings) | before


def test_a_schema_that_a_test_has_changed_is_not_used_again(deployments: Deployments, settings: Settings) -> None:
    with deployments.fresh() as first, psycopg.connect(settings.postgres_url, autocommit=True) as postgres:
        postgres.execute(f'ALTER TABLE "{first.postgres_schema}".state ADD COLUMN mine text'.encode())
    with deployments.fresh() as second, StateCache(settings=second) as cache:
        assert second.postgres_schema != first.postgres_schema
        cache.set("runs/42", 1, durability="postgres")
    assert first.postgres_schema not in _schemas(settings)


def test_two_at_a_time_have_nothing_in_common(deployments: Deployments) -> None:
    with (
        deployments.fresh() as one, deployments.fresh(shards=8) as other,
        StateCache(settings=one) as here, StateCache(settings=other) as there,
    ):  # fmt: skip
        here.set("runs/42", 1, durability="postgres")
        assert there.get("runs/42") is None
        assert there.settings.shards == 8


async def test_an_asynchronous_test_has_one_too(deployments: Deployments) -> None:
    with deployments.fresh() as fresh:
        async with AsyncStateCache(settings=fresh) as cache:
            assert (await cache.step("runs/42", "pay", lambda step: 7)) == 7


def test_a_test_that_failed_in_its_block_leaves_nothing_either(deployments: Deployments, redis_raw: Any) -> None:
    prefixes = []
    with suppress(AssertionError), deployments.fresh() as fresh, StateCache(settings=fresh) as cache:
        prefixes.append(fresh.prefix)
        cache.set("runs/42", 1)
        raise AssertionError("the test went wrong")
    assert not [*redis_raw.scan_iter(f"{prefixes[0]}:*")]
