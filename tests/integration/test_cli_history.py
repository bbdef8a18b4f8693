"""`log`, `show`, `diff` and `blame` on a deployment: for people and for programs, and what is said of bad input."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache
from statecache.core.history.values import HistoryValues
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.command_line import CommandLine, Ended

KEY = "runs/42"
Psql = psycopg.Connection[Any]


def run(step: int) -> dict[str, Any]:
    return {"step": step, "said": [f"this is said in step {number}" for number in range(1, step + 1)]}


@pytest.fixture
async def history(cache: AsyncStateCache, worker: Worker) -> None:
    """Six versions of a key: the fifth is a delete, the sixth is not flushed yet."""
    for step in range(1, 5):
        await cache.set(KEY, run(step), actor="ada", reason=f"step {step}")
    await cache.delete(KEY, actor="bob")
    await flush(worker)
    await cache.set(KEY, run(3), reason="\x1b[31mback")


def rows_of(ended: Ended) -> list[dict[str, str]]:
    header, *rows = (line.split("\t") for line in ended.out.splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.usefixtures("history")
async def test_the_log_is_a_table_when_piped_and_an_object_a_line_for_programs(
    cli: CommandLine, cache: AsyncStateCache
) -> None:
    mark = await cache.checkpoint(KEY, "before payment", durability="memory")
    told = await cli.beside("log", KEY)
    assert (told.status, told.err) == (0, "")
    rows = rows_of(told)
    assert [(row["version"], row["op"], row["actor"]) for row in rows] == [
        ("6", "set", ""), ("5", "delete", "bob"), *((str(number), "set", "ada") for number in (4, 3, 2, 1)),
    ]  # fmt: skip
    assert (rows[0]["marks"], rows[0]["reason"]) == ("before payment; not durable yet", "\\x1b[31mback")
    objects = [json.loads(line) for line in (await cli.beside("log", KEY, "--json")).out.splitlines()]
    assert [one["version"] for one in objects] == [6, 5, 4, 3, 2, 1]
    assert [one["durable"] for one in objects] == [False, True, True, True, True, True]
    newest = objects[0]
    assert (newest["checkpoints"], newest["change_id"]) == (["before payment"], mark.change_id)
    assert (newest["sha256"], newest["reason"], newest["made_from"]) == (mark.sha256, "\x1b[31mback", None)
    assert objects[2]["bytes"] == len(json.dumps(run(4), separators=(",", ":")))


@pytest.mark.usefixtures("history")
async def test_what_of_a_log_is_told(cli: CommandLine) -> None:
    async def versions(*arguments: str) -> list[int]:
        told = await cli.beside("log", KEY, "--json", *arguments)
        assert told.status == 0
        return [json.loads(line)["version"] for line in told.out.splitlines()]

    assert await versions("--limit", "2") == [6, 5]
    assert await versions("--limit", "2", "--reverse") == [5, 6]
    assert await versions("--limit", "0", "--reverse") == [1, 2, 3, 4, 5, 6]
    assert await versions("--since", "3", "--until", "5") == [5, 4, 3]
    assert await versions("--since", "1h") == [6, 5, 4, 3, 2, 1]
    objects = [json.loads(line) for line in (await cli.beside("log", KEY, "--json")).out.splitlines()]
    assert await versions("--since", objects[3]["at"]) == [6, 5, 4, 3]
    assert await versions("--until", objects[3]["at"]) == [3, 2, 1]
    assert (await cli.beside("log", KEY, "-n", "5")).err == "statecache: there are more; --limit 5 was reached\n"
    drawn = (await cli.beside("log", KEY, "--graph")).out.splitlines()
    assert [line[:3] for line in drawn] == ["● 6", "✗ 5", "● 4", "● 3", "● 2", "● 1"]
    nothing = await cli.beside("log", KEY, "--until", "2020-01-01T00:00Z")
    assert (nothing.status, nothing.err) == (1, f"statecache: {KEY}: there is no history of that time or version\n")
    nobody = await cli.beside("log", "runs/nobody", "--json")
    assert (nobody.status, nobody.out) == (1, "")
    assert (
        nobody.err
        == "statecache: runs/nobody: there is no history: it was never written, or all of it is in quarantine\n"
    )


@pytest.mark.usefixtures("history")
async def test_a_version_is_shown_with_its_header(cli: CommandLine, cache: AsyncStateCache) -> None:
    told = await cli.beside("show", f"{KEY}@2")
    header, _, value = told.out.partition("\n\n")
    assert (told.status, told.err, json.loads(value)) == (0, "", run(2))
    facts = dict(line.split(maxsplit=1) for line in header.splitlines())
    assert (facts["key"], facts["version"], facts["actor"], facts["reason"]) == (KEY, "2", "ada", "step 2")
    raw = await cli.beside("show", f"{KEY}@2", "--raw")
    assert raw.out == json.dumps(run(2), separators=(",", ":"))
    for point in ("", "@", "@-0", "@6", "@0s"):
        found = (await cli.beside("show", f"{KEY}{point}", "--json")).json
        assert (found["version"], found["value"], found["durable"]) == (6, run(3), False)
    second = (await cli.beside("show", f"{KEY}@-4", "--json")).json
    assert (second["version"], second["value"], second["kept"], second["nearest"]) == (2, run(2), True, None)
    for point in (second["position"], second["at"]):
        assert (await cli.beside("show", f"{KEY}@{point}", "--json")).json == second
    await cache.checkpoint(KEY, "7", durability="memory")
    assert (await cli.beside("show", f"{KEY}@=7", "--json")).json["version"] == 6


@pytest.mark.usefixtures("history")
async def test_where_there_is_no_value_the_change_is_shown_and_the_status_is_1(cli: CommandLine, psql: Psql) -> None:
    told = await cli.beside("show", f"{KEY}@5")
    assert (told.status, told.err) == (1, f"statecache: {KEY}: version 5 deleted it\n")
    assert "op          delete\n" in told.out
    psql.execute("UPDATE change SET value = NULL, packed = NULL, keyframe = NULL WHERE version <= 2")
    told = await cli.beside("show", f"{KEY}@1")
    assert (told.status, told.out[:11]) == (1, "key        ")
    assert told.err == (
        f"statecache: {KEY}: the value of version 1 is no longer kept; version 3 is the one next to it that has one\n"
    )
    found = (await cli.beside("show", f"{KEY}@2", "--json")).json
    assert (found["kept"], found["nearest"], found["value"], found["actor"]) == (False, 3, None, "ada")
    assert [row["marks"] for row in rows_of(await cli.beside("log", KEY, "--until", "3"))] == [
        "", "value not kept", "value not kept",
    ]  # fmt: skip
    for command in (["diff", KEY, "1", "4"], ["blame", f"{KEY}@2", "step"]):
        gone = await cli.beside(*command, "--json")
        assert (gone.status, gone.json["error"], gone.json["nearest"]) == (1, "VersionNotFound", 3)


BAD = [
    (["show", f"{KEY}@9"], 1, "There is no version 9 of 'runs/42' in its history: its newest is version 6."),
    (["show", f"{KEY}@-6"], 1, "There is no version 6 before the newest of 'runs/42' in its history: it has 6 in all."),
    (["show", f"{KEY}@0"], 2, "there is no version 0"),
    (["show", f"{KEY}@2020-01-01"], 1, "nothing of it is that old"),
    (["show", f"{KEY}@2020-99-99"], 2, "is no time"),
    (["show", f"{KEY}@before payment"], 1, "'runs/42' has no checkpoint 'before payment'"),
    (
        ["show", "runs/nobody"],
        1,
        "There is no version of 'runs/nobody' in its history: nothing was ever written there.",
    ),
    (["show", "runs"], 2, "The key 'runs' cannot be used"),
    (["diff", KEY, "0"], 2, "there is no version 0"),
    (["diff", KEY, "--exit-coed"], 2, "there is no option --exit-coed"),
    (["diff", KEY, "-x", "1", "2"], 2, "there is no option -x"),
    (["diff", KEY, "1", "2", "3"], 2, "unexpected: 3. See `statecache diff --help`."),
    (["diff", "runs/nobody"], 1, "There is no version 1 before the newest of 'runs/nobody'"),
    (["blame", KEY, "said["], 2, "'said[' is no path"),
    (["blame", KEY, ""], 2, "'' is no path"),
    (["blame", KEY, "said[17]"], 1, "nothing stands at said[17] in any version"),
    (["blame", KEY, "step.deeper"], 1, "nothing stands at step.deeper in any version"),
    (["log", KEY, "--since", "yesterday"], 2, "--since 'yesterday' is neither a version nor a time"),
    (["log", KEY, "--until", "0"], 2, "there is no version 0"),
    (["log", "runs"], 2, "The key 'runs' cannot be used"),
]


@pytest.mark.usefixtures("history")
async def test_bad_input_is_told_in_one_line(cli: CommandLine) -> None:
    for arguments, status, said in BAD:
        told = await cli.beside(*arguments)
        assert (told.status, told.out, told.err.count("\n")) == (status, "", 1), arguments
        assert said in told.err, arguments


@pytest.mark.usefixtures("history")
async def test_differences_are_told_by_paths(cli: CommandLine) -> None:
    told = await cli.beside("diff", KEY, "2", "4")
    assert (told.status, told.err) == (0, "")
    assert rows_of(told) == [
        {"op": "changed", "path": "step", "before": "2", "after": "4"},
        {"op": "added", "path": "said[2]", "before": "", "after": '"this is said in step 3"'},
        {"op": "added", "path": "said[3]", "before": "", "after": '"this is said in step 4"'},
    ]
    found = (await cli.beside("diff", f"{KEY}@4", "-4", "--json")).json
    assert (found["a"]["version"], found["b"]["version"], found["b"]["key"]) == (4, 2, KEY)
    assert found["differences"][0] == {"path": "step", "op": "changed", "before": 4, "after": 2}
    assert found["differences"][1] == {"path": "said[2]", "op": "removed", "before": "this is said in step 3"}
    assert (await cli.beside("diff", KEY, "2", "4", "--exit-code")).status == 1
    same = await cli.beside("diff", KEY, "3", "--exit-code")
    assert (same.status, same.out) == (0, "")
    assert same.err == f"statecache: {KEY}@3 and {KEY}@6 hold the same\n"
    deleted = (await cli.beside("diff", KEY, "--json")).json
    assert deleted["differences"] == [{"path": "$", "op": "added", "after": run(3)}]


@pytest.mark.usefixtures("history")
async def test_two_keys_are_compared(cli: CommandLine, cache: AsyncStateCache) -> None:
    await cache.set("other/1", run(1) | {"more": True})
    found = (await cli.beside("diff", f"{KEY}@1", "other/1", "--json")).json
    assert (found["a"]["key"], found["b"]["key"]) == (KEY, "other/1")
    assert found["differences"] == [{"path": "more", "op": "added", "after": True}]


@pytest.mark.usefixtures("history")
async def test_who_set_a_part_is_told(cli: CommandLine) -> None:
    found = (await cli.beside("blame", f"{KEY}@4", "said[1]", "--json")).json
    assert (found["set_by"]["version"], found["set_by"]["actor"], found["path"]) == (2, "ada", "said[1]")
    assert (found["value"], found["exists"], found["certain"], found["way"]) == (
        "this is said in step 2",
        True,
        True,
        [],
    )
    told = await cli.beside("blame", f"{KEY}@4", "said[0]")
    assert (told.status, told.err) == (0, "")
    (row,) = rows_of(told)
    assert (row["version"], row["reason"], row["path"]) == ("1", "step 1", "said[0]")
    gone = await cli.beside("blame", f"{KEY}@5", "said[0]")
    assert (gone.status, rows_of(gone)[0]["version"]) == (1, "5")
    assert gone.err == f"statecache: {KEY}: nothing stands at said[0] since that change\n"


@pytest.mark.usefixtures("history")
async def test_blame_says_where_older_values_are_no_longer_kept(cli: CommandLine, psql: Psql) -> None:
    psql.execute("UPDATE change SET value = NULL, packed = NULL, keyframe = NULL WHERE version <= 2")
    told = await cli.beside("blame", f"{KEY}@4", "said[1]", "--json")
    assert (told.status, told.json["set_by"]["version"], told.json["certain"]) == (0, 3, False)
    assert told.err == "statecache: it may have been set before: no value before version 3 is kept\n"
    certain = await cli.beside("blame", f"{KEY}@4", "said[3]", "--json")
    assert (certain.json["set_by"]["version"], certain.json["certain"], certain.err) == (4, True, "")


async def test_blame_follows_items_and_reads_no_more_than_it_needs(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    read_range = HistoryValues.read_range

    async def noted(self: HistoryValues, key: str, first: int, last: int, *, seconds: float) -> Any:
        read.append(first)
        return await read_range(self, key, first, last, seconds=seconds)

    monkeypatch.setattr(HistoryValues, "read_range", noted)
    for step in range(1, 101):
        await cache.set(KEY, {"said": [f"this is said in step {n}" for n in range(step, max(0, step - 20), -1)]})
    await flush(worker)
    found = (await cli.beside("blame", KEY, "said[5]", "--json")).json
    assert (found["value"], found["path"], found["set_by"]["version"], found["certain"]) == (
        "this is said in step 95", "said[0]", 95, True,
    )  # fmt: skip
    assert read == [96, 88]


@pytest.mark.usefixtures("history")
async def test_without_redis_there_is_what_postgres_holds(cli: CommandLine) -> None:
    away = ("--redis-url", "redis://127.0.0.1:1/0")
    told = await cli.beside("log", KEY, "--json", *away)
    assert (told.status, told.json["error"]) == (4, "HistoryIncomplete")
    assert "`statecache log runs/42 --flushed` shows what Postgres has" in told.err
    told = await cli.beside("log", KEY, *away)
    assert (told.status, told.out) == (4, "")
    assert "the URL right? `statecache log" in told.err
    told = await cli.beside("log", KEY, "--json", "--flushed", *away)
    assert (told.status, [json.loads(line)["version"] for line in told.out.splitlines()]) == (0, [5, 4, 3, 2, 1])
    assert told.err.startswith("statecache: checkpoints are not marked: Redis is unavailable (connect)")
    assert (await cli.beside("show", f"{KEY}@4", "--json", *away)).json["value"] == run(4)
    assert (await cli.beside("blame", f"{KEY}@4", "said[1]", "--json", *away)).json["set_by"]["version"] == 2
    assert len((await cli.beside("diff", KEY, "1", "2", "--json", *away)).json["differences"]) == 2
