"""`statecache policy`: what is recorded of namespaces, and an operator who changes it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, LockHeld, Settings
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, rows
from tests.support.command_line import CommandLine


async def test_what_a_view_has_recorded_is_shown_and_kept_by_the_command_line(
    cli: CommandLine, cache: AsyncStateCache, settings: Settings
) -> None:
    assert await cli.beside("policy") == (
        0,
        "nothing is recorded: locks are advisory, and all values of changes are kept\n",
        "",
    )
    assert (await cli.beside("policy", "runs")).status == 1
    runs = cache.namespace("runs", locking="enforced")
    async with runs.lock("42") as lease:
        await lease.set("42", 1)
        (shown,) = (await cli.beside("policy", "--json")).json["policies"]
        assert (shown["namespace"], shown["locking"], shown["changed_by"]) == ("runs", "enforced", settings.writer)
        for command in (("set", "runs/42", "2"), ("rm", "runs/42"), ("set", "runs/42/plan", "2", "--create")):
            refused = await cli.beside(*command)
            assert refused.status == 1
            assert "holds the lock of" in refused.err
        assert "runs" in (await cli.beside("policy", "runs")).out


async def test_an_operator_changes_it_for_all(cli: CommandLine, cache: AsyncStateCache) -> None:
    assert (await cli.beside("policy", "runs", "--locking", "enforced")).status == 0
    async with cache.lock("runs/42"):
        with pytest.raises(LockHeld):
            await cache.set("runs/42", 1)
        assert (await cli.beside("policy", "runs", "--locking", "advisory")).status == 2
        with pytest.raises(LockHeld):
            await cache.set("runs/42", 1)
        changed = await cli.beside("policy", "runs", "--locking", "advisory", "--yes", "--json")
        assert [one["locking"] for one in changed.json["policies"]] == ["advisory"]
        assert changed.json["policies"][0]["changed_by"].startswith("operator ")
        await cache.set("runs/42", 2)


def test_bad_calls_are_refused(cli: CommandLine) -> None:
    assert cli("policy", "--locking", "enforced").status == 2
    assert cli("policy", "runs", "--locking", "strict").status == 2
    assert cli("policy", "runs/42").status == 2


async def test_nothing_is_recorded_where_the_urls_name_two_deployments(
    cli: CommandLine, psql: psycopg.Connection[Any], redis_raw: Any, keys: KeySpace
) -> None:
    redis_raw.hset(keys.meta(0), "cluster", "another")
    for more in (("enforced",), ("advisory", "--yes")):
        told = await cli.beside("policy", "runs", "--locking", *more)
        assert told.status == 3
        assert "cluster another" in told.err
    assert rows(psql, "SELECT count(*) FROM namespace") == [(0,)]


async def test_nothing_is_taken_out_of_quarantine_where_the_urls_name_two_deployments(
    cli: CommandLine, agents: Agents, worker: Worker, psql: psycopg.Connection[Any], redis_raw: Any, keys: KeySpace
) -> None:
    agents.commit("runs/1", reason="a\0b")
    await flush(worker)
    redis_raw.hset(keys.meta(0), "cluster", "another")
    told = await cli.beside("quarantine", "retry", "all")
    assert (told.status, told.out) == (3, "")
    assert "cluster another" in told.err
