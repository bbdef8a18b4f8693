"""`branch`, `branches` and `merge`, and how `log` and `blame` show what they made."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache.cli.history import logged
from statecache.cli.restoring import merge_command
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.command_line import CommandLine

KEY, SIDE = "runs/42", "runs/42-b"


@pytest.fixture
def cli(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on the test's deployment, for wide screens."""
    monkeypatch.setenv("COLUMNS", "200")
    return CommandLine(settings, monkeypatch, capsys)


def run(step: int, *said: str) -> dict[str, Any]:
    return {"step": step, "said": ["hello", *said]}


@pytest.fixture
async def sides(cli: CommandLine, cache: AsyncStateCache, worker: Worker) -> AsyncIterator[None]:
    """A key of three versions, and a branch of its second that has two; a worker at work."""
    async with flushing(worker):
        await cache.set(KEY, run(1), actor="ada")
        await cache.set(KEY, run(2), actor="ada")
        begun = await cli.beside(
            "branch", KEY, SIDE, "--at", "2", "--actor", "bob", "--reason", "another way", "--json"
        )
        assert (begun.status, begun.err, begun.json["key"], begun.json["version"]) == (0, "", SIDE, 1)
        await cache.set(SIDE, run(2, "ask"), actor="bob", durability="postgres")
        await cache.set(KEY, run(2, "look"), actor="ada", durability="postgres")
        yield


async def drawn(cli: CommandLine, *arguments: str) -> list[str]:
    """Return a log without ages and sizes."""
    lines = (await cli.beside("log", *arguments, "--graph")).out.splitlines()
    return [" ".join(line.partition(" B ")[0].split("  ")[0].split() + marks_in(line)) for line in lines]


def marks_in(line: str) -> list[str]:
    return [f"({part.partition(')')[0]})" for part in line.split("(")[1:]]


@pytest.mark.usefixtures("sides")
async def test_branches_are_listed_and_drawn(cli: CommandLine) -> None:
    listed = await cli.beside("branches", KEY)
    header, row = (line.split("\t") for line in listed.out.splitlines())
    assert (listed.status, header) == (0, ["key", "from", "age", "by", "reason"])
    assert (row[:2], row[3:]) == ([f"{SIDE}@1", f"{KEY}@2"], ["bob", "another way"])
    (one,) = (await cli.beside("branches", SIDE, "--ancestry", "--json")).json["ancestry"]
    assert (one["kind"], one["origin"], one["origin_version"], one["version"]) == ("branch", KEY, 2, 1)
    assert (await cli.beside("branches", "runs/42", "--group", "--json")).json["branches"] == [one]
    assert await drawn(cli, KEY) == [
        "● 3", f"│ ● {SIDE}@2", f"│ ● {SIDE}@1 (branch of @2)", "├─╯", "● 2", "● 1",
    ]  # fmt: skip
    assert await drawn(cli, KEY, "--alone") == ["● 3", f"● 2 (branch {SIDE})", "● 1"]
    assert await drawn(cli, SIDE) == ["● 2", f"● 1 (branch of {KEY}@2)", f"● {KEY}@2", f"● {KEY}@1"]
    assert await drawn(cli, SIDE, "--alone") == ["● 2", f"● 1 (branch of {KEY}@2)"]
    assert await drawn(cli, KEY, "--since", "3") == ["● 3"]
    assert await drawn(cli, KEY, "-n", "3", "--reverse") == [
        f"│ ● {SIDE}@1 (branch of @2)", f"│ ● {SIDE}@2", "● 3",
    ]  # fmt: skip


@pytest.mark.usefixtures("sides")
async def test_a_merge_is_shown_asked_for_and_drawn(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    dry = (await cli.beside("merge", SIDE, KEY, "--dry-run", "--json")).json
    assert (dry["branch"], dry["into"], dry["base"], dry["conflicts"]) == (SIDE, KEY, f"{KEY}@2", [])
    assert dry["differences"] == [{"path": "said[2]", "op": "added", "after": "ask"}]
    monkeypatch.setattr(merge_command, "asks", lambda wanted: wanted)
    monkeypatch.setattr(merge_command, "confirmed", lambda _: False)
    refused = await cli.beside("merge", SIDE, KEY)
    assert (refused.status, refused.err) == (1, "statecache: nothing was changed\n")
    assert refused.out == 'op\tpath\tbefore\tafter\nadded\tsaid[2]\t\t"ask"\n'
    monkeypatch.setattr(merge_command, "confirmed", lambda _: True)
    done = await cli.beside("merge", SIDE, KEY, "--reason", "both found it", "--durability", "postgres")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith(f"{KEY}  version 4  change ")
    assert (await cli.beside("get", KEY)).out == '{"step":2,"said":["hello","look","ask"]}\n'
    nothing = await cli.beside("merge", SIDE, KEY)
    assert (nothing.status, nothing.out) == (0, "")
    assert nothing.err == f"statecache: {SIDE} has nothing that {KEY} has not\n"
    assert await drawn(cli, KEY) == [
        f"● 4 (merge of {SIDE}@2)", "├─╮", "● │ 3", f"│ ● {SIDE}@2", f"│ ● {SIDE}@1 (branch of @2)", "├─╯", "● 2",
        "● 1",
    ]  # fmt: skip
    assert await drawn(cli, KEY, "-n", "1") == [f"● 4 (merge of {SIDE}@2)"]
    assert await drawn(cli, KEY, "-n", "1", "--reverse") == [f"● 4 (merge of {SIDE}@2)"]
    assert await drawn(cli, SIDE, "-n", "1") == [f"● 2 (merged into {KEY}@4)"]
    blamed = (await cli.beside("blame", KEY, "said[2]", "--json")).json
    assert [blamed["set_by"][name] for name in ("key", "version", "actor")] == [SIDE, 2, "bob"]
    assert ([one["version"] for one in blamed["way"]], blamed["path"]) == ([4], "said[1]")
    (told,) = [json.loads(line) for line in (await cli.beside("log", KEY, "-n", "1", "--json")).out.splitlines()]
    assert (told["made_from"], told["reason"]) == ({"kind": "merge", "key": SIDE, "version": 2}, "both found it")


@pytest.mark.usefixtures("sides")
async def test_a_merge_that_was_taken_back_is_shown_and_made_again(cli: CommandLine) -> None:
    assert (await cli.beside("merge", SIDE, KEY, "--yes")).status == 0
    assert (await cli.beside("undo", KEY, "--yes")).status == 0
    dry = (await cli.beside("merge", SIDE, KEY, "--dry-run", "--json")).json
    assert (dry["base"], dry["differences"]) == (f"{KEY}@2", [{"path": "said[2]", "op": "added", "after": "ask"}])
    assert (await cli.beside("merge", SIDE, KEY, "--yes", "--json")).json["version"] == 6
    assert (await cli.beside("get", KEY)).out == '{"step":2,"said":["hello","look","ask"]}\n'
    assert (await cli.beside("merge", KEY, SIDE, "--yes")).status == 0
    assert (await cli.beside("undo", KEY, "--yes")).status == 0
    for asked in ("--dry-run", "--yes"):
        refused = await cli.beside("merge", SIDE, KEY, asked)
        assert (refused.status, refused.out) == (2, "")
        assert f"'{KEY}' has taken back a merge of '{SIDE}' up to its version 2" in refused.err


@pytest.mark.usefixtures("sides")
async def test_what_both_changed_is_listed_and_decided(cli: CommandLine, cache: AsyncStateCache) -> None:
    await cache.set(SIDE, run(7, "ask"), durability="postgres")
    await cache.set(KEY, run(8, "look"), durability="postgres")
    dry = await cli.beside("merge", SIDE, KEY, "--dry-run")
    assert dry.status == 1
    assert dry.out.endswith("\n\npath\tbase\tours\ttheirs\nstep\t2\t8\t7\n")
    found = (await cli.beside("merge", SIDE, KEY, "--dry-run", "--json")).json
    assert found["conflicts"] == [{"path": "step", "base": 2, "ours": 8, "theirs": 7}]
    refused = await cli.beside("merge", SIDE, KEY)
    assert (refused.status, refused.out) == (1, "")
    assert f"`statecache merge {SIDE} {KEY} --dry-run` shows what each made of it" in refused.err
    would = (await cli.beside("merge", SIDE, KEY, "--prefer", "theirs", "--dry-run", "--json")).json["differences"]
    assert would[0] == {"path": "step", "op": "changed", "before": 8, "after": 7}
    assert (await cli.beside("merge", SIDE, KEY, "--prefer", "ours", "--json")).json["version"] == 5
    assert (await cli.beside("get", KEY)).out == '{"step":8,"said":["hello","look","ask"]}\n'


@pytest.mark.usefixtures("sides")
async def test_a_group_is_branched(cli: CommandLine, cache: AsyncStateCache) -> None:
    await cache.set(f"{KEY}/plan", ["ask"], durability="postgres")
    begun = await cli.beside("branch", KEY, "runs/43", "--group", "--json")
    assert [one["key"] for one in begun.json["states"]] == ["runs/43", "runs/43/plan"]
    assert (await cli.beside("get", "runs/43/plan")).out == '["ask"]\n'
    assert [line.partition(" ")[0] for line in await drawn(cli, "runs/43/plan")] == ["●", "●"]
    found = (await cli.beside("branches", KEY, "--group", "--json")).json["branches"]
    assert sorted((one["key"], one["origin"]) for one in found) == [
        (SIDE, KEY), ("runs/43", KEY), ("runs/43/plan", f"{KEY}/plan"),
    ]  # fmt: skip


@pytest.mark.usefixtures("sides")
async def test_no_more_keys_are_drawn_than_there_are_lanes(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "KEYS_MAX", 1)
    assert await drawn(cli, KEY) == ["● 3", f"● 2 (branch {SIDE})", "● 1"]
    assert await drawn(cli, SIDE) == ["● 2", f"● 1 (branch of {KEY}@2)"]


@pytest.mark.usefixtures("sides")
async def test_bad_input_is_told_in_one_line(cli: CommandLine, cache: AsyncStateCache) -> None:
    await cache.set("other/1", 1, durability="postgres")
    bad = [
        (
            ["branch", KEY, SIDE],
            1,
            "'runs/42-b' exists already. `statecache get runs/42-b` shows it. Choose another key",
        ),
        (["branch", f"{KEY}@1", "runs/new"], 1, "`statecache branch runs/42 runs/new --at 1`"),
        (
            ["branch", "runs/gone", "runs/new"],
            1,
            "`statecache log runs/gone` lists what it held; --at begins with that",
        ),
        (["branch", KEY, KEY], 2, "cannot be a branch of itself"),
        (["branch", "runs/nobody", "runs/new"], 1, "'runs/nobody'"),
        (["branch", KEY, "runs"], 2, "The key 'runs' cannot be used"),
        (["branch", KEY, "runs/new", "--at", "9"], 1, "There is no version 9 of 'runs/42'"),
        (["branch", KEY, "runs/new", "--at", "0"], 2, "there is no version 0"),
        (["branch", KEY, "runs/new", "--at", "no such"], 1, "has no checkpoint 'no such'"),
        (["branch", KEY, "runs/new", "--at", "3", "--group"], 2, "a group has no version 3"),
        (["branch", KEY, "runs/new/x", "--group"], 2, "it is no group"),
        (["branches", "other/1"], 1, "there is no branch"),
        (["branches", "other/1", "--ancestry"], 1, "it was made from no other key"),
        (["merge", SIDE, SIDE], 2, "cannot be merged into itself"),
        (["merge", SIDE, KEY, "--prefer", "mine"], 2, "--prefer 'mine' is not one of ours, theirs"),
        (["merge", "other/1", KEY], 2, "have no common ancestor"),
        (["merge", "other/1", KEY, "--dry-run"], 2, "have no common ancestor"),
        (["merge", "runs/nobody", KEY], 1, "'runs/nobody'"),
        (["merge", "runs/nobody", KEY, "--dry-run"], 1, "'runs/nobody'"),
    ]
    for arguments, status, said in bad:
        told = await cli.beside(*arguments)
        assert (told.status, told.out, told.err.count("\n")) == (status, "", 1), (arguments, told)
        assert said in told.err, (arguments, told.err)
