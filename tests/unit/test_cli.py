"""The command line: exit statuses, one clear line for every error, examples in every help, plain text when piped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from statecache.cli import NEEDS, app
from statecache.cli.epochs import numbers
from statecache.cli.error_text import line_of
from statecache.cli.exits import status_of
from statecache.cli.main import run
from statecache.cli.states import command as states
from statecache.errors import (
    ConfigurationError,
    DurabilityRefused,
    InvalidKey,
    NotFound,
    PostgresUnavailable,
    StateCacheError,
    UsageError,
)
from statecache.history_errors import HistoryIncomplete
from statecache.replay import supervisor
from statecache.replay.report import Report
from statecache.settings import process_environment

COMMANDS = (
    *(["get"], ["set"], ["rm"], ["ls"], ["where"], ["status"], ["top"], ["doctor"], ["migrate"], ["worker"], ["dev"]),
    *(["log"], ["show"], ["diff"], ["blame"], ["checkpoint"], ["checkpoints"], ["rollback"], ["undo"], ["redo"]),
    *(["branch"], ["branches"], ["merge"]),
    *(["quarantine", name] for name in ("list", "show", "retry", "drop")),
    *(["replay"], ["demo"], ["epoch", "adopt"], ["version"], ["verify"], ["prune"], ["erase"]),
)
FOR_PROGRAMS = [command for command in COMMANDS if command not in (["worker"], ["dev"])]
NOBODY = "127.0.0.1:1"
PASSED = Report(
    runs=12,
    messages=197,
    commits_acked=197,
    lost=0,
    duplicated=0,
    forked=0,
    quarantined=0,
    resumed=1,
    kills={"agent": 3},
    commits_per_s=99.5,
    commit_p50_ms=1.5,
    commit_p99_ms=20.25,
    flush_lag_p99_ms=30.5,
    audit_ok=True,
    findings=[],
    durability="disk",
    seed=5,
)
URLS = ("--redis-url", f"redis://{NOBODY}/0", "--postgres-url", f"postgresql://{NOBODY}/x")


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in process_environment():
        if name.startswith("STATECACHE_"):
            monkeypatch.delenv(name)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = run(arguments)
    shown = capsys.readouterr()
    return status, shown.out, shown.err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("x"), 2),
        (InvalidKey("x", reason="y"), 2),
        (ConfigurationError("x"), 3),
        (DurabilityRefused("disk", reason="x"), 3),
        (PostgresUnavailable("connect"), 4),
        (HistoryIncomplete("a/b", reason="x"), 4),
        (NotFound("a/b"), 1),
        (ValueError("x"), 1),
    ],
)
def test_every_error_has_its_exit_status(error: Exception, status: int) -> None:
    assert status_of(error) == status


def test_an_error_is_one_line() -> None:
    assert line_of(UsageError("no\nsuch thing", hint="Try\n another.")) == "statecache: no such thing. Try another."
    assert line_of(StateCacheError()) == "statecache: statecache failed."
    assert line_of(ValueError()) == "statecache: ValueError"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    status, out, err = told(capsys, *command, "--help")
    assert (status, err) == (0, "")
    assert "Example" in out
    assert f"\n    statecache {' '.join(command)}" in out or f" statecache {' '.join(command)}" in out


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Lines to be copied are not broken, and may be as long as a terminal of the usual width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, told(capsys, "--help")[1].splitlines())) <= columns
    for command in COMMANDS:
        lines = told(capsys, *command, "--help")[1].splitlines()
        wide = [line for line in lines if len(line) > columns]
        assert [line for line in wide if len(line) > 80 or not line.startswith("    statecache ")] == [], command


@pytest.mark.parametrize("command", FOR_PROGRAMS, ids=" ".join)
def test_every_command_that_ends_has_json_for_programs(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert "--json" in told(capsys, *command, "--help")[1]


def test_a_drop_says_that_it_waits_for_postgres(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "quarantine", "drop", "--help")
    assert "[default: postgres]" in " ".join(out.split())


def test_the_main_help_names_every_command_and_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = told(capsys, "--help")
    assert status == 0
    assert all(f"\n  {command[0]} " in out for command in COMMANDS)
    assert "0 ok, 1 finding, 2 usage, 3 configuration, 4 unreachable" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wher", "a/b"], "No such command 'wher'"),
        (["where", "--foo", "a/b"], "No such option: --foo"),
        (["where"], "Missing argument"),
        (["where", "runs"], "The key 'runs' cannot be used"),
        (["where", "runs/\udc80"], "lone surrogate"),
        (["replay", "--agents", "0"], "--agents"),
        (["replay", "--agents", "many"], "--agents"),
        (["replay", "--kill", "disk"], "'disk' cannot be killed"),
        (["replay", "--durability", "eternal"], "'eternal' is not one of"),
        (["replay", "/nowhere/runs.jsonl"], "/nowhere/runs.jsonl cannot be read: No such file"),
        (["replay", "/"], "/ cannot be read"),
        (["replay", *URLS, "--kill", "agent,redis"], "redis is not this replay's own"),
        (["dev", "--redis-port", "0"], "--redis-port"),
        (["dev", "--postgres-port", "65536"], "--postgres-port"),
        (["dev", "--redis-port", "7000", "--postgres-port", "7000"], "cannot share port 7000"),
        (["epoch", "adopt", "99", "--from", "r"], "'99' is not a shard"),
        (["epoch", "adopt", "all"], "the primary of 64 shards, whatever other Redis still serves agents of "),
        (["epoch", "adopt", "7"], "the primary of 1 shard, whatever other Redis still serves agents of "),
        (["epoch", "adopt", "7"], "given up: `statecache epoch adopt 7 --from REPLID --to REPLID`"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("STATECACHE_TIMEOUT_S", "1")  # where nobody listens
    monkeypatch.setenv("STATECACHE_HYDRATE_TOKEN_S", "1")
    status, out, err = told(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("data", ["", "hello\n", '{"id": 1}\n', '{"id": "a", "messages": []}\n'])
def test_bad_input_to_replay_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: str
) -> None:
    (tmp_path / "runs.jsonl").write_text(data)
    status, out, err = told(capsys, "replay", str(tmp_path / "runs.jsonl"))
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_a_folder_with_other_journals_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "agent-0.0.jsonl").touch()
    status, _, err = told(capsys, "replay", "--limit", "1", "--seed", "1", "--journals", str(tmp_path))
    assert status == 2
    assert "is not empty" in err.splitlines()[-1]


OUTCOMES = [
    ({}, 0, ""),
    (
        {"lost": 1, "audit_ok": False, "findings": ["a: message 1 is lost"], "journals": "/tmp/kept"},
        1,
        "message 1 is lost",
    ),
    ({"kills": {"agent": 3, "redis": 2}}, 2, "not killed 3 times with commits in flight: redis 2"),
    ({"kills": {"agent": 0}, "forked": 2, "audit_ok": False}, 1, "FAILED"),
]


@pytest.mark.parametrize(("facts", "status", "said"), OUTCOMES)
def test_a_replay_ends_with_a_table_a_status_and_json_on_the_last_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any],
    status: int,
    said: str,
) -> None:
    report = msgspec.structs.replace(PASSED, **facts)
    monkeypatch.setattr(supervisor, "replay", lambda *_, **__: report)
    code, out, err = told(capsys, "replay", "--seed", "5", "--kill", "agent", "--json")
    assert (code, json.loads(out.splitlines()[-1])) == (status, msgspec.to_builtins(report))
    assert err.startswith("seed 5: 12 runs, 197 messages\n")
    assert said in err
    code, out, err = told(capsys, "replay", "--seed", "5", "--kill", "agent")
    assert code == status
    assert "commits acked" in out
    assert report.journals in out
    assert "\x1b" not in out + err


def test_a_replay_without_a_seed_draws_one_and_says_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[supervisor.Options] = []

    def replay(options: supervisor.Options, *_: object, **__: object) -> Report:
        asked.append(options)
        return PASSED

    monkeypatch.setattr(supervisor, "replay", replay)
    _, _, err = told(capsys, "replay", "--limit", "3", "--kill", "redis, agent,redis", "--think-ms", "5")
    assert err.startswith(f"seed {asked[0].seed}: 3 runs, ")
    assert (asked[0].kills, asked[0].think_s, len(asked[0].runs)) == (("redis", "agent"), 0.005, 3)


def test_no_command_shows_the_help_and_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = told(capsys)
    assert (status, out) == (2, "")
    assert err.startswith("Usage: statecache")


@pytest.mark.parametrize(
    "arguments",
    [
        ["where", "a/b", "--redis-url", "http://x"],
        ["where", "a/b", "--postgres-url", "nonsense=1"],
        ["migrate", "--postgres-url", "postgresql://h/d?nonsense=1"],
        ["replay", "--redis-url", "redis://x"],
    ],
)
def test_bad_configuration_is_one_line_and_status_3(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    status, out, err = told(capsys, *arguments)
    assert (status, out, err.count("\n")) == (3, "", 1)


def test_an_unreachable_server_is_one_line_and_status_4_without_its_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, err = told(capsys, "migrate", "--postgres-url", f"postgresql://me:secret@{NOBODY}/x")
    assert (status, out, err.count("\n")) == (4, "", 1)
    assert NOBODY in err
    assert "secret" not in err


def test_tracebacks_are_shown_on_request_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" not in told(capsys, "where", "x")[2]
    assert "Traceback" in told(capsys, "--debug", "where", "x")[2]
    monkeypatch.setenv("STATECACHE_DEBUG", "1")
    assert "Traceback" in told(capsys, "where", "x")[2]
    monkeypatch.setenv("STATECACHE_DEBUG", "0")
    assert "Traceback" not in told(capsys, "where", "x")[2]


def test_a_mistake_of_ours_is_one_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(states, "settings_of", broken)
    status, _, err = told(capsys, "where", "a/b")
    assert (status, err) == (
        1,
        "statecache: unexpected ZeroDivisionError: division by zero (`statecache --debug …` shows where)\n",
    )


def test_an_interrupt_is_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(states, "settings_of", interrupted)
    assert told(capsys, "where", "a/b") == (130, "", "")


@pytest.mark.parametrize("words", [["version"], ["--version"], ["--debug", "--version"], ["--version", "status"]])
def test_the_version(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    status, out, err = told(capsys, *words)
    assert (status, out.partition("(")[0], err) == (0, "statecache 0.1.0 ", "")


def test_shards_to_claim_are_numbers_or_all() -> None:
    assert numbers(["all"], 3) == [0, 1, 2]
    assert numbers(["2", "0", "2"], 3) == [0, 2]
    for words in (["3"], ["-1"], ["all", "1"], ["²"], ["x"]):
        with pytest.raises(UsageError):
            numbers(words, 3)


def command_line(*arguments: str, code: str = "from statecache.cli import main; main()") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=process_environment() | {"GITHUB_ACTIONS": "true", "TERM": "xterm-256color"},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; from statecache.cli import main; main()"
    assert command_line("version", code=code) == (3, "", NEEDS + "\n")


def test_piped_output_has_no_colours() -> None:
    for arguments in (["--help"], ["replay", "--help"], ["where", "runs/42"], ["where"], ["top"], ["doctor", *URLS]):
        _, out, err = command_line(*arguments)
        assert "\x1b" not in out + err


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m statecache where runs/42 | true; {sys.executable} -m statecache --help | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("word", app.command_line().commands)
def test_a_part_of_the_command_line_is_what_the_whole_has_under_that_name(word: str) -> None:
    part, whole = app.command_line(word), app.command_line()
    assert [*part.commands] == [word]
    top = typer.Context(whole, info_name="statecache", **whole.context_settings)
    assert _helps(part.commands[word], parent=top) == _helps(whole.commands[word], parent=top)
    assert len(whole.commands) > 30


def _helps(command: Any, *, parent: typer.Context) -> list[str]:
    """Return the help of a command and of all below it."""
    context = typer.Context(command, parent=parent, info_name=command.name)
    below = getattr(command, "commands", {}).values()
    return [command.get_help(context), *(text for one in below for text in _helps(one, parent=context))]


@pytest.mark.parametrize("word", ["", "no-such-command", "--help"])
def test_what_names_no_command_has_the_whole_command_line(word: str) -> None:
    assert [*app.command_line(word).commands] == [*app.command_line().commands]
