"""Delta channels: what is written to them since the last snapshot, along the ancestors of a checkpoint.

Ancestors are mostly the checkpoints before it, so pages of these are read, each larger than the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from statecache.adapters.langgraph.documents import Document, holds_checkpoint, in_order, own
from statecache.adapters.langgraph.own_states import own_among
from statecache.adapters.langgraph.pieces import packed_values
from statecache.adapters.langgraph.reading import document_of, latest, writes_of
from statecache.adapters.langgraph.values import Packed, Serde, packed_of
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.checkpoint.base import DeltaChannelHistory

    from statecache.adapters.langgraph.names import Place
    from statecache.adapters.langgraph.recent import Recent

_PAGES = (16, 64, 256)
"""How many checkpoints are read at once."""


def delta_history(
    place: Place, checkpoint_id: str | None, channels: Sequence[str], serde: Serde, recent: Recent
) -> Plan[dict[str, DeltaChannelHistory]]:
    """Return for each channel the writes since the nearest ancestor that holds a value of it, and that value."""
    writes: dict[str, list[Document]] = {channel: [] for channel in channels}
    seeds: dict[str, Packed] = {}
    target = yield from (document_of(place, checkpoint_id) if checkpoint_id else latest(place, recent))
    ancestors = _Ancestors(place, target)
    while len(seeds) < len(writes):
        document = yield from ancestors.older()
        if document is None:
            break
        for one in reversed(in_order((yield from writes_of(document)))):
            if one["channel"] in writes and one["channel"] not in seeds:
                writes[one["channel"]].append(one)
        seeds |= yield from packed_values(document, writes.keys() - seeds.keys(), recent)
    return {channel: _history(writes[channel], seeds.get(channel), serde) for channel in channels}


def _history(writes: Sequence[Document], seed: Packed | None, serde: Serde) -> DeltaChannelHistory:
    """Return what came of one channel; the writes are given with the newest first."""
    found: dict[str, Any] = {
        "writes": [(one["task_id"], one["channel"], serde.load(packed_of(one))) for one in reversed(writes)]
    }
    return cast("DeltaChannelHistory", found | ({} if seed is None else {"seed": serde.load(seed)}))


class _Ancestors:
    """The ancestors of a checkpoint, from the nearest on."""

    def __init__(self, place: Place, document: Document | None) -> None:
        self._place, self._child = place, document
        self._known: dict[str, Document] = {}
        self._pages = 0

    def older(self) -> Plan[Document | None]:
        """Return the next ancestor, or None where there is none, or it is gone."""
        parent_id = self._child["parent_checkpoint_id"] if self._child is not None else None
        if self._child is None or parent_id is None:
            return None
        if parent_id not in self._known:
            after = self._place.checkpoint(self._child["checkpoint_id"])
            limit = _PAGES[min(self._pages, len(_PAGES) - 1)]
            states = yield from call("list", self._place.checkpoints, after=after, limit=limit)
            found = [own(state) for state in own_among(states) if holds_checkpoint(state.value)]
            self._known, self._pages = {one["checkpoint_id"]: one for one in found}, self._pages + 1
        self._child = self._known.pop(parent_id, None) or (yield from document_of(self._place, parent_id))
        return self._child
