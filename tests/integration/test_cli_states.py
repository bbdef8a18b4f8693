"""States read and changed by hand: what is printed for people and for programs, and how it ends."""

from __future__ import annotations

import getpass
import json
import re
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings, StateCache
from statecache.cli.connecting import patient
from statecache.keys import KeySpace
from statecache.model import VALUE_BYTES_MAX
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, rows
from tests.fixtures.servers import on_database
from tests.support.command_line import CommandLine

Psql = psycopg.Connection[Any]


def test_a_value_is_written_and_read_as_the_json_that_it_is(cli: CommandLine, sync_cache: StateCache) -> None:
    written = cli("set", "runs/1", '{"goal": "é", "n": 123456789012345678901234567890}', "--json")
    assert (written.status, written.json["version"], written.err) == (0, 1, "")
    assert cli("get", "runs/1") == (0, '{"goal":"é","n":123456789012345678901234567890}\n', "")
    state = sync_cache.get("runs/1")
    assert state is not None
    assert state.value == {"goal": "é", "n": 123456789012345678901234567890}


def test_text_and_stdin(cli: CommandLine) -> None:
    assert cli("set", "runs/1", "--text", "hello").status == 0
    assert cli("get", "runs/1").out == '"hello"\n'
    assert cli.apart("set", "runs/1", "-", given='{"a":[1]}').status == 0
    assert cli.apart("get", "runs/1") == (0, '{"a":[1]}\n', "")
    assert cli.apart("set", "runs/1", "--", "-5").status == 0
    assert cli("get", "runs/1").out == "-5\n"


def test_what_does_not_end_is_not_read_for_ever(cli: CommandLine) -> None:
    with open("/dev/zero") as endless, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", endless)
        refused = cli("set", "runs/1", "-")
    assert (refused.status, "more than 128 MiB was read, and a value takes 8.0 MiB" in refused.err) == (2, True)
    assert cli("get", "runs/1").status == 1


def test_what_is_stored_as_msgpack_is_shown_as_json(cli: CommandLine, sync_cache: StateCache) -> None:
    packed = sync_cache.namespace("packed", encoding="msgpack")
    packed.set("1", {"a": b"\x00\xff", "b": [1, None]})
    assert cli("get", "packed/1").out == '{"a":"AP8=","b":[1,null]}\n'
    assert cli("get", "packed/1", "--json").json["encoding"] == "msgpack"
    packed.set("1", {(1, 2): "x"})
    assert cli("get", "packed/1").out == '{"base64":"gZIBAqF4"}\n'
    assert cli("show", "packed/1", "--json").json["value"] == {"base64": "gZIBAqF4"}


def test_all_that_is_known_of_a_state(cli: CommandLine, sync_cache: StateCache) -> None:
    state = sync_cache.set("runs/1", [1])
    found = cli("get", "runs/1", "--json").json
    assert found == {
        "key": "runs/1", "exists": True, "op": "set", "value": [1], "epoch": 1, "version": 1,
        "change_id": state.change_id, "parent_change_id": "", "position": "1-1", "updated_at": found["updated_at"],
        "writer": state.writer, "encoding": "json", "schema": "", "bytes": 3, "expires_at": "", "durable": False,
        "quarantined_as": "", "conflict": False,
    }  # fmt: skip
    shown = cli("get", "runs/1", "--meta")
    assert shown.out == "[1]\n"
    assert f"change_id         {state.change_id}\n" in shown.err
    assert "durable           not yet\n" in shown.err


async def test_what_is_listed_from_postgres_is_durable_whatever_redis_knows_of_it(
    cli: CommandLine, cache: AsyncStateCache, settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL leads to an empty Redis."""
    await cache.set("runs/1", 1)
    await flush(worker)
    monkeypatch.setenv("STATECACHE_REDIS_URL", on_database(settings.redis_url, 1))
    (found,) = (await cli.beside("ls", "runs", "--json")).json["states"]
    assert (found["key"], found["durable"]) == ("runs/1", True)


async def test_what_postgres_holds_is_called_durable_and_a_forked_change_is_not(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace
) -> None:
    await cache.set("runs/1", 1)
    await flush(worker)
    assert (await cli.beside("get", "runs/1", "--json")).json["durable"] is True
    redis_raw.hset(keys.meta(keys.shard("runs/1")), "excepted", 1)
    assert (await cli.beside("get", "runs/1", "--json")).json["durable"] is True, "Postgres was asked"
    psql.execute("DELETE FROM change")
    assert (await cli.beside("get", "runs/1", "--json")).json["durable"] is False


async def test_a_change_in_quarantine_is_not_called_not_yet_durable(
    cli: CommandLine, agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    shard = keys.shard("runs/1")
    agents.commit(("runs/1", '"refused"'), reason="a\0b")
    await flush(worker)
    for exists in (True, False):
        shown = await cli.beside("get", "runs/1", "--meta")
        assert shown.out == ('"refused"\n' if exists else "")
        assert f"durable           no: in quarantine as {shard}:1-1\n" in shown.err
        found = (await cli.beside("get", "runs/1", "--json")).json
        assert (found["exists"], found["durable"]) == (exists, False)
        assert (found["quarantined_as"], found["conflict"]) == (f"{shard}:1-1", False)
        assert (await cli.beside("quarantine", "show", found["quarantined_as"])).status == 0
        if exists:
            redis_raw.unlink(keys.state("runs/1"))
    alone = await cli.beside("get", "runs/1", "--json", "--postgres-url", "postgresql://x:y@127.0.0.1:1/x")
    assert alone.json["quarantined_as"] == f"{shard}:1-1", "what was hydrated says so itself"


async def test_a_change_that_was_set_aside_as_a_conflict_is_called_so_while_redis_still_holds_it(
    cli: CommandLine, agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    agents.commit("runs/1")
    await flush(worker)
    redis_raw.unlink(keys.state("runs/1"))
    agents.commit("runs/1")  # its writer vouches that the key is new
    before_the_acknowledgement = redis_raw.dump(keys.state("runs/1"))
    await flush(worker)
    redis_raw.restore(keys.state("runs/1"), 0, before_the_acknowledgement)
    found = (await cli.beside("get", "runs/1", "--json")).json
    assert (found["durable"], found["quarantined_as"], found["conflict"]) == (False, "", True)
    assert "durable           no: set aside as a conflict\n" in (await cli.beside("get", "runs/1", "--meta")).err


def test_nothing_there_is_status_1_and_one_line(cli: CommandLine) -> None:
    assert cli("get", "runs/1") == (1, "", "statecache: runs/1: there is nothing\n")
    nothing = cli("get", "runs/1", "--json")
    assert (nothing.status, nothing.json["exists"]) == (1, False)
    assert cli("rm", "runs/1") == (1, "", "statecache: runs/1: there is nothing to delete\n")
    assert cli("rm", "runs/1", "--json").json == {"key": "runs/1", "deleted": False}
    cli("set", "runs/1", "1")
    assert cli("rm", "runs/1").status == 0
    assert cli("get", "runs/1").err == "statecache: runs/1: deleted at version 2\n"


def test_conditions_hold_or_end_with_status_1(cli: CommandLine) -> None:
    first = cli("set", "runs/1", "1", "--create", "--json")
    assert first.status == 0
    assert cli("set", "runs/1", "2", "--create").status == 1
    assert cli("set", "runs/1", "2", "--expected", first.json["change_id"]).status == 0
    again = cli("set", "runs/1", "3", "--expected", first.json["change_id"])
    assert (again.status, again.err.count("\n")) == (1, 1)
    assert cli("get", "runs/1").out == "2\n"
    told = cli("set", "runs/1", "2", "--create", "--json")
    assert (told.status, told.json["error"], told.json["key"]) == (1, "AlreadyExists", "runs/1")
    told = cli("set", "runs/1", "3", "--expected", first.json["change_id"], "--json")
    assert (told.json["error"], told.json["expected"]) == ("VersionConflict", first.json["change_id"])
    assert told.json["actual"] == cli("get", "runs/1", "--json").json["change_id"]


def test_a_value_that_is_too_large_is_wrong_use(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is named where it can be raised."""
    told = cli("set", "runs/1", "--text", "x" * VALUE_BYTES_MAX)
    assert told.status == 2
    assert told.err == (
        "statecache: the value is 8,388,610 bytes, more than the limit of 8,388,608 bytes (key 'runs/1'). "
        "Split the value over several keys of its group.\n"
    )
    monkeypatch.setenv("STATECACHE_VALUE_BYTES_MAX", "1000")
    told = cli("set", "runs/1", "--text", "x" * 1000)
    assert told.status == 2
    assert ", or raise STATECACHE_VALUE_BYTES_MAX (at most 8 MiB)." in told.err


async def test_a_write_whose_outcome_is_not_known_is_asked_again_with_its_change_id(
    cli: CommandLine, worker: Worker, monkeypatch: pytest.MonkeyPatch, psql: Psql
) -> None:
    monkeypatch.setenv("STATECACHE_TIMEOUT_S", "3")
    monkeypatch.setenv("STATECACHE_HYDRATE_TOKEN_S", "3")
    unknown = await cli.beside("set", "runs/1", "2", "--durability", "postgres", "--json")
    change_id = unknown.json["change_id"]
    assert unknown.status == 1
    assert unknown.err == (
        f"statecache: The outcome of change {change_id} of 'runs/1' is not known: it is applied in Redis, and not yet "
        "known to be in Postgres. Workers bring changes into Postgres: `statecache status` shows whether any lives. "
        f"The same command with --change-id {change_id} asks again: it is applied at most once.\n"
    )
    monkeypatch.delenv("STATECACHE_TIMEOUT_S")
    await flush(worker)
    again = ("--durability", "postgres", "--change-id", change_id, "--json")
    assert (await cli.beside("set", "runs/1", "2", *again)).json["version"] == 1
    assert rows(psql, "SELECT version, change_id FROM change") == [(1, change_id)]
    gone = (await cli.beside("rm", "runs/1", "--change-id", "a" * 24, "--json")).json
    repeated = await cli.beside("rm", "runs/1", "--change-id", "a" * 24, "--json")
    assert (gone["version"], gone["change_id"]) == (2, "a" * 24)
    assert repeated.json == gone


async def test_who_did_it_and_why_is_kept(cli: CommandLine, worker: Worker, psql: Psql) -> None:
    await cli.beside("set", "runs/1", "1", "--reason", "because")
    await cli.beside("rm", "runs/1", "--actor", "ann")
    await flush(worker)
    assert rows(psql, "SELECT actor, reason FROM change ORDER BY version") == [
        (getpass.getuser(), "because"),
        ("ann", ""),
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("set", "runs/1", "{"), 2, "the value is not JSON"),
        (("set", "runs/1", '{"a":1,"a":2}'), 2, "an object has the member 'a' twice"),
        (("set", "runs/1", "[1.10000000000000000000001]"), 2, "would become 1.1; give it as text"),
        (("set", "runs/1", "1e400"), 2, "the value is not JSON: Number out of range"),
        (("set", "runs", "1"), 2, "'runs'"),
        (("set", "runs/1", "1", "--durability", "forever"), 2, "'forever' is not one of"),
        (("set", "runs/1", "1", "--durability", "replica"), 3, "0 replicas are connected"),
        (("set", "runs/1", "1", "--create", "--expected", "abcdefgh"), 2, "exclude one another"),
        (("set", "runs/1", "1", "--expected", "?"), 2, "not a change_id"),
        (("set", "runs/1", "1", "--change-id", "?"), 2, "not a change_id"),
        (("get", "runs/1", "--redis-url", "redis://127.0.0.1:1/0"), 4, "127.0.0.1:1"),
        (("ls", "runs/\x00"), 2, "NUL"),
        (("ls", "\udc80"), 2, "The key '\\udc80' cannot be used"),
        (("ls", "runs/", "--limit", "-1"), 2, "--limit"),
    ],
)
def test_what_is_wrong_is_one_line(cli: CommandLine, arguments: tuple[str, ...], status: int, said: str) -> None:
    ended = cli(*arguments)
    assert (ended.status, ended.out, ended.err.count("\n")) == (status, "", 1)
    assert said in ended.err


async def test_a_listing_says_what_is_durable_and_where_it_was_cut(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker
) -> None:
    for i in range(4):
        await cache.set(f"runs/{i}", "x" * i)
    await flush(worker)
    await cache.set("runs/1", 1)
    await cache.set("runs/4", 1)
    await cache.delete("runs/2")
    await cache.set("other/1", 1)
    listed = (await cli.beside("ls", "runs/", "--json")).json
    assert [(one["key"], one["durable"], one["version"]) for one in listed["states"]] == [
        ("runs/0", True, 1),
        ("runs/1", False, 2),
        ("runs/3", True, 1),
        ("runs/4", False, 1),
    ]
    assert listed["more"] is False
    newest = (await cli.beside("ls", "runs", "--newest", "--limit", "2", "--json")).json
    assert ([one["key"] for one in newest["states"]], newest["more"]) == (["runs/4", "runs/1"], True)
    text = await cli.beside("ls", "runs/", "--limit", "1")
    header, line = (row.split("\t") for row in text.out.splitlines())
    assert header == ["key", "version", "age", "durable", "bytes", "writer"]
    assert line[0::3] == ["runs/0", "yes"]
    assert text.err == "statecache: there are more; --limit 1 was reached\n"
    assert len((await cli.beside("ls", "runs/", "--limit", "0")).out.splitlines()) == 5


async def test_a_listing_shows_what_is_in_quarantine(
    cli: CommandLine, agents: Agents, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    agents.commit("runs/1")
    agents.commit(("runs/2", '"refused"'), reason="a\0b")
    agents.commit("runs/3")
    await flush(worker)
    for _ in range(2):
        for order in ((), ("--newest",)):
            states = (await cli.beside("ls", "runs/", *order, "--json")).json["states"]
            (place,) = (one["id"] for one in (await cli.beside("quarantine", "list", "--json")).json["parked"])
            assert sorted((one["key"], one["durable"], one["quarantined_as"]) for one in states) == [
                ("runs/1", True, ""),
                ("runs/2", False, place),
                ("runs/3", True, ""),
            ]
        text = await cli.beside("ls", "runs/")
        assert [line.split("\t")[3] for line in text.out.splitlines()] == ["durable", "yes", "quarantined", "yes"]
        redis_raw.unlink(keys.state("runs/2"))


async def test_namespaces_are_found_wherever_their_states_are(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    """One name begins as another does, with what stands before and behind the slash."""
    nothing = await cli.beside("ls")
    assert nothing == (0, "", "statecache: there is nothing yet\n")
    for name in ("runs/1", "runs/2", "runs-x/1", "runs0/1", "x/1", "gone/1"):
        await cache.set(name, 1)
    await cache.delete("gone/1")
    await flush(worker)
    redis_raw.delete(*(keys.state(f"runs/{n}") for n in (1, 2)))
    await cache.set("fresh/1", 1)
    assert (await cli.beside("ls")).out.split() == ["fresh/", "runs/", "runs-x/", "runs0/", "x/"]
    assert (await cli.beside("ls", "--json")).json == {"namespaces": ["fresh", "runs", "runs-x", "runs0", "x"]}


def test_a_namespace_that_no_client_of_ours_wrote_steers_no_terminal(
    cli: CommandLine, redis_raw: Any, keys: KeySpace
) -> None:
    redis_raw.zadd(keys.unflushed(0), {"\x1b[31m/1": 1})
    assert cli("ls") == (0, "\\x1b[31m/\n", "")


def test_a_prefix_with_nothing_under_it_is_told(cli: CommandLine) -> None:
    told = "statecache: nothing under 'run/'; `statecache ls` names what there is\n"
    assert cli("ls", "run") == (0, "", told)
    assert cli("ls", "run", "--json") == (0, '{"states":[],"more":false}\n', "")


def test_piped_output_is_plain_and_keys_cannot_steer_the_terminal(cli: CommandLine, sync_cache: StateCache) -> None:
    sync_cache.set("runs/\x1b[31m\n\u202e", "\x1b[31m\x9b")
    for arguments in (("ls", "runs/"), ("get", "runs/\x1b[31m\n\u202e"), ("get", "runs/nothing\x1b"), ("status",)):
        ended = cli.apart(*arguments)
        assert "\x1b" not in ended.out + ended.err
    assert "runs/\\x1b[31m\\n\\u202e\t1\t" in cli.apart("ls", "runs/").out
    assert json.loads(cli.apart("ls", "runs/", "--json").out)["states"][0]["key"] == "runs/\x1b[31m\n\u202e"


def test_a_hand_edited_value_that_is_no_json_is_said(
    cli: CommandLine, sync_cache: StateCache, redis_raw: Any, keys: KeySpace
) -> None:
    sync_cache.set("runs/1", 1)
    redis_raw.hset(keys.state("runs/1"), "value", "{")
    ended = cli("get", "runs/1")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)


def test_setting_up_tells_programs_too(cli: CommandLine) -> None:
    assert cli("migrate", "--json").json["applied"] == []
    assert cli("epoch", "adopt", "all", "--from", "r", "--json").json == {"opened": []}
    assert cli("version", "--json").json["schema_code"] == 1


async def test_all_patience_is_kept_for_servers_that_answer(settings: Settings) -> None:
    assert await patient(settings) is settings
    for away in ({"postgres_url": "postgresql://127.0.0.1:1/x"}, {"redis_url": "redis://127.0.0.1:1/0"}):
        assert (await patient(settings.model_copy(update=away))).timeout_s < settings.timeout_s


@pytest.mark.own_servers("they ask for a password")
@pytest.mark.parametrize("tier", ["redis", "postgres"])
@pytest.mark.parametrize(
    "arguments",
    [("get", "runs/1"), ("set", "runs/1", "1"), ("ls", "runs"), ("status",), ("top", "--once"), ("migrate",),
     ("epoch", "adopt", "all", "--from", "r"), ("quarantine", "list"), ("quarantine", "retry", "all")],
    ids=" ".join,
)  # fmt: skip
def test_a_wrong_password_is_a_matter_of_configuration_in_every_command(
    cli: CommandLine, settings: Settings, tier: str, arguments: tuple[str, ...]
) -> None:
    if tier == "redis" and arguments[0] == "quarantine":
        arguments = ("set", "runs/2", "1", "--json")
    name = {"redis": "Redis", "postgres": "Postgres"}[tier]
    url = re.sub(r":[^:@/]*@", ":not-the-password@", getattr(settings, f"{tier}_url"))
    ended = cli(*arguments, f"--{tier}-url", url)
    assert ended.status == 3
    assert f"{name} refuses this user: " in ended.err
    assert f"Check user and password in STATECACHE_{tier.upper()}_URL." in ended.err
    assert "not-the-password" not in ended.err + ended.out


@pytest.mark.parametrize("command", ["get", "status", "doctor", "migrate", "quarantine"])
def test_a_database_that_is_not_there_is_a_matter_of_configuration(
    cli: CommandLine, settings: Settings, command: str
) -> None:
    arguments = {"get": ("get", "runs/1"), "quarantine": ("quarantine", "list")}.get(command, (command,))
    ended = cli(*arguments, "--postgres-url", f"{settings.postgres_url.rpartition('/')[0]}/nowhere")
    assert ended.status == 3
    assert 'FATAL: database "nowhere" does not exist' in ended.out + ended.err


@pytest.mark.own_servers("they ask for a password")
@pytest.mark.parametrize("tier", ["redis", "postgres"])
def test_the_doctor_counts_a_wrong_password_as_one_error(cli: CommandLine, settings: Settings, tier: str) -> None:
    url = re.sub(r":[^:@/]*@", ":not-the-password@", getattr(settings, f"{tier}_url"))
    told = cli("doctor", f"--{tier}-url", url, "--json")
    errors = [one for one in told.json["findings"] if one["where"] == tier and one["severity"] == "error"]
    assert (told.status, told.json["unreachable"], len(errors)) == (3, [], 1)
    assert errors[0]["what"].startswith("it refuses this user: ")
    assert not errors[0]["what"].endswith(".")
    assert errors[0]["remedy"] == f"check user and password in STATECACHE_{tier.upper()}_URL"
    assert "not-the-password" not in told.out
