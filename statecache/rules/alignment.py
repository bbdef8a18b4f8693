"""Which items of two lists belong together, decided by the labels of the items.

Items that are the same belong together in the order in which both have them: what the lists have in common at their
ends, so that whatever is appended is found at once, and between the ends a longest common subsequence, in which items
keep their indexes where that loses none. Where one list is contained in the other, one pass finds it. Up to CELLS_MAX
pairs of items it is found exactly, row by row, a row of the table being the bits of one integer. Beyond that, items
that occur once in each list are aligned first, and the stretches between them by the same rules; a stretch that is
still too large has nothing in common but what keeps its index, or stands at its ends.

What is left between them was changed, removed or added. The most alike belong together, up to LIKENESSES_MAX
comparisons an item; what is nothing alike, by its place: the first that went with the first that came. So of
`[1, 2, 3]` and `[1, 5, 6, 3]` the 2 was changed to 5, and 6 was added.

All of it takes time that grows with the lists' lengths, but for a factor that CELLS_MAX bounds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from statecache.rules.sameness import Label, Labels

CELLS_MAX = 1 << 24
"""Up to how many pairs of items a longest common subsequence is looked for: two lists of 4,096 items."""
LIKENESSES_MAX = 16
"""How many comparisons for likeness an item is worth, on average: all of two stretches of 32 items."""

Pairs = list[tuple[int, int]]
Items = Sequence[Label]
Likeness = Callable[[int, int], int]
"""How much two items are alike, by their indexes; 0 for not at all."""


class Stretch(NamedTuple):
    """Items of two lists that stand between two pairs: from `start` to before `end`, in each list."""

    start: int
    end: int
    other_start: int
    other_end: int

    @property
    def area(self) -> int:
        """How many pairs of items there could be."""
        return (self.end - self.start) * (self.other_end - self.other_start)


def aligned(old: Sequence[Any], new: Sequence[Any], labels: Labels) -> Pairs:
    """Return which items belong together, the same and changed ones, as ascending pairs of indexes."""
    pairs: Pairs = []
    for stretch, pair in _stretches(common(old, new, labels), len(old), len(new)):
        if stretch.area:
            pairs += _changed(stretch, lambda at, other: labels.likeness(old[at], new[other]))
        pairs += pair
    return pairs


def common(old: Sequence[Any], new: Sequence[Any], labels: Labels) -> Pairs:
    """Return which items are the same in both lists, in their order, as ascending pairs of indexes."""
    whole = Stretch(0, len(old), 0, len(new))
    return _common([*map(labels.of, old)], [*map(labels.of, new)], whole, by_rare=True)


def _stretches(pairs: Pairs, count: int, others: int) -> Iterator[tuple[Stretch, Pairs]]:
    """Yield what stands before each pair, with that pair, and what stands behind the last."""
    at, other = 0, 0
    for pair in pairs:
        yield Stretch(at, pair[0], other, pair[1]), [pair]
        at, other = pair[0] + 1, pair[1] + 1
    yield Stretch(at, count, other, others), []


def _common(items: Items, others: Items, stretch: Stretch, *, by_rare: bool) -> Pairs:
    start, end, other, other_end = stretch
    while start < end and other < other_end and items[start] == others[other]:
        start, other = start + 1, other + 1
    first = [(at, at - start + other) for at in range(stretch.start, start)]
    while start < end and other < other_end and items[end - 1] == others[other_end - 1]:
        end, other_end = end - 1, other_end - 1
    last = [(at, at - end + other_end) for at in range(end, stretch.end)]
    if start == end or other == other_end:
        return first + last
    inner, inner_others = items[start:end], others[other:other_end]
    between = _contained(inner, inner_others)
    if between is None and len(inner) * len(inner_others) <= CELLS_MAX:
        between = _longest(inner, inner_others)
    if between is None:
        between = _by_rare(inner, inner_others) if by_rare else []
    if len(inner) == len(inner_others):
        in_place = [(at, at) for at, item in enumerate(inner) if item == inner_others[at]]
        between = in_place if len(in_place) >= len(between) else between
    return [*first, *((start + at, other + at_other) for at, at_other in between), *last]


def _contained(items: Items, others: Items) -> Pairs | None:
    """Return the pairs where one list holds all of the other in its order; None where it does not."""
    if len(items) > len(others):
        pairs = _contained(others, items)
        return None if pairs is None else [(at, other) for other, at in pairs]
    pairs = []
    for other, item in enumerate(others):
        if len(pairs) < len(items) and items[len(pairs)] == item:
            pairs.append((len(pairs), other))
    return pairs if len(pairs) == len(items) else None


def _longest(items: Items, others: Items) -> Pairs:
    """Return a longest common subsequence, of the first that there are.

    After an item's row the bit of another item is 0 where one more is common up to there than up to the one before it.
    """
    if len(items) < len(others):
        return [(at, other) for other, at in _longest(others, items)]
    places: dict[Label, int] = {}
    for other, item in enumerate(others):
        places[item] = places.get(item, 0) | 1 << other
    row = full = (1 << len(others)) - 1
    rows = [row]
    for item in items:
        found = row & places.get(item, 0)
        row = (row + found | row - found) & full
        rows.append(row)
    pairs: Pairs = []
    at, other = len(items), len(others)
    while at and other:
        if rows[at] >> other - 1 & 1:
            other -= 1
            continue
        at -= 1
        if rows[at] >> other - 1 & 1:
            other -= 1
            pairs.append((at, other))
    return pairs[::-1]


def _by_rare(items: Items, others: Items) -> Pairs:
    """Return what two long lists have in common, as far as items show it that occur once in each."""
    counts, others_counts = Counter(items), Counter(others)
    places = {item: other for other, item in enumerate(others) if others_counts[item] == 1}
    once = [(at, places[item]) for at, item in enumerate(items) if counts[item] == 1 and item in places]
    pairs: Pairs = []
    for stretch, pair in _stretches(_ascending(once), len(items), len(others)):
        pairs += _common(items, others, stretch, by_rare=False)
        pairs += pair
    return pairs


def _ascending(pairs: Pairs) -> Pairs:
    """Return as many of the pairs as can be that ascend in both lists; they ascend in the first."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (_, other) in enumerate(pairs):
        length = bisect_left(ends, other)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [other]
        last[length : length + 1] = [number]
    chosen: Pairs = []
    number = last[-1] if last else -1
    while number >= 0:
        chosen.append(pairs[number])
        number = before[number]
    return chosen[::-1]


def _changed(stretch: Stretch, likeness: Likeness) -> Pairs:
    """Return which items of a stretch belong together though none are the same."""
    start, end, other, other_end = stretch
    pairs: Pairs = []
    alike: Pairs = []
    if 1 < stretch.area <= LIKENESSES_MAX * (end - start + other_end - other):
        alike = _most_alike(stretch, likeness)
    for at, at_other in [*alike, (end, other_end)]:
        pairs += zip(range(start, at), range(other, at_other), strict=False)
        if at < end:
            pairs.append((at, at_other))
        start, other = at + 1, at_other + 1
    return pairs


def _most_alike(stretch: Stretch, likeness: Likeness) -> Pairs:
    """Return the pairs, ascending in both lists, whose likeness is the greatest in all."""
    start, end, other, other_end = stretch
    scores = [[likeness(at, at_other) for at_other in range(other, other_end)] for at in range(start, end)]
    below = [0] * (other_end - other + 1)
    best = [below]
    for row in reversed(scores):
        here = [0] * len(below)
        for column in range(len(row) - 1, -1, -1):
            here[column] = max(below[column], here[column + 1], row[column] + below[column + 1])
        best.append(here)
        below = here
    best.reverse()
    pairs: Pairs = []
    at = column = 0
    while at < len(scores) and column < other_end - other:
        if scores[at][column] and best[at][column] == scores[at][column] + best[at + 1][column + 1]:
            pairs.append((start + at, other + column))
            at, column = at + 1, column + 1
        elif best[at][column] == best[at + 1][column]:
            at += 1
        else:
            column += 1
    return pairs
