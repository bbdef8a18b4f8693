"""Pending writes: in the checkpoint's own state while they are few, then each task's in states of its own.

A superstep of a thousand tasks would otherwise write one state a thousand times, each time more of it. Once a
checkpoint says `writes_elsewhere` it says so for ever, and nothing more is added to it: tasks no longer meet. A task's
writes may take several states; what is too large for one is parted. They are written in one commit, those of tasks that
end at one moment too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from statecache import (
    Delete,
    DurabilityNotMet,
    NotFound,
    OutcomeUnknown,
    PostgresUnavailable,
    Set,
    StateCacheError,
    VersionConflict,
)
from statecache.adapters.langgraph.documents import (
    WRITES_BYTES_MAX,
    WRITING_TASKS_MAX,
    Document,
    head_document,
    merged,
    next_head,
    own,
)
from statecache.adapters.langgraph.own_states import own_states
from statecache.adapters.langgraph.putting import ATTEMPTS_MAX
from statecache.adapters.langgraph.values import PIECE_BYTES_MAX, refuse_oversized
from statecache.adapters.plans import Declined, Plan, call, lacks_durability, proven, together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from statecache import State
    from statecache.adapters.langgraph.names import Place
    from statecache.adapters.langgraph.recent import Recent

_TEXT_MAX = PIECE_BYTES_MAX * 4 // 3
"""How long the base64 of a piece is at most."""
_STATES_PER_COMMIT = 200
"""Of how many states one commit is that holds the writes of several tasks."""
_AWAY_MAX = 1
"""How often a checkpoint that Redis does not hold is looked for again where Postgres is away."""
_UNCHANGED, _ELSEWHERE, _ABSENT, _FULL = "unchanged", "elsewhere", "absent", "full"
"""Why nothing is written to a checkpoint's state."""


def put_writes(place: Place, checkpoint_id: str, tasks: Mapping[str, Sequence[Document]], recent: Recent) -> Plan[None]:
    """Add what tasks have written to a checkpoint, be it there already or not."""
    tasks = {task_id: some for task_id, some in tasks.items() if some}
    writes = [one for some in tasks.values() for one in some]
    if not writes:
        return
    name = place.checkpoint(checkpoint_id)
    few = len(tasks) <= WRITING_TASKS_MAX and _size(writes) <= WRITES_BYTES_MAX
    if few and (yield from _put_over_latest(place, checkpoint_id, writes, recent)):
        return
    for attempt in range(ATTEMPTS_MAX):
        try:
            if few:
                yield from call("update", name, partial(_added, writes=writes), default=dict)
                return
            yield from call("update", name, _closed, default=dict, durability="memory")
            break
        except Declined as declined:
            why = declined.args[0]
        except PostgresUnavailable:  # which says whether there is one that Redis does not hold
            if attempt == _AWAY_MAX:
                raise
            continue  # the checkpoint itself may be on its way: LangGraph puts it at the same moment
        if why == _UNCHANGED:
            return (yield from proven(name))
        if why == _ELSEWHERE:
            break
        if why == _FULL:
            few = False
            continue
        try:
            yield from _begin(place, checkpoint_id, writes if few else [])
        except VersionConflict:  # somebody else has begun it meanwhile
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            if few:
                return
    yield from _put_elsewhere(place, checkpoint_id, tasks)


def _put_over_latest(place: Place, checkpoint_id: str, writes: Sequence[Document], recent: Recent) -> Plan[bool]:
    """Write over the checkpoint as this process has committed it last, and return whether that was done."""
    latest = recent.take(place, checkpoint_id)
    if latest is None:
        return False
    name, known = place.checkpoint(checkpoint_id), latest.checkpoint
    try:
        made = yield from call("set", name, _added(known.value, writes), expected=known)
    except (Declined, VersionConflict):  # what is there decides
        return False
    recent.put(place, latest._replace(checkpoint=made))
    return True


def _begin(place: Place, checkpoint_id: str, writes: Sequence[Document]) -> Plan[None]:
    """Make the state of a checkpoint that has not come yet; raise VersionConflict where somebody else has.

    Without writes in it, it waits for no durability: the writes that come behind it prove that of both.
    """
    head: State[Any] | None = yield from call("get", place.head, read="primary")
    latest = "" if head is None else own(head)["checkpoint_id"]
    document = head_document(place, checkpoint_id) | {"writes": merged([], writes) or [], "writes_elsewhere": False}
    over = Set(place.head, next_head(place, head, latest, checkpoint_id), expected=head)
    sets = [Set(place.checkpoint(checkpoint_id), document, expected=None), over]
    yield from call("commit", sets, durability=None if writes else "memory")


def _added(document: Document, writes: Sequence[Document]) -> Document:
    """Return a checkpoint's state with the writes in it.

    Declines where there is none, where it is closed, where it has them, and where they have no room in it.
    """
    if not document:
        raise Declined(_ABSENT)
    if document["writes_elsewhere"]:
        raise Declined(_ELSEWHERE)
    both = merged(document["writes"], writes)
    if both is None:
        raise Declined(_UNCHANGED)
    if len({one["task_id"] for one in both}) > WRITING_TASKS_MAX or _size(both) > WRITES_BYTES_MAX:
        raise Declined(_FULL)
    return document | {"writes": both}


def _closed(document: Document) -> Document:
    """Return a checkpoint's state to which no writes are added any more; decline where there is none, or it is so."""
    if not document:
        raise Declined(_ABSENT)
    if document["writes_elsewhere"]:
        raise Declined(_ELSEWHERE)
    return document | {"writes_elsewhere": True}


def _put_elsewhere(place: Place, checkpoint_id: str, tasks: Mapping[str, Sequence[Document]]) -> Plan[None]:
    """Write what tasks have written into states of their own, of several tasks in one commit if they are new."""
    alone, lacking = list[str](), list[StateCacheError]()
    for some in _shared(place, checkpoint_id, tasks):
        if len(some) > 1:
            sets = [one for of_task in some.values() for one in of_task]
            try:
                yield from call("commit", sets, durability="memory" if lacking else None)
                continue
            except (DurabilityNotMet, OutcomeUnknown) as error:
                if not lacks_durability(error):
                    raise
                lacking.append(error)  # it is applied, and the others are to be
                continue
            except VersionConflict:  # something of one of them is there
                pass
        alone += some
    plans = [_put_task_elsewhere(place, checkpoint_id, task_id, tasks[task_id]) for task_id in alone]
    for failed in [*(yield from together(plans)), *lacking]:
        if failed is not None:
            raise failed


def _shared(
    place: Place, checkpoint_id: str, tasks: Mapping[str, Sequence[Document]]
) -> Iterator[dict[str, list[Set]]]:
    """Yield what makes new states of tasks' writes, by task, as much as one commit holds; a large task stands alone."""
    some, size = dict[str, list[Set]](), 0
    for task_id, writes in tasks.items():
        sets, weight = _sets(place, checkpoint_id, task_id, writes, {}), _size(writes)
        count = len(sets) + sum(map(len, some.values()))
        if some and (count > _STATES_PER_COMMIT or size + weight > _TEXT_MAX):
            yield some
            some, size = {}, 0
        some[task_id], size = sets, size + weight
    if some:
        yield some


def _sets(
    place: Place, checkpoint_id: str, task_id: str, writes: Iterable[Document], found: Mapping[str, State[Any]]
) -> list[Set]:
    """Return what writes a task's writes into states of their own, over those that were found."""
    stem, head = place.writes_of_task(checkpoint_id, task_id), head_document(place, checkpoint_id)
    return [
        Set(name, head | {"writes": part}, expected=found.get(name))
        for at, part in enumerate(_parts(writes))
        for name in [f"{stem}{at}"]
    ]


def _put_task_elsewhere(place: Place, checkpoint_id: str, task_id: str, writes: Sequence[Document]) -> Plan[None]:
    """Write a task's writes into states of its own, beside what is there of them."""
    stem = place.writes_of_task(checkpoint_id, task_id)
    found: dict[str, State[Any]] = {}
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            states = yield from own_states(stem)
            found = {stem + state.key.rpartition("/")[2]: state for state in states}
        both = merged(gathered(state.value for state in found.values()), writes)
        if both is None:
            return (yield from proven(*found))
        sets = _sets(place, checkpoint_id, task_id, both, found)
        names = {one.name for one in sets}
        left = [Delete(name, expected=state) for name, state in found.items() if name not in names]
        try:
            yield from call("commit", [*sets, *left])
        except (VersionConflict, NotFound):
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            return


def elsewhere(place: Place, checkpoint_id: str) -> Plan[list[Document]]:
    """Return the writes of a checkpoint that stand in states of their own."""
    states = yield from own_states(place.writes_of(checkpoint_id))
    tasks: dict[str, list[State[Any]]] = {}
    for state in states:
        tasks.setdefault(state.key.rpartition("/")[0], []).append(state)
    return [one for parts in tasks.values() for one in gathered(part.value for part in parts)]


def all_writes(document: Document, more: Iterable[Document]) -> list[Document]:
    """Return the writes of a checkpoint's own state with those that stand elsewhere, which are newer."""
    return merged(document["writes"], more) or document["writes"]


def gathered(documents: Iterable[Document]) -> list[Document]:
    """Return the writes that states hold, those that were parted whole again."""
    whole: list[Document] = []
    for part in (part for document in documents for part in document["writes"]):
        if "task_id" in part:
            whole.append(part)
        else:
            whole[-1] = whole[-1] | {"data": whole[-1]["data"] + part["data"]}
    return whole


def _parts(writes: Iterable[Document]) -> Iterator[list[Document]]:
    """Yield the writes in as many lists as it takes for each to have room in a state: a commit holds two or three."""
    some, size = list[Document](), 0
    for part in (part for one in writes for part in _pieces(one)):
        weight = _size([part])
        if some and size + weight > _TEXT_MAX:
            yield some
            some, size = [], 0
        some, size = [*some, part], size + weight
    if some:
        yield some


def _pieces(write: Document) -> Iterator[Document]:
    """Yield a write, in pieces if it is too large for a state: those behind the first hold nothing but data."""
    text = write.get("data", "")
    refuse_oversized(len(text) * 3 // 4)
    yield write | {"data": text[:_TEXT_MAX]} if len(text) > _TEXT_MAX else write
    for at in range(_TEXT_MAX, len(text), _TEXT_MAX):
        yield {"data": text[at : at + _TEXT_MAX]}


def _size(writes: Sequence[Document]) -> int:
    return len(msgspec.json.encode(writes))
