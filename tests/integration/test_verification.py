"""`verify` names every broken row of the history, with what is wrong with it, and is silent where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.history import delta, link
from statecache.keys import KeySpace
from statecache.model import ChangeRecord, ChangeSet, Position
from statecache.rules.chains import Fault
from statecache_workers import verification
from statecache_workers.prune_by_hand import prune
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, rows
from tests.support.command_line import CommandLine

Psql = psycopg.Connection[Any]
CURE = "ALTER TABLE change DROP CONSTRAINT small"


@pytest.fixture(params=[2000, 3], ids=["one page", "many pages"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that hold all, or a few rows."""
    monkeypatch.setattr(verification, "ROWS", request.param)
    monkeypatch.setattr(verification, "MOMENT_S", 1.0 if request.param > 3 else 0.0)


def text(number: int) -> str:
    return "".join(f"{n * number} " for n in range(200))


async def conversation(cache: AsyncStateCache, key: str, *, times: int = 12) -> None:
    messages = [text(7)]
    for number in range(times):
        messages = [*messages, f"message {number}: {number * 7919}"]
        await cache.set(key, {"messages": messages}, actor="ada", reason=f"step {number}")


def told(faults: list[Fault]) -> set[tuple[str, int, str]]:
    return {(fault.key, fault.version, fault.what) for fault in faults}


async def test_a_whole_history_is_silent(
    settings: Settings,
    cache: AsyncStateCache,
    worker: Worker,
    psql: Psql,
    cli: CommandLine,
    agents: Agents,
    small: None,
) -> None:
    await conversation(cache, "runs/1")
    await cache.delete("runs/1")
    await conversation(cache, "runs/1", times=3)
    await cache.set("runs/2", "small")
    await conversation(cache, "runs/2/part")
    await flush(worker)
    psql.execute("ALTER TABLE change ADD CONSTRAINT small CHECK (reason <> 'poison')")
    await cache.set("runs/3", "before")
    for number in range(2):
        await cache.set("runs/3", {"parked": text(number)}, reason="poison")
        await cache.set("runs/3", {"behind": text(number)})
    await cache.set("runs/4", "parked at once", reason="poison")
    await flush(worker)
    assert rows(psql, "SELECT version FROM change WHERE key = 'runs/3' AND gap ORDER BY 1") == [(3,), (5,)]
    assert (await verify(settings))[1] == []
    psql.execute(CURE)
    assert (await cli.beside("quarantine", "retry", "all")).status == 0
    assert rows(psql, "SELECT count(*) FROM change WHERE key = 'runs/3' AND gap") == [(0,)]
    await flush(worker)
    counts, faults = await verify(settings)
    assert faults == []
    ((keys, changes),) = rows(psql, "SELECT count(DISTINCT key), count(*) FROM change")
    assert (counts.keys, counts.changes, counts.unhashed) == (keys, changes, 0)
    assert rows(psql, "SELECT count(*) FROM shard WHERE hashed <> flushed") == [(0,)]


async def test_versions_that_were_lost_are_gaps_and_no_faults(
    settings: Settings, worker: Worker, psql: Psql, agents: Agents
) -> None:
    agents.commit(("runs/1", "1"))
    await flush(worker)
    agents.commit(("runs/1", "2"))
    agents.commit(("runs/1", "3"))
    agents.raw.xtrim(agents.keys.changes(agents.keys.shard("runs/1")), maxlen=1, approximate=False)
    agents.commit(("runs/1", "4"))
    await flush(worker)
    assert rows(psql, "SELECT version, gap FROM change ORDER BY 1") == [(1, False), (3, True), (4, False)]
    assert (await verify(settings))[1] == []
    psql.execute("DELETE FROM lost")
    assert told((await verify(settings))[1]) == {("runs/1", 3, "gap")}, "nothing says why a version is missing"


Damage = Callable[[Psql], object]
ROW = "WHERE key = 'runs/1' AND version = "
FLIP = "set_byte({0}, octet_length({0}) - 3, get_byte({0}, octet_length({0}) - 3) # 1)"


def behind(first: int) -> set[tuple[str, int, str]]:
    return {("runs/1", version, "value") for version in range(first, 13)}


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (f"UPDATE change SET packed = {FLIP.format('packed')} {ROW} 1", behind(1)),
        (f"UPDATE change SET packed = {FLIP.format('packed')} {ROW} 7", {("runs/1", 7, "value")}),
        ("UPDATE change SET value = '\"smell\"' WHERE key = 'runs/2'", {("runs/2", 1, "value")}),
        (f"DELETE FROM change {ROW} 7", {("runs/1", 7, "missing"), *behind(8)}),
        (f"DELETE FROM change {ROW} 12", {("runs/1", 12, "state")}),
        ("DELETE FROM change WHERE key = 'runs/2'", {("runs/2", 1, "state")}),
        ("DELETE FROM state WHERE key = 'runs/2'", {("runs/2", 1, "state")}),
        ("UPDATE state SET value = '\"smell\"' WHERE key = 'runs/2'", {("runs/2", 1, "state")}),
        (
            f"UPDATE change SET parent_change_id = (SELECT change_id FROM change {ROW} 3) {ROW} 7",
            {("runs/1", 7, "parent"), ("runs/1", 7, "hash")},
        ),
        (
            f"UPDATE change c SET packed = (SELECT packed FROM change o {ROW} 18 - c.version) {ROW} ANY ('{{8,10}}')",
            behind(8),
        ),
        (f"UPDATE change SET actor = 'eve' {ROW} 7", {("runs/1", 7, "hash")}),
        (f"UPDATE change SET hash = NULL {ROW} 7", {("runs/1", 7, "hash"), ("runs/1", 8, "hash")}),
        (f"UPDATE change SET hash = NULL {ROW} 12", {("runs/1", 12, "hash")}),
        (f"UPDATE change SET keyframe = 2 {ROW} 7", {("runs/1", 7, "keyframe")}),
        ("UPDATE change SET packed = NULL WHERE key = 'runs/1' AND version = 7", behind(7)),
        (f"UPDATE change SET packed = NULL, keyframe = NULL {ROW} 12", {("runs/1", 12, "value")}),
        ("UPDATE change SET value = NULL WHERE key = 'runs/2'", {("runs/2", 1, "value")}),
        (f"UPDATE change SET size = size + 1 {ROW} 7", {("runs/1", 7, "value")}),
        (f"UPDATE change SET size = NULL {ROW} 7", {("runs/1", 7, "value")}),
        (f"UPDATE change SET gap = true {ROW} 7", {("runs/1", 7, "gap")}),
        (
            f"DELETE FROM change {ROW} 7; UPDATE change SET gap = true {ROW} 8",
            {("runs/1", 8, "gap"), ("runs/1", 8, "hash"), *behind(8)},
        ),
    ],
)
async def test_a_broken_row_is_named(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, small: None, damage: str,
    expected: set[tuple[str, int, str]],
) -> None:  # fmt: skip
    await conversation(cache, "runs/1")
    await cache.set("runs/2", "small")
    await conversation(cache, "runs/3", times=2)
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change WHERE keyframe = 1 AND key = 'runs/1'") == [(11,)]
    assert (await verify(settings))[1] == []
    psql.execute(damage.encode())
    assert told((await verify(settings))[1]) == expected
    assert told((await verify(settings, "runs/1"))[1]) == {one for one in expected if one[0] == "runs/1"}
    assert told((await verify(settings, after="runs/1"))[1]) == {one for one in expected if one[0] != "runs/1"}


async def test_a_branch_that_began_with_anothers_value_is_read_from_there(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, keys: KeySpace
) -> None:
    await conversation(cache, "runs/1")
    await flush(worker)
    found = await cache.get("runs/1")
    assert found is not None
    why = "branch of runs/1@12"
    value = msgspec.json.encode(found.value)
    change = ChangeRecord(
        change_id="b" * 16,
        key="runs/b",
        op="set",
        version=1,
        parent_change_id="",
        value=value,
        encoding="json",
        schema="",
    )
    n = 1000
    commit = ChangeSet(
        position=Position(1, n), change_id="b" * 16, at=found.updated_at, writer="w", actor="", reason=why,
        entries=0, bytes=0, changes=(change,),
    )  # fmt: skip
    digest = sha256(value).digest()
    psql.execute("UPDATE shard SET flushed = %s", (n,))
    columns = "key, version, change_id, parent_change_id, epoch, op, encoding, schema, writer, shard, n"
    root = "'runs/b', 1, %s, '', 1, 'set', 'json', '', 'w', %s, %s"
    psql.execute(
        f"INSERT INTO change ({columns}, actor, reason, gap, at, packed, size, digest, hash)"
        f" VALUES ({root}, '', '{why}', false, %s, %s, %s, %s, %s)".encode(),
        (
            "b" * 16, keys.shard("runs/b"), n, commit.at, delta(value, value, origin=True), len(value), digest,
            link(b"", change, commit, digest),
        ),
    )  # fmt: skip
    psql.execute(
        f"INSERT INTO state ({columns}, value, updated_at) VALUES ({root}, %s, %s)".encode(),
        ("b" * 16, keys.shard("runs/b"), n, value, commit.at),
    )
    psql.execute("INSERT INTO branch VALUES ('runs/b', 1, 'runs/1', 12, '', %s)", [commit.at])
    assert (await verify(settings))[1] == []
    psql.execute("UPDATE branch SET origin_version = 3")
    assert told((await verify(settings))[1]) == {("runs/b", 1, "value"), ("runs/b", 1, "branch")}
    psql.execute("DELETE FROM branch")
    assert told((await verify(settings))[1]) == {("runs/b", 1, "value"), ("runs/b", 1, "branch")}


async def test_a_time_that_is_not_that_of_the_other_changes_of_its_commit_is_named(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    for number in (1, 2, 3):
        async with cache.transaction("runs/1", "runs/1/part") as both:
            both.set("runs/1", number)
            both.set("runs/1/part", number)
    await flush(worker)
    assert (await verify(settings))[1] == []
    psql.execute(f"UPDATE change SET at = at - interval '1 day' {ROW} 2".encode())
    assert told((await verify(settings))[1]) == {("runs/1", 2, "at"), ("runs/1/part", 2, "at")}


async def test_a_value_that_a_policy_let_go_is_no_fault_and_one_that_it_keeps_is(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    for number in range(1, 7):
        await cache.set("runs/1", number)
    await flush(worker)
    psql.execute(
        "INSERT INTO retention (name, history, max_count, changed_by, changed_at)"
        " VALUES ('runs', 'full', 3, 'test', now() - interval '1 hour')"
    )
    assert [one.values for one in await prune(settings, "runs", dry_run=False)] == [3]
    counts, faults = await verify(settings)
    assert (counts.not_kept, faults) == (3, [])
    psql.execute(f"UPDATE change SET value = NULL {ROW} 4".encode())
    (fault,) = (await verify(settings))[1]
    assert (fault.version, fault.what) == (4, "value")
    assert fault.detail == "its value is gone, and no policy may have let it go"
    psql.execute("UPDATE retention SET changed_at = now()")
    assert (await verify(settings))[1] == [], "an earlier policy may have kept less"


OF_STATE = {
    "shard": "shard + 1", "epoch": "epoch + 1", "n": "n + 100000", "parent_change_id": "'x'",
    "encoding": "encoding || ' until 1000000000000'", "schema": "'other:9'", "writer": "'eve'",
    "updated_at": "updated_at - interval '1 day'",
}  # fmt: skip


@pytest.mark.parametrize("column", OF_STATE)
async def test_a_state_that_says_otherwise_than_its_last_change_is_named(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, column: str
) -> None:
    await conversation(cache, "runs/1", times=2)
    await cache.set("runs/2", "small")
    await flush(worker)
    assert (await verify(settings))[1] == []
    psql.execute(f"UPDATE state SET {column} = {OF_STATE[column]} WHERE key = 'runs/1'".encode())
    (fault,) = (await verify(settings))[1]
    assert (fault.key, fault.version, fault.what) == ("runs/1", 2, "state")
    assert fault.detail == f"it has not the {column} of its last change"


@pytest.mark.parametrize("shard", ["(shard + 1) % 4", "1000"])
async def test_a_change_in_another_shard_than_its_key_is_named(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, shard: str
) -> None:
    await conversation(cache, "runs/1", times=3)
    await flush(worker)
    psql.execute("UPDATE shard SET flushed = 100")
    psql.execute(f"UPDATE change SET shard = {shard} {ROW} 2".encode())
    assert told((await verify(settings))[1]) == {("runs/1", 2, "shard")}


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("DELETE FROM branch WHERE key = 'runs/1'", {("runs/1", 13, "branch")}),
        (
            "DELETE FROM branch WHERE key = 'runs/b'",
            {("runs/b", 1, "branch"), ("runs/b", 1, "value"), ("runs/b", 2, "value")},
        ),
        ("DELETE FROM branch WHERE key = 'copy/1/part'", {("copy/1/part", 1, "branch"), ("copy/1/part", 1, "value")}),
        ("UPDATE branch SET origin_version = 1 WHERE key = 'runs/1'", {("runs/1", 13, "branch")}),
        (
            "UPDATE branch SET origin_version = 1 WHERE key = 'copy/1/part'",
            {("copy/1/part", 1, "branch"), ("copy/1/part", 1, "value")},
        ),
        ("UPDATE branch SET origin = 'runs/2' WHERE key = 'runs/1'", {("runs/1", 13, "branch")}),
        ("UPDATE branch SET origin_change_id = 'x' WHERE key = 'runs/b'", {("runs/b", 1, "branch")}),
        ("UPDATE branch SET at = now() WHERE key = 'runs/b'", {("runs/b", 1, "branch")}),
        ("INSERT INTO branch VALUES ('runs/1', 5, 'runs/2', 1, 'x', now())", {("runs/1", 5, "branch")}),
        ("INSERT INTO branch VALUES ('runs/2', 7, 'runs/1', 1, 'x', now())", {("runs/2", 7, "branch")}),
    ],
)
async def test_what_a_change_was_made_from_is_recorded_as_its_reason_says(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, damage: str,
    expected: set[tuple[str, int, str]],
) -> None:  # fmt: skip
    await conversation(cache, "runs/1")
    await cache.set("runs/2", "small", reason="branch of nothing, merge of all")
    await conversation(cache, "group/1/part", times=2)
    await flush(worker)
    await cache.branch("runs/1", "runs/b", at=6)
    await cache.branch("group/1", "copy/1", group=True)
    await cache.set("group/1/part", "later")
    await flush(worker)
    await cache.update("runs/b", lambda value: {**value, "more": 1})
    await flush(worker)
    await cache.merge("runs/b", "runs/1", durability="memory")
    await flush(worker)
    assert len(rows(psql, "SELECT 1 FROM branch")) == 3
    assert (await verify(settings))[1] == []
    psql.execute(damage.encode())
    assert told((await verify(settings))[1]) == expected
    assert told((await verify(settings, after="runs/1"))[1]) == {one for one in expected if one[0] > "runs/1"}


@pytest.mark.parametrize("policy", [False, True])
async def test_a_value_that_is_gone_although_a_checkpoint_names_it_is_named(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, small: None, policy: bool
) -> None:
    for number in range(1, 7):
        await cache.set("runs/1", number)
        await cache.set("runs/1/part", number)
        if number == 2:
            await cache.checkpoint("runs/1", "of-key", durability="memory")
        if number == 4:
            await cache.checkpoint("runs/1", "of-group", group=True, durability="memory")
    await flush(worker)
    if policy:
        psql.execute("INSERT INTO retention (name, history, max_count, changed_by) VALUES ('runs', 'full', 1, 'test')")
    psql.execute("UPDATE change SET value = NULL WHERE key LIKE 'runs/1%' AND key NOT LIKE '%checkpoints%'")
    expected = {("runs/1", 2), ("runs/1", 4), ("runs/1/part", 4)}
    assert {one[:2] for one in told((await verify(settings))[1]) if one[2] == "pinned"} == expected
    await cache.delete("runs/1/checkpoints/of-group")
    await flush(worker)
    named = told((await verify(settings))[1])
    assert {one for one in named if one[2] == "pinned"} == {("runs/1", 2, "pinned")}
    gone = {(key, version, "value") for key in ("runs/1", "runs/1/part") for version in range(1, 7)}
    assert named - {("runs/1", 2, "pinned")} == (set() if policy else gone - {("runs/1", 2, "value")})


async def test_a_checkpoint_that_is_brought_back_may_have_come_too_late_for_its_value(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql
) -> None:
    await cache.set("runs/1", 1)
    await cache.checkpoint("runs/1", "first", durability="memory")
    await cache.set("runs/1", 2)
    await cache.delete("runs/1/checkpoints/first")
    await flush(worker)
    psql.execute("INSERT INTO retention (name, history, max_count, changed_by) VALUES ('runs', 'full', 1, 'test')")
    psql.execute(f"UPDATE change SET value = NULL {ROW} 1".encode())
    await cache.undo("runs/1/checkpoints/first", durability="memory")
    await flush(worker)
    assert [one.label for one in await cache.checkpoints("runs/1")] == ["first"]
    assert (await verify(settings))[1] == []
    psql.execute("DELETE FROM retention")
    assert told((await verify(settings))[1]) == {("runs/1", 1, "pinned")}, "where no policy ever was, none goes"


async def test_the_command_names_broken_rows_and_ends_with_1(
    cache: AsyncStateCache, worker: Worker, psql: Psql, cli: CommandLine
) -> None:
    await conversation(cache, "runs/1")
    await cache.set("runs/2", "small")
    await flush(worker)
    assert await cli.beside("verify") == (0, "whole: 2 keys, 13 changes\n", "")
    psql.execute("UPDATE change SET actor = 'eve' WHERE key = 'runs/1' AND version = 7")
    psql.execute("INSERT INTO retention (name, history, changed_by) VALUES ('runs', 'latest', 'test')")
    psql.execute("UPDATE change SET packed = NULL, keyframe = NULL WHERE key = 'runs/1' AND version = 12")
    ended = await cli.beside("verify", "--prefix", "runs/")
    assert ended.status == 1
    assert ended.out.splitlines() == [
        "runs/1@7\thash\tits hash does not fit what it says, or the hash before it",
        "1 fault: 2 keys, 13 changes, 1 without a value",
    ]
    facts = (await cli.beside("verify", "--json")).json
    assert facts["faults"] == [
        {"key": "runs/1", "version": 7, "what": "hash", "last": None,
         "detail": "its hash does not fit what it says, or the hash before it"}
    ]  # fmt: skip
    assert (facts["keys"], facts["changes"], facts["values"], facts["not_kept"]) == (2, 13, 12, 1)
    assert (await cli.beside("verify", "--after", "runs/1")).status == 0
    assert (await cli.beside("verify", "--prefix", "/")).status == 2
