"""What is done to whole threads: deleted, and thinned out.

A delete of up to 250 states is one commit. Of more, the heads go with the first commit, so that nobody goes on from a
thread of which a part is gone; cut off, it may be called again. What others write meanwhile is not overlooked: every
state is deleted as it was listed, and listed again where it has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

from statecache import Delete, NotFound, State, UsageError, VersionConflict
from statecache.adapters.langgraph.ancestors import delta_channels, document_of
from statecache.adapters.langgraph.documents import Document, holds_checkpoint, own, place_of, told
from statecache.adapters.langgraph.listing import checkpoints_among, segment_of
from statecache.adapters.langgraph.names import Place, checkpoint_segment
from statecache.adapters.langgraph.own_states import name_of, own_states
from statecache.adapters.langgraph.pieces import not_newest
from statecache.adapters.langgraph.put_again import Part, moved_back, seeds_again
from statecache.adapters.langgraph.putting import ATTEMPTS_MAX
from statecache.adapters.langgraph.reading import latest
from statecache.adapters.langgraph.recent import Recent
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
            return (yield from proven_thread(place))
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


def proven_thread(place: Place) -> Plan[None]:
    """Wait until what was done to a thread before is as durable as a write has to be: who finds it done writes nothing.

    It is for what deletes or copies, called again after an error that left open how durable it is.
    """
    yield from proven(place.head, below=[f"{place.thread}/"])


def _in_commits(steps: Sequence[Any]) -> Plan[None]:
    yield from commits(steps[at : at + _STATES_PER_COMMIT] for at in range(0, len(steps), _STATES_PER_COMMIT))


def delete_for_runs(run_ids: Iterable[str], recent: Recent) -> Plan[None]:
    """Delete the checkpoints that runs have put, in whatever thread.

    Raises UsageError, and deletes nothing, where a thread would keep checkpoints, and none that can be read.
    """
    doomed: dict[str, set[str]] = {}
    places = list[tuple[Place, set[str]]]()
    for run_id in run_ids:
        states = yield from call("list", where={"metadata.run_id": str(run_id)}, values=False)
        for name in checkpoints_among(name_of(state.key) for state in states):
            doomed.setdefault(name.rpartition("/")[0], set()).add(segment_of(name))
    for stem, segments in doomed.items():
        state = yield from call("get", f"{stem}/{next(iter(segments))}", read="primary")
        if state is not None:
            places.append((place_of(own(state)), segments))
    for place, segments in places if len(places) > 1 else ():
        yield from _refuse_unreadable(place, segments, recent)
    for place, segments in places:
        yield from drop(place, segments, recent)
    yield from proven(below=[""])  # what an earlier call has deleted is not found, whatever thread it is of


def drop(place: Place, doomed: set[str], recent: Recent) -> Plan[None]:
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
                parts = yield from _newest(place, stay, doomed, recent)
                if parts:
                    steps = [*(yield from moved_back(place, head, parts)), *steps]
                else:
                    channels = yield from own_states(place.channels, values=False)
                    steps += [Delete(name_of(state.key), expected=state) for state in channels]
                    steps = [Delete(place.head, expected=head), *steps]
            yield from _in_commits(steps)
        except _MOVED:
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            return


def _refuse_unreadable(place: Place, doomed: Collection[str], recent: Recent) -> Plan[None]:
    """Raise what `drop` raises before it deletes anything."""
    head: State[Any] | None = yield from call("get", place.head, read="primary")
    if head is not None and checkpoint_segment(told(head)["checkpoint_id"]) in doomed:
        states = yield from own_states(place.checkpoints, values=False)
        stay = [name_of(one.key) for one in states if segment_of(one.key) not in doomed]
        yield from _newest(place, stay, doomed, recent)


def _newest(place: Place, names: Iterable[str], doomed: Collection[str], recent: Recent) -> Plan[list[Part]]:
    """Return the newest checkpoint of these that can be read, with what its delta channels are made of.

    It is the first; nothing is returned where there is no checkpoint. Where there are some, and of each a policy has
    let values go, UsageError is raised: a head that named one of them could never be gone on from.
    """
    are_lost = False
    for name in names:
        state = yield from call("get", name, read="primary")
        if state is not None and holds_checkpoint(state.value):
            parts = yield from _parts(place, state, doomed, recent)
            if parts:
                return parts
            are_lost = True
    if are_lost:
        what = f"of what would be left of the thread {place.thread_id!r}, the policy has let values go: none of it"
        raise UsageError(f"{what} could be read", hint="Nothing was deleted. `delete_thread` deletes all of it.")
    return []


def _parts(place: Place, state: State[Any], doomed: Collection[str], recent: Recent) -> Plan[list[Part]]:
    """Return a checkpoint and the ancestors that its delta channels are made of; nothing where values are lost."""
    document = own(state)
    again, lost = yield from not_newest(document, document["channel_values"], recent)
    if lost:
        return []
    seeds, lost = yield from seeds_again(place, document, recent, doomed)
    return [] if lost else [Part(state, again), *seeds]


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
        yield from drop(at, {segment_of(state.key) for state in states} - kept, recent)
        yield from _cut(at, chain[-1])
    yield from proven_thread(place)


def _needed(place: Place, document: Document) -> Plan[list[Document]]:
    """Return a checkpoint and the ancestors that its delta channels are made of."""
    chain, wanted = [document], delta_channels(document)
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
