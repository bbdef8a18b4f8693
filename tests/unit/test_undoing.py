"""Undo and redo, read from reasons, lead where an editor's two stacks lead."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from statecache.rules.undoing import Search, redo_target, undo_target


class Stacks:
    """An editor: what is shown, what can be undone, what can be redone."""

    def __init__(self) -> None:
        self.shown: int | None = None
        self.undos: list[int] = []
        self.redos: list[int] = []

    def edit(self, number: int) -> None:
        if self.shown is not None:
            self.undos.append(self.shown)
        self.shown, self.redos = number, []

    def undo(self) -> int | None:
        if self.shown is None or not self.undos:
            return None
        self.redos.append(self.shown)
        self.shown = self.undos.pop()
        return self.shown

    def redo(self) -> int | None:
        if self.shown is None or not self.redos:
            return None
        self.undos.append(self.shown)
        self.shown = self.redos.pop()
        return self.shown


class Change(NamedTuple):
    """One version: what it shows, and why."""

    shows: int
    reason: str


def answered(search: Search, history: list[Change]) -> tuple[int | None, int]:
    """Return where a search leads, and how many reasons it asked for."""
    asked = 0
    try:
        question = next(search)
        while True:
            asked += question.what == "reason"
            before = question.place - 1 or None
            question = search.send(history[question.place - 1].reason if question.what == "reason" else before)
    except StopIteration as done:
        return done.value, asked


EDITS = (
    "",
    "a user's own",
    "rollback to 1",
    "rollback to 5-12",
    "merge of runs/b@3",
    "erased",
    "undo to 3-4",
    "branch of a/b@1",
)
moves = st.lists(st.sampled_from(("edit", "edit", "undo", "undo", "redo")), max_size=40)


@given(moves, st.booleans())
def test_it_is_an_undo_stack(moves: list[str], with_reason: bool) -> None:
    editor, history = Stacks(), list[Change]()
    more = ": because" if with_reason else ""
    for number, move in enumerate(moves):
        version = len(history) + 1
        if move == "edit":
            editor.edit(version)
            history.append(Change(version, EDITS[number % len(EDITS)]))
        elif history:
            search = undo_target(len(history)) if move == "undo" else redo_target(len(history))
            found, asked = answered(search, history)
            assert asked <= (2 if move == "undo" else len(history))
            wanted = editor.undo() if move == "undo" else editor.redo()
            if wanted is None:
                assert found is None
            else:
                assert found is not None
                assert history[found - 1].shows == wanted == found
                history.append(Change(found, f"{move} to {found}{more}"))


def test_undo_goes_on_behind_an_edit_that_followed_undos() -> None:
    reasons = ["", "", "", "undo to 2", "undo to 1", "an edit"]
    history = [Change(0, reason) for reason in reasons]
    assert answered(undo_target(6), history)[0] == 1
    assert answered(redo_target(6), history)[0] is None
    assert answered(redo_target(5), history[:5])[0] == 2
    history += [Change(0, "undo to 1")]
    assert answered(redo_target(7), history)[0] == 6
    assert answered(undo_target(7), history)[0] is None


def test_the_first_version_is_not_undone() -> None:
    assert answered(undo_target(1), [Change(0, "")]) == (None, 1)
    assert answered(redo_target(1), [Change(0, "")])[0] is None


def test_a_workers_delete_of_what_had_ended_is_no_edit() -> None:
    history = [Change(0, reason) for reason in ("", "", "expired", "undo to 1", "expired: too late")]
    assert answered(undo_target(3), history[:3])[0] == 1
    assert answered(redo_target(3), history[:3])[0] is None
    assert answered(redo_target(5), history)[0] == 2
    assert answered(undo_target(3), [Change(0, one) for one in ("", "expired", "")])[0] == 1
    assert answered(redo_target(4), [*history[:2], Change(0, "undo to 1"), Change(0, "expired")])[0] == 2
    assert answered(undo_target(1), [Change(0, "expired")])[0] is None


def test_a_redo_reads_no_further_than_the_edit_before() -> None:
    history = [Change(0, "")] * 1000 + [Change(0, "undo to 999"), Change(0, "redo to 1000"), Change(0, "undo to 999")]
    assert answered(redo_target(1003), history) == (1000, 2)
    assert answered(redo_target(1002), history[:1002]) == (None, 3)


def test_those_of_a_group_go_from_commit_to_commit() -> None:
    commits = {4: "", 9: "undo to 3", 12: "", 20: "undo to 5-9", 31: "undo to 5-4: no"}
    before = dict(zip([*commits][1:], commits, strict=False)) | {4: None}

    def led(search: Search) -> int | None:
        try:
            question = next(search)
            while True:
                question = search.send(commits[question.place] if question.what == "reason" else before[question.place])
        except StopIteration as done:
            found: int | None = done.value
            return found

    assert [led(undo_target(tip, whole=True)) for tip in commits] == [None, 4, 9, 4, None]
    assert [led(redo_target(tip, whole=True)) for tip in commits] == [None, None, None, 12, 9]
