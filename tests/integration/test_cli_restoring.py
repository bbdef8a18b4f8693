"""`checkpoint`, `checkpoints`, `rollback`, `undo` and `redo`: what they show, ask, do and say."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from statecache import AsyncStateCache, StateCache
from statecache.cli.restoring import checkpoint_command, rollback_command
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing
from tests.support.command_line import CommandLine

KEY = "runs/42"
Asked = list[str]


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Asked]:
    """Somebody who is asked, and gives that answer; what was asked is noted."""

    def answering(answer: bool) -> Asked:
        asked: Asked = []

        def confirmed(question: str) -> bool:
            asked.append(question)
            return answer

        for module in (checkpoint_command, rollback_command):
            monkeypatch.setattr(module, "asks", lambda wanted: wanted)
            monkeypatch.setattr(module, "confirmed", confirmed)
        return asked

    return answering


@pytest.fixture
async def history(cache: AsyncStateCache, worker: Worker) -> None:
    """Three versions of a key; one of another key of its group between the second and the third."""
    for step in (1, 2):
        await cache.set(KEY, {"step": step, "said": ["hello", "it is paid", "done"][:step]}, actor="ada")
    await cache.set(f"{KEY}/plan", ["ask"])
    await cache.set(KEY, {"step": 3, "said": ["hello", "it is paid", "done"]}, actor="ada")
    await flush(worker)


@pytest.mark.usefixtures("history")
async def test_a_checkpoint_is_made_listed_renamed_and_deleted(
    cli: CommandLine, worker: Worker, person: Callable[[bool], Asked]
) -> None:
    async with flushing(worker):
        made = await cli.beside("checkpoint", KEY, "before payment", "--metadata", '{"ticket": 7}', "--json")
        assert (made.status, made.err) == (0, "")
        assert (made.json["label"], made.json["version"], made.json["metadata"]) == ("before payment", 3, {"ticket": 7})
        whole = await cli.beside("checkpoint", KEY, "--group")
        assert whole.status == 0
        assert whole.out.startswith(f"{KEY}  2")
        assert "  position 1-" in whole.out
        again = await cli.beside("checkpoint", KEY, "before payment")
        assert (again.status, again.out) == (1, "")
        assert "has a checkpoint 'before payment' already" in again.err
        renamed = await cli.beside("checkpoints", KEY, "--rename", "before payment", "--to", "=7")
        assert (renamed.status, renamed.out) == (0, f"{KEY}  =7  version 3\n")
    listed = await cli.beside("checkpoints", KEY)
    header, *rows = (line.split("\t") for line in listed.out.splitlines())
    assert header[:3] == ["label", "of", "point"]
    assert min(row[1:3] for row in rows) == [KEY, "version 3"]
    found = (await cli.beside("checkpoints", KEY, "--group", "--json")).json["checkpoints"]
    assert [one["scope"] for one in found if one["label"] != "=7"] == ["group"]
    asked = person(False)
    kept = await cli.beside("checkpoints", KEY, "--delete", "=7")
    assert (kept.status, kept.err, asked) == (
        1, "statecache: nothing was deleted\n", ["Delete the checkpoint '=7' of runs/42?"],
    )  # fmt: skip
    deleted = await cli.beside("checkpoints", KEY, "--delete", "=7", "--yes")
    assert (deleted.status, deleted.out) == (0, f"{KEY}  =7  version 3  not pinned any more\n")
    nothing = await cli.beside("checkpoints", "runs/nobody", "--json")
    assert (nothing.status, nothing.json) == (1, {"checkpoints": []})


@pytest.mark.usefixtures("history")
async def test_a_key_goes_back_undoes_and_redoes_that(cli: CommandLine, cache: AsyncStateCache) -> None:
    done = await cli.beside("rollback", KEY, "1", "--actor", "bob", "--reason", "wrong", "--json")
    assert (done.status, done.err, done.json["version"]) == (0, "", 4)
    assert (await cli.beside("get", KEY)).out == '{"step":1,"said":["hello"]}\n'
    newest = json.loads((await cli.beside("log", KEY, "-n", "1", "--json")).out)
    assert (newest["actor"], newest["reason"], newest["made_from"]) == (
        "bob", "wrong", {"kind": "rollback", "key": KEY, "version": 1},
    )  # fmt: skip
    blamed = (await cli.beside("blame", KEY, "step", "--json")).json
    assert (blamed["set_by"]["version"], [one["version"] for one in blamed["way"]]) == (1, [4])
    assert (await cli.beside("undo", KEY)).out.startswith(f"{KEY}  version 5  change ")
    assert (await cli.beside("redo", KEY)).out.startswith(f"{KEY}  version 6  change ")
    state = await cache.get(KEY)
    assert state is not None
    assert (state.version, state.value["step"]) == (6, 1)
    assert (await cli.beside("rollback", KEY, "-1", "--json")).json["version"] == 7
    assert [
        json.loads(line)["made_from"] for line in (await cli.beside("log", KEY, "-n", "3", "--json")).out.splitlines()
    ] == [
        {"kind": kind, "key": KEY, "version": version} for kind, version in (("rollback", 5), ("redo", 4), ("undo", 3))
    ]


@pytest.mark.usefixtures("history")
async def test_what_would_change_is_shown_and_nothing_is_done_where_the_answer_is_no(
    cli: CommandLine, cache: AsyncStateCache, person: Callable[[bool], Asked]
) -> None:
    dry = await cli.beside("rollback", KEY, "1", "--dry-run", "--json")
    assert (dry.status, dry.json["version"], dry.json["to"]["version"]) == (0, 3, 1)
    assert [(one["path"], one["op"]) for one in dry.json["differences"]] == [
        ("step", "changed"), ("said[1]", "removed"), ("said[2]", "removed"),
    ]  # fmt: skip
    asked = person(False)
    refused = await cli.beside("rollback", KEY, "1")
    assert (refused.status, refused.err, asked) == (1, "statecache: nothing was changed\n", [f"Roll back {KEY}?"])
    assert "changed\tstep\t3\t1\n" in refused.out
    state = await cache.get(KEY)
    assert state is not None
    assert state.version == 3
    asked = person(True)
    assert (await cli.beside("undo", KEY, "--json")).json["version"] == 4
    assert asked == [f"Undo the last edit of {KEY}?"]


@pytest.mark.usefixtures("history")
async def test_what_was_changed_while_a_person_was_asked_is_left_alone(
    cli: CommandLine, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(question: str) -> bool:
        with StateCache(settings=cache.settings) as other:
            other.update(KEY, lambda value: {"before": value})
        return True

    monkeypatch.setattr(rollback_command, "asks", lambda wanted: wanted)
    monkeypatch.setattr(rollback_command, "confirmed", meanwhile)
    for arguments in (["rollback", KEY, "1"], ["undo", KEY], ["undo", KEY, "--group"]):
        told = await cli.beside(*arguments)
        assert told.status == 1
        assert told.err == f"statecache: {KEY} was changed while you were asked: nothing was done. Look again.\n"
    state = await cache.get(KEY)
    assert state is not None
    assert (state.version, state.value["before"]["before"]["before"]["step"]) == (6, 3)


@pytest.mark.usefixtures("history")
async def test_a_group_goes_back_as_a_whole(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker, person: Callable[[bool], Asked]
) -> None:
    await cache.checkpoint(KEY, "with a plan", group=True, durability="memory")
    await cache.delete(f"{KEY}/plan")
    await cache.set(f"{KEY}/more", 1)
    await cache.set(KEY, {"step": 4, "said": []})
    dry = (await cli.beside("rollback", KEY, "with a plan", "--group", "--dry-run", "--json")).json
    assert [(one["key"], one["what"]) for one in dry["keys"]] == [
        (KEY, "changed"), (f"{KEY}/more", "deleted"), (f"{KEY}/plan", "created"),
    ]  # fmt: skip
    assert dry["keys"][0]["differences"][0] == {"path": "step", "op": "changed", "before": 4, "after": 3}
    asked = person(True)
    done = await cli.beside("rollback", KEY, "with a plan", "--group", "--reason", "all of it", "--json")
    assert (done.status, asked) == (0, [f"Roll back {KEY}?"])
    assert [one["key"] for one in done.json["states"]] == [KEY, f"{KEY}/more", f"{KEY}/plan"]
    assert len({one["position"] for one in done.json["states"]}) == 1
    assert (await cli.beside("get", f"{KEY}/plan")).out == '["ask"]\n'
    assert (await cli.beside("get", f"{KEY}/more")).status == 1
    again = await cli.beside("rollback", KEY, "with a plan", "--group")
    assert (again.status, "is as it was at" in again.err) == (1, True)


@pytest.mark.usefixtures("history")
async def test_bad_input_is_told_in_one_line(cli: CommandLine) -> None:
    bad = [
        (["rollback", KEY, "9"], 1, "There is no version 9 of 'runs/42'"),
        (["rollback", KEY, "0"], 2, "there is no version 0"),
        (["rollback", KEY, "3"], 1, "is as it was at version 3 already"),
        (["rollback", KEY, "@"], 2, "TO is where it is already"),
        (["rollback", KEY, "--yse", "1"], 2, "there is no option --yse"),
        (["rollback", KEY, "1", "2"], 2, "unexpected: 2. See `statecache rollback --help`."),
        (["rollback", KEY, "no such"], 1, "has no checkpoint 'no such'"),
        (["rollback", KEY, "2020-01-01"], 1, "nothing of it is that old"),
        (["rollback", KEY, "3", "--group"], 2, "a group has no version 3"),
        (["rollback", f"{KEY}/plan", "x", "--group"], 2, "it is no group"),
        (["rollback", "runs/nobody", "1"], 1, "There is no version 1 of 'runs/nobody'"),
        (["rollback", KEY, "1", "--reason", "undo to 3"], 2, "reads like what statecache itself says"),
        (["undo", KEY, "--group", "--change-id", "x"], 2, "--change-id is for one key"),
        (["redo", KEY], 1, "There is no version to redo to of 'runs/42'"),
        (["undo", "runs/nobody"], 1, "'runs/nobody'"),
        (["checkpoint", "runs/nobody"], 1, "'runs/nobody'"),
        (["checkpoint", KEY, "a/b"], 2, "it holds a '/'"),
        (["checkpoint", KEY, "a", "--metadata", "{"], 2, "the metadata is not JSON"),
        (["checkpoint", KEY, "a", "--metadata", '{"a":1,"a":2}'], 2, "the metadata would not be kept as it is given"),
        (["checkpoint", KEY, "a", "--durability", "eternal"], 2, "'eternal' is not one of"),
        (["checkpoints", KEY], 1, "there is no checkpoint"),
        (["checkpoints", KEY, "--rename", "a"], 2, "--rename goes with --to"),
        (["checkpoints", KEY, "--delete", "a"], 1, "has no checkpoint 'a'"),
    ]
    for arguments, status, said in bad:
        told = await cli.beside(*arguments)
        assert (told.status, told.out, told.err.count("\n")) == (status, "", 1), arguments
        assert said in told.err, (arguments, told.err)
