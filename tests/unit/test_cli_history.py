"""How history looks: differences and logs at every width, nothing cut, coloured or not, without control characters."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from rich.console import Console

from statecache.cli.history.diff_view import drawn
from statecache.cli.history.headers import header_of, made_from
from statecache.cli.history.log_view import GraphLog, cells_of, lines_of, marks_of, turned
from statecache.cli.history.logged import Entry, Link
from statecache.cli.history.texts import Piece, lines, words
from statecache.model import Position
from statecache.rules.difference import differences
from statecache.rules.provenance import provenance_of
from statecache.rules.versions import Version

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WIDTHS = [60, 80, 120]


def version(number: int, key: str = "runs/42", **facts: Any) -> Version:
    given: dict[str, Any] = {
        "op": "set", "change_id": f"{number:024x}", "parent_change_id": "", "position": Position(1, number),
        "at": NOW - timedelta(seconds=600 - number), "writer": "host:1", "actor": "ada", "reason": "", "size": 1234,
        "encoding": "json", "schema": "", "digest": b"\x07" * 32,
    }  # fmt: skip
    return Version(key=key, version=number, **given | facts)


def entry(one: Version, *parents: tuple[str, int], newest: int = 9, **facts: Any) -> Entry:
    given: dict[str, Any] = {"checkpoints": [], "links": []}
    return Entry(version=one, made_from=made_from(one), parents=parents, newest=newest, **given | facts)


def screen(width: int, *, colours: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=True, highlight=False, markup=False, emoji=False,
        color_system="standard" if colours else None,
    )  # fmt: skip


def printed(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def differing(before: Any, after: Any, *, width: int = 80, colours: bool = False) -> list[str]:
    on = screen(width, colours=colours)
    on.print(drawn(differences(before, after), on))
    return [line.rstrip() for line in printed(on).splitlines()]


# Differences


def test_short_differences_are_a_line_each() -> None:
    assert differing({"step": 2, "gone": None, "a": [1]}, {"step": 3, "a": [1, "two"]}) == [
        "~ step  2 → 3", "- gone  null", '+ a[1]  "two"',
    ]  # fmt: skip
    assert differing("a", "b") == ['~ $  "a" → "b"']


def test_long_texts_are_compared_by_words() -> None:
    before = "the order is open and nobody has looked at it so far"
    after = "the order was refunded and nobody has looked at it so far"
    assert differing({"notes": before}, {"notes": after}) == [
        "~ notes", "    the order [-is open-]{+was refunded+} and nobody has looked at it so far",
    ]  # fmt: skip
    coloured = "\n".join(differing({"notes": before}, {"notes": after}, colours=True))
    assert "[-" not in coloured
    assert "\x1b[9;31mis open\x1b[0m\x1b[32mwas refunded\x1b[0m" in coloured


def test_whoever_wants_no_colours_gets_marks() -> None:
    on = Console(file=io.StringIO(), width=80, force_terminal=True, highlight=False, _environ={"NO_COLOR": "1"})
    on.print(drawn(differences("one word of a long text that goes on", "one phrase of a long text that goes on"), on))
    assert "one [-word-]{+phrase+} of a long text" in printed(on)
    assert "\x1b[3" not in printed(on)


def test_in_short_a_value_has_so_many_lines_at_most() -> None:
    on = screen(60)
    on.print(drawn(differences({}, {"plan": [*range(40)], "text": "word " * 400}), on, most=3))
    lines = printed(on).splitlines()
    assert "    … 39 more lines" in [line.rstrip() for line in lines]
    assert len(lines) == 1 + 3 + 1 + 1 + 4
    assert "…" in lines[-1]


def test_texts_of_several_lines_are_compared_by_lines() -> None:
    before = "".join(f"line {number}\n" for number in range(20))
    after = before.replace("line 10\n", "line ten\n")
    assert differing({"log": before}, {"log": after}) == [
        "~ log", "    … 7 lines …", "      line 7", "      line 8", "      line 9", "    - line 10", "    + line ten",
        "      line 11", "      line 12", "      line 13", "    … 6 lines …",
    ]  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
def test_no_difference_is_wider_than_the_terminal_and_none_is_cut(width: int) -> None:
    plan = {"next": "ask the customer " * 8, "then": ["x" * 200, {"deep": ["y", 1.5, None]}]}
    told = differing({"a": 1, "s": "word " * 60}, {"a": 1, "plan": plan, "s": "word " * 30 + "new"}, width=width)
    assert max(map(len, told)) <= width
    assert " ".join(["ask the customer"] * 8) in " ".join(" ".join(told).split())
    assert "x" * 200 in "".join(line.strip() for line in told)
    assert '"deep": [' in "\n".join(told)


def test_what_agents_wrote_steers_no_terminal() -> None:
    told = "\n".join(differing({"a": "x"}, {"a": "\x1b[31m\u202e", "\x9bb": "\x1b]0;title\x07\n" * 9}))
    assert "\x1b" not in told
    assert "\x9b" not in told
    assert "\u202e" not in told
    assert "\\u001b[31m\\u202e" in told


def test_words_between_two_changes_that_say_nothing_are_part_of_them() -> None:
    assert words("one two three and four", "1 two 3 and four") == [
        Piece("removed", "one two three"), Piece("added", "1 two 3"), Piece("same", " and four"),
    ]  # fmt: skip
    assert words("hello", "hello world") == [Piece("same", "hello"), Piece("added", " world")]
    assert words("", "new") == [Piece("added", "new")]
    assert words("nothing in common", "whatever else") == [
        Piece("removed", "nothing in common"), Piece("added", "whatever else"),
    ]  # fmt: skip


@pytest.mark.parametrize("compare", [words, lines])
def test_pieces_come_to_both_texts(compare: Any) -> None:
    joint = "\n" if compare is lines else ""
    before = " ".join(f"w{number}\n" * (number % 7 == 0) + "w" for number in range(200))
    after = before.replace("w14\n", "w 14").replace("w70", "seventy")
    pieces = compare(before, after)
    for side, text in (("removed", before), ("added", after)):
        assert joint.join(piece.text for piece in pieces if piece.op in ("same", "left out", side)) == text


# Logs


HISTORY = [
    entry(version(9, reason="merge of runs/42-b@2: both found it"), ("runs/42", 8), ("runs/42-b", 2)),
    entry(version(2, "runs/42-b", actor="bob"), ("runs/42-b", 1)),
    entry(version(8, op="delete", reason="a long reason of many words " * 6), ("runs/42", 7)),
    entry(version(1, "runs/42-b", reason="branch of runs/42@7"), ("runs/42", 7)),
    entry(version(7, reason="rollback to 2"), ("runs/42", 6), checkpoints=["before payment"]),
    entry(version(6, kept=False, actor=""), links=[Link("merge", "runs/7", 3), Link("branch", "runs/8", 1)]),
]  # fmt: skip


def logged(width: int, *, reverse: bool = False) -> list[str]:
    on, graph = screen(width), GraphLog("runs/42", 9, NOW)
    rows = [row for one in HISTORY for row in graph.rows(one)]
    return [
        line.plain.rstrip() for row, text in (turned(rows) if reverse else rows) for line in lines_of(row, text, on)
    ]


def test_a_log_is_drawn_beside_its_graph() -> None:
    assert logged(120) == [
        "● 9  10 min ago   set     ada  1.2 KiB  (merge of runs/42-b@2)  both found it",
        "├─╮",
        "│ ● runs/42-b@2  10 min ago  set  bob  1.2 KiB",
        f"✗ │ 8  10 min ago   delete  ada  {' '.join(['a long reason of many words'] * 3)} a",
        "│ │     long reason of many words a long reason of many words a long reason of many words",
        "│ ● runs/42-b@1  10 min ago  set  ada  1.2 KiB  (branch of @7)",
        "├─╯",
        "● 7  10 min ago   set     ada  1.2 KiB  (before payment)  (rollback to 2)",
        "○ 6  10 min ago   set     host:1  1.2 KiB  (merged into runs/7@3)  (branch runs/8)  (value not kept)",
    ]  # fmt: skip


def test_a_log_upside_down_says_the_same() -> None:
    assert logged(200, reverse=True) == [line.translate(str.maketrans("╮╯", "╯╮")) for line in reversed(logged(200))]
    assert logged(60, reverse=True)[-2].startswith("● 9")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_a_log_is_wider_than_the_terminal_and_none_is_cut(width: int) -> None:
    told = logged(width)
    assert max(map(len, told)) <= width
    said = " ".join(" ".join(line.lstrip("●○│├─╮╯✗ ") for line in told).split())
    for one in HISTORY:
        for text, _ in marks_of(one, "runs/42"):
            assert f"({text})" in said
    assert " ".join(["a long reason of many words"] * 6) in said


def test_a_log_steers_no_terminal() -> None:
    graph = GraphLog("runs/42", 9, NOW)
    ugly = entry(version(9, actor="\x1b[31m", reason="\x1b]0;x\x07"), checkpoints=["\x9b"])
    told = "".join(line.plain for row, text in graph.rows(ugly) for line in lines_of(row, text, screen(80)))
    assert not {"\x1b", "\x9b", "\x07"} & {*told}


def test_what_is_not_durable_and_what_is_missing_is_marked() -> None:
    marks = [text for text, _ in marks_of(entry(version(9, unflushed=b"1", gap=True)))]
    assert marks == ["not durable yet", "versions before it are missing"]
    assert cells_of(entry(version(9, reason="undo to 3: oops"), checkpoints=["a", "b"]))[-2:] == (
        "a; b; undo to 3",
        "oops",
    )


@pytest.mark.parametrize(
    ("reason", "made", "said"),
    [
        ("rollback to 7: wrong", {"kind": "rollback", "key": "runs/42", "version": 7}, "wrong"),
        ("branch of runs/41@5-1144", {"kind": "branch", "key": "runs/41", "position": "5-1144"}, ""),
        ("merge of runs/42-b@5: both", {"kind": "merge", "key": "runs/42-b", "version": 5}, "both"),
        ("expired", {"kind": "expired"}, ""),
        ("by hand", None, "by hand"),
    ],
)
def test_a_header_says_what_a_change_was_made_from(reason: str, made: dict[str, Any] | None, said: str) -> None:
    header = header_of(version(9, reason=reason))
    assert msgspec.to_builtins(header.made_from) == made
    assert header.reason == said
    found = provenance_of(reason)
    assert str(header.made_from or "") == ("" if found is None else str(found).partition(": ")[0])
    assert ("made from" in dict(header.facts(NOW, NOW))) is (made is not None)
