"""Copying a thread: all of its checkpoints, the oldest first, each in a commit of its own.

One of which a policy has let values go is left out, as by a listing, and so is one whose delta channels are made of
such a value. But a later one that is whole may be made of what tasks have written at one that is left out. Then that
is put ahead of it, as far as it is there: what is lost of it is named as the first thread's, and is not to be read in
either. Else the way to a snapshot would end there, and what the delta channel holds would be taken for less than it is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from statecache.adapters.items import same
from statecache.adapters.langgraph.ancestors import delta_channels, document_of
from statecache.adapters.langgraph.documents import Document, holds_checkpoint, own, place_of
from statecache.adapters.langgraph.listing import checkpoints_among, segment_of
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.own_states import name_of
from statecache.adapters.langgraph.pieces import kept_values
from statecache.adapters.langgraph.putting import Draft, commit
from statecache.adapters.langgraph.reading import writes_of
from statecache.adapters.langgraph.threads import proven_thread
from statecache.adapters.langgraph.values import Packed
from statecache.adapters.langgraph.writing import put_writes
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from statecache.adapters.langgraph.recent import Recent
    from statecache.adapters.langgraph.values import Form


def copy_thread(source: str, target_id: str, recent: Recent) -> Plan[None]:
    """Copy all checkpoints of a thread that can be read, with their values and pending writes."""
    if source == Place(target_id).thread:
        return
    copying = _Copying(target_id, recent)
    names = checkpoints_among(name_of(one.key) for one in (yield from call("list", f"{source}/cp/", values=False)))
    for name in sorted(names, key=lambda name: segment_of(name).encode(), reverse=True):
        document = yield from _read(name)
        if document is not None:
            yield from copying.copy(name, document)
    yield from proven_thread(Place(target_id))


class _Passed(NamedTuple):
    """A checkpoint that was gone through: its name, its parent, and whether it was left out.

    Of the channels that are `lost` there is no value any more, of its own or of what a delta channel is made of.
    """

    name: str
    parent_id: str | None
    lost: Collection[str]
    left_out: bool


class _Copying:
    """A thread that is copied: what was gone through of it."""

    def __init__(self, target_id: str, recent: Recent) -> None:
        self._target_id, self._recent = target_id, recent
        self._passed: dict[tuple[str, str], _Passed] = {}

    def copy(self, name: str, document: Document) -> Plan[None]:
        """Copy the next checkpoint, unless it is there as whole as here, or cannot be read here."""
        place, parent_id, forms = place_of(document), document["parent_checkpoint_id"], document["channel_values"]
        parent = self._passed.get((place.checkpoint_ns, parent_id)) if parent_id else None
        before: Collection[str] = parent.lost if parent is not None else ()
        target = Place(self._target_id, place.checkpoint_ns)
        values, lost = dict[str, Packed](), set[str]()
        is_there = yield from _is_there(document, target)
        if not is_there:
            values, lost = yield from kept_values(document, self._recent)
        left_out = bool(lost or (not is_there and delta_channels(document).intersection(before)))
        lost |= {channel for channel in before if channel not in forms}
        self._passed[place.checkpoint_ns, document["checkpoint_id"]] = _Passed(name, parent_id, lost, left_out)
        if left_out:
            return
        if not is_there:
            yield from self._copy_what_it_is_made_of(document, target)
            yield from _copy_values(document, target, values, self._recent, is_whole=True)
        yield from _copy_writes(document, target, [] if is_there else document["writes"], self._recent)

    def _copy_what_it_is_made_of(self, document: Document, target: Place) -> Plan[None]:
        """Copy what is there of the ancestors that were left out and at which tasks wrote to its delta channels."""
        above, parent_id = list[str](), document["parent_checkpoint_id"] if delta_channels(document) else None
        while parent_id:
            name = target.checkpoint_ns, parent_id
            one = self._passed.get(name)
            if one is None or not one.left_out:
                break
            above.append(one.name)
            self._passed[name], parent_id = one._replace(left_out=False), one.parent_id
        for one_s_name in reversed(above):
            ancestor = yield from _read(one_s_name)
            if ancestor is not None:
                values, _ = yield from kept_values(ancestor, self._recent)
                yield from _copy_values(ancestor, target, values, self._recent, is_whole=False)
                yield from _copy_writes(ancestor, target, ancestor["writes"], self._recent)


def _read(name: str) -> Plan[Document | None]:
    """Return the document of a checkpoint's state of that name, or None."""
    state = yield from call("get", name, read="primary")
    return own(state) if state is not None and holds_checkpoint(state.value) else None


def _is_there(document: Document, target: Place) -> Plan[bool]:
    """Return whether a checkpoint is there as whole as here: a prune may have cut it off from its parent since."""
    there = yield from document_of(target, document["checkpoint_id"])
    return there is not None and bool(there["parent_checkpoint_id"] or not document["parent_checkpoint_id"])


def _copy_writes(document: Document, target: Place, done: Collection[Document], recent: Recent) -> Plan[None]:
    """Copy what tasks have written at a checkpoint, but for what is done and was not replaced since."""
    there = {(one["task_id"], one["idx"]): one for one in done}
    more: dict[str, list[Document]] = {}
    for one in (yield from writes_of(document)):
        if not same(one, there.get((one["task_id"], one["idx"]))):
            more.setdefault(one["task_id"], []).append(one)
    yield from put_writes(target, document["checkpoint_id"], more, recent)


def _copy_values(
    document: Document, target: Place, values: dict[str, Packed], recent: Recent, *, is_whole: bool
) -> Plan[None]:
    """Copy a checkpoint with these values of its channels, and the pending writes that stand in it.

    Raises VersionNotFound for one that is to be whole, where a policy has let go in the copy what it is made of.
    """
    place = place_of(document)
    parent_id, versions = document["parent_checkpoint_id"], document["checkpoint"].get("channel_versions", {})
    parent = (yield from document_of(place, parent_id)) if parent_id else None
    before = parent["channel_values"] if parent else {}
    changed: dict[str, Packed] = {}
    kept: dict[str, Callable[[], Packed]] = {}
    lost: dict[str, Form] = {}
    for channel, form in document["channel_values"].items():
        known = before.get(channel)
        if channel not in values:
            lost[channel] = {"thread_id": place.thread_id} | form
        elif form == known and same(form, known):
            kept[channel] = partial(values.__getitem__, channel)
        else:
            changed[channel] = values[channel]
    copied = document | {"thread_id": target.thread_id}
    draft = Draft(target, copied, versions, changed, kept, copied["writes"], lost=None if is_whole else lost)
    yield from commit(draft, recent)
