"""Delta channels: what is written to them since the last snapshot, along the ancestors of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from statecache.adapters.langgraph.ancestors import Ancestors, document_of
from statecache.adapters.langgraph.documents import Document, in_order
from statecache.adapters.langgraph.pieces import packed_values
from statecache.adapters.langgraph.reading import latest, writes_of
from statecache.adapters.langgraph.values import Packed, Serde, packed_of
from statecache.adapters.plans import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.checkpoint.base import DeltaChannelHistory

    from statecache.adapters.langgraph.names import Place
    from statecache.adapters.langgraph.recent import Recent


def delta_history(
    place: Place, checkpoint_id: str | None, channels: Sequence[str], serde: Serde, recent: Recent
) -> Plan[dict[str, DeltaChannelHistory]]:
    """Return for each channel the writes since the nearest ancestor that holds a value of it, and that value."""
    writes: dict[str, list[Document]] = {channel: [] for channel in channels}
    seeds: dict[str, Packed] = {}
    target = yield from (document_of(place, checkpoint_id) if checkpoint_id else latest(place, recent))
    ancestors = Ancestors(place, target)
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
