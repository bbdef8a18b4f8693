"""The states of a thread as JSON: a checkpoint with its pending writes, the head, a channel of its own, more writes.

    head         {"thread_id", "checkpoint_ns", "checkpoint_id", "newest", "over"}; where an import wrote it "imported";
                 "large" {CHANNEL: version}, the states of channels that hold values of the checkpoint that it names
    checkpoint   {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "metadata", "checkpoint",
                  "channel_values": {CHANNEL: form}, "writes": [write], "writes_elsewhere": bool, "more"}
    channel      {"channel", "channel_version", "checkpoint_id", "value" or "data"}
    write        {"task_id", "task_path", "idx", "channel"} and a form

A checkpoint's state without `checkpoint` holds writes that came before it. A head without a checkpoint's id says that
there is none yet. In `more` stands, serialized, what JSON
cannot say of metadata and checkpoint.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple

from statecache import CodecError, UsageError
from statecache.adapters.items import same
from statecache.adapters.langgraph.names import Place, place_at
from statecache.adapters.langgraph.values import Form, Serde, packed_of, split
from statecache.adapters.segments import refuse_half_pair, refuse_nul, spelled_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

    from statecache import State

Document = dict[str, Any]
WRITES_BYTES_MAX = 64 * 1024
"""How much of pending writes stands in a checkpoint's own state."""
READ_ALONG_MAX = 16
"""Of how many channels the values are read together with a checkpoint, at most."""
WRITING_TASKS_MAX = 8
"""Of how many tasks the pending writes stand in a checkpoint's own state: each of them writes it anew."""


def place_of(document: Document) -> Place:
    """Return where a checkpoint belongs."""
    return place_at(document["thread_id"], document["checkpoint_ns"])


def told(state: State[Any]) -> Document:
    """Return the document of a head or checkpoint; raise CodecError for what else stands at such a name."""
    document = state.value
    names = ("thread_id", "checkpoint_ns", "checkpoint_id")
    if not isinstance(document, dict) or not all(isinstance(document.get(name), str) for name in names):
        raise CodecError(key=state.key, verb="decoded", reason="it is no head or checkpoint of LangGraph's threads")
    return document


def is_told(state: State[Any]) -> bool:
    """Return whether the thread of a head or checkpoint is known: its own, or one whose id can be told from its key."""
    thread = state.key.split("/")[1]
    return thread in (place_of(told(state)).thread, Place(spelled_out(thread)).thread)


def own(state: State[Any]) -> Document:
    """Return the document of a head or checkpoint, as that of the thread in whose group it stands.

    One that came from another thread, with its group, names that one's channels: then its forms say so. Raises
    UsageError where the id of its thread is too long to be told from its key, and CodecError for what is neither.
    """
    document, thread = told(state), state.key.split("/")[1]
    if place_of(document).thread == thread:
        return document
    if not is_told(state):
        what = (
            f"{state.key!r} came from the thread {document['thread_id']!r} with its group, to one whose id is too long"
        )
        raise UsageError(what, hint="Delete this thread, and let `copy_thread` copy that one.")
    moved: Document = document | {"thread_id": spelled_out(thread)}
    if "channel_values" in document:
        theirs = {"thread_id": document["thread_id"]}
        forms = document["channel_values"].items()
        moved["channel_values"] = {one: theirs | form if "versions" in form else form for one, form in forms}
    return moved


def head_document(place: Place, checkpoint_id: str) -> Document:
    """Return what the head holds, and every checkpoint begins with."""
    return {"thread_id": place.thread_id, "checkpoint_ns": place.checkpoint_ns, "checkpoint_id": checkpoint_id}


def next_head(
    place: Place, head: State[Any] | None, latest_id: str, touched_id: str, forms: Mapping[str, Form] | None = None
) -> Document:
    """Return what is to be written over a head, in the commit that writes the state of the checkpoint `touched_id`.

    `forms` are those of the values of the latest checkpoint, where that is another one than before, or written anew.

    Whoever makes the state of a checkpoint writes the head in the same commit. So `newest`, the greatest id of which
    there ever was a state, holds as long as nothing else has written the head: `over` is the change that it was written
    over, and is not the parent of the state's change once anything has deleted the head, rolled it back, merged or
    imported it. From then on it is None, and nothing is proven any more.
    """
    before: Document = {} if head is None else told(head)
    over = "" if head is None else head.change_id if _is_own(head) else None
    document = head_document(place, latest_id) | {"newest": max(touched_id, before.get("newest", "")), "over": over}
    is_same = forms is None and before.get("checkpoint_id") == latest_id
    large = before.get("large") if is_same else _versions_of(forms or {})
    return document | ({"large": large} if large else {})


def _versions_of(forms: Mapping[str, Form]) -> dict[str, int]:
    """Return the versions of those states of channels that are read together with the checkpoint that names them."""
    large = dict[str, int]()
    for channel, form in forms.items():
        is_alone = len(form.get("versions", ())) == 1 and not form.keys() & {"beside", "thread_id"}
        if is_alone and len(large) < READ_ALONG_MAX:
            large[channel] = form["versions"][0]
    return large


def read_along(place: Place, head: State[Any]) -> dict[str, int]:
    """Return the names of the states that hold large values of the checkpoint that a head names, with their versions.

    It need not be true: what a checkpoint names is known by its own forms.
    """
    large = told(head).get("large")
    if not isinstance(large, dict) or own(head) is not head.value:
        return {}
    versions = ((channel, version) for channel, version in large.items() if isinstance(version, int))
    return {place.channel(channel): version for channel, version in islice(versions, READ_ALONG_MAX)}


def is_first(head: State[Any] | None, checkpoint_id: str) -> bool:
    """Return whether the head proves that there never was a state of that checkpoint, not even a deleted one."""
    return head is not None and _is_own(head) and checkpoint_id > head.value["newest"]


def _is_own(head: State[Any]) -> bool:
    """Return whether none but savers have written the head since there is one."""
    return bool(told(head).get("over") == (head.parent_change_id or ""))


def imported(head: Document) -> Document:
    """Return what is to be written over a head, as what an import writes."""
    return head | {"imported": True}


def proves_import(head: State[Any]) -> bool:
    """Return whether the head proves that an import has written it last, in this thread."""
    return bool(told(head).get("imported")) and _is_own(head) and own(head) is head.value


def checkpoint_document(
    place: Place, parent_id: str | None, checkpoint: Checkpoint, metadata: CheckpointMetadata, serde: Serde
) -> Document:
    """Return a checkpoint's document without its values and writes; it shares nothing with what the caller keeps."""
    core = {name: part for name, part in checkpoint.items() if name != "channel_values"}
    document = head_document(place, checkpoint["id"]) | {"parent_checkpoint_id": parent_id}
    more: Document = {}
    for name, parts in (("metadata", cast("dict[str, Any]", metadata)), ("checkpoint", core)):
        document[name], rest = split(parts, serde)
        if rest is not None:
            more[name] = rest
    return document | ({"more": more} if more else {})


def whole(document: Document, name: str, serde: Serde) -> dict[str, Any]:
    """Return `metadata` or `checkpoint` of a document as it was given."""
    rest = document.get("more", {}).get(name)
    return {**document[name], **(serde.load(packed_of(rest)) if rest else {})}


def holds_checkpoint(document: Document) -> bool:
    """Return whether it is more than writes that came before their checkpoint."""
    return "checkpoint" in document


def channel_document(channel: str, version: Any, checkpoint_id: str, piece: Form) -> Document:
    """Return what a channel's own state holds."""
    return {"channel": channel, "channel_version": str(version), "checkpoint_id": checkpoint_id} | piece


def write_documents(writes: Sequence[tuple[str, Any]], task_id: str, task_path: str, serde: Serde) -> list[Document]:
    """Return the writes of a task, each with the index by which a repetition is known.

    Raises UsageError for a name that holds a NUL, for Postgres looks into checkpoints for filters and could not, or
    that is no Unicode.
    """
    names = (("task_id", task_id), ("task_path", task_path), *(("channel", channel) for channel, _ in writes))
    for what, text in names:
        refuse_nul(what, text)
        refuse_half_pair(what, text)
    return [
        {"task_id": task_id, "task_path": task_path, "idx": WRITES_IDX_MAP.get(channel, at), "channel": channel}
        | serde.pack(value).form()
        for at, (channel, value) in enumerate(writes)
    ]


def merged(known: Iterable[Document], more: Iterable[Document]) -> list[Document] | None:
    """Return the writes with more of them, or None where these change nothing.

    A write that is there stays as it is; one to a channel of LangGraph's own, such as an error, replaces it.
    """
    found = {(one["task_id"], one["idx"]): one for one in known}
    before = dict(found)
    for one in more:
        place = one["task_id"], one["idx"]
        if one["idx"] < 0 or place not in found:
            found[place] = one
    if found == before:  # Python takes 0 for false, so those that replace others are compared as JSON too
        others = ((one, before[place]) for place, one in found.items() if one is not before[place])
        if all(same(one, other) for one, other in others):
            return None
    return [*found.values()]


def in_order(writes: Iterable[Document]) -> list[Document]:
    """Return writes in the order in which a run applies them."""
    return sorted(writes, key=lambda one: (one["task_path"], one["task_id"], one["idx"]))


def config_of(place: Place, checkpoint_id: str) -> RunnableConfig:
    """Return the configuration that names a checkpoint."""
    return {"configurable": head_document(place, checkpoint_id)}


def tuple_of(
    document: Document, values: Mapping[str, Any], writes: Iterable[Document], serde: Serde
) -> CheckpointTuple:
    """Return a checkpoint as LangGraph knows it."""
    place, parent_id = place_of(document), document["parent_checkpoint_id"]
    return CheckpointTuple(
        config=config_of(place, document["checkpoint_id"]),
        checkpoint=cast("Checkpoint", whole(document, "checkpoint", serde) | {"channel_values": dict(values)}),
        metadata=cast("CheckpointMetadata", whole(document, "metadata", serde)),
        parent_config=config_of(place, parent_id) if parent_id else None,
        pending_writes=[(one["task_id"], one["channel"], serde.load(packed_of(one))) for one in in_order(writes)],
    )
