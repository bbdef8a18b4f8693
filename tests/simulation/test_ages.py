"""Journals made by hand: what keeps to its mode is let through to the last microsecond, every broken rule is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.simulation.ages import Bounds, judge_ages
from tests.simulation.checker import check
from tests.simulation.evidence import Evidence, Row
from tests.simulation.history import Invoke, Recorder, Seen, digest_of, read_journals

KEY, OTHER = "notes/1", "notes/2"
BOUNDS = Bounds(window_s=1.0, command_s=2.0)
CHAIN = [
    Row(key=KEY, change_id=f"c{n}", parent=f"c{n - 1}" if n > 1 else "", epoch=1, version=n, n=n, op=op, digest=digest)
    for n, (op, digest) in enumerate([("set", "d1"), ("set", "d2"), ("delete", ""), ("set", "d4")], 1)
]


class Journals:
    """The journals of processes whose clock is set by hand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recorders: dict[str, Recorder] = {}
        self._now = 0.0

    def kinds(self) -> set[str]:
        """Return the kinds of everything that is found in the journals."""
        operations = read_journals(sorted(self._folder.glob("*.jsonl")))
        evidence = Evidence(chains={KEY: CHAIN})
        found = [*judge_ages(operations, evidence.chains, BOUNDS), *check(operations, evidence).violations]
        return {violation.kind for violation in found}

    def write(self, who: str, place: int, begun: float, ended: float) -> None:
        """Note a write that was acknowledged."""
        verb = CHAIN[place - 1].op
        self._noted(who, verb, begun, ended, lambda recorder, sent: recorder.ok(sent, written=[seen(place)]))

    def read(
        self,
        who: str,
        what: Seen,
        begun: float,
        ended: float,
        *,
        mode: str = "local",
        at_once: bool = True,
        **more: Any,
    ) -> None:
        """Note a read that was answered."""

        def answered(recorder: Recorder, sent: Invoke) -> None:
            recorder.ok(sent, read=[what], at_once=at_once)

        self._noted(who, "get", begun, ended, answered, mode=mode, **more)

    def _noted(
        self, who: str, verb: str, begun: float, ended: float, end: Callable[[Recorder, Invoke], None], **more: Any
    ) -> None:
        process, session = who.split(".")
        if process not in self._recorders:
            path = self._folder / f"{process}.jsonl"
            self._recorders[process] = Recorder(path, process, clock=lambda: self._now)
        recorder = self._recorders[process]
        self._now = begun
        sent = recorder.invoke(session, verb, [KEY], kind="read" if verb == "get" else "write", **more)
        self._now = ended
        end(recorder, sent)


def seen(place: int, **changed: Any) -> Seen:
    """Return what an operation sees of the change at that place."""
    row = CHAIN[place - 1]
    told: dict[str, Any] = {"op": row.op, "digest": row.digest, "epoch": row.epoch, "version": row.version}
    return Seen(key=KEY, change_id=row.change_id, **(told | changed))


ABSENT = Seen(key=KEY, op="absent")


@pytest.fixture
def journals(tmp_path: Path) -> Journals:
    """Journals in which the four changes were written, one every ten seconds, by a process of their own."""
    made = Journals(tmp_path)
    for place in range(1, len(CHAIN) + 1):
        made.write("w.s0", place, place * 10.0, place * 10.0 + 0.1)
    return made


def test_a_history_that_keeps_every_promise_is_let_through(journals: Journals) -> None:
    journals.read("r.s0", ABSENT, 11.0, 11.1)
    journals.read("r.s0", seen(1), 11.2, 11.2)
    journals.read("r.s1", seen(1), 20.2, 20.2, version_min=1)
    journals.read("r.s1", seen(2), 20.3, 20.4, mode="primary")
    journals.read("r.s1", ABSENT, 30.2, 30.3, at_once=False)
    journals.read("r.s0", seen(4), 40.0, 40.2, mode="primary")
    assert journals.kinds() == set()


@pytest.mark.parametrize(
    ("at_once", "stale_s", "bound"),
    [(True, None, 1.0), (False, None, 3.0), (True, 0.5, 0.5), (True, 5.0, 1.0), (False, 0.0, 2.0)],
)
def test_a_local_read_is_as_old_as_its_bound_at_the_most(
    journals: Journals, at_once: bool, stale_s: float | None, bound: float
) -> None:
    more: Any = {"at_once": at_once, "stale_s": stale_s}
    journals.read("r.s0", seen(1), 20.1 + bound - 0.001, 25.0, **more)  # that it ended late says nothing
    assert journals.kinds() == set()
    journals.read("q.s0", seen(1), 20.1 + bound + 0.001, 25.0, **more)
    assert journals.kinds() == {"old"}


def test_a_local_read_that_misses_several_changes_is_as_old_as_the_first_of_them(journals: Journals) -> None:
    journals.read("r.s0", seen(1), 30.2, 30.2)
    assert journals.kinds() == {"old"}


def test_an_absence_is_as_old_as_the_change_that_ended_it(journals: Journals) -> None:
    journals.read("r.s0", ABSENT, 41.0, 41.0)
    assert journals.kinds() == set()
    journals.read("q.s0", ABSENT, 41.2, 41.2)
    assert journals.kinds() == {"old"}


def test_what_another_read_has_shown_is_there_for_all(journals: Journals) -> None:
    """The write of the fourth change ends at 40.1; a read that has seen it ends before."""
    journals.read("q.s0", seen(4), 40.01, 40.02, mode="primary")
    journals.read("r.s0", ABSENT, 41.05, 41.05)
    assert journals.kinds() == {"old"}


def test_a_change_whose_write_is_in_doubt_ages_nothing_before_it_is_seen(tmp_path: Path) -> None:
    made = Journals(tmp_path)
    made.write("w.s0", 1, 10.0, 10.1)
    made._noted("w.s0", "set", 20.0, 24.0, lambda recorder, sent: recorder.unknown(sent, OSError(), change_id="c2"))
    for place in (3, 4):
        made.write("w.s0", place, place * 10.0, place * 10.0 + 0.1)
    made.read("r.s0", seen(1), 29.0, 29.0)
    assert made.kinds() == set()


@pytest.mark.parametrize("mode", ["local", "primary"])
def test_a_read_below_the_version_that_it_asked_for_is_found(journals: Journals, mode: str) -> None:
    journals.read("r.s0", seen(1), 20.05, 20.05, mode=mode, version_min=2)
    assert journals.kinds() == {"below"}


def test_a_primary_read_is_of_no_age_at_all(journals: Journals) -> None:
    journals.read("r.s0", seen(1), 20.05, 20.15, mode="primary")
    assert journals.kinds() == set()
    journals.read("q.s0", seen(1), 20.11, 20.15, mode="primary")
    assert "stale" in journals.kinds()


def test_what_a_process_wrote_its_other_sessions_see_at_once(journals: Journals) -> None:
    journals.read("w.s1", seen(1), 20.05, 20.15)
    assert journals.kinds() == set()
    journals.read("w.s2", seen(1), 20.11, 20.15)
    assert journals.kinds() == {"own write"}


def test_what_a_process_deleted_is_not_there_for_it_at_once(journals: Journals) -> None:
    journals.read("w.s1", seen(2), 30.2, 30.2)
    assert journals.kinds() == {"own write"}


@pytest.mark.parametrize("session", ["r.s0", "r.s1"])
@pytest.mark.parametrize("mode", ["local", "primary"])
def test_no_read_of_a_process_goes_back_behind_another(journals: Journals, session: str, mode: str) -> None:
    journals.read("r.s0", seen(2), 20.05, 20.06, mode=mode)
    journals.read(session, seen(1), 20.07, 20.08)
    assert journals.kinds() == {"backwards"}


def test_reads_that_overlap_may_end_in_any_order(journals: Journals) -> None:
    journals.read("r.s0", seen(2), 20.02, 20.04)
    journals.read("r.s1", seen(1), 20.03, 20.08)
    assert journals.kinds() == set()


def test_nothing_goes_back_behind_an_absence_that_can_be_but_one(journals: Journals) -> None:
    journals.read("r.s0", ABSENT, 30.05, 30.06)
    journals.read("r.s0", seen(2), 30.07, 30.08)
    assert journals.kinds() == {"backwards"}


def test_an_absence_that_may_be_an_earlier_one_binds_nothing(journals: Journals) -> None:
    journals.read("r.s0", ABSENT, 10.05, 30.06)  # it may be the one before the first change
    journals.read("r.s0", seen(2), 30.07, 30.08)
    assert journals.kinds() == set()


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"digest": digest_of({"key": OTHER, "by": "w.s0.1"})}, "mismatch"),
        ({"version": 2}, "mismatch"),
        ({"epoch": 2}, "mismatch"),
        ({"change_id": "c9"}, "invented"),
    ],
)
def test_a_value_that_is_not_its_changes_is_found(journals: Journals, changed: dict[str, Any], kind: str) -> None:
    journals.read("r.s0", msgspec.structs.replace(seen(1), **changed), 11.0, 12.0)
    assert journals.kinds() == {kind}


def test_a_change_that_is_seen_before_it_was_sent_is_found(journals: Journals) -> None:
    journals.read("r.s0", seen(4), 35.0, 36.0)
    assert "future" in journals.kinds()
