"""What Postgres' chains make of changes: continued, repeated, torn, forked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as some

from statecache.model import ChangeRecord, ChangeSet, Position, Token
from statecache.rules.reconcile import NOTHING, Fate, Fates, Judgement, Tip, judge

AT = datetime(2026, 1, 1, tzinfo=UTC)
K = "runs/1"


def _set(n: int, *changes: tuple[str, int, str], change_id: str = "", **tokens: Token) -> ChangeSet:
    """Return a change-set of (key, version, parent) at position n; its change_id is `c<n>`."""
    name = change_id or f"c{n}"
    made = [
        ChangeRecord(
            change_id=name, key=k, op="set", version=v, parent_change_id=p, value=b"", encoding="json", schema=""
        )
        for k, v, p in changes
    ]
    return ChangeSet(
        position=Position(1, n), change_id=name, at=AT, writer="w", actor="", reason="", entries=n, bytes=n,
        changes=tuple(made), tokens=tuple(tokens.items()),
    )  # fmt: skip


def _judged(sets: Sequence[ChangeSet], tips: dict[str, Tip] | None = None, fates: Fates | None = None) -> Judgement:
    known = {change.key: NOTHING for one in sets for change in one.changes} | (tips or {})
    return judge(sets, known, fates or {})


def _applied(judgement: Judgement) -> list[tuple[str, int, bool]]:
    return [(row.change.key, row.change.version, row.gap) for row in judgement.applied]


def _forked(judgement: Judgement) -> list[tuple[str, int, str]]:
    return [(fork.change.key, fork.change.version, fork.cause) for fork in judgement.forked]


def test_a_chain_goes_on_from_its_tip_and_within_the_batch() -> None:
    found = _judged([_set(11, (K, 5, "c4")), _set(12, (K, 6, "c11")), _set(13, (K, 7, "c12"))], {K: Tip(4, "c4")})
    assert _applied(found) == [(K, 5, False), (K, 6, False), (K, 7, False)]
    assert found.tips == {K: Tip(7, "c13")}
    assert not found.asked
    assert not found.forked


def test_a_key_that_postgres_never_saw_begins_at_version_1() -> None:
    assert _applied(_judged([_set(1, (K, 1, ""))])) == [(K, 1, False)]


def test_the_change_at_the_tip_repeats_without_a_question() -> None:
    found = _judged([_set(4, (K, 4, "c3"))], {K: Tip(4, "c4")})
    assert (found.applied, found.forked, found.repeated, found.asked) == ([], [], 1, set())


def test_a_change_below_the_tip_is_asked_about_and_repeats_or_forks() -> None:
    sets, tips = [_set(3, (K, 3, "c2"))], {K: Tip(5, "c5")}
    assert _judged(sets, tips).asked == {(K, "c3")}
    assert _judged(sets, tips, {(K, "c3"): Fate("applied", 3)}).repeated == 1
    for fate in (Fate("nowhere"), Fate("forked"), Fate("applied", 2)):
        assert _forked(_judged(sets, tips, {(K, "c3"): fate})) == [(K, 3, "behind")]


def test_a_broken_assume_new_never_overtakes_the_truth() -> None:
    """The fork starts at version 1 of a key at version 4 and goes on to 7; all of it is the fork."""
    sets = [_set(11, (K, 1, ""))] + [_set(10 + v, (K, v, f"c{9 + v}")) for v in range(2, 8)]
    fates = {(K, f"c{10 + v}"): Fate("nowhere") for v in range(1, 8)}
    found = _judged(sets, {K: Tip(4, "t4")}, fates)
    assert found.applied == []
    assert _forked(found) == [(K, v, "behind") for v in (1, 2, 3, 4)] + [(K, v, "descendant") for v in (5, 6, 7)]
    assert found.excepted == 17


def test_the_descendant_of_a_fork_of_an_earlier_batch_forks() -> None:
    sets, tips = [_set(15, (K, 6, "c14"))], {K: Tip(4, "t4")}
    assert _judged(sets, tips).asked == {(K, "c14")}
    assert _forked(_judged(sets, tips, {(K, "c14"): Fate("forked")})) == [(K, 6, "descendant")]


def test_a_second_child_of_a_parent_is_a_sibling() -> None:
    found = _judged([_set(12, (K, 5, "other4"))], {K: Tip(4, "c4")})
    assert _forked(found) == [(K, 5, "sibling")]
    assert not found.asked


def test_a_change_whose_parent_is_in_the_chain_but_not_its_tip_forks() -> None:
    found = _judged([_set(12, (K, 6, "c2"))], {K: Tip(4, "c4")}, {(K, "c2"): Fate("applied", 2)})
    assert _forked(found) == [(K, 6, "sibling")]


def test_a_lost_parent_is_a_gap_and_the_chain_goes_on() -> None:
    sets, tips = [_set(12, (K, 6, "lost")), _set(13, (K, 7, "c12"))], {K: Tip(4, "c4")}
    assert _judged(sets, tips).asked == {(K, "lost")}
    found = _judged(sets, tips, {(K, "lost"): Fate("nowhere")})
    assert _applied(found) == [(K, 6, True), (K, 7, False)]


def test_behind_a_quarantined_tip_the_gap_is_recorded_once() -> None:
    found = _judged([_set(12, (K, 5, "c4")), _set(13, (K, 6, "c12"))], {K: Tip(4, "c4", broken=True)})
    assert _applied(found) == [(K, 5, True), (K, 6, False)]


def test_a_change_set_forks_as_a_whole_and_its_other_states_with_it() -> None:
    sets = [
        _set(11, ("g/1", 1, ""), ("g/1/a", 2, "a1")),
        _set(12, ("g/1/a", 3, "c11")),
        _set(13, ("g/1/b", 1, "")),
    ]
    tips = {"g/1": Tip(3, "t3"), "g/1/a": Tip(1, "a1")}
    found = _judged(sets, tips, {("g/1", "c11"): Fate("nowhere"), ("g/1/a", "c11"): Fate("nowhere")})
    assert _forked(found) == [("g/1", 1, "behind"), ("g/1/a", 2, "companion"), ("g/1/a", 3, "descendant")]
    assert _applied(found) == [("g/1/b", 1, False)]
    assert found.excepted == 12


def test_deletes_and_recreations_continue_the_version() -> None:
    found = _judged([_set(12, (K, 5, "c4")), _set(13, (K, 6, "c12"))], {K: Tip(4, "c4")})
    assert found.tips[K].version == 6


@given(some.lists(some.tuples(some.sampled_from(["g/1", "g/1/a", "g/1/b"]), some.booleans()), min_size=1, max_size=30))
def test_any_stream_that_commits_made_is_applied_whole_and_again_changes_nothing(steps: list[tuple[str, bool]]) -> None:
    tips: dict[str, Tip] = {}
    sets = []
    for n, (key, both) in enumerate(steps, 1):
        names = {key, "g/1"} if both else {key}
        sets.append(_set(n, *((k, tips.get(k, NOTHING).version + 1, tips.get(k, NOTHING).change_id) for k in names)))
        tips |= {k: Tip(tips.get(k, NOTHING).version + 1, f"c{n}") for k in names}
    found = _judged(sets)
    assert len(found.applied) == sum(len(one.changes) for one in sets)
    assert found.tips == tips
    fates = {(row.change.key, row.change.change_id): Fate("applied", row.change.version) for row in found.applied}
    again = _judged(sets, tips, fates)
    assert (again.applied, again.forked) == ([], [])


@given(some.data())
def test_whatever_arrives_a_chain_only_ever_grows_from_its_tip(data: some.DataObject) -> None:
    versions = some.integers(1, 6)
    parents = ["", "t3", *(f"c{n}" for n in range(1, 9))]
    sets = [_set(n, (K, data.draw(versions), data.draw(some.sampled_from(parents[: n + 1])))) for n in range(1, 9)]
    fates = {(K, f"c{n}"): Fate(data.draw(some.sampled_from(["nowhere", "forked"]))) for n in range(1, 9)}
    fates |= {(K, ""): Fate("nowhere"), (K, "t3"): Fate("applied", 3)}
    found = _judged(sets, {K: Tip(3, "t3")}, fates)
    assert not found.asked
    version, forks = 3, {fork.change.change_id for fork in found.forked}
    for row in found.applied:
        assert row.change.version > version
        assert row.change.parent_change_id not in forks
        version = row.change.version
    assert len(found.applied) + len(found.forked) + found.repeated == len(sets)


OLDER, NEWER = Token(3, 9), Token(4, 1)
"""Tokens of two holders; the epoch counts before the count."""


def test_a_change_under_an_older_token_than_its_lock_has_shown_forks() -> None:
    sets = [_set(11, (K, 5, "c4"), lock=NEWER), _set(12, (K, 6, "c11"), lock=OLDER), _set(13, (K, 7, "c12"))]
    found = _judged(sets, {K: Tip(4, "c4")})
    assert _applied(found) == [(K, 5, False)]
    assert _forked(found) == [(K, 6, "stale_token"), (K, 7, "descendant")]
    assert (found.tokens, found.excepted, found.tips) == ({"lock": NEWER}, 13, {K: Tip(5, "c11")})


def test_a_token_is_compared_with_what_postgres_had_and_the_newest_is_kept() -> None:
    known = {K: Tip(4, "c4")}
    late = judge([_set(11, (K, 5, "c4"), lock=OLDER)], known, {}, {"lock": NEWER})
    assert (_forked(late), late.tokens) == ([(K, 5, "stale_token")], {"lock": NEWER})
    same = judge([_set(11, (K, 5, "c4"), lock=NEWER)], known, {}, {"lock": NEWER})
    assert (_forked(same), same.tokens) == ([], {"lock": NEWER})
    newer = judge([_set(11, (K, 5, "c4"), lock=NEWER)], known, {}, {"lock": OLDER})
    assert (_forked(newer), newer.tokens) == ([], {"lock": NEWER})


def test_a_change_without_a_token_is_not_asked_for_one_and_the_token_stays() -> None:
    found = judge([_set(11, (K, 5, "c4"))], {K: Tip(4, "c4")}, {}, {"lock": NEWER})
    assert (_applied(found), found.tokens) == ([(K, 5, False)], {"lock": NEWER})


def test_holders_of_different_locks_do_not_stand_in_each_others_way() -> None:
    sets = [_set(11, (K, 5, "c4"), one=Token(1, 7)), _set(12, (K, 6, "c11"), other=Token(1, 3))]
    found = _judged(sets, {K: Tip(4, "c4")})
    assert (_forked(found), found.tokens) == ([], {"one": Token(1, 7), "other": Token(1, 3)})


def test_one_stale_token_of_several_is_one_too_many_and_its_companions_fork_with_it() -> None:
    sets = [_set(11, (K, 5, "c4"), ("runs/1/plan", 1, ""), one=NEWER, other=OLDER)]
    known = {K: Tip(4, "c4"), "runs/1/plan": NOTHING}
    found = judge(sets, known, {}, {"other": NEWER})
    assert _forked(found) == [(K, 5, "stale_token"), ("runs/1/plan", 1, "stale_token")]
    assert (found.tokens, found.tips) == ({"other": NEWER}, {})


def test_a_repeat_of_what_was_applied_under_a_token_that_is_stale_by_now_is_a_repeat() -> None:
    found = judge([_set(4, (K, 4, "c3"), lock=OLDER)], {K: Tip(4, "c4")}, {}, {"lock": NEWER})
    assert (found.repeated, found.forked, found.applied) == (1, [], [])
