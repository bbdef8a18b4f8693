"""What comes next for a commit, for every answer of the script and whatever is known of earlier attempts."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from redis._parsers.base import BaseParser

from statecache.commit_protocol.answers import Absent, Committed, Found
from statecache.commit_protocol.commit import Commit
from statecache.commit_protocol.decision import (
    Again,
    Applied,
    Fail,
    HeedPolicy,
    Load,
    LookUp,
    OpenShard,
    Pause,
    Refuse,
    Wait,
    after_lookup,
    hindered,
    next_step,
)
from statecache.errors import (
    Backpressure,
    ChangeIdReused,
    ConfigurationError,
    DurabilityRefused,
    ForeignData,
    LimitExceeded,
    LockHeld,
    Lost,
    OutcomeUnknown,
    PostgresUnavailable,
    RedisUnavailable,
    StaleToken,
    StateCacheError,
    Unavailable,
    VersionConflict,
)
from statecache.lua import script
from statecache.model import ABSENT, BLIND, PRESENT, Position, Write
from statecache.rules.outcomes import content_of

NOW = 100.0
LOST = RedisUnavailable("connection", detail="the reply was lost")


def _error(text: str) -> Exception:
    """Return what redis-py makes of an error reply."""
    parse: Any = BaseParser.parse_error
    error: Exception = parse(text)
    return error


def _commit(*expected: str, **more: Any) -> Commit:
    writes = [Write(key=f"runs/{at}", op="set", expected=one, value=b"1") for at, one in enumerate(expected or ("p",))]
    given: dict[str, Any] = {
        "change_id": "c", "shard": 3, "writes": writes, "durability": "memory", "actor": "", "reason": "",
        "end": NOW + 5, "redis_keys": [f"state:{write.key}" for write in writes],
    }  # fmt: skip
    return Commit(**given | more)


def _reply(verdict: str, *rest: Any) -> list[Any]:
    return [b"n", verdict.encode(), *rest]


OK = [b"7-9", b"2026-01-01T00:00:00.000000Z", b"4", b"p"]
REFUSALS: dict[str, tuple[Any, type[Exception]]] = {
    "conflict": (_reply("CONFLICT", 1, b"other", b"set"), VersionConflict),
    "stale": (_reply("STALE", b"runs/0", b"1-1", b"somebody"), StaleToken),
    "held": (_reply("HELD", b"runs/0", b"somebody"), LockHeld),
    "backlog": (_reply("BACKLOG", b"10", b"20"), Backpressure),
    "replicas": (_reply("REPLICAS", b"0", b"1"), DurabilityRefused),
    "limit of the commit": (_reply("LIMIT", 0, 11, b"10"), LimitExceeded),
    "limit of a value": (_reply("LIMIT", 1, 11, b"10"), LimitExceeded),
    "reused": (_reply("REUSED", 1, b"4"), ChangeIdReused),
    "memory": (_error("OOM command not allowed when used memory > 'maxmemory'."), Backpressure),
}
LASTING = {"conflict", "limit of the commit", "limit of a value", "reused"}


@pytest.mark.parametrize("verdict", ["OK", "DUP", "MUTE"])
def test_an_applied_commit_is_read(verdict: str) -> None:
    step = next_step(_commit(last_error=LOST), _reply(verdict, *OK), now=NOW)
    committed = Committed("c", Position(7, 9), "2026-01-01T00:00:00.000000Z", (4,), ("p",), repeated=verdict != "OK")
    assert step == Applied(committed)


@pytest.mark.parametrize(
    ("reply", "step"),
    [
        (_reply("FENCED", b"", b"a", b"7"), OpenShard()),
        (_reply("MISSING", 2), Load(["runs/1"])),
        (_reply("MISSING", 1, 2), Load(["runs/0", "runs/1"])),
        (_reply("POLICY", b"enforced"), HeedPolicy(b"enforced")),
        (_reply("UNSURE"), LookUp(applied=False)),
        (_reply("UNSURE", b"7-9"), LookUp(applied=True, position=Position(7, 9))),
        (_error("NOSCRIPT No matching script."), Again(counted=False)),
    ],
    ids=lambda one: "" if isinstance(one, list) else type(one).__name__,
)
def test_an_answer_that_asks_for_something_first(reply: Any, step: Any) -> None:
    assert next_step(_commit("p", "q"), reply, now=NOW) == step


@pytest.mark.parametrize(
    ("name", "repeat", "lingers"), [*product(REFUSALS, (False, True), (0.0, NOW - 1, NOW, NOW + 2))], ids=str
)
def test_a_refusal_is_raised_once_no_earlier_attempt_can_meet_another_answer(
    name: str, repeat: bool, lingers: float
) -> None:
    reply, kind = REFUSALS[name]
    step = next_step(_commit(repeat=repeat, lingers=lingers), reply, now=NOW)
    if lingers > NOW and name not in LASTING:
        assert isinstance(step, Wait)
        assert step.seconds == lingers - NOW
    else:
        assert isinstance(step, Refuse)
    assert type(step.error) is kind


@pytest.mark.parametrize(
    ("expected", "kind", "lasting"),
    [(ABSENT, VersionConflict, False), (PRESENT, Absent, False),
     ("p", VersionConflict, True), ("", VersionConflict, True)],
)  # fmt: skip
def test_a_conflict_lasts_where_a_change_was_expected_that_will_never_be_the_newest_again(
    expected: str, kind: type[Exception], lasting: bool
) -> None:
    step = next_step(_commit(expected, lingers=NOW + 2), _reply("CONFLICT", 1, b"other", b"set"), now=NOW)
    assert isinstance(step, Refuse if lasting else Wait)
    step = next_step(_commit(expected), _reply("CONFLICT", 1, b"other", b"set"), now=NOW)
    assert isinstance(step, Refuse)
    assert type(step.error) is kind


def test_a_conflict_that_may_pass_is_refused_at_once_where_the_server_made_it_final() -> None:
    commit, conflict = _commit(ABSENT, lingers=NOW + 2), _reply("CONFLICT", 1, b"other", b"set")
    assert isinstance(next_step(commit, conflict, now=NOW), Wait)
    step = next_step(commit, [*conflict, b"FINAL"], now=NOW)
    assert isinstance(step, Refuse)
    assert type(step.error) is VersionConflict


def test_a_conflict_with_what_a_repeat_was_pinned_to_unpins_it() -> None:
    commit = _commit(BLIND, "q")
    assert after_lookup(commit, None, [(b"there", b"set"), (b"q", b"set")], applied=False) == Again()
    assert [write.expected for write in commit.writes] == ["there~", "q"]
    assert not commit.repeat
    assert next_step(commit, _reply("CONFLICT", 1, b"other", b"set"), now=NOW) == Again()
    assert [write.expected for write in commit.writes] == [BLIND, "q"]
    assert commit.repeat
    assert isinstance(next_step(commit, _reply("CONFLICT", 2, b"other", b"set"), now=NOW), Refuse)


@pytest.mark.parametrize("hindered_by", [None, LOST], ids=["nothing", "a lost reply"])
def test_being_late_says_nothing_of_what_hindered_it_before(hindered_by: RedisUnavailable | None) -> None:
    commit = _commit(last_error=hindered_by)
    step = next_step(commit, _reply("LATE"), now=NOW)
    assert isinstance(step, Pause)
    assert isinstance(step.error, RedisUnavailable)
    assert step.error.reason == ("late" if hindered_by is None else "connection")
    assert commit.repeat


def test_an_attempt_that_the_end_cut_off_says_nothing_of_what_hindered_it_before() -> None:
    commit, role, cut = _commit(), RedisUnavailable("role"), RedisUnavailable("connect")
    assert commit.hindered(LOST, now=NOW) is LOST
    assert commit.hindered(role, now=NOW + 1) is role
    assert commit.hindered(cut, now=commit.end) is role
    assert _commit().hindered(cut, now=commit.end) is cut


@pytest.mark.parametrize(
    "reply", [*(reply for reply, _ in REFUSALS.values() if isinstance(reply, list)), _reply("OK", *OK)], ids=str
)
def test_any_other_answer_ends_what_hindered_it(reply: list[Any]) -> None:
    commit = _commit(last_error=LOST)
    next_step(commit, reply, now=NOW)
    assert commit.last_error is None


@pytest.mark.parametrize(
    ("reply", "kind", "error"),
    [
        (_reply("FOREIGN", b"sc:changes", b"XADD equal or smaller"), Pause, ForeignData),
        (_reply("FOREIGN", b"sc:state", b"fields are missing"), Fail, ForeignData),
        (_reply("FOREIGN", b"sc:meta", b"NOPERM HSET is no longer allowed"), Fail, ConfigurationError),
        (_reply("SOMETHING"), Fail, ForeignData),
        (_error("READONLY You can't write against a read only replica."), Pause, RedisUnavailable),
        (_error("LOADING Redis is loading the dataset in memory"), Pause, RedisUnavailable),
        (_error("MISCONF Redis is configured to save RDB snapshots"), Pause, RedisUnavailable),
        (_error("NOPERM this user has no permissions to run the 'evalsha' command"), Fail, ConfigurationError),
        (_error("WRONGTYPE Operation against a key"), Fail, ForeignData),
        (_error("unknown command 'EVALSHA', with args beginning with: "), Fail, ConfigurationError),
        (_error("ERR something else"), Fail, RedisUnavailable),
    ],
    ids=str,
)
@pytest.mark.parametrize("lingers", [0.0, NOW + 2])
def test_what_is_no_answer_of_the_script(reply: Any, kind: type[Pause | Fail], error: type, lingers: float) -> None:
    step = next_step(_commit(lingers=lingers), reply, now=NOW)
    assert type(step) is kind
    assert type(step.error) is error


@pytest.mark.parametrize("reason", ["authentication", "tls", "connection", "timeout", "role", "loading", "pool"])
def test_what_no_repetition_changes_is_given_up(reason: str) -> None:
    step = hindered(_commit(), RedisUnavailable(reason, detail="x"))
    assert type(step) is (Fail if reason in ("authentication", "tls") else Pause)


@pytest.mark.parametrize(
    "error",
    [
        RedisUnavailable("authentication", detail="x"), PostgresUnavailable("connect", detail="x"),
        Unavailable("epoch", detail="x"), ConfigurationError("this is a Redis Sentinel"),
    ],
    ids=str,
)  # fmt: skip
def test_whose_answer_is_lost_asks_on_whatever_server_it_is_led_to(error: StateCacheError) -> None:
    assert type(hindered(_commit(), error)) is Fail
    commit = _commit()
    commit.unanswered(LOST)
    assert hindered(commit, error) == Pause(error)
    assert type(next_step(commit, _error("NOPERM this user has no permissions"), now=NOW)) is Pause
    assert type(hindered(commit, Lost("p", "c", position=Position(1, 1), epoch=1))) is Fail
    assert type(next_step(commit, _error("WRONGTYPE Operation against a key"), now=NOW)) is Fail


def _found(*values: bytes) -> Found:
    contents = tuple(content_of("set", value, "json") for value in values)
    versions, parents = tuple(range(5, 5 + len(values))), ("p",) * len(values)
    return Found(Position(7, 2), "2026-11-27T08:00:00.000000Z", versions, parents, contents, in_stream=True)


@pytest.mark.parametrize("applied", [False, True])
def test_a_change_that_is_found_is_the_commit_unless_it_wrote_something_else(applied: bool) -> None:
    found = _found(b"1", b"1")
    assert after_lookup(_commit("p", "q"), found, [], applied=applied) == found
    step = after_lookup(_commit("p", "q"), _found(b"1", b"2"), [], applied=applied)
    assert isinstance(step, Refuse)
    assert isinstance(step.error, ChangeIdReused)
    assert step.error.key == "runs/1"


def test_a_change_that_was_applied_and_is_nowhere_is_unknown() -> None:
    step = after_lookup(_commit(), None, [(b"p", b"set")], applied=True)
    assert isinstance(step, Refuse)
    assert isinstance(step.error, OutcomeUnknown)


@pytest.mark.parametrize(
    ("expected", "op", "pinned"),
    [(BLIND, b"set", True), (BLIND, b"delete", True), (ABSENT, b"delete", True), (ABSENT, b"set", False),
     (PRESENT, b"set", True), (PRESENT, b"delete", False), ("p", b"set", False), (BLIND, b"expired", True),
     (ABSENT, b"expired", True), (PRESENT, b"expired", False)],
)  # fmt: skip
def test_a_repeat_that_was_not_applied_expects_what_was_there_before_it_was_looked_for(
    expected: str, op: bytes, pinned: bool
) -> None:
    commit = _commit(expected, repeat=True)
    assert after_lookup(commit, None, [(b"there", op)], applied=False) == Again()
    assert commit.writes[0].expected == ({"?": "there"}.get(expected, "there~") if pinned else expected)
    assert not commit.repeat


def test_a_repeat_whose_state_was_evicted_meanwhile_stays_one() -> None:
    commit = _commit(BLIND, repeat=True)
    assert after_lookup(commit, None, [(None, None)], applied=False) == Again()
    assert commit.repeat
    assert commit.writes[0].expected == BLIND


@pytest.mark.parametrize("expected", [ABSENT, "p"])
@pytest.mark.parametrize("op", ["set", "check"])
def test_a_conflict_that_was_met_at_the_lookup_counts_as_long_as_that_change_stands(expected: str, op: str) -> None:
    """In its place an earlier attempt may have been executed since, and been forgotten."""
    commit = _commit(expected, repeat=True)
    commit.writes[0] = msgspec.structs.replace(commit.writes[0], op=op)
    commit.pin([(b"other", b"set")])
    assert commit.repeat is False
    assert isinstance(next_step(commit, _reply("CONFLICT", 1, b"other", b"set"), now=NOW), Refuse)
    assert isinstance(next_step(commit, _reply("CONFLICT", 1, b"later", b"set"), now=NOW), Again)
    assert commit.repeat is True
    assert isinstance(next_step(commit, _reply("CONFLICT", 1, b"later", b"set"), now=NOW), Refuse)


def test_a_right_that_a_script_lacks_is_named_by_the_line_that_the_server_tells() -> None:
    known = script("commit")
    at = next(n for n, line in enumerate(known.text.splitlines(), 1) if "call('EXISTS', KEYS[4 + i])" in line)
    where = f"script: {known.sha}, on @user_script:{at}."
    reply = _error(f"ERR The user executing the script can't run this command or subcommand {where}")
    step = next_step(_commit(), reply, now=NOW)
    assert isinstance(step, Fail)
    assert ": EXISTS, at " in str(step.error)
