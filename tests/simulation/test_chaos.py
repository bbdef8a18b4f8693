"""A short chaos in every run of the tests, and that its judges can say no. For a long one: `make chaos`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import psycopg
import pytest
import redis

from statecache.testing.embedded import Servers
from tests.simulation.arena import Arena, arena
from tests.simulation.chaos import Result, Run, run
from tests.simulation.checker import check
from tests.simulation.faults import Faults
from tests.simulation.history import Operation, Seen
from tests.simulation.judge import evidence, journals, judge, leaks, unexpected
from tests.simulation.nemesis import ALONE, FIRST_S, KINDS, Strike, schedule
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.sampler import Sampler
from tests.simulation.writer import GROUPS, KEYS, VERBS

SEED, SECONDS, FAULTS = 7, 30.0, 5
RUNS_MAX = 5  # of the short chaos, on a machine that stands still while it runs
TRIES_MAX = 30


async def test_a_short_chaos_breaks_no_promise(tmp_path: Path) -> None:
    faults = acknowledged = dirty = 0
    for number in range(RUNS_MAX):
        told: list[str] = []
        folder = tmp_path / str(number)
        folder.mkdir()
        result = await run(SEED + number, SECONDS, folder, told.append, enough=FAULTS)
        assert result.violations == 0, "\n".join([*told, *result.findings, f"journals: {folder}"])
        faults, acknowledged = faults + result.faults, acknowledged + result.acknowledged
        dirty += result.dirty_seen
        if faults >= FAULTS and acknowledged > 100 and dirty > 0:
            return
    pytest.fail(f"{RUNS_MAX} runs: {faults} faults, {acknowledged} acknowledged, {dirty} dirty: too little to judge")


def test_a_schedule_is_its_seed() -> None:
    assert schedule(7, 60) == schedule(7, 60)
    assert schedule(7, 60) != schedule(8, 60)
    assert all(FIRST_S <= strike.at_s < 60 for strike in schedule(7, 60))


def test_a_minute_holds_nearly_every_fault() -> None:
    struck = {strike.kind for strike in schedule(7, 60)}
    assert len(struck) >= len(KINDS) - 2
    everything = {strike.kind for seed in range(5) for strike in schedule(seed, 60)}
    assert everything == set(KINDS) > ALONE


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda one: one.name)
def test_every_kind_of_fault_can_be_carried_out(profile: Profile) -> None:
    struck = [kind for kind, (weight, *_) in profile.table.items() if weight]
    assert all(callable(getattr(profile.faults, f"_{kind}")) for kind in struck)
    assert profile.alone <= {*profile.table}
    assert all(strike.kind in struck for strike in schedule(7, 60, struck, profile.table))


@pytest.mark.parametrize("kind", ["worker_kill", "flushall"])
@pytest.mark.parametrize(
    "error", [RuntimeError("the server did not come back"), psycopg.ProgrammingError("it did not come back as %")]
)
async def test_a_fault_that_fails_of_itself_ends_the_run(
    kind: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not come back is no fault that met nothing: what would be judged afterwards means nothing."""

    async def failing(faults: Faults, strike: Strike) -> bool:
        raise error

    monkeypatch.setattr(Faults, f"_{kind}", failing)
    nowhere = SimpleNamespace(redis_url="redis://127.0.0.1:1/0", postgres_url="postgresql://127.0.0.1:1/x")
    one = Run(Arena(cast("Servers", nowhere), tmp_path, 1), Result(seed=1, seconds=0.1), lambda line: None)
    with pytest.raises(type(error), match="did not come back"):
        await one.chaos([Strike(kind=kind, at_s=0.0, lasts_s=0.0, pick=0.0)], 0.1)


async def test_what_is_falsified_at_rest_is_found(tmp_path: Path) -> None:
    async with arena(tmp_path, 3, Arena) as here:
        one = Run(here, Result(seed=3, seconds=2.0), lambda line: None)
        for _ in range(TRIES_MAX):
            await one.chaos([], 1.0)
            done = [operation for operation in journals(tmp_path) if operation.outcome == "ok"]
            if len(done) > 200 and {operation.verb for operation in done} >= set(VERBS) - {
                "create_new",
                "compare",
                "get_merged",
            }:
                break
        else:
            pytest.fail(f"after {TRIES_MAX} s the sessions have not done all that they can do")
        assert await one._faults.strike(Strike(kind="backend_terminate", at_s=0.0, lasts_s=0.0, pick=0.0))
        await one.settle()
        operations = journals(tmp_path)
        verdict, wrong = judge(here, operations, [])
        assert (verdict.violations, wrong, leaks(here), here.crashes, unexpected(operations)) == ([], [], [], [], [])
        with here.postgres() as connection, here.redis() as raw:
            for falsified in _falsifications(here, connection, raw, operations):
                assert falsified
        assert _falsified_chain(here, operations) >= {"lost", "chain"}


def _falsifications(
    here: Arena, connection: psycopg.Connection[Any], raw: redis.Redis, operations: list[Operation]
) -> Iterator[list[str]]:
    """Falsify one thing after the other and yield what is found of each."""
    schema = here.settings.postgres_schema
    key = next(key for key in KEYS if raw.hget(here.keys.state(key), "op") == b"set")
    name, shard = here.keys.state(key), here.keys.shard(key)

    raw.hset(name, "value", '{"by":"nobody"}')
    yield judge(here, operations, [])[1]
    raw.hset(name, "key", "runs/other")
    yield [line for line in judge(here, operations, [])[1] if "'runs/other'" in line]
    raw.unlink(name)
    assert judge(here, operations, [])[1] == []

    connection.execute(f"UPDATE {schema}.state SET version = version + 1 WHERE key = %s".encode(), (key,))
    yield [line for line in judge(here, operations, [])[1] if line.startswith(f"{key}: the chain ends")]
    connection.execute(f"INSERT INTO {schema}.worker VALUES ('ghost', 'here', 1, now(), now())".encode())
    connection.execute(f"UPDATE {schema}.shard SET owner = 'ghost' WHERE shard = 0".encode())
    assert [line.split()[0] for line in leaks(here)] == ["worker", "shard"]

    head = int(raw.hget(here.keys.meta(shard), "flushed") or 0)
    raw.zadd(here.keys.unflushed(shard), {key: head + 1})
    yield _sampled(here, raw, "is dirty and not in Redis")
    raw.hset(name, mapping={"position": f"1-{head + 1}", "change_id": "c1"})
    yield _sampled(here, raw, "its entry is not in the stream")
    raw.pexpire(name, 60_000)
    yield _sampled(here, raw, "has a time to live")
    raw.zrem(here.keys.unflushed(shard), key)
    yield _sampled(here, raw, "nobody knows")

    strange = msgspec.structs.replace(operations[0], outcome="fail", error="ConfigurationError: no")
    yield unexpected([strange])


def _sampled(here: Arena, raw: redis.Redis, wanted: str) -> list[str]:
    sampler = Sampler(here.keys, KEYS)
    assert sampler.look(raw) == here.settings.shards
    return [line for line in sampler.findings if wanted in line]


def _falsified_chain(here: Arena, operations: list[Operation]) -> set[str]:
    """Take an acknowledged change out of a chain and return what the checker says of it."""
    with here.postgres() as connection:
        found = evidence(connection, here.settings.postgres_schema)
    alone = [one.written for one in operations if one.outcome == "ok" and len(one.written) == 1]
    written: list[Seen] = [seen for (seen,) in alone]  # of several written together, one that is gone is torn, not lost
    acknowledged = {seen.change_id for seen in written}
    key, at = next(
        (key, at)
        for group in GROUPS.values() for key in group for at, row in enumerate([*found.chains.get(key, ())][:-1])
        if row.change_id in acknowledged and len(found.chains[key]) > 2  # and behind it stands one that continues it
    )  # fmt: skip
    chain = [row for number, row in enumerate(found.chains[key]) if number != at]
    falsified = msgspec.structs.replace(found, chains={**found.chains, key: chain})
    return {violation.kind for violation in check(operations, falsified).violations}
