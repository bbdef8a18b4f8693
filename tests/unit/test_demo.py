"""What `statecache demo` tells: stretches of a chain, who is away, how it ended, and what to try next."""

from __future__ import annotations

import io
import shlex
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from statecache import Settings
from statecache.cli.demo import view as demo_view
from statecache.cli.demo.afterwards import Afterwards
from statecache.cli.demo.command import lines_to_try, program, status_of
from statecache.cli.history.headers import made_from
from statecache.cli.history.logged import Entry
from statecache.cli.main import run
from statecache.model import Position
from statecache.replay.audit import AuditRow, Evidence
from statecache.replay.progress import Casualties, ReplayProgress
from statecache.replay.report import Report
from statecache.replay.runs import AgentRun
from statecache.replay.stage import Stage
from statecache.replay.story import Story, richer, story
from statecache.replay.supervisor import Options, Played
from statecache.rules.versions import Version

RUN = AgentRun("a", [{"role": "user", "content": "Hi"}] * 5)
OPTIONS = Options(runs=[RUN], seed=7)
PASSED = Report(
    runs=1, messages=5, commits_acked=5, lost=0, duplicated=0, forked=0, quarantined=0, resumed=1,
    kills={"agent": 3, "flusher": 3, "redis": 3, "postgres": 3}, commits_per_s=9.5, commit_p50_ms=1.5,
    commit_p99_ms=2025.0, flush_lag_p99_ms=30.5, audit_ok=True, findings=[], durability="disk", seed=7,
)  # fmt: skip


def chain(*hands: tuple[str, int]) -> Evidence:
    """Return a run whose versions were committed by these writers in these epochs."""
    rows = [
        AuditRow(
            version=version, change_id=f"c{version}", parent_change_id="", shard=1, epoch=epoch, n=version, op="set",
            gap=False, value=b"{}", writer=writer,
        )
        for version, (writer, epoch) in enumerate(hands, 1)
    ]  # fmt: skip
    return Evidence(run=RUN, sent=[], rows=rows, conflicts=0, quarantined=0, postgres=None, redis=None)


TOLD = story(chain(("x.0", 1), ("x.0", 1), ("x.0", 2), ("x.1", 2), ("x.2", 3)))


def screen(*, terminal: bool = False, width: int = 80, height: int = 24) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=terminal, color_system=None)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(
    report: Report = PASSED, told: Story | None = TOLD, *, terminal: bool = False, width: int = 80, height: int = 24
) -> str:
    on = screen(terminal=terminal, width=width, height=height)
    stage = Stage(Settings(redis_url="redis://h/0"), {}, None)
    played = Played(report=report, changes=5, story=told, stage=stage)
    demo_view.show(on, played, ["statecache dev"], seconds=31.25)
    return text(on)


def test_a_chain_is_told_in_stretches_each_with_what_happened_before_it() -> None:
    assert [(one.first, one.last, one.epoch, one.writer) for one in TOLD.stretches] == [
        (1, 2, 1, "x.0"), (3, 3, 2, "x.0"), (4, 4, 2, "x.1"), (5, 5, 3, "x.2"),
    ]  # fmt: skip
    assert (TOLD.run, TOLD.key, TOLD.resumed) == ("a", "runs/a", 2)
    lines = shown().splitlines()
    place = lines.index("runs/a, resumed 2 times: its chain in Postgres, as audited")
    assert [line.split() for line in lines[place + 1 : place + 6]] == [
        ["versions", "epoch", "writer"],
        ["1-2", "1", "x.0"],
        ["3", "2", "x.0", "Redis", "killed"],
        ["4", "2", "x.1", "agent", "killed,", "the", "next", "life", "goes", "on"],
        ["5", "3", "x.2", "agent", "killed,", "the", "next", "life", "goes", "on;", "Redis", "killed"],
    ]


def test_a_story_is_whole_at_60_columns() -> None:
    told = story(chain(("agent-1.0", 1), ("agent-1.0", 2), ("agent-2.1", 3)))
    lines = [line.rstrip() for line in shown(told=told, terminal=True, width=60).splitlines()]
    assert "  versions  epoch  writer" in lines
    assert "         3      3  agent-2.1  agent killed, the next life" in lines
    assert "                              goes on; Redis killed" in lines
    assert "…" not in "".join(lines)


def test_the_story_is_of_the_run_that_was_resumed_most_and_then_of_the_longest() -> None:
    once, longer = story(chain(("x.0", 1), ("x.1", 1))), story(chain(("x.0", 1), ("x.1", 1), ("x.1", 2)))
    never = story(chain(*(("x.0", epoch) for epoch in range(5))))
    assert (never.resumed, once.resumed, longer.resumed, TOLD.resumed) == (0, 1, 1, 2)
    assert richer(None, once) is once
    assert richer(once, longer) is longer
    assert richer(longer, never) is longer
    assert richer(TOLD, longer) is TOLD
    assert richer(longer, story(chain(("y.0", 1), ("y.1", 1), ("y.1", 2)))) is longer


def test_a_story_that_is_too_long_for_the_terminal_shows_its_beginning_and_its_end() -> None:
    long = story(chain(*((f"x.{life}", 1) for life in range(9))))
    lines = shown(told=long, terminal=True, height=24)
    assert [name for life in range(9) if (name := f"x.{life}") in lines] == ["x.0", "x.6", "x.7", "x.8"]
    assert "5 more" in lines
    assert "more" not in shown(told=long, terminal=True, height=40)
    assert "more" not in shown(told=long)


def test_the_last_screen_fits_an_ordinary_terminal_and_fills_no_pipe_with_blanks() -> None:
    assert len(shown(terminal=True).splitlines()) <= 23
    piped = shown()
    assert all(line == line.rstrip() and len(line) <= 80 for line in piped.splitlines())
    assert "lost 0, duplicated 0, forked 0, quarantined 0\n" in piped
    assert "p50 1.5 ms, p99 2.02 s" in piped
    assert "31.2 s in all" in piped


def afterwards(versions: int = 12, back: int = 5) -> Afterwards:
    """Return what the demo does in the end to a run of so many versions."""
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def change(key: str, version: int, reason: str = "", *parents: tuple[str, int]) -> Entry:
        one = Version(
            key=key, version=version, op="set", change_id="c", parent_change_id="", position=Position(1, version),
            at=at, writer="w", actor="demo", reason=reason, encoding="json", schema="", size=5000, digest=b"d",
        )  # fmt: skip
        return Entry(
            version=one, made_from=made_from(one), parents=parents, checkpoints=(), links=(), newest=versions + 1
        )

    key, side = "runs/translation-review", "runs/translation-review-b"
    entries = [
        change(key, versions + 1, f"rollback to {back}", (key, versions)),
        change(side, 2, "", (side, 1)),
        change(side, 1, f"branch of {key}@{back}", (key, back)),
        *(change(key, version, "", (key, version - 1)) for version in range(versions, back, -1)),
        change(key, back),
    ]
    return Afterwards(key=key, version=back, branch=side, entries=entries, at=at)


@pytest.mark.parametrize("height", [24, 28, 32, 60])
def test_the_last_screen_ends_with_a_rollback_and_a_branch(height: int) -> None:
    long = story(chain(*((f"x.{life}", 1) for life in range(9))))
    on = screen(terminal=True, height=height)
    stage = Stage(Settings(redis_url="redis://h/0"), {}, None)
    played = Played(report=PASSED, changes=5, story=long, stage=stage)
    demo_view.show(on, played, lines_to_try(7), seconds=31.25, after=afterwards())
    lines = text(on).splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= 80
    head = lines.index("It goes back to version 5; a branch goes another way:")
    assert lines[head + 1].endswith("demo  4.9 KiB  (rollback to 5)")
    assert lines[head + 2].startswith("│ ● runs/translation-review-b@2")
    assert lines[head + 3] == "│ ● runs/translation-review-b@1  0.0 s ago  set  demo  4.9 KiB  (branch of @5)"
    if height >= 32:
        assert [line[:12].rstrip() for line in lines[head + 4 : head + 9]] == [
            "● │ 12  0.0", "● │ 11  0.0", "┆ ┆ … 5 more", "├─╯", "●  5  0.0 s",
        ]  # fmt: skip


def test_a_picture_of_the_end_can_be_recorded() -> None:
    after = afterwards()
    assert (
        msgspec.json.decode(msgspec.json.encode(after), type=Afterwards).entries[0].version == after.entries[0].version
    )


@pytest.mark.parametrize(
    ("facts", "status", "said"),
    [
        ({}, 0, "Nothing was lost, nothing happened twice, no history forked."),
        ({"kills": {"agent": 3, "redis": 1}}, 0, "Nothing was lost, nothing happened twice"),
        ({"kills": {"agent": 3, "redis": 0}}, 1, "not killed with a commit in flight: Redis."),
        ({"lost": 1, "audit_ok": False, "findings": ["a: [1] lost"], "journals": "/kept"}, 1, "The audit FAILED."),
    ],
)
def test_the_verdict_and_the_status_say_the_same(facts: dict[str, object], status: int, said: str) -> None:
    report = msgspec.structs.replace(PASSED, **facts)
    assert status_of(report) == status
    told = shown(report)
    assert said in told.splitlines()[0]
    assert all(finding in told for finding in report.findings)
    assert report.journals in told


def test_who_was_killed_is_away_until_it_is_at_work_again() -> None:
    casualties = Casualties()
    casualties.add("flusher", "worker-1", at=1.0)
    casualties.add("flusher", "worker-2", at=2.0)
    casualties.add("redis", "redis", at=3.0)
    first, second = casualties.away("flusher")
    casualties.back(first, at=4.5)
    assert casualties.away("flusher") == [second]
    progress = ReplayProgress(doing="replaying", casualties=tuple(casualties))
    assert demo_view.at_work(progress, OPTIONS, apart="  ").plain.split() == [
        "agents", "●●●●", "workers", "●○", "Redis", "○", "Postgres", "●",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_label_and_no_figure_of_the_panel_is_cut(width: int) -> None:
    on = screen(terminal=True, width=width)
    view = demo_view.View(on, OPTIONS)
    view(ReplayProgress(doing="replaying", acknowledged=5, flushed=4))
    on.print(view.panel())
    lines = text(on).splitlines()
    assert "…" not in text(on)
    assert {len(line) for line in lines} == {min(width, demo_view.WIDTH_MAX)}
    for label in ("now", "acknowledged", "in Postgres", "commits/s", "at work"):
        assert any(label in line for line in lines)


def test_lines_tell_each_kill_and_each_return_once() -> None:
    on, casualties = screen(), Casualties()
    lines = demo_view.Lines(on, 5)
    for turn in range(3):
        lines.tell(ReplayProgress(doing="replaying", casualties=tuple(casualties)), began=10.0, now=11.0 + turn)
        if turn == 0:
            casualties.add("agent", "2", at=11.5)
        for one in casualties.away("agent") if turn == 1 else ():
            casualties.back(one, at=12.25)
    lines.tell(ReplayProgress(doing="auditing", acknowledged=5, flushed=3), began=10.0, now=15.0)
    assert text(on).splitlines() == [
        "  1.0 s  replaying",
        "  1.5 s  agent 2 killed",
        "  2.2 s  agent 2 back after 0.8 s",
        "  5.0 s  auditing",
        "  5.0 s  5 of 5 acknowledged, 2 not flushed yet",
    ]


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = demo_view.Rate()
    assert rate.per_s(0.0) == 0.0
    for second in range(11):
        rate.note(second * 10, float(second))
    assert rate.per_s(10.0) == 10.0
    rate.note(100, 20.0)
    assert rate.per_s(21.0) == 0.0


@pytest.mark.parametrize("line", lines_to_try(7))
def test_what_to_try_next_is_a_command_that_there_is(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{program()} "
    assert line.startswith(name)
    words = shlex.split(line.removeprefix(name))
    assert run([*words, "--help"]) == 0
    assert f"Usage: statecache {words[0]}" in capsys.readouterr().out


def test_the_command_is_named_as_the_shell_here_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    beside = tmp_path / "bin"
    beside.mkdir()
    monkeypatch.setattr("sys.executable", str(beside / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == f"{beside / 'python'} -m statecache"
    (beside / "statecache").touch(0o755)
    assert program() == str(beside / "statecache")
    monkeypatch.chdir(tmp_path)
    assert program() == "bin/statecache"
    monkeypatch.setenv("PATH", str(beside))
    assert program() == "statecache"
