"""Sparklines of `top`: what each character says, and that they fit beside their figures at every width."""

from __future__ import annotations

import re
from typing import Any

import pytest

from statecache.cli.sparkline import BLOCKS, LOOKS_KEPT, WIDTHS, Past, sparkline, width_within
from statecache.cli.status.rates import Figures, Looks
from statecache.cli.status.sample import Shard
from tests.support.screens import SETTINGS, drawn, sample


def test_zero_is_the_lowest_block_the_highest_value_the_highest_and_what_is_not_known_is_blank() -> None:
    values = [*[None] * 2, *[0.0] * 2, *[1.0, 0.0], *[None, 50.0], *[100.0] * 2]
    assert sparkline(Past(values, newest=119), 60) == " " * 55 + " ▁▂▅█"
    assert sparkline(Past([0.0] * 120, newest=500), 60)[1:] == "▁" * 59
    assert sparkline(Past(), 10) == " " * 10
    assert {sparkline(Past([float(n), 7.0], newest=1), 60)[-1] for n in range(8)} == {"█"}


@pytest.mark.parametrize("width", WIDTHS)
def test_characters_move_and_never_change(width: int) -> None:
    looks = LOOKS_KEPT // width
    values = [float(n * 37 % 100) for n in range(400)] + [100.0]
    known = [sparkline(Past([*values[n - 119 : n + 1], 100.0], newest=n + 1), width) for n in range(200, 200 + looks)]
    assert {len(line) for line in known} == {width}
    before = sparkline(Past(values[:LOOKS_KEPT], newest=LOOKS_KEPT - 1), width)
    after = sparkline(Past(values[looks : LOOKS_KEPT + looks], newest=LOOKS_KEPT - 1 + looks), width)
    assert after[:-1] == before[1:]


def test_a_line_is_as_wide_as_there_is_room() -> None:
    assert [width_within(cells) for cells in (9, 10, 29, 30, 59, 60, 300)] == [0, 10, 24, 30, 40, 60, 60]
    assert all(LOOKS_KEPT % width == 0 for width in WIDTHS)


def watched(looks: int = LOOKS_KEPT) -> Figures:
    """Return the figures of two minutes: a burst of commits, then Postgres stands still and the lag grows."""
    seen, committed, flushed = Looks(SETTINGS), 0, 0
    for second in range(looks + 1):
        committed += 100 if 0 < second % 40 < 20 else 1000
        flushed += 0 if second > 80 else committed - flushed
        behind = Shard(
            shard=0, open=True, owned=True, lag_entries=committed - flushed, lag_bytes=99_999_999, lag_s=99.0
        )
        totals: dict[str, Any] = {"committed_total": committed, "flushed_total": flushed}
        figures = seen.add(sample(at_s=float(second), shards=[behind], **totals))
    return figures


@pytest.mark.parametrize(("width", "line"), [(60, 10), (80, 30), (110, 60), (120, 60), (50, 0)])
def test_the_last_two_minutes_stand_beside_their_figures_with_nothing_cut(width: int, line: int) -> None:
    lines = {one.split(" ")[0]: one for one in drawn(watched(), width, 24)}
    for label in ("Commits", "Flushed", "Lag"):
        (went,) = re.findall(rf"[{BLOCKS}]+", lines[label]) or [""]
        assert len(went) == line, label
        assert "…" not in lines[label]
    if line:
        assert lines["Commits"].endswith("█ 1,000/s, at most 1,000/s")
        assert lines["Flushed"].endswith("▁ 0/s, at most 1,000/s")
        assert re.search(r"█ \d\d,\d00 entries, 95.4 MiB, oldest 99 s$", lines["Lag"])
        assert "last 2 min, q quits" in lines["statecache"]


def test_nothing_of_it_is_told_by_colour_alone_or_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    from statecache.cli.top.command import _once

    assert _once(watched(), as_json=False) == 0
    printed = capsys.readouterr().out
    assert "Commits   1,000/s\nFlushed   0/s\n" in printed
    assert not set(BLOCKS) & set(printed)
    assert Looks(SETTINGS).add(sample()).past["commits"].peak() is None


def test_only_the_last_two_minutes_are_kept() -> None:
    assert len(watched(LOOKS_KEPT * 3).past["lag"].values) == LOOKS_KEPT
