"""Reading a checkpoint: the head and the checkpoint that it is thought to name in one exchange, with its large values.

The head is read from the primary, so a run goes on from the newest checkpoint that anybody has put. Which one that is
can mostly be guessed from what this process knows, and both are asked for together. Where another process has put it,
the head says which large values it has: what this process does not hold of them is asked for along with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statecache.adapters.langgraph.ancestors import document_of
from statecache.adapters.langgraph.documents import (
    Document,
    holds_checkpoint,
    own,
    place_of,
    read_along,
    told,
    tuple_of,
)
from statecache.adapters.langgraph.pieces import packed_values
from statecache.adapters.langgraph.values import packed_of
from statecache.adapters.langgraph.writing import all_writes, elsewhere
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple

    from statecache import State
    from statecache.adapters.langgraph.names import Place
    from statecache.adapters.langgraph.pieces import Pieces
    from statecache.adapters.langgraph.recent import Recent
    from statecache.adapters.langgraph.values import Packed, Serde

_Along = dict[str, "State[Any] | None"]
"""States of channels by name, as they were read in one exchange with a checkpoint."""
PackedWrites = list[tuple[str, str, "Packed"]]
"""What tasks have written: the task, the channel and the value."""
_ANEW_MAX = 3
"""How often the head is read again where it names another checkpoint by then, or that has gone meanwhile."""


def get_tuple(place: Place, checkpoint_id: str | None, serde: Serde, recent: Recent) -> Plan[CheckpointTuple | None]:
    """Return a checkpoint, or the latest one; None where there is none."""
    along = _Along()
    found = document_of(place, checkpoint_id) if checkpoint_id else latest(place, recent, along)
    document = yield from found
    return None if document is None else (yield from loaded(document, serde, recent, along=along))


def latest(place: Place, recent: Recent, along: _Along | None = None) -> Plan[Document | None]:
    """Return the document of the latest checkpoint, or None; `along` takes what was read with it."""
    put = recent.latest(place)
    known = put.head if put is not None else (yield from call("get", place.head, read="local"))
    if not _names_one(known):  # somebody may have put the first one just now
        known = yield from call("get", place.head, read="primary")
    for _ in range(_ANEW_MAX):
        if not _names_one(known):
            return None
        name = place.checkpoint(known.value["checkpoint_id"])
        large = () if along is None else _unknown(place, known, recent)
        found = yield from call("get_many", [place.head, name, *large], read="primary")
        head, state = found[place.head], found[name]
        if along is not None:
            along.update((one, found[one]) for one in large)
        same = head is not None and told(head)["checkpoint_id"] == known.value["checkpoint_id"]
        if same and state is not None and holds_checkpoint(state.value):
            return own(state)
        known = head
    # It moves on all the time: then what it has named a moment ago was the latest one during this call.
    return (yield from document_of(place, known.value["checkpoint_id"])) if _names_one(known) else None


def _unknown(place: Place, head: State[Any], recent: Recent) -> list[str]:
    """Return the names of the states of large values that a head tells of and this process does not hold."""
    return [name for name, version in read_along(place, head).items() if not recent.has_version(name, version)]


def _names_one(head: State[Any] | None) -> bool:
    """Return whether there is a checkpoint that the head names."""
    return head is not None and bool(own(head)["checkpoint_id"])


def packed_writes(place: Place, checkpoint_id: str) -> Plan[PackedWrites | None]:
    """Return the tasks, channels and values of a checkpoint's pending writes; None where there is no checkpoint."""
    document = yield from document_of(place, checkpoint_id)
    if document is None:
        return None
    return [(one["task_id"], one["channel"], packed_of(one)) for one in (yield from writes_of(document))]


def loaded(
    document: Document, serde: Serde, recent: Recent, known: Pieces | None = None, along: _Along | None = None
) -> Plan[CheckpointTuple]:
    """Return a checkpoint with its values and its pending writes; `known` and `along` are as in `packed_values`."""
    packed = yield from packed_values(document, document["channel_values"], recent, known, along)
    values = {channel: serde.load(one) for channel, one in packed.items()}
    return tuple_of(document, values, (yield from writes_of(document)), serde)


def writes_of(document: Document) -> Plan[list[Document]]:
    """Return a checkpoint's pending writes, wherever they stand."""
    if not document["writes_elsewhere"]:
        return document["writes"]  # type: ignore[no-any-return]
    more = yield from elsewhere(place_of(document), document["checkpoint_id"])
    return all_writes(document, more)
