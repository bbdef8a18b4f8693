"""Numbers, times and text as they are shown, and the live screen for terminals of any size."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from statecache.cli.options import operator
from statecache.cli.screen import plain, print_table, shortened, size_text, time_text
from statecache.cli.status.attention import GATES
from statecache.cli.status.command import _show, aside_text, backlog_of, lag_of, overview_of
from statecache.cli.status.rates import Looks
from statecache.cli.status.sample import HeldRow, Server, Shard, WorkerSeen, from_redis, sample_of
from statecache.cli.top.command import _once, _plain_facts
from statecache.cli.top.view import View, lines_of
from statecache.errors import PostgresUnavailable
from tests.support.screens import SETTINGS, drawn, sample


def test_sizes_and_times_are_short() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 150 * 1024, 2**20, 2**50)] == [
        "0 B", "1023 B", "1.0 KiB", "150 KiB", "1.0 MiB", "1024 TiB",
    ]  # fmt: skip
    assert [time_text(seconds) for seconds in (-1, 0.04, 9.94, 10, 119, 120, 7200, 172_800)] == [
        "0 s", "0.0 s", "9.9 s", "10 s", "119 s", "2 min", "2 h", "2 d",
    ]  # fmt: skip


def test_text_from_elsewhere_is_shown_in_one_line_and_steers_nothing() -> None:
    assert plain("runs/é ok") == "runs/é ok"
    assert plain("\x1b[31m\n\u202e\x9b") == "\\x1b[31m\\n\\u202e\\x9b"


COLUMNS = ("key", "holder", "version", "states", "oldest", "newest")
ROW = ("runs/" + "x" * 30, "a-host-of-a-name:31337", "12", "1,000", "34 min", "33 min")


@pytest.mark.parametrize(("width", "beside"), [(120, True), (80, True), (60, False)])
def test_a_table_is_as_wide_as_the_terminal_and_folds_only_what_is_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, beside: bool
) -> None:
    monkeypatch.setattr("statecache.cli.screen.is_terminal", lambda: True)
    monkeypatch.setattr("statecache.cli.screen.console", lambda: Console(width=width, color_system=None))
    print_table(COLUMNS, [ROW, ("runs/2", *ROW[1:])])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    if beside:
        assert [*COLUMNS] in [line.split() for line in lines]
        assert any(line.split()[-6:] == ["12", "1,000", "34", "min", "33", "min"] for line in lines)
    else:
        assert [line.split(maxsplit=1) for line in lines[-6:]] == [
            [column, cell] for column, cell in zip(COLUMNS, ("runs/2", *ROW[1:]), strict=True)
        ]
        assert (lines[0], lines[7]) == ("", "")


def test_a_column_in_which_nothing_stands_makes_room_for_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("namespace", "type", "version", "fields", "states", "bytes", "oldest", "newest")
    rows = [
        ("approvals", "", "0", "", "1", "17 B", "72 s", "72 s"),
        ("runs", "statecache/checkpoint", "1", "", "1", "529 B", "21 s", "21 s"),
    ]
    monkeypatch.setattr("statecache.cli.screen.is_terminal", lambda: True)
    for width, fields in ((80, False), (120, True)):
        monkeypatch.setattr(
            "statecache.cli.screen.console", lambda width=width: Console(width=width, color_system=None)
        )
        print_table(columns, rows)
        shown = capsys.readouterr().out
        assert ("statecache/checkpoint" in shown, "fields" in shown) == (True, fields)
        assert max(map(len, shown.splitlines())) <= width


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert operator().startswith("uid ")


def test_rates_are_differences_and_a_total_that_fell_gives_none() -> None:
    looks = Looks(SETTINGS)
    assert looks.add(sample()).commits_per_s is None
    second = looks.add(sample(at_s=2.0, committed_total=100, flushed_total=50))
    assert (second.commits_per_s, second.flushed_per_s) == (50.0, 25.0)
    third = looks.add(sample(at_s=3.0, committed_total=10, flushed_total=None))
    assert (third.commits_per_s, third.flushed_per_s) == (None, None)


def test_hot_keys_are_counted_over_the_last_looks_and_forgotten() -> None:
    looks = Looks(SETTINGS)
    looks.add(sample(keys=["a/1", "a/1", "b/1"]))
    assert looks.add(sample(keys=["b/1", "b/1"])).hot == [("b/1", 3), ("a/1", 2)]
    for _ in range(10):
        last = looks.add(sample())
    assert last.hot == []


def test_the_worst_shards_and_the_fullest_backlog() -> None:
    shards = sample().shards
    lag = lag_of(shards)
    assert (lag["entries"], lag["seconds"], [one.shard for one in lag["worst"]]) == (20160, 1.0, [63, 62, 61, 60, 59])
    assert backlog_of(SETTINGS, shards)["shard"] == 63
    assert backlog_of(SETTINGS, shards)["used"] == 0.63
    assert backlog_of(SETTINGS, [])["used"] is None
    by_bytes = Shard(shard=7, lag_entries=1, lag_bytes=SETTINGS.backlog_bytes_max)
    assert backlog_of(SETTINGS, [*shards, by_bytes])["over"] == [7]


@pytest.mark.parametrize(("tier", "name"), [("redis", "Redis"), ("postgres", "Postgres")])
def test_a_server_that_does_not_answer_calls_for_a_person(tier: str, name: str) -> None:
    away: dict[str, Any] = {tier: Server(url="x", trouble="connect: refused")}
    assert overview_of(SETTINGS, sample(**away), {}).attention == [f"{name} does not answer: connect: refused"]


@pytest.mark.parametrize(
    ("closed", "said"),
    [(3, []), (4, ["the gate of 1 more shard is closed"]), (5, ["the gates of 2 more shards are closed"])],
)
def test_three_closed_gates_are_named_and_more_are_counted(closed: int, said: list[str]) -> None:
    shards = [Shard(shard=n, open=n >= closed, owned=True, closed_because="of a failover") for n in range(64)]
    named = [f"the gate of shard {n} is closed: of a failover; {GATES}" for n in range(3)]
    assert overview_of(SETTINGS, sample(shards=shards), {}).attention == named + said


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, ("shard 0 is", "1 entry is", "1 change was")),
        (2, ("shards 0, 1 is", "2 entries are", "2 changes were")),
    ],
)
def test_what_calls_for_a_person_is_counted_as_people_do(count: int, said: tuple[str, str, str]) -> None:
    full = [Shard(shard=n, open=True, owned=True, lag_entries=900, lag_bytes=1) for n in range(count)]
    found = overview_of(SETTINGS, sample(shards=full, quarantined=count), {"new_conflicts": count})
    assert found.attention == [
        f"the backlog of {said[0]} above 80% of its limit",
        f"{said[1]} in quarantine: `statecache quarantine list`",
        f"{said[2]} set aside in `conflict` within 24 hours: see there what should count, and write it anew",
    ]


@pytest.mark.parametrize(("count", "said"), [(1000, "1,000"), (1001, "more than 1,000")])
def test_a_count_that_was_not_counted_on_is_not_told_as_a_fact(count: int, said: str) -> None:
    looked, more = sample(quarantined=count, conflicts=count), count > 1000
    found = overview_of(SETTINGS, looked, {})
    assert found.attention[-1] == f"{said} entries are in quarantine: `statecache quarantine list`"
    assert aside_text(found) == f"{said} in quarantine, {said} in conflict"
    assert (found.quarantined, found.at_least) == (count, ["quarantined", "conflicts"] * more)
    assert _plain_facts(Looks(SETTINGS).add(looked))["at_least"] == ["quarantined", "conflicts"] * more
    found = overview_of(SETTINGS, looked, {"conflicts": 3000})
    assert aside_text(found) == f"{said} in quarantine, 3,000 in conflict"
    assert found.at_least == ["quarantined"] * more


def test_a_status_counts_entries_and_shards_as_people_do(capsys: pytest.CaptureFixture[str]) -> None:
    behind = [Shard(shard=n, open=True, owned=True, lag_entries=n, lag_bytes=n, lag_s=1.0) for n in range(3)]
    workers = [WorkerSeen(id=f"host-{n}", shards=n, heartbeat_s=0.5, up_s=9) for n in (1, 2)]
    openings = [(60.0, n, 7, "host-1") for n in (1, 2)]
    _show(overview_of(SETTINGS, sample(shards=behind, workers=workers), {"openings": openings}), given=())
    lines = [line.removeprefix(" " * 12) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "shard 1: 1 entry, 1 B, 1.0 s", "shard 2: 2 entries, 2 B, 1.0 s",
        "host-1: 1 shard, heartbeat 0.5 s ago", "host-2: 2 shards, heartbeat 0.5 s ago",
        "60 s ago: 1 shard, up to 7, by host-1", "60 s ago: 2 shards, up to 7, by host-1",
    ):  # fmt: skip
        assert line in lines


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (160, 50), (110, 20), (40, 10), (20, 3), (300, 100)])
@pytest.mark.parametrize("away", ["", "redis", "postgres"])
def test_the_live_screen_fits(width: int, height: int, away: str) -> None:
    gone = Server(url="x", trouble="connect: " + "why " * 60)
    unknown = [Shard(shard=n) for n in range(64)]
    lost: dict[str, dict[str, Any]] = {
        "": {},
        "redis": {"redis": gone, "shards": unknown, "committed_total": None},
        "postgres": {"postgres": gone, "workers": None, "quarantined": None, "conflicts": None},
    }
    figures = Looks(SETTINGS).add(sample(keys=["runs/" + "k" * 300, "runs/\x1b[31m"] * 3, **lost[away]))
    screen = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with screen.capture() as captured:
        screen.print(View(screen, figures))
    lines = captured.get().rstrip("\n").split("\n")
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert "\x1b[31m" not in captured.get()
    if height > 20:
        shown = captured.get()
        assert ("does not answer: connect" in shown) == bool(away)
        assert ("64: 64 open" in shown) == (away != "redis")
        assert "hot keys" in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_head_is_whole_at_every_usual_width(width: int) -> None:
    redis = Server(
        url="x", version="Valkey 9.1.2", role="primary", keeps="append-only file", memory=10**9, memory_max=4 * 10**9
    )
    head = " ".join("\n".join(drawn(Looks(SETTINGS).add(sample(redis=redis)), width, 24)).split("behind")[0].split())
    for fact in ("954 MiB of 3.7 GiB", "0 in quarantine, 1000+ in conflict", "entries or 256 MiB a shard"):
        assert fact in head
    assert "…" not in head


@pytest.mark.parametrize("width", [60, 80])
def test_one_look_at_a_terminal_is_broken_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    redis = Server(
        url="x", version="Valkey 9.1.2", role="primary", keeps="append-only file", memory=10**9, memory_max=4 * 10**9
    )
    screen = Console(width=width, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr("statecache.cli.top.command.console", lambda: screen)
    _once(Looks(SETTINGS).add(sample(redis=redis)), as_json=False)
    head = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert max(map(len, head)) <= width
    assert any(line.startswith("Redis     Valkey") for line in head)
    assert "954 MiB of 3.7 GiB" in " ".join(" ".join(head).split())


@pytest.mark.parametrize("width", [80, 120])
def test_the_highest_lag_stands_beside_its_sparkline(width: int) -> None:
    looks, still = Looks(SETTINGS), [Shard(shard=n, lag_entries=0, lag_bytes=0) for n in range(64)]
    looks.add(sample(shards=[Shard(shard=0, lag_entries=3, lag_bytes=9), *still[1:]]))
    lines = drawn(looks.add(sample(at_s=1.0, shards=still)), width, 24)
    assert [line for line in lines if line.startswith("Lag") and line.endswith("none, at most 3 entries")]
    full = drawn(Looks(SETTINGS).add(sample()), width, 24)
    assert [line for line in full if line.startswith("Lag") and line.endswith("20,160 entries, 2.0 KiB, oldest 1.0 s")]


@pytest.mark.parametrize("width", [40, 60, 80, 110, 160])
def test_long_keys_that_differ_at_their_ends_are_told_apart(width: int) -> None:
    keys = [f"runs/{'tenant-of-some-size/' * 8}step-{n}" for n in range(3)]
    lines = drawn(Looks(SETTINGS).add(sample(keys=keys)), width, 40)
    for n in range(3):
        (line,) = [line for line in lines if line.endswith(f"step-{n}")]
        assert "runs/ten" in line
        assert "…" in line


@pytest.mark.parametrize("width", [110, 160])
def test_hot_keys_have_the_width_that_workers_leave(width: int) -> None:
    key = "runs/" + "k" * (width - 85)
    lines = drawn(Looks(SETTINGS).add(sample(keys=[key], workers=[])), width, 40)
    assert [line for line in lines if line.endswith(f" {key}")]


def test_one_look_prints_workers_and_hot_keys_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    long = "runs/" + "k" * 300
    assert _once(Looks(SETTINGS).add(sample(keys=["runs/\x1b[31m", long, long])), as_json=False) == 0
    head, behind, workers, hot = capsys.readouterr().out.split("\n\n")
    assert head.splitlines()[0].startswith("Redis     Valkey 9.1")
    assert behind.splitlines()[:2] == ["shard behind\tentries\tbytes\toldest", "63\t630\t63 B\t1.0 s"]
    assert workers.splitlines()[:2] == ["worker\tshards\theartbeat", f"host-0:{'x' * 40}\t3\t0.5 s"]
    assert hot == f"writes\thot key\n2\t{long}\n1\truns/\\x1b[31m\n"
    caught_up = [Shard(shard=n, lag_entries=0, lag_bytes=0) for n in range(64)]
    _once(Looks(SETTINGS).add(sample(shards=caught_up, workers=[])), as_json=False)
    assert capsys.readouterr().out.endswith("\nno worker lives\n\nno key was written between the two looks\n")
    _once(Looks(SETTINGS).add(sample(workers=None)), as_json=False)
    assert "\n\nwhich workers live is not known\n\n" in capsys.readouterr().out


@pytest.mark.parametrize(("workers", "said"), [([], "none"), (None, "not known")])
def test_no_workers_are_told_from_workers_that_nobody_can_count(workers: list[WorkerSeen] | None, said: str) -> None:
    lines = drawn(Looks(SETTINGS).add(sample(workers=workers)), 40, 40)
    (header,) = [at for at, line in enumerate(lines) if line.startswith("worker")]
    assert lines[header + 1].strip() == said


def test_headers_can_be_read_at_40_columns() -> None:
    text = "\n".join(drawn(Looks(SETTINGS).add(sample(keys=["runs/1"])), 40, 40))
    for header in ("behind", "entries", "bytes", "oldest", "worker", "shards", "beat", "writes", "hot keys", "q quits"):
        assert header in text


def test_labels_are_bold_and_what_they_label_is_not() -> None:
    for line in lines_of(Looks(SETTINGS).add(sample())):
        assert [(span.start, span.end) for span in line.spans if span.style == "bold"] == [(0, 10)]
        assert line.style == ""


def test_text_is_cut_in_its_middle() -> None:
    assert [shortened("abcdefghij", width) for width in (10, 9, 8, 3)] == ["abcdefghij", "abcd…ghij", "abcd…hij", "a…j"]
    assert shortened("世界世界世界", 7) == "世 … 界"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("noeviction", "is full of what may not be evicted (95 B of 100 B, noeviction) and refuses commits"),
        ("allkeys-random", "(95 B of 100 B, allkeys-random) and evicts whatever it likes"),
    ],
)
def test_a_redis_that_is_full_refuses_commits_or_evicts_by_its_policy(policy: str, said: str) -> None:
    info = f"role:master\r\nused_memory:95\r\nmaxmemory:100\r\nmaxmemory_policy:{policy}\r\n"
    told = from_redis(info.encode(), [b"a", b"1000"])
    (found,) = [one for one in sample_of(SETTINGS, told, None).redis.problems if "100 B" in one]
    assert said in found


def test_a_side_that_is_away_leaves_its_facts_open() -> None:
    shard = [b"1", b"a", b"5", b"5", b"50", b"3", b"3", b"30", b""]
    reply = [b"a", b"1000", *[shard] * 63, b"WRONGTYPE no hash"]
    told = from_redis(b"role:master\r\nredis_version:7.4\r\n", reply)
    seen = sample_of(SETTINGS, told, PostgresUnavailable("connect"))
    assert (seen.shards[0].lag_entries, seen.shards[0].open, seen.shards[0].owned) == (2, True, None)
    assert (seen.shards[63].open, seen.shards[63].closed_because) == (False, "WRONGTYPE no hash")
    assert (seen.workers, seen.committed_total, seen.flushed_total) == (None, 315, 189)
    assert seen.postgres.trouble == "connect: no details"


def test_whoever_may_wait_for_a_standby_that_is_not_seen_is_not_ended_first() -> None:
    held = [HeldRow(3, 7, "me", "worker", "a", None), HeldRow(4, 8, "me", "", "", None)]
    told = overview_of(SETTINGS, sample(held=held), {}).attention
    assert "see first that a synchronous standby is there (synchronous_standby_names = 'a')" in told[0]
    assert told[1].endswith("pid 8 (me with no application_name); let it end, or: SELECT pg_terminate_backend(8)")
