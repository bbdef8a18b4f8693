"""A gap that is passed in parts, wherever it is cut: each loss is recorded once, and the totals come out right."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as some

from statecache.model import ChangeRecord, ChangeSet, Position
from statecache_workers.batch_writing import WriteResult, mark_of
from statecache_workers.owned_shards import Head, Holding, OwnedRow
from statecache_workers.repair import _Rebuilt
from statecache_workers.slices import Entry, Slice, weight
from statecache_workers.stream_places import Gap, LostChange, StreamPlace

EPOCH, START = 3, 10
AT = datetime(2026, 11, 20, tzinfo=UTC)
WHOLE, PART, GONE, UNREADABLE = "whole", "part", "gone", "unreadable"


class Recorded(NamedTuple):
    """What the parts of a gap have recorded."""

    gaps: list[Gap]
    places: list[StreamPlace]
    flushed: list[int]


def _change(n: int) -> ChangeSet:
    change = ChangeRecord(
        change_id=f"c{n}", key=f"g/{n}", op="set", version=1, parent_change_id="", value=b"x" * n, encoding="json",
        schema="",
    )  # fmt: skip
    return ChangeSet(
        position=Position(EPOCH, n), change_id=change.change_id, at=AT, writer="w", actor="", reason="", entries=0,
        bytes=0, changes=(change,),
    )  # fmt: skip


def _filled(start: StreamPlace, end: StreamPlace, kinds: list[str], *, told: bool) -> Slice:
    """Return the gap as a repair fills it; where parts are not told, only bytes show that something is missing."""
    holding = Holding(0, OwnedRow(EPOCH, "r", start.n, start.entries, start.bytes, 0))
    head = Head(EPOCH, "r", end.n, end.entries, end.bytes, start.n, 0)
    one = Slice(holding=holding, head=head, start=start, end=end, cut="gap")
    rebuilt = _Rebuilt(end.n)
    for n in range(start.n + 1, end.n + 1):
        kind = kinds[n - START - 1]
        if kind != GONE:
            readable = None if kind == UNREADABLE else _change(n)
            one.entries.append(Entry([], Position(EPOCH, n), readable, "" if readable else "cannot be read"))
        if kind in (WHOLE, UNREADABLE) or (kind == PART and not told):
            rebuilt.whole.add(n)
        else:
            rebuilt.name(n, f"g/{n}")
            rebuilt.changes[n] = {LostChange(f"c{n}", f"g/{n}", EPOCH, n)}
    one.gaps = rebuilt.lost(start.n + 1)
    if not one.gaps and one.missing_bytes:
        one.gaps = [Gap(start.n + 1, end.n, 1, {})]
    return one


def _passed(kinds: list[str], cuts: list[int], *, told: bool = True) -> Recorded:
    """Pass a gap in parts of so many entries each, and what is left at once."""
    place = StreamPlace(b"3-10", START, 10, 1000)
    count = len(kinds)
    size = sum(weight(_change(START + at)) + 50 * (kind == PART) for at, kind in enumerate(kinds, 1))
    end = StreamPlace(b"3-10", START + count, 10 + count, 1000 + size)
    recorded = Recorded([], [place], [])
    for most in [*cuts, count]:
        if place.n < end.n:
            one = _filled(place, end, kinds, told=told)
            one.keep(most)
            place = one.end
            assert mark_of(one, WriteResult()).excepted == place.n
            recorded.gaps.extend(one.gaps)
            recorded.places.append(place)
            recorded.flushed.extend(entry.position.n for entry in one.entries)
    assert place == end
    return recorded


kinds_of = some.lists(some.sampled_from([WHOLE, PART, GONE, UNREADABLE]), min_size=1, max_size=12)
cuts_of = some.lists(some.integers(0, 4), max_size=12)


@given(kinds_of, cuts_of)
def test_each_loss_is_recorded_once_with_its_own_keys_and_changes(kinds: list[str], cuts: list[int]) -> None:
    found = _passed(kinds, cuts)
    lost = [START + at for at, kind in enumerate(kinds, 1) if kind in (PART, GONE)]
    precise = [gap for gap in found.gaps if gap.keys]
    assert [n for gap in precise for n in range(gap.first, gap.last + 1)] == lost
    assert [change.n for gap in precise for change in gap.changes] == lost
    for gap in precise:
        assert gap.keys == [f"g/{n}" for n in range(gap.first, gap.last + 1)][:10]
    assert found.flushed == [START + at for at, kind in enumerate(kinds, 1) if kind != GONE]


@given(kinds_of, cuts_of)
def test_the_places_go_forward_and_never_past_the_end(kinds: list[str], cuts: list[int]) -> None:
    places = _passed(kinds, cuts).places
    assert [place.n for place in places] == sorted(place.n for place in places)
    assert [place.bytes for place in places] == sorted(place.bytes for place in places)
    assert len({place.n for place in places}) >= len(places) - cuts.count(0)


@given(some.lists(some.sampled_from([WHOLE, PART]), min_size=1, max_size=12), cuts_of)
def test_bytes_that_are_missing_somewhere_are_recorded_once_for_all_of_it(kinds: list[str], cuts: list[int]) -> None:
    found = _passed(kinds, cuts, told=False)
    where = [(gap.first, gap.last, gap.lost, gap.keys) for gap in found.gaps]
    assert where == ([(START + 1, START + len(kinds), 1, [])] if PART in kinds else [])


def test_a_gap_of_which_nothing_is_kept_is_left_wholly_for_later() -> None:
    one = _filled(StreamPlace(b"3-10", START, 10, 1000), StreamPlace(b"3-10", 12, 12, 2000), [GONE, WHOLE], told=True)
    one.keep(0)
    assert (one.end, one.entries, one.gaps) == (one.start, [], ())


def test_a_gap_without_entries_is_passed_as_a_whole() -> None:
    end = StreamPlace(b"3-10", 12, 12, 2000)
    one = _filled(StreamPlace(b"3-10", START, 10, 1000), end, [GONE, GONE], told=True)
    one.keep(0)
    assert (one.end, [(gap.first, gap.last) for gap in one.gaps]) == (end, [(11, 12)])
