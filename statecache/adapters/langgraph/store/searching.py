"""Searching items: the newest first, or the nearest to a query.

Postgres compares what it can be told of a filter, and reads no more than the page needs. An item that reading has
renewed is listed before its time, for its state is newer than its last put: so more is read until what has not been
cannot belong to the page. What a filter says beyond that is compared here, for so many items at most; for more a search
is refused, for a part of what there is would be no answer. A query is `nearest`'s to answer: by pgvector where the
namespace's vectors are indexed, else by comparing all items, of as many at most. Items that have no vectors come behind
those that do, of the newest ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statecache import LimitExceeded
from statecache.adapters.langgraph.store.documents import (
    Document,
    namespace,
    refuse_foreign,
    search_item,
    told_namespace,
    updated_at,
)
from statecache.adapters.langgraph.store.filters import Wanted, refuse_negative
from statecache.adapters.langgraph.store.items import renew
from statecache.adapters.langgraph.store.names import Labels, group, group_of, range_of
from statecache.adapters.langgraph.store.vectors import has_vectors, has_zeros
from statecache.adapters.plans import DOCUMENT, Plan, call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langgraph.store.base import SearchItem, SearchOp

    from statecache import Scored, State

ITEMS_COMPARED_MAX = 10_000
"""How many items a search reads at most beyond what its page holds."""
_READ_MIN = 100
_GROWTH = 4


class Search:
    """What a search is for; it is refused here if it is none."""

    def __init__(self, asked: SearchOp) -> None:
        refuse_negative(asked.limit, asked.offset)
        self.prefix = tuple(asked.namespace_prefix)
        self.range, self._group = range_of(self.prefix), group(self.prefix)
        self.wanted = Wanted(asked.filter)
        self.limit, self.offset, self.refresh_ttl = asked.limit, asked.offset, asked.refresh_ttl
        self.is_told = self.range.exact and self.wanted.is_told

    def meets(self, state: State[Document]) -> bool:
        """Return whether an item that was listed is meant."""
        return self._is_within(state) and self.wanted.meets(state.value["value"])

    def labels_of(self, state: State[Document]) -> Labels:
        """Return the namespace of an item that is meant; raise UsageError where nothing tells it."""
        return self.prefix if group_of(state) == self._group else namespace(state)

    def _is_within(self, state: State[Document]) -> bool:
        if self.range.exact or group_of(state) == self._group:
            return True
        return (told_namespace(state) or ())[: len(self.prefix)] == self.prefix

    def states(self, order: str, limit: int) -> Plan[list[State[Document]]]:
        """Return the first states that Postgres takes for what is meant; raise CodecError for one that is no item."""
        states: list[State[Document]] = yield from call(
            "list", self.range.prefix, **self._options(), order=order, limit=limit
        )
        refuse_foreign(states)
        return states

    def nearest(self, vector: Sequence[float], limit: int) -> Plan[list[Scored[Document]]]:
        """Return the items of what Postgres takes for what is meant whose vectors are the nearest to one."""
        scored: list[Scored[Document]] = yield from call(
            "nearest", vector, self.range.prefix, **self._options(), limit=limit
        )
        refuse_foreign(one.state for one in scored)
        return scored

    def _options(self) -> dict[str, Any]:
        return {**self.range.options(), "where": self.wanted.where, "type": DOCUMENT}


def search_items(
    search: Search, vector: Sequence[float] | None, begin_to_write: Callable[[], object] = lambda: True
) -> Plan[list[SearchItem]]:
    """Return a page of the items that are meant: the nearest to a vector, or without one the newest.

    They last anew where `begin_to_write`, called once they have been found, returns what is true.
    """
    if search.limit == 0:
        return []
    page = yield from _newest(search) if vector is None else _nearest(search, vector)
    if search.refresh_ttl and begin_to_write():
        for error in (yield from renew(state for state, _ in page)).values():
            raise error
    return [search_item(state, search.labels_of(state), score) for state, score in page]


def _newest(search: Search) -> Plan[list[tuple[State[Document], float | None]]]:
    end = search.offset + search.limit
    most = end + ITEMS_COMPARED_MAX
    limit = end if search.is_told else min(max(end * _GROWTH, _READ_MIN), most + 1)
    while True:
        states = yield from search.states("newest", limit)
        found = sorted(filter(search.meets, states), key=_age, reverse=True)
        if len(states) < limit:
            break
        if len(found) >= end and updated_at(found[end - 1]) >= states[-1].updated_at:
            break
        _refuse_too_many(len(states), most)
        limit = min(limit * _GROWTH, most + 1)
    return [(state, None) for state in found[search.offset : end]]


def _nearest(search: Search, vector: Sequence[float]) -> Plan[list[tuple[State[Document], float | None]]]:
    """Return the page of those that have vectors, by their scores, and behind these of those that have none.

    A vector of nothing but zeros, the query's or an item's, is as near to any as one across it, and is not searched
    for: what has such a vector is found among the newest.
    """
    end, dims = search.offset + search.limit, len(vector)
    found = (yield from _scored(search, vector, end)) if any(vector) else []
    if len(found) >= end and found[end - 1].score >= 0.0:
        return [*found[search.offset : end]]
    states = yield from search.states("newest", ITEMS_COMPARED_MAX)
    rest = {one.key: one for one in sorted(filter(search.meets, states), key=_age, reverse=True)}
    is_across = has_zeros if any(vector) else has_vectors
    across = [one for one in rest.values() if is_across(one.value, dims)]
    scored: dict[str, tuple[State[Document], float]] = {one.state.key: (one.state, one.score) for one in found}
    for state in across:
        _, score = scored.get(state.key, (state, 0.0))
        scored[state.key] = state, max(score, 0.0)
    page = sorted(scored.values(), key=_score, reverse=True)
    without = ((one, None) for one in rest.values() if one.key not in scored and not has_vectors(one.value, dims))
    return [*page, *without][search.offset : end]


def _scored(search: Search, vector: Sequence[float], end: int) -> Plan[list[Scored[Document]]]:
    """Return the nearest items, `end` of them at least where there are so many."""
    limit = end if search.is_told else max(end * _GROWTH, _READ_MIN)
    while True:
        scored = yield from search.nearest(vector, limit)
        found = [one for one in scored if search.meets(one.state)]
        if len(found) >= end or len(scored) < limit:
            return found
        _refuse_too_many(len(scored), ITEMS_COMPARED_MAX)
        limit = min(limit * _GROWTH, ITEMS_COMPARED_MAX + 1)


def _refuse_too_many(count: int, limit: int) -> None:
    if count > limit:
        hint = "Search under a longer prefix, or for members that equal something, which Postgres compares."
        raise LimitExceeded("the number of items to be compared", actual=count, limit=limit, hint=hint)


def _age(state: State[Document]) -> tuple[Any, str]:
    return updated_at(state), state.key


def _score(one: tuple[State[Document], float]) -> float:
    return one[1]
