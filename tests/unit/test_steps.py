"""What is decided about a step by its record alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest

from statecache import CodecError, InvalidKey, Retry, StepMismatch, StepUnknown, UsageError
from statecache.keys import checked_key
from statecache.rules.steps import (
    ERROR_CHARACTERS_MAX,
    NEVER,
    Status,
    StepRecord,
    Verdict,
    Watch,
    check_fingerprint,
    check_unknown,
    checked_retry,
    claim_of,
    ended,
    fingerprint_of,
    intent,
    kept_by_another,
    may_run,
    record_key,
    status_after,
    told,
    verdict_on,
    why_unknown,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)
INTENT = intent(None, "charge", "f" * 32, new_key="k" * 24, at=AT)


def _record(status: Status, **more: Any) -> StepRecord:
    return INTENT if status == "intent" else ended(INTENT, status, at=LATER, **more)


@pytest.mark.parametrize(
    ("status", "claimed", "applies", "verdict"),
    [
        (None, True, True, "run"),
        (None, False, True, "claim"),
        ("failed", True, True, "run"),
        ("failed", False, False, "claim"),
        ("done", True, True, "give"),
        ("done", False, False, "give"),
        ("ran", True, True, "apply"),
        ("ran", False, True, "apply"),
        ("ran", False, False, "give"),
        ("intent", False, True, "claim"),
        ("intent", True, True, "ask"),
        ("unknown", False, False, "claim"),
        ("unknown", True, False, "ask"),
    ],
)
def test_the_verdict_on_a_step(status: Status | None, claimed: bool, applies: bool, verdict: Verdict) -> None:
    record = None if status is None else _record(status)
    assert verdict_on(record, claimed=claimed, applies=applies) == verdict


@pytest.mark.parametrize(
    ("error", "idempotent", "retry", "status"),
    [
        (ValueError(), False, NEVER, "unknown"),
        (ValueError(), True, NEVER, "failed"),
        (ValueError(), False, Retry(times=1, on=(ValueError,)), "failed"),
        (KeyError(), False, Retry(times=1, on=(ValueError,)), "unknown"),
        (KeyboardInterrupt(), True, NEVER, "unknown"),
    ],
)
def test_a_step_whose_function_raised_may_run_again_only_where_that_is_safe(
    error: BaseException, idempotent: bool, retry: Retry, status: Status
) -> None:
    assert status_after(error, idempotent=idempotent, retry=retry) == status


def test_a_result_that_another_kept_counts_for_the_same_attempt_or_where_attempts_are_alike() -> None:
    second = intent(INTENT, "charge", "f" * 32, new_key="x", at=LATER)
    for status in ("done", "ran"):
        assert kept_by_another(_record(status), INTENT, idempotent=False)
        assert not kept_by_another(_record(status), second, idempotent=False)
        assert kept_by_another(_record(status), second, idempotent=True)
    for found in (None, _record("intent"), _record("failed"), _record("unknown")):
        assert not kept_by_another(found, INTENT, idempotent=True)


def test_a_claim_is_called_as_no_key_is() -> None:
    with pytest.raises(InvalidKey):
        checked_key(claim_of("runs/42/steps/charge"))


def test_a_watch_is_over_when_the_claim_was_free_for_long_enough() -> None:
    watch = Watch(4.0)
    assert not watch.goes_on("a", 1.0)
    watch.begin("a", 1.0)
    assert [watch.goes_on("a", at) and watch.is_over for at in (2.0, 3.0, 4.0, 5.0)] == [False, False, False, True]
    watch.end()
    assert not watch.goes_on("a", 6.0)


def test_a_watch_counts_what_was_not_seen_in_part_only() -> None:
    watch = Watch(4.0)
    watch.begin("a", 0.0)
    assert [watch.goes_on("a", at) and watch.is_over for at in (60.0, 120.0, 180.0, 240.0)] == [
        False,
        False,
        False,
        True,
    ]
    assert [watch.saw(1.0), watch.saw(1.1)] == [True, False]


def test_a_watch_is_of_one_intent() -> None:
    watch = Watch(4.0)
    watch.begin("a", 0.0)
    assert not watch.goes_on("b", 1.0)
    watch.begin("b", 1.0)
    assert not watch.goes_on("a", 2.0)
    assert watch.goes_on("b", 2.0)


def test_an_intent_keeps_the_idempotency_key_and_counts_attempts() -> None:
    again = intent(_record("failed", error="TimeoutError"), "charge", "f" * 32, new_key="other", at=LATER)
    assert (again.idempotency_key, again.attempts, again.status) == (INTENT.idempotency_key, 2, "intent")
    assert (again.error, again.ended_at, again.started_at) == ("", None, LATER)


@pytest.mark.parametrize("name", ["", "a/b", "/", 3, None, b"charge"])
def test_a_name_that_is_not_one_segment_is_refused(name: object) -> None:
    with pytest.raises(InvalidKey):
        record_key("runs/42", name)


def test_the_record_stands_below_its_key() -> None:
    assert record_key("runs/42", "charge") == "runs/42/steps/charge"


class Order(msgspec.Struct):
    number: int
    total: float


@dataclass
class Plain:
    number: int
    total: float


class Model(pydantic.BaseModel):
    number: int
    total: float


def _print(*args: Any) -> str:
    return fingerprint_of(args, key="runs/42/steps/charge")


@pytest.mark.parametrize(
    "value", [Order(1, 2.5), Plain(1, 2.5), Model(number=1, total=2.5), {"total": 2.5, "number": 1}]
)
def test_what_is_stored_as_the_same_json_has_the_same_fingerprint(value: Any) -> None:
    assert _print(value) == _print({"number": 1, "total": 2.5})


def test_arguments_that_differ_have_other_fingerprints() -> None:
    given = [(), (None,), (1,), ("1",), (1, 2), ((1, 2),), (2, 1), ({"1": 2},), (AT,), (LATER,), (True,)]
    assert len({_print(*args) for args in given}) == len(given)


def test_sets_and_dicts_count_in_any_order() -> None:
    words = [str(number) for number in range(20)]
    shuffled = random.Random(3).sample(words, 20)
    assert _print(set(words)) == _print(set(shuffled))
    assert _print(dict.fromkeys(words)) == _print(dict.fromkeys(shuffled))
    assert _print({1: "a", 2: "b"}) == _print({2: "b", 1: "a"})


@pytest.mark.parametrize("argument", [object(), lambda: 1, {(1, 2): object()}, "\ud800"])
def test_arguments_that_cannot_be_stored_are_refused(argument: Any) -> None:
    with pytest.raises(CodecError, match="with functools") as caught:
        _print(argument)
    assert caught.value.key == "runs/42/steps/charge"


def test_other_arguments_are_a_mismatch() -> None:
    check_fingerprint(INTENT, "f" * 32, key="runs/42")
    with pytest.raises(StepMismatch, match="'charge' of 'runs/42' was begun with other arguments") as caught:
        check_fingerprint(INTENT, "e" * 32, key="runs/42")
    assert (caught.value.name, caught.value.expected, caught.value.actual) == ("charge", "f" * 32, "e" * 32)


@pytest.mark.parametrize("status", ["done", "failed", "ran"])
def test_what_is_known_is_not_resolved_again(status: Status) -> None:
    with pytest.raises(UsageError, match="nothing about it is unknown"):
        check_unknown(_record(status), key="runs/42")


def test_what_is_unknown_or_may_be_is_resolved() -> None:
    check_unknown(INTENT, key="runs/42")
    check_unknown(_record("unknown"), key="runs/42")
    assert "may still run" in str(may_run(INTENT, key="runs/42"))


def test_why_a_step_is_unknown_is_said() -> None:
    assert why_unknown(INTENT) == "attempt 1 was begun at 2026-01-01 00:00:00 UTC and never ended"
    assert why_unknown(_record("unknown", error="it was cut off")) == "it was cut off"


def test_an_error_is_kept_as_text_that_can_be_stored() -> None:
    kept = ended(INTENT, "failed", at=AT, error=told(ValueError("\ud800\0" + "x" * 5000)))
    assert len(kept.error) == ERROR_CHARACTERS_MAX
    assert kept.error.startswith("ValueError: ?x")
    assert msgspec.json.decode(msgspec.json.encode(kept), type=StepRecord) == kept


def test_a_record_reads_as_json_and_comes_back() -> None:
    done = ended(INTENT, "done", at=LATER, result=b'{"receipt":7}')
    data = msgspec.json.encode(done)
    assert msgspec.json.decode(data)["result"] == {"receipt": 7}
    assert msgspec.json.decode(data, type=StepRecord) == done
    assert "result" not in msgspec.json.decode(msgspec.json.encode(INTENT))


RETRIES = [(0, 0, ()), (2, 2, (Exception,)), (Retry(times=1, on=(OSError,)), 1, (OSError,))]


@pytest.mark.parametrize(("retry", "times", "on"), RETRIES)
def test_retry_is_a_number_or_more(retry: int | Retry, times: int, on: tuple[type, ...]) -> None:
    assert (checked_retry(retry).times, checked_retry(retry).on) == (times, on)
    assert checked_retry(0) is NEVER


@pytest.mark.parametrize("retry", [-1, 1001, True, "3", None, 1.5])
def test_other_retries_are_refused(retry: Any) -> None:
    with pytest.raises(UsageError, match="retry"):
        checked_retry(retry)


@pytest.mark.parametrize("more", [{"pause_s": -1}, {"pause_s": 31}, {"on": (BaseException,)}, {"on": ("OSError",)}])
def test_a_retry_that_makes_no_sense_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="retry"):
        Retry(**more)


def test_the_error_names_the_key_and_what_to_do() -> None:
    error = StepUnknown("runs/42", "charge", idempotency_key="k1", reason="it was cut off.")
    assert str(error).startswith(
        "Whether the step 'charge' of 'runs/42' took effect is not known: it was cut off. Look"
    )
    assert "k1" in error.remedy
    assert "resolve_step('runs/42', 'charge', result=…)" in error.remedy
