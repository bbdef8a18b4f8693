"""The recorder: what was noted before a kill is there, and what was not is unknown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import count
from math import inf
from pathlib import Path

import pytest

from statecache.errors import OutcomeUnknown, RedisUnavailable, VersionConflict
from tests.simulation.history import BrokenJournal, Operation, Recorder, Seen, lines_of, operations_of, read_journals

KEY = "runs/1"
LOST = OutcomeUnknown("c1", keys=(KEY,))
AWAY = RedisUnavailable("connection")
DENIED = VersionConflict(KEY, "c0", "c9")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The place of a journal."""
    return tmp_path / "w0.jsonl"


@pytest.fixture
def recorder(journal: Path) -> Recorder:
    """A recorder whose clock goes one second a look."""
    seconds = count(1)
    return Recorder(journal, "w0", clock=lambda: float(next(seconds)))


def _only(journal: Path) -> Operation:
    (operation,) = read_journals([journal])
    return operation


def test_an_operation_that_ended_has_its_times_and_what_was_seen(recorder: Recorder, journal: Path) -> None:
    sent = recorder.invoke("s", "set", [KEY], kind="write", change_id="c1", expected={KEY: "c0"}, level="disk")
    seen = Seen(key=KEY, change_id="c1", parent="c0", epoch=2, version=5, digest="d")
    recorder.ok(sent, written=[seen])
    assert _only(journal) == Operation(
        tag="w0.s.1", session="w0.s", number=1, verb="set", kind="write", keys=(KEY,), invoked=1.0, returned=2.0,
        outcome="ok", change_id="c1", expected={KEY: "c0"}, level="disk", written=(seen,),
    )  # fmt: skip


def test_a_level_that_was_not_reached_is_noted(recorder: Recorder, journal: Path) -> None:
    recorder.ok(recorder.invoke("s", "set", [KEY], kind="write", level="disk"), change_id="c1", level="memory")
    assert (_only(journal).level, _only(journal).change_id) == ("memory", "c1")


def test_an_operation_without_an_end_is_unknown_and_returned_at_infinity(recorder: Recorder, journal: Path) -> None:
    recorder.invoke("s", "set", [KEY], kind="write")
    assert (_only(journal).outcome, _only(journal).returned) == ("unknown", inf)


def test_an_operation_in_doubt_has_the_change_id_that_the_error_named(recorder: Recorder, journal: Path) -> None:
    recorder.unknown(recorder.invoke("s", "update", [KEY], kind="write"), LOST, change_id="c1")
    assert (_only(journal).outcome, _only(journal).returned, _only(journal).change_id) == ("unknown", inf, "c1")


def test_a_repeat_that_succeeds_ends_the_doubt(recorder: Recorder, journal: Path) -> None:
    sent = recorder.invoke("s", "set", [KEY], kind="write")
    recorder.unknown(sent, LOST, change_id="c1")
    recorder.ok(recorder.again(sent, change_id="c1"), written=[Seen(key=KEY, change_id="c1")])
    operation = _only(journal)
    assert (operation.outcome, operation.invoked, operation.returned) == ("ok", 1.0, 4.0)


@pytest.mark.parametrize(("final", "outcome"), [(True, "fail"), (False, "unknown")])
def test_a_refused_repeat_ends_the_doubt_only_where_it_speaks_of_all_sendings(
    recorder: Recorder, journal: Path, final: bool, outcome: str
) -> None:
    sent = recorder.invoke("s", "set", [KEY], kind="write", change_id="c1")
    recorder.unknown(sent, LOST)
    recorder.fail(recorder.again(sent, change_id="c1"), DENIED, final=final, read=[Seen(key=KEY, change_id="c9")])
    operation = _only(journal)
    assert operation.outcome == outcome
    assert [seen.change_id for seen in operation.read] == (["c9"] if final else [])


def test_sendings_that_were_all_refused_are_a_failure(recorder: Recorder, journal: Path) -> None:
    sent = recorder.invoke("s", "set", [KEY], kind="write", change_id="c1")
    recorder.fail(sent, AWAY, final=False)
    recorder.fail(recorder.again(sent, change_id="c1"), AWAY, final=False)
    assert _only(journal).outcome == "fail"


def test_a_sending_after_a_refusal_that_has_no_end_is_unknown(recorder: Recorder, journal: Path) -> None:
    sent = recorder.invoke("s", "set", [KEY], kind="write", change_id="c1")
    recorder.fail(sent, AWAY, final=False)
    recorder.again(sent, change_id="c1")
    assert _only(journal).outcome == "unknown"


def test_sessions_count_for_themselves(recorder: Recorder, journal: Path) -> None:
    tags = [recorder.invoke(session, "get", [KEY], kind="read").tag for session in ("a", "b", "a")]
    assert tags == ["w0.a.1", "w0.b.1", "w0.a.2"]


def test_a_torn_last_line_is_as_if_it_had_not_been_written(recorder: Recorder, journal: Path) -> None:
    sent = recorder.invoke("s", "set", [KEY], kind="write")
    recorder.ok(sent, written=[Seen(key=KEY, change_id="c1")])
    data = journal.read_bytes()
    for end in range(data.index(b"\n") + 1, len(data)):
        (operation,) = operations_of(lines_of(data[:end]))
        assert operation.outcome == "unknown"
    assert [*lines_of(data[:20])] == []


def test_a_line_that_is_torn_in_the_middle_is_an_error(recorder: Recorder, journal: Path) -> None:
    recorder.ok(recorder.invoke("s", "get", [KEY], kind="read"))
    data = journal.read_bytes()
    with pytest.raises(BrokenJournal, match="line 1"):
        [*lines_of(data[20:])]
    with pytest.raises(BrokenJournal, match=r"w0\.s\.1"):
        operations_of(lines_of(data[data.index(b"\n") + 1 :]))


def test_a_journal_is_not_written_twice(recorder: Recorder, journal: Path) -> None:
    with pytest.raises(FileExistsError):
        Recorder(journal, "w0")


def test_a_sigkill_takes_back_nothing_that_was_noted(journal: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.simulation.history import Recorder, Seen\n"
        "recorder = Recorder(Path(sys.argv[1]), 'w0')\n"
        "sent = recorder.invoke('s', 'set', ['runs/1'], kind='write')\n"
        "recorder.ok(sent, written=[Seen(key='runs/1', change_id='c1')])\n"
        "recorder.invoke('s', 'set', ['runs/1'], kind='write')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, journal], cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [operation.outcome for operation in read_journals([journal])] == ["ok", "unknown"]
    assert os.stat(journal).st_mode & 0o077 == 0
