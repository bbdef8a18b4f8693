"""Journals survive kills, and the ledger makes of them what became of every change."""

from __future__ import annotations

from pathlib import Path

import pytest

from statecache.replay.journal import Fail, Invoke, Journal, JournalBroken, Line, Ok, Resumed, Tail, Unknown
from statecache.replay.ledger import Flights, Ledger, flush_lags, percentile


def invoke(change_id: str, *, at: float = 1.0, index: int = 0, expected: str = "") -> Invoke:
    return Invoke(at=at, run="a", index=index, change_id=change_id, expected=expected)


def ok(change_id: str, *, at: float = 2.0, found: bool = False) -> Ok:
    return Ok(at=at, change_id=change_id, version=1, epoch=1, position="1-1", found=found)


def unknown(change_id: str, *, at: float = 2.0) -> Unknown:
    return Unknown(at=at, change_id=change_id, error="OutcomeUnknown")


def fail(change_id: str, *, at: float = 2.0, error: str = "Backpressure") -> Fail:
    return Fail(at=at, change_id=change_id, error=error)


def folded(*lines: Line) -> Ledger:
    ledger = Ledger()
    ledger.take(lines)
    return ledger


def flown(*lines: Line) -> Flights:
    flights = Flights()
    flights.take(lines)
    return flights


def test_a_journal_gives_back_what_was_written_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "j"
    tail = Tail(path)
    assert list(tail.read()) == []
    with Journal(path) as journal:
        journal.write(invoke("a1"))
        assert list(tail.read()) == [invoke("a1")]
        journal.write(unknown("a1"))
        journal.write(ok("a1", found=True))
        assert list(tail.read()) == [unknown("a1"), ok("a1", found=True)]
    assert list(tail.read()) == []


def test_a_journal_belongs_to_one_life(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"), pytest.raises(FileExistsError):
        Journal(tmp_path / "j")


def test_a_torn_last_line_was_never_written(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.write(invoke("a1"))
    path.write_bytes(path.read_bytes() + b'{"event":"ok","at":1.')
    assert list(Tail(path).read()) == [invoke("a1")]


@pytest.mark.parametrize("damage", [b"\n", b"{}\n", b'{"event":"ok","at":1}\n', b"\xff\n"])
def test_any_other_damage_is_an_error_that_names_the_line(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.write(invoke("a1"))
    path.write_bytes(path.read_bytes() + damage)
    with pytest.raises(JournalBroken, match="line 2"):
        list(Tail(path).read())


def test_an_acknowledged_change_counts_once() -> None:
    ledger = folded(invoke("a1"), unknown("a1"), invoke("a1"), ok("a1"), invoke("a1"), ok("a1"))
    assert ledger.acknowledged == 1
    assert ledger.sent["a1"].sendings == 3
    assert ledger.contradictions == []


def test_steps_are_acknowledged_up_to_the_last_answer() -> None:
    ledger = folded(invoke("a1"), ok("a1"), invoke("a2", index=1, expected="a1"))
    assert ledger.acknowledged_steps("a") == 1
    assert ledger.last["a"].change_id == "a2"
    ledger.take([ok("a2")])
    assert ledger.acknowledged_steps("a") == 2
    assert ledger.acknowledged_steps("b") == 0


def test_a_refusal_stands_until_the_change_is_sent_again() -> None:
    ledger = folded(invoke("a1"), fail("a1"))
    assert ledger.sent["a1"].refused == "Backpressure"
    ledger.take([invoke("a1"), ok("a1")])
    assert (ledger.sent["a1"].refused, ledger.sent["a1"].denied) == ("", "")


def test_a_change_that_was_found_after_its_refusal_was_denied() -> None:
    ledger = folded(
        invoke("a1"), unknown("a1"), invoke("a1"), fail("a1", error="VersionConflict"), ok("a1", found=True)
    )
    assert ledger.sent["a1"].denied == "VersionConflict"


def test_answers_without_a_sending_and_changed_sendings_are_contradictions() -> None:
    ledger = folded(ok("a1"), invoke("a2"), invoke("a2", index=1))
    assert ledger.contradictions == [
        "a1 was answered and never sent",
        "a2 was sent for different messages or parents",
    ]


def test_resumptions_are_kept() -> None:
    line = Resumed(at=1.0, run="a", step=3)
    assert folded(line).resumed == [line]


def test_what_is_in_flight_when() -> None:
    flights = flown(invoke("a1", at=1.0), ok("a1", at=2.0), invoke("a2", at=3.0))
    assert [flights.in_flight_at(at) for at in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 9.0)] == [0, 1, 1, 0, 0, 1, 1]
    assert flights.any_open
    flights.over_at = 4.0
    assert [flights.in_flight_at(at) for at in (3.5, 4.0, 4.5)] == [1, 1, 0]
    assert not flights.any_open


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([], 0.5) == 0.0
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([float(n) for n in range(100, 0, -1)], 0.99) == 99.0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0


def test_the_flush_lag_ends_with_the_first_look_that_saw_the_watermark_there() -> None:
    seen = {7: [(0, 0.0), (5, 10.0), (9, 11.0)]}
    acknowledged = [(7, 1, 9.0), (7, 5, 9.5), (7, 6, 9.5), (7, 9, 12.0), (7, 10, 9.0), (8, 1, 9.0)]
    assert flush_lags(acknowledged, seen) == [1.0, 0.5, 1.5, 0.0]
