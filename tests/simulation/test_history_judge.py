"""The judge of history can say no, and says it of nothing that a client may do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

from tests.simulation.history_judge import Change, judge_groups, judge_walks

AT = datetime(2026, 1, 1, tzinfo=UTC)
ROLLBACK = "rollback to 1-10: why"


def _chains(*rows: tuple[int, str, object]) -> dict[str, list[Change]]:
    """Return chains of rows (n, key, value or None for a delete, or a value and for how many seconds it lasts).

    Commits are a second apart; those of the same n are one, and the last one's reason is given.
    """
    chains: dict[str, list[Change]] = {}
    for n, name, value in rows:
        value, lasts_s = value if isinstance(value, tuple) else (value, None)
        chain = chains.setdefault(f"runs/1/{name}", [])
        at = AT + timedelta(seconds=n)
        row = Change(
            key=f"runs/1/{name}", version=len(chain) + 1, change_id=f"c{n}", n=n,
            op="delete" if value is None else "set", digest=sha256(repr(value).encode()).digest(), taken_in=True,
            reason=ROLLBACK if n == rows[-1][0] else "", gap=False, at=at,
            ends=None if lasts_s is None else at + timedelta(seconds=lasts_s),
        )  # fmt: skip
        chain.append(row)
    return chains


def _judged(*rows: tuple[int, str, object]) -> list[str]:
    return [*judge_groups(_chains(*rows))]


def _walked(*rows: tuple[int, object, str]) -> list[str]:
    """Return what is wrong with the undos and redos of a key, of rows (n, value, reason)."""
    chain = _chains(*((n, "a", value) for n, value, _ in rows))["runs/1/a"]
    return [*judge_walks([one._replace(reason=reason) for one, (*_, reason) in zip(chain, rows, strict=True)])]


def test_undos_and_redos_lead_where_an_editor_goes() -> None:
    edits = ((1, 1, ""), (2, 2, ""), (3, 3, ""))
    assert _walked(*edits, (4, 2, "undo to 2"), (5, 1, "undo to 1"), (6, 2, "redo to 2"), (7, 3, "redo to 3")) == []
    wrong = "runs/1/a: version 4 says 'undo to 1', and an editor would go to 2"
    assert _walked(*edits, (4, 1, "undo to 1")) == [wrong]


def test_who_finds_nothing_goes_past_a_delete() -> None:
    edits = ((1, 1, ""), (2, None, ""), (3, (3, 0.1), ""))
    assert _walked(*edits, (9, 1, "undo to 1"), (10, 3, "redo to 3")) == []
    assert _walked(*edits, (8, None, "expired"), (9, 1, "undo to 1")) == []
    lasting = ((1, 1, ""), (2, None, ""), (3, (3, 60), ""))
    assert _walked(*lasting, (9, 1, "undo to 1")) != []
    assert _walked(*lasting, (9, None, "undo to 2"), (10, 1, "undo to 1")) == []


def test_a_group_that_is_what_it_was_went_back() -> None:
    assert _judged((9, "a", 1), (9, "b", 1), (12, "a", 2), (12, "b", 2), (15, "a", 1), (15, "b", 1)) == []
    assert _judged((9, "a", 1), (12, "a", 2), (13, "b", 2), (15, "a", 1), (15, "b", None)) == []


def test_a_key_that_stayed_did_not() -> None:
    wrong = "runs/1: 'rollback to 1-10: why' at 15, and version 2 of runs/1/b is there"
    assert _judged((9, "a", 1), (9, "b", 1), (12, "a", 2), (12, "b", 2), (15, "a", 1)) == [wrong]
    assert _judged((9, "a", 1), (9, "b", 1), (12, "a", 2), (13, "b", 2), (15, "a", 1)) == [wrong]


def test_half_of_a_commit_that_stayed_did_not() -> None:
    assert _judged((9, "a", 1), (12, "a", 2), (12, "b", 2), (15, "a", 1)) != []
    assert _judged((9, "a", 1), (9, "c", 1), (12, "a", 2), (14, "c", 2), (14, "b", 2), (15, "a", 1), (15, "c", 1)) != []


def test_what_others_created_meanwhile_stays() -> None:
    assert _judged((9, "a", 1), (12, "a", 2), (14, "b", 1), (15, "a", 1)) == []
    assert _judged((9, "a", 1), (12, "a", 2), (13, "b", 1), (14, "b", 2), (14, "c", 2), (15, "a", 1)) == []


def test_what_was_created_and_deleted_again_meanwhile_belongs_to_it() -> None:
    rows = ((9, "a", 1), (11, "a", 2), (12, "b", 1), (12, "c", 2), (13, "c", None), (15, "a", 1))
    assert _judged(*rows) == []


def test_what_had_ended_was_not_there() -> None:
    rows = ((9, "a", 1), (10, "count", (1, 0.1)), (11, "a", 2), (12, "log", (1, 0.1)), (14, "count", 2), (14, "log", 2))
    assert _judged(*rows, (15, "a", 1)) == []


def test_what_may_have_ended_was_perhaps_not_there() -> None:
    rows = ((9, "a", 1), (10, "count", (1, 2.5)), (11, "a", 2), (12, "count", 2), (12, "log", 2), (13, "a", 1))
    assert _judged(*rows) == []
    lasting = ((9, "a", 1), (10, "count", (1, 9)), (11, "a", 2), (12, "count", 2), (12, "log", 2), (13, "a", 1))
    assert _judged(*lasting) != []
