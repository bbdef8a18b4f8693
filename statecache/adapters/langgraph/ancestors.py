"""The ancestors of a checkpoint, and those of them that hold what its delta channels are made of.

A delta channel has no value of its own in most checkpoints: it is made of a snapshot, in the nearest ancestor that has
one, and of the writes since. Where a policy has let that go, so is what is made of it. An ancestor that is deleted ends
the way, as the first one does: what the channel is made of then is what was written since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from statecache import PostgresUnavailable
from statecache.adapters.langgraph.documents import Document, holds_checkpoint, own, place_of
from statecache.adapters.langgraph.names import checkpoint_segment
from statecache.adapters.langgraph.own_states import own_among
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from statecache.adapters.langgraph.names import Place

_PAGES = (16, 64, 256)
"""How many checkpoints are read at once."""
_KNOWN_MAX = 1000
"""Of how many checkpoints a listing holds what it may need of them, as long as they are ahead."""


def document_of(place: Place, checkpoint_id: str) -> Plan[Document | None]:
    """Return a checkpoint's document, or None."""
    state = yield from call("get", place.checkpoint(checkpoint_id), read="primary")
    return own(state) if state is not None and holds_checkpoint(state.value) else None


def delta_channels(document: Document) -> set[str]:
    """Return the channels of a checkpoint that are made of what its ancestors hold: one never written is of nothing."""
    counters = document["metadata"].get("counters_since_delta_snapshot")
    if not isinstance(counters, dict):
        return set()
    written: dict[str, Any] = document["checkpoint"].get("channel_versions", counters)
    return (counters.keys() & written.keys()) - {*document["channel_values"]}


class Ancestors:
    """The ancestors of a checkpoint, from the nearest on.

    They are mostly the checkpoints before it, so pages of these are read, each larger than the one before; where
    Postgres is away, which lists them, each by itself, as Redis holds it.
    """

    def __init__(self, place: Place, document: Document | None) -> None:
        self._place, self._child = place, document
        self._known: dict[str, Document] = {}
        self._pages = 0
        self._are_listed = True

    def older(self) -> Plan[Document | None]:
        """Return the next ancestor, or None where there is none, or it is gone."""
        parent_id = self._child["parent_checkpoint_id"] if self._child is not None else None
        if self._child is None or parent_id is None:
            return None
        if parent_id not in self._known and self._are_listed:
            try:
                found = yield from page_after(self._place, self._child["checkpoint_id"], self._pages)
            except PostgresUnavailable:
                found, self._are_listed = [], False
            self._known, self._pages = {one["checkpoint_id"]: one for one in found}, self._pages + 1
        self._child = self._known.pop(parent_id, None) or (yield from document_of(self._place, parent_id))
        return self._child


def page_after(place: Place, checkpoint_id: str, number: int) -> Plan[list[Document]]:
    """Return checkpoints that come before one, the newest first, on a page of that number."""
    limit = _PAGES[min(number, len(_PAGES) - 1)]
    states = yield from call("list", place.checkpoints, after=place.checkpoint(checkpoint_id), limit=limit)
    return [own(state) for state in own_among(states) if holds_checkpoint(state.value)]


class Seed(NamedTuple):
    """An ancestor, and the delta channels that are made of the values it holds."""

    document: Document
    channels: Collection[str]


def seeds_of(place: Place, document: Document, doomed: Collection[str] = ()) -> Plan[list[Seed]]:
    """Return what the delta channels of a checkpoint are made of.

    Ancestors that are `doomed`, by the last segments of their names, are taken for deleted.
    """
    wanted, seeds, ancestors = delta_channels(document), list[Seed](), Ancestors(place, document)
    while wanted:
        found = yield from ancestors.older()
        if found is None or checkpoint_segment(found["checkpoint_id"]) in doomed:
            break
        here = wanted & found["channel_values"].keys()
        if here:
            seeds.append(Seed(found, here))
        wanted -= here
    return seeds


class Seeds:
    """What the delta channels of checkpoints are made of that are gone through from the newest on.

    What is ahead is read once more than without that, and held without its small values and its writes.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Document] = {}
        self._found: dict[tuple[str, str], tuple[str, dict[str, Document | None]]] = {}
        self._pages, self._known_max = 0, _KNOWN_MAX

    def add(self, documents: Iterable[Document]) -> None:
        """Note checkpoints that are gone through next."""
        self._known |= {(*_place(one), one["checkpoint_id"]): _light(one) for one in documents}

    def of(self, document: Document) -> Plan[list[Seed]]:
        """Return what the delta channels of the next checkpoint are made of."""
        place, wanted, checkpoint_id = _place(document), delta_channels(document), document["checkpoint_id"]
        if not wanted:
            return []
        child_s_parent, found = self._found.get(place, ("", {}))
        if child_s_parent != checkpoint_id or not wanted <= found.keys():
            found = yield from self._walked(document, wanted)
        self._found[place] = document["parent_checkpoint_id"] or "", found
        if len(self._known) > self._known_max:
            self._known = {name: one for name, one in self._known.items() if name[2] < checkpoint_id}
            self._known_max = max(_KNOWN_MAX, 2 * len(self._known))
        return [Seed(one, [channel]) for channel in sorted(wanted) for one in [found[channel]] if one is not None]

    def _walked(self, document: Document, wanted: Collection[str]) -> Plan[dict[str, Document | None]]:
        """Return the nearest ancestors with values of these channels."""
        found, child = dict[str, Document | None](), document
        while len(found) < len(wanted):
            parent = yield from self._parent(child)
            if parent is None:
                break
            found |= {one: parent for one in wanted if one in parent["channel_values"] and one not in found}
            child = parent
        return {one: found.get(one) for one in wanted}

    def _parent(self, child: Document) -> Plan[Document | None]:
        parent_id = child["parent_checkpoint_id"]
        if parent_id is None:
            return None
        place, name = place_of(child), (*_place(child), parent_id)
        if name not in self._known:
            self.add((yield from page_after(place, child["checkpoint_id"], self._pages)))
            self._pages += 1
        if name not in self._known:
            parent = yield from document_of(place, parent_id)
            self.add([] if parent is None else [parent])
        return self._known.get(name)


def _place(document: Document) -> tuple[str, str]:
    return document["thread_id"], document["checkpoint_ns"]


def _light(document: Document) -> Document:
    """Return what is to be known of a checkpoint of which others are made: without its small values, and its writes."""
    names = ("thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id")
    small: dict[str, Any] = {}
    values = {one: form if "versions" in form else small for one, form in document["channel_values"].items()}
    return {name: document[name] for name in names} | {"channel_values": values}
