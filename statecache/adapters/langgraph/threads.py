"""What is done to whole threads: deleted, thinned out, copied.

A delete of up to 250 states is one commit. Of more, the heads go with the first commit, so that nobody goes on from a
thread of which a part is gone; cut off, it may be called again. What others write meanwhile is not overlooked: every
state is deleted as it was listed, and listed again where it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from statecache import Delete, NotFound, State, VersionConflict, VersionNotFound
from statecache.adapters.items import same
from statecache.adapters.langgraph.documents import Document, holds_checkpoint, own, place_of, told
from statecache.adapters.langgraph.listing import checkpoints_among, segment_of
from statecache.adapters.langgraph.names import Place, checkpoint_segment
from statecache.adapters.langgraph.own_states import name_of, own_states
from statecache.adapters.langgraph.pieces import not_newest, packed_values
from statecache.adapters.langgraph.putting import ATTEMPTS_MAX, Draft, commit, moved_back
from statecache.adapters.langgraph.reading import document_of, latest, writes_of
from statecache.adapters.langgraph.recent import Recent
from statecache.adapters.langgraph.values import Packed
from statecache.adapters.langgraph.writing import put_writes
from statecache.adapters.plans import Declined, Plan, call, commits, proven

PRUNE = "prune"
"""The reason of what thinning out writes: an import tells it by that from what agents write."""
_STATES_PER_COMMIT = 250
_MOVED = (VersionConflict, NotFound)


def delete_thread(place: Place) -> Plan[None]:
    """Delete all states of a thread, in all its namespaces, but what the library keeps beside them."""
    thread = place.thread
    for attempt in range(ATTEMPTS_MAX):
        states = yield from own_states(f"{thread}/", values=False)
        if not states:
            return (yield from _proven(place))
        deletes = {name_of(state.key): Delete(name_of(state.key), expected=state) for state in states}
        heads = [name for name in deletes if name.startswith(f"{thread}/head/")]
        first = [deletes.pop(name) for name in heads]
        try:
            yield from _in_commits([*first, *deletes.values()])
        except _MOVED:
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            return


def _proven(place: Place) -> Plan[None]:
    """Wait until what was done to a thread before is as durable as a write has to be: who finds it done writes nothing.

    It is for what deletes or copies, called again after an error that left open how durable it is.
    """
    yield from proven(place.head, below=[f"{place.thread}/"])


def _in_commits(steps: Sequence[Any]) -> Plan[None]:
    yield from commits(steps[at : at + _STATES_PER_COMMIT] for at in range(0, len(steps), _STATES_PER_COMMIT))


def delete_for_runs(run_ids: Iterable[str]) -> Plan[None]:
    """Delete the checkpoints that runs have put, in whatever thread."""
    doomed: dict[str, set[str]] = {}
    for run_id in run_ids:
        states = yield from call("list", where={"metadata.run_id": str(run_id)}, values=False)
        for name in checkpoints_among(name_of(state.key) for state in states):
            doomed.setdefault(name.rpartition("/")[0], set()).add(segment_of(name))
    for stem, segments in doomed.items():
        state = yield from call("get", f"{stem}/{next(iter(segments))}", read="primary")
        if state is not None:
            yield from drop(place_of(own(state)), segments)
    yield from proven(below=[""])  # what an earlier call has deleted is not found, whatever thread it is of


def drop(place: Place, doomed: set[str]) -> Plan[None]:
    """Delete checkpoints by the last segments of their names, and move the head to the latest of those that stay."""
    for attempt in range(ATTEMPTS_MAX):
        head: State[Any] | None = yield from call("get", place.head, read="primary")
        states = yield from own_states(place.checkpoints, values=False)
        gone = [state for state in states if segment_of(state.key) in doomed]
        stay = [name_of(state.key) for state in states if segment_of(state.key) not in doomed]
        writes = yield from own_states(place.writes, values=False)
        gone += [state for state in writes if state.key.split("/")[-3] in doomed]
        steps: list[Any] = [Delete(name_of(state.key), expected=state) for state in gone]
        try:
            if head is not None and checkpoint_segment(told(head)["checkpoint_id"]) in doomed:
                newest, again = yield from _newest(stay)
                if newest is None:
                    channels = yield from own_states(place.channels, values=False)
                    steps += [Delete(name_of(state.key), expected=state) for state in channels]
                    steps = [Delete(place.head, expected=head), *steps]
                else:
                    steps = [*(yield from moved_back(place, head, newest, again)), *steps]
            yield from _in_commits(steps)
        except _MOVED:
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            return


def _newest(names: Iterable[str]) -> Plan[tuple[State[Any] | None, dict[str, Packed]]]:
    """Return the first of the states that is a checkpoint, and those of its large values that are not the newest.

    One of which a policy has let go values comes behind those that are whole.
    """
    first: State[Any] | None = None
    for name in names:
        state = yield from call("get", name, read="primary")
        if state is not None and holds_checkpoint(state.value):
            document = own(state)
            again, lost = yield from not_newest(document, document["channel_values"])
            if not lost:
                return state, again
            first = first or state
    return first, {}


def keep_latest(place: Place, recent: Recent) -> Plan[None]:
    """Delete all checkpoints of a thread but the latest of each namespace, and those that its delta channels need.

    A delta channel has no value of its own in most checkpoints: it is made of a snapshot in one of the ancestors and of
    the writes since. So these ancestors stay.
    """
    heads = yield from own_states(f"{place.thread}/head/")
    for at in map(place_of, map(own, heads)):
        document = yield from latest(at, recent)
        if document is None:
            continue
        chain = yield from _needed(at, document)
        kept = {checkpoint_segment(one["checkpoint_id"]) for one in chain}
        newest = checkpoint_segment(document["checkpoint_id"])
        states = yield from own_states(at.checkpoints, after=at.checkpoints + newest, values=False)
        yield from drop(at, {segment_of(state.key) for state in states} - kept)
        yield from _cut(at, chain[-1])
    yield from _proven(place)


def _needed(place: Place, document: Document) -> Plan[list[Document]]:
    """Return a checkpoint and the ancestors that its delta channels are made of."""
    chain, counters = [document], document["metadata"].get("counters_since_delta_snapshot") or {}
    wanted = set(counters) - set(document["channel_values"])
    while wanted and chain[-1]["parent_checkpoint_id"]:
        parent = yield from document_of(place, chain[-1]["parent_checkpoint_id"])
        if parent is None:
            break
        chain.append(parent)
        wanted -= set(parent["channel_values"])
    return chain


def _cut(place: Place, document: Document) -> Plan[None]:
    """Let a checkpoint have no parent, where that is gone."""
    parent_id = document["parent_checkpoint_id"]
    if parent_id is None or (yield from document_of(place, parent_id)) is not None:
        return

    def orphaned(found: Document) -> Document:
        if found.get("parent_checkpoint_id") is None:
            raise Declined("unchanged")
        return found | {"parent_checkpoint_id": None}

    with suppress(Declined, NotFound):
        yield from call("update", place.checkpoint(document["checkpoint_id"]), orphaned, reason=PRUNE)


def copy_thread(source: str, target_id: str, recent: Recent) -> Plan[None]:
    """Copy all checkpoints of a thread, the oldest first, with their values and pending writes.

    One of which a policy has let go values is left out, as by a listing.
    """
    if source == Place(target_id).thread:
        return
    names = checkpoints_among(name_of(one.key) for one in (yield from call("list", f"{source}/cp/", values=False)))
    for name in sorted(names, key=lambda name: segment_of(name).encode(), reverse=True):
        state = yield from call("get", name, read="primary")
        if state is not None and holds_checkpoint(state.value):
            with suppress(VersionNotFound):
                yield from _copy(own(state), target_id, recent)
    yield from _proven(Place(target_id))


def _copy(document: Document, target_id: str, recent: Recent) -> Plan[None]:
    """Copy a checkpoint, unless it is there as whole as here: a prune may have cut it off from its parent since."""
    target = Place(target_id, document["checkpoint_ns"])
    there = yield from document_of(target, document["checkpoint_id"])
    is_there = there is not None and (there["parent_checkpoint_id"] or not document["parent_checkpoint_id"])
    few: list[Document] = [] if is_there else document["writes"]
    if not is_there:
        yield from _copy_values(document, target, recent)
    tasks = {(one["task_id"], one["idx"]) for one in few}
    more: dict[str, list[Document]] = {}
    for one in (yield from writes_of(document)):
        if (one["task_id"], one["idx"]) not in tasks:
            more.setdefault(one["task_id"], []).append(one)
    yield from put_writes(target, document["checkpoint_id"], more, recent)


def _copy_values(document: Document, target: Place, recent: Recent) -> Plan[None]:
    """Copy a checkpoint with the values of its channels, and the pending writes that stand in it."""
    place = place_of(document)
    parent_id, versions = document["parent_checkpoint_id"], document["checkpoint"].get("channel_versions", {})
    parent = (yield from document_of(place, parent_id)) if parent_id else None
    before = parent["channel_values"] if parent else {}
    values = yield from packed_values(document, document["channel_values"], recent)
    changed: dict[str, Packed] = {}
    kept: dict[str, Any] = {}
    for channel, packed in values.items():
        form, known = document["channel_values"][channel], before.get(channel)
        if form == known and same(form, known):
            kept[channel] = lambda packed=packed: packed
        else:
            changed[channel] = packed
    copied = document | {"thread_id": target.thread_id}
    yield from commit(Draft(target, copied, versions, changed, kept, copied["writes"]), recent)
