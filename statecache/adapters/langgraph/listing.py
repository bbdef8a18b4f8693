"""Listing checkpoints, the newest first; what metadata must hold is compared by Postgres, as far as `where=` can say.

Within one namespace of a thread the names are in that order, and pages of states are read as they are asked for. Over
several namespaces or threads the names alone are read first, put in order, and then the states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statecache import VersionNotFound
from statecache.adapters.langgraph.ancestors import Seeds, delta_channels, document_of
from statecache.adapters.langgraph.documents import Document, holds_checkpoint, is_told, own, place_of
from statecache.adapters.langgraph.names import Place, checkpoint_segment
from statecache.adapters.langgraph.own_states import is_own, name_of, own_among
from statecache.adapters.langgraph.pieces import are_kept, pieces_of
from statecache.adapters.langgraph.reading import loaded
from statecache.adapters.langgraph.values import Serde, contains, is_plain
from statecache.adapters.plans import Found, Listing, Plan, call

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from statecache import State
    from statecache.adapters.langgraph.recent import Recent

_PAGE = 50
_AT_ONCE = 10
"""Of how many checkpoints large values are read at once: each may be of megabytes."""
_WHERE_MAX = 16
"""How many places `where=` compares."""
_SCALARS = (str, bool, int, float, type(None))


class Query:
    """What is listed: where, what metadata must hold, before which checkpoint, and how many."""

    def __init__(
        self, place: Place | None, *, whole_thread: bool = False, checkpoint_id: str | None = None,
        filter: Mapping[str, Any] | None = None, before: str | None = None, limit: int | None = None,  # noqa: A002
    ) -> None:  # fmt: skip
        self.place, self.whole_thread, self.checkpoint_id, self.before = place, whole_thread, checkpoint_id, before
        self.limit = limit
        self.where: dict[str, Any] = {}
        self.rest: dict[str, Any] = {}
        for name, wanted in (filter or {}).items():
            told = name and "." not in name and is_plain(name) and type(wanted) in _SCALARS and is_plain(wanted)
            if told and len(self.where) < _WHERE_MAX:
                self.where[f"metadata.{name}"] = wanted
            else:
                self.rest[name] = wanted

    def meets(self, document: Document) -> bool:
        """Return whether a checkpoint is one, and holds what Postgres was not told of."""
        return holds_checkpoint(document) and contains(document["metadata"], self.rest)

    def meets_all(self, document: Document) -> bool:
        """Return whether a checkpoint is one and holds all that is wanted."""
        wanted = {name.partition(".")[2]: one for name, one in self.where.items()}
        return self.meets(document) and contains(document["metadata"], wanted)


def listed(query: Query, serde: Serde, recent: Recent) -> Listing:
    """Yield the checkpoints that are meant, but for those of which a policy has let go values.

    So are those left out whose delta channels are made of such a value: LangGraph asks for it with each.
    """
    given, pages, left, seeds = 0, _Pages(query), list[Document](), _KeptSeeds(recent)
    while query.limit is None or given < query.limit:
        if not left:
            documents = yield from pages.take()
            if documents is None:
                return
            left = documents
            seeds.add(documents)
        count = _AT_ONCE if query.limit is None else min(query.limit - given, _AT_ONCE)
        some, left = left[:count], left[count:]
        pieces = yield from pieces_of(some, recent)
        for document in some:
            if not (yield from seeds.are_kept(document)):
                continue
            try:
                found = yield from loaded(document, serde, recent, pieces)
            except VersionNotFound:
                continue
            yield Found(found)
            given += 1


class _KeptSeeds:
    """Whether that can be read of which delta channels are made; each value is looked for once."""

    def __init__(self, recent: Recent) -> None:
        self._recent, self._seeds = recent, Seeds()
        self._kept: dict[tuple[str, str], bool] = {}

    def add(self, documents: Sequence[Document]) -> None:
        """Note the checkpoints of a page, if any has delta channels."""
        if any(map(delta_channels, documents)):
            self._seeds.add(documents)

    def are_kept(self, document: Document) -> Plan[bool]:
        """Return whether all is there that the delta channels of a checkpoint are made of."""
        for seed, channels in (yield from self._seeds.of(document)):
            for channel in channels:
                name = place_of(seed).checkpoint(seed["checkpoint_id"]), channel
                if name not in self._kept:
                    self._kept[name] = yield from are_kept(seed, [channel], self._recent)
                if not self._kept[name]:
                    return False
        return True


class _Pages:
    """The documents that are meant, a page at a time."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._ended = False
        self._after: str | None = None
        self._names: list[str] | None = None
        if query.place is not None and query.before is not None:
            self._after = query.place.checkpoint(query.before)

    def take(self) -> Plan[list[Document] | None]:
        """Return the next page, which may be empty, or None at the end."""
        if self._ended:
            return None
        query = self._query
        if query.place is None or query.whole_thread:
            return (yield from self._over_places())
        if query.checkpoint_id is not None:
            return (yield from self._single(query.place, query.checkpoint_id))
        return (yield from self._within(query.place))

    def _single(self, place: Place, checkpoint_id: str) -> Plan[list[Document]]:
        self._ended = True
        if self._query.before is not None and checkpoint_id >= self._query.before:
            return []
        document = yield from document_of(place, checkpoint_id)
        return [document] if document is not None and self._query.meets_all(document) else []

    def _within(self, place: Place) -> Plan[list[Document]]:
        limit = _PAGE if self._query.limit is None or self._query.rest else min(_PAGE, self._query.limit)
        states: list[State[Any]] = yield from call(
            "list", place.checkpoints, after=self._after, where=self._query.where, limit=limit
        )
        self._ended = len(states) < limit
        self._after = name_of(states[-1].key) if states else None
        return [own(state) for state in own_among(states) if self._query.meets(state.value)]

    def _over_places(self) -> Plan[list[Document]]:
        if self._names is None:
            self._names = yield from self._ordered_names()
        names, self._names = self._names[:_PAGE], self._names[_PAGE:]
        self._ended = not self._names
        found = (yield from call("get_many", names, read="primary")) if names else {}
        there = [state for state in found.values() if state is not None and is_told(state)]
        return [own(state) for state in there if self._query.meets_all(state.value)]

    def _ordered_names(self) -> Plan[list[str]]:
        query = self._query
        prefix = "" if query.place is None else f"{query.place.thread}/cp/"
        states = yield from call("list", prefix, where=query.where, values=False)
        names = checkpoints_among(name_of(state.key) for state in states)
        if query.before is not None:
            bound = checkpoint_segment(query.before)
            names = [name for name in names if segment_of(name) > bound]
        if query.checkpoint_id is not None:
            names = [name for name in names if segment_of(name) == checkpoint_segment(query.checkpoint_id)]
        return sorted(names, key=lambda name: segment_of(name).encode())


def segment_of(name: str) -> str:
    """Return the last segment of a checkpoint's name, by which the newest is the first."""
    return name.rpartition("/")[2]


def checkpoints_among(names: Iterable[str]) -> list[str]:
    """Return those of the names that are of checkpoints."""
    return [name for name in names if name.split("/")[1:2] == ["cp"] and is_own(name)]
