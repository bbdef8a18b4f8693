"""Reading a checkpoint: the head and the checkpoint that it is thought to name in one exchange, and its large values.

The head is read from the primary, so a run goes on from the newest checkpoint that anybody has put. Which one that is
can mostly be guessed from what this process knows, and both are asked for together. A large value is known by the
version of its channel's state: what this process holds of that version is not asked for again, and an older one comes
from the history. What this process has put or read of large values is not asked for again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statecache import VersionNotFound
from statecache.adapters.langgraph.documents import Document, holds_checkpoint, own, place_of, tuple_of
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.values import Form, Packed, Serde, joined, packed_of, piece_of
from statecache.adapters.langgraph.writing import all_writes, elsewhere
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from collections.abc import Collection

    from langgraph.checkpoint.base import CheckpointTuple

    from statecache import State
    from statecache.adapters.langgraph.recent import Recent

_ANEW_MAX = 3
"""How often the head is read again where it names another checkpoint by then, or that has gone meanwhile."""


def get_tuple(place: Place, checkpoint_id: str | None, serde: Serde, recent: Recent) -> Plan[CheckpointTuple | None]:
    """Return a checkpoint, or the latest one; None where there is none."""
    document = yield from (document_of(place, checkpoint_id) if checkpoint_id else latest(place, recent))
    return None if document is None else (yield from loaded(document, serde, recent))


def document_of(place: Place, checkpoint_id: str) -> Plan[Document | None]:
    """Return a checkpoint's document, or None."""
    state = yield from call("get", place.checkpoint(checkpoint_id), read="primary")
    return own(state) if state is not None and holds_checkpoint(state.value) else None


def latest(place: Place, recent: Recent) -> Plan[Document | None]:
    """Return the document of the latest checkpoint, or None."""
    put = recent.latest(place)
    known = put.head if put is not None else (yield from call("get", place.head, read="local"))
    if not _names_one(known):  # somebody may have put the first one just now
        known = yield from call("get", place.head, read="primary")
    for _ in range(_ANEW_MAX):
        if not _names_one(known):
            return None
        name = place.checkpoint(known.value["checkpoint_id"])
        found = yield from call("get_many", [place.head, name], read="primary")
        head, state = found[place.head], found[name]
        same = head is not None and head.value["checkpoint_id"] == known.value["checkpoint_id"]
        if same and state is not None and holds_checkpoint(state.value):
            return own(state)
        known = head
    # It moves on all the time: then what it has named a moment ago was the latest one during this call.
    return (yield from document_of(place, known.value["checkpoint_id"])) if _names_one(known) else None


def _names_one(head: State[Any] | None) -> bool:
    """Return whether there is a checkpoint that the head names."""
    return head is not None and bool(own(head)["checkpoint_id"])


def loaded(document: Document, serde: Serde, recent: Recent) -> Plan[CheckpointTuple]:
    """Return a checkpoint with its values and pending writes."""
    packed = yield from packed_values(document, document["channel_values"], recent)
    values = {channel: serde.load(one) for channel, one in packed.items()}
    return tuple_of(document, values, (yield from writes_of(document)), serde)


def writes_of(document: Document) -> Plan[list[Document]]:
    """Return a checkpoint's pending writes, wherever they stand."""
    if not document["writes_elsewhere"]:
        return document["writes"]  # type: ignore[no-any-return]
    more = yield from elsewhere(place_of(document), document["checkpoint_id"])
    return all_writes(document, more)


def packed_values(document: Document, channels: Collection[str], recent: Recent) -> Plan[dict[str, Packed]]:
    """Return the values of those of the channels that have any, as bytes."""
    forms: dict[str, Form] = {one: form for one, form in document["channel_values"].items() if one in channels}
    place, wanted, copies = place_of(document), dict[str, tuple[int, str]](), dict[str, str]()
    names = {channel: _names(place, channel, form) for channel, form in forms.items()}
    for channel, form in forms.items():
        for at, (name, version) in enumerate(zip(names[channel], form.get("versions", ()), strict=True)):
            wanted[name] = version, form["of"]
            if "thread_id" in form:
                copies[name] = place.channel(channel, at)
    pieces = recent.pieces(wanted)
    pieces |= yield from _pieces({name: one for name, one in wanted.items() if name not in pieces}, copies, recent)
    return {
        channel: packed_of(form) if "versions" not in form else joined(form, (pieces[name] for name in names[channel]))
        for channel, form in forms.items()
    }


def _names(place: Place, channel: str, form: Form) -> list[str]:
    """Return the names of the states that hold a large value, which may be those of another thread."""
    whose = Place(form["thread_id"], place.checkpoint_ns) if "thread_id" in form else place
    return [whose.channel(channel, at) for at in range(len(form.get("versions", ())))]


def _pieces(wanted: dict[str, tuple[int, str]], copies: dict[str, str], recent: Recent) -> Plan[dict[str, bytes]]:
    """Return what the states of channels hold at these versions: the newest ones from Redis, others from history.

    What is gone with the thread from which a group was branched is in the state that it began with, if it was the
    newest then: `copies` says which that is.
    """
    pieces: dict[str, bytes] = {}
    older: set[str] = set()
    for read in ("local", "primary"):  # a state that is older than wanted, or went with its Redis, is not the newest
        names = [name for name in wanted if name not in pieces and name not in older]
        found: dict[str, State[Any] | None] = (yield from call("get_many", names, read=read)) if names else {}
        for name, state in found.items():
            if _is(state, *wanted[name]):
                pieces[name] = piece_of(state.value)  # type: ignore[union-attr]
            elif state is not None and state.version > wanted[name][0]:
                older.add(name)
    for name in [one for one in wanted if one not in pieces]:
        version, of = wanted[name]
        try:
            state = yield from call("get_at", name, version=version)
        except VersionNotFound:
            if name not in copies:
                raise
            state = yield from call("get_at", copies[name], version=1)
            version = 1
        if not _is(state, version, of):
            raise VersionNotFound(name, wanted=f"version {version}", reason=f"it was not put with checkpoint {of!r}")
        pieces[name] = piece_of(state.value)
    recent.add({(name, *wanted[name]): piece for name, piece in pieces.items()})
    return pieces


def _is(state: State[Any] | None, version: int, of: str) -> bool:
    """Return whether a channel's state is the one that a checkpoint names."""
    return state is not None and state.version == version and state.value["checkpoint_id"] == of
