"""Putting a checkpoint: one commit of its state, of the channels that have states of their own, and of the head.

Nothing is written blindly. A channel's state is written over the one that was read, so its version is known before, and
the checkpoint can name it. The head is written over the one that was read, with the later of two ids. What was read may
be old, or remembered from the last put of this process: then the commit conflicts, and the second attempt reads the
primary. Where the head proves that there never was a state of the checkpoint, Postgres is not asked whether there is.

What the latest checkpoint names of large values is the newest of their channels. One that follows the latest names what
it has not changed as that does; one that follows another brings the value anew, if it has it, and one commit has room;
what is missing then, or was written over by a checkpoint that is not the latest, is put again behind it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from statecache import AlreadyExists, Create, Delete, LimitExceeded, Set, State, StateCacheError, VersionConflict
from statecache.adapters.langgraph.documents import (
    Document,
    channel_document,
    checkpoint_document,
    holds_checkpoint,
    is_first,
    next_head,
    own,
)
from statecache.adapters.langgraph.pieces import put_again
from statecache.adapters.langgraph.recent import Latest, PieceName, Recent
from statecache.adapters.langgraph.values import Form, Packed, Serde, digest_of
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

    from statecache.adapters.langgraph.names import Place

OWN_STATES_MAX = 200
"""How many channels of a checkpoint get states of their own, the largest ones: a commit is of at most 256."""
_COMMIT_BYTES_MAX = 15 * 1024 * 1024
"""Of how many bytes large values are that have room in one commit, which is of 16 MiB, with what goes with them."""
ATTEMPTS_MAX = 30
"""How often a commit is tried that others are in the way of: tasks of the same superstep, or another run."""


class Draft:
    """A checkpoint to be put: its document, the values that changed with it, and those that did not.

    Of what did not change, `kept` has a function that packs it, for where the parent does not have it, or None.
    """

    def __init__(
        self, place: Place, document: Document, versions: Mapping[str, Any], changed: dict[str, Packed],
        kept: Mapping[str, Callable[[], Packed] | None], writes: list[Document] | None = None,
    ) -> None:  # fmt: skip
        self.place, self.document, self.versions = place, document, versions
        self.changed, self.kept, self.writes = changed, kept, writes or []
        self.checkpoint_id: str = document["checkpoint_id"]
        self.parent_id: str | None = document["parent_checkpoint_id"]


def put(
    place: Place, parent_id: str | None, checkpoint: Checkpoint, metadata: CheckpointMetadata,
    new_versions: ChannelVersions, serde: Serde, recent: Recent,
) -> Plan[None]:  # fmt: skip
    """Put a checkpoint."""
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    changed = {name: serde.pack(value) for name, value in values.items() if name in new_versions}
    kept: dict[str, Callable[[], Packed] | None] = {
        name: None for name in versions if name not in new_versions and name not in values
    }
    for name, value in values.items():
        if name not in new_versions:
            kept[name] = lambda value=value: serde.pack(value)  # type: ignore[misc]
    document = checkpoint_document(place, parent_id, checkpoint, metadata, serde)
    yield from commit(Draft(place, document, dict(versions), changed, kept), recent)


def commit(draft: Draft, recent: Recent) -> Plan[None]:
    """Commit a draft; repeated, it changes nothing that counts."""
    place, name, too_large = draft.place, draft.place.checkpoint(draft.checkpoint_id), False
    for attempt in range(ATTEMPTS_MAX):
        read = "primary" if attempt else "local"
        parent = place.checkpoint(draft.parent_id) if draft.parent_id and draft.kept else ""
        names = [place.head, *([parent] if parent else []), *([name] if attempt else [])]
        names += _names(place, {channel: one for channel, one in draft.changed.items() if one.is_large})
        found: dict[str, State[Any] | None] = {} if attempt else _remembered(draft, recent)
        found |= yield from _read([one for one in names if one not in found], read)
        known, head = found.get(name), found[place.head]
        follows = head is None or own(head)["checkpoint_id"] == draft.parent_id
        there = _there(draft, known, found) if too_large else {}
        forms, packed = _forms(draft, found.get(parent), known, there, by_name=follows or too_large)
        found |= yield from _read([one for one in _names(place, packed) if one not in found], read)
        sets, versions = yield from _channels(draft, packed, forms, found, read)
        document = draft.document | {"channel_values": forms} | _writes(draft, known)
        new = known is None and is_first(head, draft.checkpoint_id)
        sets.append(Create(name, document, assume_new=True) if new else Set(name, document, expected=known))
        try:
            made = yield from _committed(draft, sets, packed, head)
        except LimitExceeded:
            if too_large:
                raise
            too_large = True  # then what was put before, or stands in its channel's history, is not put again
        except (VersionConflict, AlreadyExists):
            recent.forget(place)
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            if [state.version for state in made[: len(versions)]] == versions:
                _remember(draft, packed, made, forms, recent)
                is_latest = made[-1].value["checkpoint_id"] == draft.checkpoint_id
                named = not follows and any("versions" in forms.get(channel, ()) for channel in draft.kept)
                if named if is_latest else packed:
                    with suppress(StateCacheError):  # the checkpoint is put, whatever hinders this
                        yield from latest_again(place)
                return
            # else a channel was created and deleted in between: now it is there, and its version is known


def _committed(
    draft: Draft, sets: Sequence[Any], packed: Mapping[str, Packed], head: State[Any] | None
) -> Plan[list[State[Any]]]:
    """Commit what is to be set: pieces of large values, the checkpoint, and the head; return what was made of it.

    Where there is no checkpoint yet, none misses what a channel's state held before. So what one commit has no room for
    goes in several, of which the last has the checkpoint: that of a thread that was thinned out brings all its values.
    """
    *values, checkpoint = sets
    sizes = [
        len(piece) * 4 // 3 if one.type else len(piece) for one in packed.values() for piece in one.pieces_of_bytes()
    ]
    begins = head is None or not own(head)["checkpoint_id"]
    part, size, made = list[Any](), 0, list[State[Any]]()
    for one, more in zip(values, sizes, strict=True):
        if begins and size + more > _COMMIT_BYTES_MAX:
            *some, head = yield from call("commit", [*part, _still_none(draft.place, head)])
            made, part, size = made + some, [], 0
        part.append(one)
        size += more
    last = yield from call("commit", [*part, checkpoint, Set(draft.place.head, _head(draft, head), expected=head)])
    return made + list(last)


def _still_none(place: Place, head: State[Any] | None) -> Any:
    """Return what writes a head that names no checkpoint once more, or what fails where there is one by now."""
    if head is None:
        return Delete(place.head, expected=None)
    return Set(place.head, next_head(place, head, "", head.value.get("newest", "")), expected=head)


def _remembered(draft: Draft, recent: Recent) -> dict[str, State[Any] | None]:
    """Return what this process has put last, by name, where the draft follows it: nobody else may have put since.

    Where it has put nothing, and the draft follows nothing, nothing is there, as far as this process knows.
    """
    latest = recent.latest(draft.place)
    if latest is None:
        return {} if draft.parent_id else {draft.place.head: None}
    if draft.parent_id is None or latest.head.value["checkpoint_id"] != draft.parent_id:
        return {}
    parent = {draft.place.checkpoint(draft.parent_id): latest.checkpoint}
    return {draft.place.head: latest.head, **parent, **latest.channels}


def latest_again(place: Place) -> Plan[None]:
    """Put the large values of the latest checkpoint again, where they are not the newest of their channels."""
    for _ in range(ATTEMPTS_MAX):
        head = yield from call("get", place.head, read="primary")
        latest_id = "" if head is None else own(head)["checkpoint_id"]
        state = (yield from call("get", place.checkpoint(latest_id), read="primary")) if latest_id else None
        if state is None or not holds_checkpoint(state.value):
            return
        sets, _ = yield from put_again(own(state))
        if not sets:
            return
        with suppress(VersionConflict):
            yield from call("commit", sets)


def _remember(
    draft: Draft, packed: Mapping[str, Packed], made: Sequence[State[Any]], forms: Mapping[str, Form], recent: Recent
) -> None:
    """Keep what was committed, in the order of the commit: pieces of large values, the checkpoint, the head."""
    *channels, checkpoint, head = made
    data = [piece for one in packed.values() for piece in one.pieces_of_bytes()]
    names = _names(draft.place, packed)
    digests = [digest for channel in packed for digest in forms[channel]["digests"]]
    recent.add({
        PieceName(name, state.version, draft.checkpoint_id, digest): piece
        for name, state, digest, piece in zip(names, channels, digests, data, strict=True)
    })  # fmt: skip
    if head.value["checkpoint_id"] != draft.checkpoint_id:
        return recent.forget(draft.place)
    before = recent.latest(draft.place)
    kept = {} if before is None or before.head.value["checkpoint_id"] != draft.parent_id else before.channels
    light = {name: replace(state, value=None) for name, state in zip(names, channels, strict=True)}
    return recent.put(draft.place, Latest(head, checkpoint, {**kept, **light}))


def _read(names: Sequence[str], read: str) -> Plan[dict[str, State[Any] | None]]:
    """Return the states of these names, if there are any names."""
    return (yield from call("get_many", names, read=read)) if names else {}


def _there(draft: Draft, known: State[Any] | None, found: Mapping[str, State[Any] | None]) -> dict[str, Form]:
    """Return the forms of large values that a checkpoint put before has at the same versions, but for wrong ones."""
    forms = dict[str, Form]()
    for channel, form in _stored(draft, known).items():
        versions = form.get("versions", ())
        states = [found.get(draft.place.channel(channel, at)) for at in range(len(versions))]
        wrong = [
            state for state, version in zip(states, versions, strict=True)
            if state is not None and state.value["checkpoint_id"] == draft.checkpoint_id and state.version != version
        ]  # fmt: skip
        if versions and not wrong and channel in draft.changed:
            forms[channel] = form
    return forms


def _forms(
    draft: Draft, parent: State[Any] | None, known: State[Any] | None, there: Mapping[str, Form], *, by_name: bool
) -> tuple[dict[str, Form], dict[str, Packed]]:
    """Return the forms of what stands in the checkpoint's own state, or already in a channel's, and what is large.

    `known` is the checkpoint as it was put before, `there` are forms of that, and `by_name` says whether what has not
    changed is to be named as the parent names it: of another one than the latest it may not be the newest.
    """
    forms = dict(there)
    packed = {channel: one for channel, one in draft.changed.items() if channel not in forms}
    before, again = _stored(draft, parent), _stored(draft, known)
    for channel, pack in draft.kept.items():
        form = again.get(channel) or before.get(channel)
        if form is not None and (by_name or channel in again or "versions" not in form or pack is None):
            forms[channel] = form
        elif pack is not None:
            packed[channel] = pack()
    by_size = sorted(packed, key=lambda channel: len(packed[channel].data), reverse=True)
    large = {channel: packed[channel] for channel in by_size[:OWN_STATES_MAX] if packed[channel].is_large}
    return forms | {channel: one.form() for channel, one in packed.items() if channel not in large}, large


def _stored(draft: Draft, state: State[Any] | None) -> dict[str, Form]:
    """Return the forms of those channels that are in a checkpoint as they are in the draft: at the same version."""
    if state is None or not holds_checkpoint(state.value):
        return {}
    document = own(state)
    versions = document["checkpoint"].get("channel_versions", {})
    return {
        channel: form for channel, form in document["channel_values"].items()
        if channel in versions and versions[channel] == draft.versions.get(channel)
    }  # fmt: skip


def _names(place: Place, packed: Mapping[str, Packed]) -> list[str]:
    """Return the names of the states that hold these values, in all their pieces."""
    return [place.channel(channel, at) for channel, one in packed.items() for at in range(one.pieces_count)]


def _channels(
    draft: Draft, packed: Mapping[str, Packed], forms: dict[str, Form], found: Mapping[str, State[Any] | None],
    read: str,
) -> Plan[tuple[list[Any], list[int]]]:  # fmt: skip
    """Return what is to be set of channels with states of their own, and which versions this makes; add forms."""
    sets, versions = list[Any](), list[int]()
    for channel, one in packed.items():
        first, digests = len(versions), [*map(digest_of, one.pieces_of_bytes())]
        for at, piece in enumerate(one.pieces()):
            name = draft.place.channel(channel, at)
            before = found[name]
            if before is None:  # which may be a deleted one, whose version counts on
                before = yield from call("get", name, default=dict, read=read)
            document = channel_document(channel, draft.versions.get(channel, ""), draft.checkpoint_id, piece)
            sets.append(Set(name, document, expected=before))
            versions.append(before.version + 1)
        forms[channel] = {"type": one.type, "versions": versions[first:], "digests": digests, "of": draft.checkpoint_id}
    return sets, versions


def _writes(draft: Draft, known: State[Any] | None) -> Document:
    """Return the pending writes: those of the draft, or those that are there."""
    if known is None or not known.value["writes"]:
        return {"writes": draft.writes, "writes_elsewhere": bool(known and known.value["writes_elsewhere"])}
    return {"writes": known.value["writes"], "writes_elsewhere": known.value["writes_elsewhere"]}


def _head(draft: Draft, head: State[Any] | None) -> Document:
    """Return what moves the head, or keeps it where it is."""
    latest = draft.checkpoint_id if head is None else max(draft.checkpoint_id, own(head)["checkpoint_id"])
    return next_head(draft.place, head, latest, draft.checkpoint_id)
