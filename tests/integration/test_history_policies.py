"""What a namespace's policy says of its history: recorded once, told of where it differs, and kept by workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import AsyncStateCache, Change, Settings, UsageError
from statecache.core.history.values import HistoryValues, VersionAt
from statecache.keys import KeySpace
from statecache.rules.pins import CHECKPOINT_SCHEMA
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, MakeWorker, flush, rows
from tests.fixtures.servers import MakeClient
from tests.support.command_line import CommandLine
from tests.support.polling import pause

Psql = psycopg.Connection[Any]
DAYS = timedelta(days=90)
RECORDED = "SELECT name, history, max_age, max_count FROM retention ORDER BY name"
KEPT = "SELECT key, version, value IS NOT NULL OR packed IS NOT NULL FROM change WHERE op = 'set' ORDER BY key, version"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await pause()


async def test_the_first_commit_of_a_view_records_its_policy_where_there_is_none(
    make_client: MakeClient, settings: Settings, psql: Psql, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(settings)
    runs = client.namespace("runs", retention=DAYS, retention_count=100)
    assert await runs.get("42") is None
    assert rows(psql, RECORDED) == []
    await runs.set("42", 1)
    await until(lambda: rows(psql, RECORDED) == [("runs", "full", DAYS, 100)])
    other = make_client(settings)
    caches = other.namespace("caches", history="latest")
    async with caches.transaction("a") as tx:
        tx.set("a", 1)
    await until(lambda: len(rows(psql, RECORDED)) == 2)
    assert caplog.records == []
    differs = other.namespace("runs", retention=timedelta(days=1))
    await differs.set("42", 2)
    await until(lambda: bool(caplog.records))
    await differs.set("42", 3)
    await other.close()
    (told,) = caplog.records
    assert told.getMessage() == (
        "of the history of 'runs' values that were replaced in the last 90 d and the newest 100 of each key stay, as "
        f"{settings.writer} recorded, not values that were replaced in the last 1 d; `statecache policy` changes it"
    )
    assert rows(psql, RECORDED) == [("caches", "latest", None, None), ("runs", "full", DAYS, 100)]


async def test_a_client_that_is_closed_at_once_has_recorded_it(
    make_client: MakeClient, settings: Settings, psql: Psql
) -> None:
    client = make_client(settings)
    await client.namespace("runs", history="latest").set("42", 1)
    await client.close()
    assert rows(psql, RECORDED) == [("runs", "latest", None, None)]


async def test_a_role_that_may_not_record_it_is_told_so_once_and_writes(
    settings: Settings, psql: Psql, caplog: pytest.LogCaptureFixture
) -> None:
    schema = settings.postgres_schema
    role = f"agent_{schema}"
    url = f"postgresql://{role}:secret@{settings.postgres_url.rpartition('@')[2]}"
    psql.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
    psql.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}".encode())
    try:
        async with AsyncStateCache(settings=settings.model_copy(update={"postgres_url": url})) as client:
            runs = client.namespace("runs", history="latest")
            for number in range(3):
                await runs.set("42", number)
            await until(lambda: bool(caplog.records))
            await runs.set("42", 4)
    finally:
        psql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert "'runs' is not recorded" in told.getMessage()
    assert "declare_history" in told.getMessage()
    assert rows(psql, RECORDED) == []


async def test_bad_policies_are_refused(cache: AsyncStateCache) -> None:
    with pytest.raises(UsageError):
        cache.namespace("runs", history="latest", retention=DAYS)
    with pytest.raises(UsageError):
        cache.namespace("runs", retention=timedelta(0))
    with pytest.raises(UsageError, match="of a whole namespace"):
        cache.namespace("runs").namespace("42", retention=DAYS)


async def test_an_operator_shows_and_changes_it(cli: CommandLine, cache: AsyncStateCache, psql: Psql) -> None:
    asked = await cli.beside("policy", "runs", "--retention", "90d")
    assert asked.status == 2
    assert "workers will let go of values of 'runs', but for values that were replaced in the last 90 d" in asked.err
    assert rows(psql, RECORDED) == []
    changed = await cli.beside("policy", "runs", "--retention", "90d", "--yes", "--json")
    (told,) = changed.json["policies"]
    assert (told["history"], told["retention_s"], told["retention_count"]) == ("full", 90 * 86400, None)
    assert told["changed_by"].startswith("operator ")
    assert (await cli.beside("policy", "runs", "--retention-count", "10", "--yes")).status == 0
    assert rows(psql, RECORDED) == [("runs", "full", DAYS, 10)], "what is not said stays"
    assert (await cli.beside("policy", "runs", "--history", "latest", "--yes")).status == 0
    assert rows(psql, RECORDED) == [("runs", "latest", None, None)]
    assert (await cli.beside("policy", "runs", "--retention-count", "5", "--yes")).status == 0
    assert rows(psql, RECORDED) == [("runs", "full", None, 5)]
    assert (await cli.beside("policy", "runs", "--retention-count", "none")).status == 0, "nothing goes, nobody asks"
    assert rows(psql, RECORDED) == [("runs", "full", None, None)]
    await cache.namespace("runs", locking="enforced").lock("42").__aenter__()
    shown = await cli.beside("policy")
    assert shown.out.splitlines()[0].split("\t") == ["namespace", "locking", "history", "recorded by", "at"]
    assert shown.out.splitlines()[1].split("\t")[:3] == ["runs", "enforced", "all values"]
    for bad in (
        ("--history", "latest"), ("runs", "--history", "some"), ("runs", "--retention", "90"),
        ("runs", "--retention", "0d"), ("runs", "--retention-count", "-1"),
        ("runs", "--history", "latest", "--retention", "3d"),
    ):  # fmt: skip
        assert (await cli.beside("policy", *bad, "--yes")).status == 2


def latest(psql: Psql, name: str = "runs") -> None:
    psql.execute("INSERT INTO retention (name, history, changed_by) VALUES (%s, 'latest', 'test')", (name,))


def long(number: int) -> dict[str, Any]:
    return {"log": " ".join(f"{n * 7}" for n in range(200)), "number": number}


async def all_of(cache: AsyncStateCache, prefix: str) -> list[Change[Any]]:
    return [change async for change in cache.changes(prefix, follow=False)]


async def test_of_the_latest_the_changes_are_kept_and_the_newest_value(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    latest(psql)
    for number in range(6):
        await cache.set("runs/1", long(number), actor="ada", reason=f"step {number}")
        await cache.set("other/1", long(number))
        if number % 2:
            await flush(worker)
    await cache.set("runs/2", "small")
    await cache.delete("runs/2")
    await cache.set("runs/2", "small again")
    await flush(worker)
    kept = rows(psql, KEPT)
    assert [there for key, _, there in kept if key == "other/1"] == [True] * 6
    assert [there for key, _, there in kept if key != "other/1"] == [False] * 8
    facts = "SELECT actor, reason, size > 500, digest IS NOT NULL, hash IS NOT NULL FROM change WHERE key = 'runs/1'"
    assert rows(psql, facts) == [("ada", f"step {number}", True, True, True) for number in range(6)]
    redis_raw.unlink(keys.state("runs/1"))
    found = await cache.get("runs/1")
    assert found is not None
    assert found.value == long(5)
    changes = await all_of(cache, "runs/")
    assert [(one.version, one.kept, one.value) for one in changes if one.key == "runs/1"] == [
        *((version, False, None) for version in range(1, 6)), (6, True, long(5)),
    ]  # fmt: skip
    assert [(one.version, one.op, one.kept, one.value) for one in changes if one.key == "runs/2"] == [
        (1, "set", False, None), (2, "delete", True, None), (3, "set", True, "small again"),
    ]  # fmt: skip
    assert all(one.kept for one in await all_of(cache, "other/"))
    assert (await verify(settings))[1] == []


async def test_who_watches_is_given_the_newest_value(cache: AsyncStateCache, worker: Worker, psql: Psql) -> None:
    latest(psql)
    async with cache.watch("runs/") as watch:
        for number in range(4):
            await cache.set("runs/1", number)
            await flush(worker)
        change = await anext(watch)
        assert (change.version, change.value) == (4, 3)


async def test_the_history_goes_on_where_a_policy_is_changed_either_way(
    settings: Settings, cache: AsyncStateCache, worker: Worker, make_worker: MakeWorker, psql: Psql
) -> None:
    for number in range(3):
        await cache.set("runs/1", long(number))
    await flush(worker)
    latest(psql)
    worker.flusher.histories.latest = frozenset({"runs"})
    for number in range(3, 6):
        await cache.set("runs/1", long(number))
    await flush(worker)
    worker.flusher.histories.latest = frozenset()
    for number in range(6, 9):
        await cache.set("runs/1", long(number))
    await flush(worker)
    assert [there for _, _, there in rows(psql, KEPT)] == [True] * 3 + [False] * 3 + [True] * 3
    assert rows(psql, "SELECT version, keyframe FROM change WHERE keyframe IS NOT NULL ORDER BY 1") == [
        (2, 1), (3, 1), (8, 7), (9, 7),
    ]  # fmt: skip
    assert (await verify(settings))[1] == []
    assert [one.value for one in await all_of(cache, "runs/") if one.kept] == [long(n) for n in (0, 1, 2, 6, 7, 8)]


def checkpoint(key: str, label: str, **record: Any) -> dict[str, Any]:
    """Return a checkpoint's part of a commit."""
    scope = "key" if "version" in record else "group"
    value = msgspec.json.encode({"label": label, "scope": scope, "key": key, **record}).decode()
    return {"key": f"{key}/checkpoints/{label}", "value": value, "schema": CHECKPOINT_SCHEMA}


@pytest.mark.parametrize("apart", [False, True], ids=["one batch", "batch by batch"])
async def test_what_a_checkpoint_names_is_kept_of_the_latest_too(
    settings: Settings, cache: AsyncStateCache, agents: Agents, worker: Worker, psql: Psql, apart: bool
) -> None:
    latest(psql)
    await flush(worker)

    async def told(*states: Any) -> None:
        agents.commit(*states)
        if apart:
            await flush(worker)

    for number in range(1, 4):
        await told(("runs/1", f'"{"x" * 200}{number}"'), ("runs/1/plan", f'"{number}"'))
    await told(checkpoint("runs/1/plan", "a", version=3))
    await told(("runs/1", '"4"'), ("runs/1/plan", '"4"'))
    await told(("runs/1/plan", '"5"'))
    await told(checkpoint("runs/1", "b"))
    await told(("runs/1", '"5"'), ("runs/1/plan", '"6"'))
    await flush(worker)
    asked = [VersionAt(key, version) for key in ("runs/1", "runs/1/plan") for version in range(1, 8)]
    found = await HistoryValues(cache._runtime.postgres.fetch).read(asked, seconds=30)
    values = {(place.key, place.version): value for place, value in found.items() if value is not None}
    assert values["runs/1/plan", 3] == b'"3"'
    assert (values["runs/1", 4], values["runs/1/plan", 5]) == (b'"4"', b'"5"')
    assert (values["runs/1", 5], values["runs/1/plan", 6]) == (b'"5"', b'"6"')
    assert not {("runs/1", 1), ("runs/1", 2), ("runs/1/plan", 1), ("runs/1/plan", 2)} & values.keys()
    assert (await verify(settings))[1] == []


async def test_a_change_that_is_parked_does_not_take_the_newest_value_along(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, cli: CommandLine
) -> None:
    latest(psql)
    await cache.set("runs/1", "before")
    await flush(worker)
    psql.execute("ALTER TABLE change ADD CONSTRAINT small CHECK (reason <> 'poison')")
    await cache.set("runs/1", "parked", reason="poison")
    await flush(worker)
    assert rows(psql, "SELECT op, value FROM state") == [("quarantined", b"")]
    (parked,) = (await cli.beside("quarantine", "list", "--json")).json["parked"]
    drops = asyncio.create_task(cli.beside("quarantine", "drop", parked["id"], "--yes", "--durability", "memory"))
    assert (await drops).status == 0
    found = await cache.get("runs/1")
    assert found is not None
    assert (found.version, found.value) == (3, "before")
    await flush(worker)
    assert (await verify(settings))[1] == []
