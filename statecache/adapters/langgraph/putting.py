"""Putting a checkpoint: one commit of its state, of the channels that have states of their own, and of the head.

Nothing is written blindly. A channel's state is written over the one that was read, so its version is known before, and
the checkpoint can name it. The head is written over the one that was read, with the later of two ids. What was read may
be old, or remembered from the last put of this process: then the commit conflicts, and the second attempt reads the
primary. Where the head proves that there never was a state of the checkpoint, Postgres is not asked whether there is.

What the latest checkpoint names of large values is the newest of their states, at every instant. One that follows the
latest names what it has not changed as that does. One that follows another and becomes the latest puts what it names
anew, where that is not the newest any more: in its own commit, or where that has no room, ahead of it, in states that
the latest until then does not name. In such states the values of a checkpoint stand that does not become the latest.
What has not changed is put anew as the bytes that it is, not as what the caller has made of them.
The same goes for what its delta channels are made of. Where a policy has let some of it go that this process does not
hold, nothing is put.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from statecache import (
    AlreadyExists,
    Create,
    HistoryDamaged,
    LimitExceeded,
    Set,
    State,
    VersionConflict,
    VersionNotFound,
)
from statecache.adapters.langgraph.channels import (
    holds,
    latest_id_of,
    names_of,
    not_named,
    parted,
    put_ahead,
    read_states,
    sets_of,
    sizes_of,
)
from statecache.adapters.langgraph.documents import (
    Document,
    checkpoint_document,
    holds_checkpoint,
    is_first,
    next_head,
    own,
)
from statecache.adapters.langgraph.pieces import not_newest, packed_values
from statecache.adapters.langgraph.put_again import Part, channels_of, puts_again, seeds_again, sizes_of_all
from statecache.adapters.langgraph.recent import Latest, PieceName, Recent
from statecache.adapters.langgraph.values import Form, Packed, Serde, digest_of
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

    from statecache.adapters.langgraph.names import Place

OWN_STATES_MAX = 200
"""How many channels of a checkpoint get states of their own, the largest ones: a commit is of at most 256."""
ATTEMPTS_MAX = 30
"""How often a commit is tried that others are in the way of: tasks of the same superstep, or another run."""


class Draft:
    """A checkpoint to be put: its document, the values that changed with it, and those that did not.

    Of what did not change, `kept` has a function that packs it, for where the parent does not have it, or None. A draft
    that says what is `lost` is put as far as its values are kept, and what is lost is named as it is.
    """

    def __init__(
        self, place: Place, document: Document, versions: Mapping[str, Any], changed: dict[str, Packed],
        kept: Mapping[str, Callable[[], Packed] | None], writes: list[Document] | None = None, *,
        lost: Mapping[str, Form] | None = None,
    ) -> None:  # fmt: skip
        self.place, self.document, self.versions = place, document, versions
        self.changed, self.kept, self.writes, self.lost = changed, kept, writes or [], lost or {}
        self.is_whole = lost is None
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
    place, name = draft.place, draft.place.checkpoint(draft.checkpoint_id)
    too_large: LimitExceeded | None = None
    for attempt in range(ATTEMPTS_MAX):
        read = "primary" if attempt else "local"
        parent = place.checkpoint(draft.parent_id) if draft.parent_id and draft.kept else ""
        names = [place.head, *([parent] if parent else []), *([name] if attempt else [])]
        names += names_of(place, {channel: one for channel, one in draft.changed.items() if one.is_large})
        found: dict[str, State[Any] | None] = {} if attempt else _remembered(draft, recent)
        found |= yield from read_states([one for one in names if one not in found], read)
        known, head = found.get(name), found[place.head]
        large = yield from _large(draft, found.get(parent), known, head, found, too_large, recent)
        found |= yield from read_states([one for one in large.names(place) if one not in found], read)
        sets, named = yield from sets_of(place, large.of, draft.versions, large.packed, large.beside, found, read)
        forms, versions = large.forms | named, [version for form in named.values() for version in form["versions"]]
        document = draft.document | {"channel_values": forms} | _writes(draft, known)
        seeds = yield from _seeds(draft, document, head, recent)
        new = known is None and is_first(head, draft.checkpoint_id)
        over = Create(name, document, assume_new=True) if new else Set(name, document, expected=known)
        try:
            made = yield from _committed(draft, sets, over, large, seeds, head, too_large)
        except LimitExceeded as error:
            if too_large is not None:
                raise
            too_large = error
        except (VersionConflict, AlreadyExists):
            recent.forget(place)
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            if [state.version for state in made[: len(versions)]] == versions:
                return _remember(draft, large, made, forms, recent)
            # else a channel was created and deleted in between: now it is there, and its version is known


class _Other(NamedTuple):
    """A checkpoint that has a channel's large value, and what the caller holds in its place, which differs."""

    holder: State[Any]
    held: Packed


class _Large(NamedTuple):
    """The large values that are put with a checkpoint, and the forms of all its others.

    The values are those `of` the checkpoints with these ids. Of the channels that are `beside`, they go to the states
    beside. The first `ahead` of the states may be written ahead of the commit that has the head name the checkpoint.
    """

    packed: Mapping[str, Packed]
    forms: dict[str, Form]
    of: Mapping[str, str]
    beside: Collection[str]
    ahead: int

    def names(self, place: Place) -> list[str]:
        """Return the names of the states that hold the values."""
        return names_of(place, self.packed, self.beside)


def _large(
    draft: Draft, parent: State[Any] | None, known: State[Any] | None, head: State[Any] | None,
    found: Mapping[str, State[Any] | None], too_large: LimitExceeded | None, recent: Recent,
) -> Plan[_Large]:  # fmt: skip
    """Return what is put of large values, and where, with the head as it is.

    With a checkpoint that is `too_large` for a commit, what was put before is not put again. Of what it has not
    changed, one that is not the latest names what its parent does; of one that becomes the latest it goes ahead.
    """
    latest_id, moves = latest_id_of(head), _moves(draft, head)
    follows = head is None or latest_id == draft.parent_id
    is_late, is_again = latest_id > draft.checkpoint_id, latest_id == draft.checkpoint_id
    there = _there(draft, known, found) if too_large is not None and (is_again or not moves) else {}
    by_name = follows or (is_late and too_large is not None)
    forms, packed, other = _forms(draft, parent, known, there, by_name=by_name, anew=moves and not is_again)
    packed |= yield from _put_once_more(other, recent)
    again = dict[str, Packed]()
    if moves:
        unchanged = {channel: form for channel, form in forms.items() if channel in draft.kept}
        again, lost = yield from not_newest(draft.document, unchanged, recent)
        again |= {channel: pack() for channel in lost if (pack := draft.kept[channel]) is not None}
        _refuse_lost(draft, {channel: error for channel, error in lost.items() if channel not in again})
        packed |= again
    by_size = sorted(packed, key=lambda channel: len(packed[channel].data), reverse=True)
    first = sorted(by_size[:OWN_STATES_MAX], key=lambda channel: channel in draft.changed)
    large = {channel: packed[channel] for channel in first if packed[channel].is_large}
    shared = _shared(draft, parent, known, large, again)
    of = {channel: shared.get(channel, Form()).get("of", draft.checkpoint_id) for channel in large}
    forms |= {channel: one.form() for channel, one in packed.items() if channel not in large}
    if not latest_id:
        return _Large(large, forms, of, (), len(names_of(draft.place, large)))
    if is_late:
        return _Large(large, forms, of, (yield from not_named(draft.place, head, large)), 0)
    if too_large is None or not moves:
        return _Large(large, forms, of, {channel for channel, form in shared.items() if form.get("beside")}, 0)
    ahead = [channel for channel in large if channel not in draft.changed]
    beside = yield from not_named(draft.place, head, ahead)
    return _Large(large, forms, of, beside, sum(large[channel].pieces_count for channel in ahead))


def _shared(
    draft: Draft, parent: State[Any] | None, known: State[Any] | None, large: Mapping[str, Packed],
    again: Collection[str],
) -> dict[str, Form]:  # fmt: skip
    """Return the forms of those large values that are put once more as they are: `again`, or with the same bytes."""
    forms = _stored(draft, parent) | _stored(draft, known)
    return {
        channel: forms[channel] for channel, one in large.items()
        if channel in draft.kept and "versions" in forms.get(channel, ())
        and (channel in again or _is_same(one, forms[channel]))
    }  # fmt: skip


def _is_same(one: Packed, form: Form) -> bool:
    """Return whether a large value is, byte by byte, the one of a form."""
    return form.get("digests") == [*map(digest_of, one.pieces_of_bytes())]


def _moves(draft: Draft, head: State[Any] | None) -> bool:
    """Return whether a checkpoint that does not follow the latest becomes it."""
    latest_id = latest_id_of(head)
    return bool(latest_id) and latest_id != draft.parent_id and latest_id <= draft.checkpoint_id


def _seeds(draft: Draft, document: Document, head: State[Any] | None, recent: Recent) -> Plan[list[Part]]:
    """Return what is put again with a checkpoint of the values that its delta channels are made of."""
    if not _moves(draft, head):
        return []
    seeds, lost = yield from seeds_again(draft.place, document, recent)
    _refuse_lost(draft, lost)
    return seeds


def _refuse_lost(draft: Draft, lost: Mapping[str, VersionNotFound]) -> None:
    """Raise VersionNotFound where a checkpoint is to be whole, and a policy has let go what it would be made of."""
    if draft.is_whole and lost:
        raise next(iter(lost.values()))


def _committed(
    draft: Draft, sets: Sequence[Set], over: Any, large: _Large, seeds: Sequence[Part], head: State[Any] | None,
    too_large: LimitExceeded | None,
) -> Plan[list[State[Any]]]:  # fmt: skip
    """Commit what is to be set: pieces of large values, the checkpoint, and the head; return what was made of it.

    Where there is no checkpoint yet, none misses what a channel's state held before. So what one commit has no room for
    goes in several, of which the last has the checkpoint: that of a thread that was thinned out brings all its values.
    What its delta channels are made of goes ahead of one that was too large. Where the last has no room for what has to
    be in it, all is refused, and nothing is put ahead.
    """
    parts, rest = [*parted(sets[: large.ahead], sizes_of(large.packed.values())[: large.ahead])], sets[large.ahead :]
    last = [over, Set(draft.place.head, _head(draft, over.value, head), expected=head)]
    if parts and not latest_id_of(head):
        *parts, rest = parts
        if (parts or too_large is not None) and not holds(draft.place, head, [*rest, *last], too_large):
            parts, rest = [*parts, rest], []
    ahead = too_large is not None
    beside = (yield from not_named(draft.place, head, channels_of(seeds))) if ahead and seeds else None
    again, named = yield from puts_again(draft.place, seeds, beside)
    before = [*parts, *parted(again, sizes_of_all(seeds))] if ahead else parts
    with_it = [*named, *rest] if ahead else [*again, *named, *rest]
    if before and not holds(draft.place, head, [*with_it, *last], too_large):
        before, with_it = [], [*again, *named, *sets]
    own_ahead = sum(map(len, parts)) if before else 0
    made, head = yield from put_ahead(draft.place, head, before)
    moved = Set(draft.place.head, _head(draft, over.value, head), expected=head)
    done = yield from call("commit", [*with_it, over, moved])
    return [*made[:own_ahead], *done[len(with_it) - len(sets) + own_ahead :]]


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


def _remember(
    draft: Draft, large: _Large, made: Sequence[State[Any]], forms: Mapping[str, Form], recent: Recent
) -> None:
    """Keep what was committed, in the order of the commit: pieces of large values, the checkpoint, the head."""
    *channels, checkpoint, head = made
    data = [piece for one in large.packed.values() for piece in one.pieces_of_bytes()]
    names = large.names(draft.place)
    digests = [digest for channel in large.packed for digest in forms[channel]["digests"]]
    recent.add({
        PieceName(name, state.version, state.value["checkpoint_id"], digest): piece
        for name, state, digest, piece in zip(names, channels, digests, data, strict=True)
    })  # fmt: skip
    if head.value["checkpoint_id"] != draft.checkpoint_id:
        return recent.forget(draft.place)
    before = recent.latest(draft.place)
    kept = {} if before is None or before.head.value["checkpoint_id"] != draft.parent_id else before.channels
    light = {name: replace(state, value=None) for name, state in zip(names, channels, strict=True)}
    return recent.put(draft.place, Latest(head, checkpoint, {**kept, **light}))


def _there(draft: Draft, known: State[Any] | None, found: Mapping[str, State[Any] | None]) -> dict[str, Form]:
    """Return the forms of large values that a checkpoint put before has at the same versions, but for wrong ones."""
    forms = dict[str, Form]()
    for channel, form in _stored(draft, known).items():
        versions = form.get("versions", ())
        beside = form.get("beside", False)
        states = [found.get(draft.place.channel(channel, at, beside=beside)) for at in range(len(versions))]
        wrong = [
            state for state, version in zip(states, versions, strict=True)
            if state is not None and state.value["checkpoint_id"] == draft.checkpoint_id and state.version != version
        ]  # fmt: skip
        if versions and not wrong and channel in draft.changed:
            forms[channel] = form
    return forms


def _forms(
    draft: Draft, parent: State[Any] | None, known: State[Any] | None, there: Mapping[str, Form], *, by_name: bool,
    anew: bool,
) -> tuple[dict[str, Form], dict[str, Packed], dict[str, _Other]]:  # fmt: skip
    """Return the forms of what stands in a state already, and the values that do not.

    Of a channel that has not changed, and whose large value is to be put once more, tell apart what the caller holds
    otherwise than it is stored.

    `known` is the checkpoint as it was put before, `there` are forms of that, and `by_name` says whether what has not
    changed is to be named as the parent names it: of another one than the latest it may not be the newest. What has
    values is put `anew` where that goes for the checkpoint as it was put before, too.
    """
    forms = {**there, **draft.lost}
    packed = {channel: one for channel, one in draft.changed.items() if channel not in forms}
    other = dict[str, _Other]()
    before, again = _stored(draft, parent), _stored(draft, known)
    for channel, pack in draft.kept.items():
        form = again.get(channel) or before.get(channel)
        is_there = channel in again and not anew
        if form is not None and (by_name or is_there or "versions" not in form or pack is None):
            forms[channel] = form
        elif pack is not None:
            holder = known if channel in again else parent
            packed[channel] = pack()
            if form is not None and holder is not None and not _is_same(packed[channel], form):
                other[channel] = _Other(holder, packed[channel])
    return forms, packed, other


def _put_once_more(other: Mapping[str, _Other], recent: Recent) -> Plan[dict[str, Packed]]:
    """Return the large values of channels that have not changed, though the caller holds others, as they are stored.

    What he holds was made of them by a serializer that may lack the classes of others, or a node has changed it. It is
    taken where there are no such bytes any more, as a policy has let them go.
    """
    packed = dict[str, Packed]()
    for channel, one in other.items():
        try:
            packed |= yield from packed_values(own(one.holder), [channel], recent)
        except (VersionNotFound, HistoryDamaged):
            packed[channel] = one.held
    return packed


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


def _writes(draft: Draft, known: State[Any] | None) -> Document:
    """Return the pending writes: those of the draft, or those that are there."""
    if known is None or not known.value["writes"]:
        return {"writes": draft.writes, "writes_elsewhere": bool(known and known.value["writes_elsewhere"])}
    return {"writes": known.value["writes"], "writes_elsewhere": known.value["writes_elsewhere"]}


def _head(draft: Draft, document: Document, head: State[Any] | None) -> Document:
    """Return what moves the head to the document that is written, or keeps it where it is."""
    latest = draft.checkpoint_id if head is None else max(draft.checkpoint_id, own(head)["checkpoint_id"])
    forms = document["channel_values"] if latest == draft.checkpoint_id else None
    return next_head(draft.place, head, latest, draft.checkpoint_id, forms)
