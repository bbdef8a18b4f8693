"""How the command line tells errors: in commands, not in calls of the client, and as an object for programs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statecache.cli import connecting
from statecache.cli.connecting import patient
from statecache.cli.error_text import CommandGiven, facts_of, line_of
from statecache.cli.exits import status_of
from statecache.cli.main import _asked, run
from statecache.cli.states import by_hand
from statecache.cli.states import command as states
from statecache.clock import monotonic
from statecache.errors import (
    AlreadyExists,
    Backpressure,
    BulkError,
    ChangeIdReused,
    Forked,
    LimitExceeded,
    OutcomeUnknown,
    PostgresUnavailable,
    Quarantined,
    RedisUnavailable,
    StateCacheError,
    UsageError,
    VersionConflict,
)
from statecache.settings import Settings, process_environment

OF_THE_CLIENT = ("Say ", "set()", "update()", "create()", "default=", "change_id=", "See the table")
NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in process_environment():
        if name.startswith("STATECACHE_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (VersionConflict("runs/1", "a" * 24, "b" * 24), "`statecache get runs/1 --meta`"),
        (ChangeIdReused("runs/1", "a" * 24, version=3), "leave --change-id out"),
        (
            AlreadyExists("runs/1", hint="A branch begins where there is nothing."),
            "Choose another key, or remove it first: `statecache rm runs/1`.",
        ),
        (UsageError("it names others", hint="Say group=True, with"), "--group, with the groups, takes "),
        (UsageError("it has ended", hint="Say ttl=, which is"), "`statecache set KEY VALUE --ttl` writes it anew."),
        (AlreadyExists("runs/it's"), "`statecache get 'runs/it'\"'\"'s'`"),
        (OutcomeUnknown("c" * 24, keys=("runs/1",)), f"The same command with --change-id {'c' * 24} "),
        (Quarantined("runs/1", "c" * 24), "`statecache quarantine list`"),
        (Forked("runs/1", "c" * 24), "`statecache get runs/1`"),
        (Backpressure(3, reason="x"), "`statecache status`"),
        (
            LimitExceeded("the value", actual=2000, limit=1000, hint="Raise value_bytes_max."),
            "is 2,000 bytes, more than the limit of 1,000 bytes. Raise STATECACHE_VALUE_BYTES_MAX.",
        ),
        (
            RedisUnavailable("authentication", detail="x: WRONGPASS."),
            "Redis refuses this user: x: WRONGPASS. Check user and password in STATECACHE_REDIS_URL.",
        ),
        (
            RedisUnavailable("authentication", detail="redis://a:***@h:1/12: User a may not run the 'select' command"),
            "command. This user may not use database 12: grant it +select, or name database 0.",
        ),
        (
            PostgresUnavailable("authentication", detail="x: fe_sendauth: no password supplied"),
            "statecache: Postgres refuses this user: x: fe_sendauth: no password supplied. Check user",
        ),
        (PostgresUnavailable("authentication", detail="x"), "password in STATECACHE_POSTGRES_URL."),
    ],
)  # fmt: skip
def test_a_remedy_is_a_command_and_not_a_call(error: StateCacheError, remedy: str) -> None:
    line = line_of(error)
    assert remedy in line
    assert not [words for words in OF_THE_CLIENT if words in line]


AWAITED = OutcomeUnknown("c" * 24, keys=("runs/1",), reason=OutcomeUnknown.awaited)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("set runs/1 5", f"The same command with --change-id {'c' * 24} asks again"),
        ("--debug set runs/1 5", f"The same command with --change-id {'c' * 24} asks again"),
        ("rm runs/1", f"The same command with --change-id {'c' * 24} asks again"),
        ("checkpoint runs/1 a --group", f"The same command with --change-id {'c' * 24} asks again"),
        ("rollback runs/1 3", f"The same command with --change-id {'c' * 24} asks again"),
        ("rollback runs/1 a --group --yes", "`statecache log runs/1` shows whether it was applied"),
        ("undo runs/1 --group", "`statecache log runs/1` shows whether it was applied"),
        ("branch runs/1 runs/2 --group", "`statecache log runs/1` shows whether it was applied"),
        ("erase runs/1 --yes", "Begin it again with the same command"),
        ("import runs.jsonl", "Run it again: what has come through is found there"),
        ("quarantine drop 1:2-3", "`statecache quarantine list` shows whether it is still there"),
        ("set runs/1 -- --group", f"The same command with --change-id {'c' * 24} asks again"),
    ],
)
def test_an_unknown_outcome_is_asked_for_by_what_the_command_has(arguments: str, told: str) -> None:
    line = line_of(AWAITED, _asked(arguments.split()))
    assert told in line
    assert "Workers bring changes into Postgres: `statecache status`" in line
    assert not [words for words in OF_THE_CLIENT if words in line]


def test_what_became_of_many_is_told_without_the_words_of_the_client() -> None:
    told = line_of(BulkError(states={}, errors={"runs/1": AWAITED}), CommandGiven("rm"))
    assert told.endswith("in Postgres. The others are applied; the same command again does what is left.")


def test_a_key_in_a_remedy_steers_no_terminal() -> None:
    assert line_of(AlreadyExists("runs/\x1b[31m")).isprintable()


def test_several_keys_are_named_and_many_counted() -> None:
    unknown = OutcomeUnknown("c" * 24, keys=("a/1", "a/2", "a/3", "a/4", "a/5"), reason="Redis went away.")
    assert unknown.problem == (
        f"The outcome of change {'c' * 24} of 'a/1', 'a/2', 'a/3' and 2 more is not known: Redis went away."
    )
    assert OutcomeUnknown("c" * 24).problem == f"The outcome of change {'c' * 24} is not known: the reply was lost."


def test_workers_are_spoken_of_where_postgres_is_awaited_and_nowhere_else() -> None:
    awaited = OutcomeUnknown("c" * 24, reason=OutcomeUnknown.awaited)
    assert "Workers bring changes into Postgres: `statecache status` shows whether any lives." in line_of(awaited)
    assert "orkers" not in line_of(OutcomeUnknown("c" * 24))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RedisUnavailable("authentication"), 3),
        (PostgresUnavailable("authentication"), 3),
        (PostgresUnavailable("authentication", detail="x: fe_sendauth: no password supplied"), 3),
        (PostgresUnavailable("authentication", detail='x: no pg_hba.conf entry for host "h"'), 3),
        (PostgresUnavailable("connect", detail="no password supplied"), 4),
        (LimitExceeded("the value", actual=2, limit=1), 2),
    ],
)
def test_a_user_that_is_refused_is_a_matter_of_configuration(error: Exception, status: int) -> None:
    assert status_of(error) == status


def test_a_full_stop_stands_once() -> None:
    assert str(RedisUnavailable("connect", detail="Error 111. Connect call failed.")) == (
        "Redis is unavailable (connect): Error 111. Connect call failed."
    )


def test_an_error_is_an_object_with_its_facts() -> None:
    told = facts_of(VersionConflict("runs/1", "a" * 24, "b" * 24))
    assert told.pop("message").startswith("'runs/1' was changed by someone else")
    assert told == {"error": "VersionConflict", "key": "runs/1", "expected": "a" * 24, "actual": "b" * 24}
    assert facts_of(ZeroDivisionError("x")) == {"error": "ZeroDivisionError", "message": "x"}


def test_what_only_words_a_message_is_no_fact() -> None:
    told = facts_of(LimitExceeded("the value", actual=2, limit=1, key="runs/1", hint="Store less."))
    assert told.pop("message") == "the value is 2 bytes, more than the limit of 1 bytes (key 'runs/1'). Store less."
    assert told == {"error": "LimitExceeded", "what": "the value", "actual": 2, "limit": 1, "key": "runs/1"}


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (["get", "runs/1", "--json", "--redis-url", f"redis://{NOBODY}/0"], 4, "RedisUnavailable"),
        (["migrate", "--json", "--postgres-url", f"postgresql://{NOBODY}/x"], 4, "PostgresUnavailable"),
        (["where", "a/b", "--json", "--redis-url", "http://x"], 3, "ConfigurationError"),
        (["where", "runs/\udc80", "--json"], 2, "InvalidKey"),
        (["where", "--json"], 2, "UsageError"),
    ],
)
def test_with_json_an_error_is_the_last_line_of_stdout_too(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, error: str
) -> None:
    assert run(arguments) == status
    shown = capsys.readouterr()
    (line,) = shown.out.splitlines()
    told = json.loads(line)
    assert told["error"] == error
    assert shown.err.strip() == f"statecache: {told['message']}"


def test_a_mistake_of_ours_is_an_object_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(states, "settings_of", broken)
    assert run(["where", "a/b", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "ZeroDivisionError"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["set", "runs/1", "-5"], "goes behind `--`"),
        (["get", "runs/1", "--debug"], "It goes before the command: `statecache --debug …`."),
        (["get", "-5"], "See `statecache get --help`."),
        (["rm", "--prefix"], "requires an argument. See `statecache rm --help`."),
        (["quarantine", "drop", "1:2-3", "--reason"], "See `statecache quarantine drop --help`."),
    ],
)
def test_an_option_that_there_is_not_is_told_with_what_was_meant(
    capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr().err
    assert hint in shown
    assert ("goes behind" in shown) == (arguments[0] == "set")


def test_what_stands_behind_two_dashes_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["where", "--", "--json"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["get", "ls", "quarantine", "status", "doctor"])
def test_a_url_that_nobody_gave_is_called_the_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Nobody listens there in the test: the default is another one for a while, and is told from the same as given."""
    urls = {"redis_url": f"redis://{NOBODY}/0", "postgres_url": f"postgresql://{NOBODY}/x"}
    for name, url in urls.items():
        monkeypatch.setattr(Settings.model_fields[name], "default", url)
    Settings.model_rebuild(force=True)
    arguments = {"get": ["get", "a/b"], "ls": ["ls", "a"], "quarantine": ["quarantine", "list"]}.get(command, [command])
    try:
        run(arguments)
        shown = "".join(capsys.readouterr())
        monkeypatch.setenv("STATECACHE_REDIS_URL", urls["redis_url"])
        run([*arguments, "--postgres-url", urls["postgres_url"]])
        given = "".join(capsys.readouterr())
    finally:
        monkeypatch.undo()
        Settings.model_rebuild(force=True)
    name = "POSTGRES" if command == "quarantine" else "REDIS"
    assert f"(the default: STATECACHE_{name}_URL is not set)" in shown
    assert "the default" not in given


async def test_patience_is_short_where_a_server_refuses_connections() -> None:
    nobody = Settings(redis_url=f"redis://{NOBODY}/0", postgres_url=f"postgresql://{NOBODY}/x")
    assert (await patient(nobody)).timeout_s == connecting.REFUSED_S
    assert (await patient(nobody.model_copy(update={"timeout_s": 0.5}))).timeout_s == 0.5


BY_HAND: dict[str, Callable[[Settings], Awaitable[Any]]] = {
    "get": lambda settings: by_hand.get(settings, "runs/1"),
    "set": lambda settings: by_hand.put(settings, "runs/1", 1, create=False, more={}),
    "rm": lambda settings: by_hand.rm(settings, "runs/1", {}),
    "ls": lambda settings: by_hand.ls(settings, "runs/", newest=False, limit=1),
    "ls alone": by_hand.namespaces,
}


@pytest.mark.parametrize("command", BY_HAND)
async def test_a_command_by_hand_gives_up_soon_where_a_server_refuses_connections(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(connecting, "REFUSED_S", 0.2)
    nobody = Settings(redis_url=f"redis://{NOBODY}/0", postgres_url=f"postgresql://{NOBODY}/x", timeout_s=60.0)
    before = monotonic()
    with pytest.raises(RedisUnavailable):
        await BY_HAND[command](nobody)
    assert monotonic() - before < nobody.timeout_s / 2


def test_a_variable_that_is_no_setting_is_told_once_with_what_was_perhaps_meant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TEST_REDIS_URL", "DEBUG", "SHARDS", "SERVICE_HOST", "REDIS_PORT_6379_TCP", "REDIS_SERVICE_PORT_A"):
        monkeypatch.setenv(f"STATECACHE_{name}", "1")
    assert run(["where", "a/b"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("STATECACHE_REDISURL", "redis://x/0")
    monkeypatch.setenv("STATECACHE_QQ", "1")
    assert run(["where", "a/b"]) == 0
    assert capsys.readouterr().err == (
        "statecache: there is no setting STATECACHE_QQ, STATECACHE_REDISURL (did you mean STATECACHE_REDIS_URL?)\n"
    )
