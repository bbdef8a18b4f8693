"""The states of channels with large values. A channel has two, and each checkpoint names the one that holds its value.

    ch/NS/CHANNEL           is written in the commit that has the head name the checkpoint, with which the value is put
    ch/NS/CHANNEL/beside    is written while the latest names the other one: with a checkpoint that is not the latest,
                            and ahead of a commit that has no room for all values

Retention lets old versions go. So what the latest checkpoint names is the newest of its state, at every instant and
wherever a process ends: a state that the latest names is written over only by the commit that makes another checkpoint
the latest. Whoever writes to one of these states writes the head in the same commit, over the one that was read: so the
latest is still the one whose states are left alone.

Several checkpoints name the same value, as that of the one that has changed it, which its state names too. A value that
is put again stays that one's, and goes to the state that it was in: so all of them know it again by its digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from statecache import Create, Delete, Set, State
from statecache.adapters.langgraph.ancestors import delta_channels, seeds_of
from statecache.adapters.langgraph.documents import channel_document, holds_checkpoint, next_head, own
from statecache.adapters.langgraph.values import Form, Packed, digest_of
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from statecache import LimitExceeded
    from statecache.adapters.langgraph.names import Place

COMMIT_BYTES_MAX = 15 * 1024 * 1024
"""Of how many bytes large values are that have room in one commit, which is of 16 MiB, with what goes with them."""
COMMIT_STATES_MAX = 200
"""In how many states they stand that are written in one commit, which is of 256, with what goes with them."""
WHOLE_BYTES_MAX = 16 * 1024 * 1024
"""Of how many bytes a commit is at most: keys, values, and STATE_BYTES for each of its states."""
STATE_BYTES_MAX = 8 * 1024 * 1024
"""Of how many bytes the value of a state is at most."""
STATE_BYTES = 200
KEY_BYTES_MAX = 512


def names_of(place: Place, packed: Mapping[str, Packed], beside: Collection[str] = ()) -> list[str]:
    """Return the names of the states that hold these values, in all their pieces."""
    return [
        place.channel(channel, at, beside=channel in beside)
        for channel, one in packed.items() for at in range(one.pieces_count)
    ]  # fmt: skip


def sizes_of(packed: Iterable[Packed]) -> list[int]:
    """Return how many bytes the states of these values are of, about."""
    return [len(piece) * 4 // 3 if one.type else len(piece) for one in packed for piece in one.pieces_of_bytes()]


def has_room(sizes: Sequence[int]) -> bool:
    """Return whether one commit has room for values of these sizes."""
    return sum(sizes) <= COMMIT_BYTES_MAX and len(sizes) <= COMMIT_STATES_MAX


def holds(
    place: Place, head: State[Any] | None, steps: Sequence[Set | Create], too_large: LimitExceeded | None
) -> bool:
    """Return whether one commit holds all of this, as the library counts bytes, where it has found more `too_large`."""
    bytes_max = WHOLE_BYTES_MAX if too_large is None else too_large.limit
    namespace = KEY_BYTES_MAX if head is None else len(head.key.encode()) - len(place.head.encode())
    values = [len(msgspec.json.encode(step.value)) for step in steps]
    names = sum(len(step.name.encode()) + namespace + STATE_BYTES for step in steps)
    return sum(values) + names <= bytes_max and max(values) <= STATE_BYTES_MAX


def read_states(names: Sequence[str], read: str) -> Plan[dict[str, State[Any] | None]]:
    """Return the states of these names, if there are any names."""
    return (yield from call("get_many", names, read=read)) if names else {}


def sets_of(
    place: Place, of: Mapping[str, str], channel_versions: Mapping[str, Any], packed: Mapping[str, Packed],
    beside: Collection[str], found: Mapping[str, State[Any] | None], read: str,
) -> Plan[tuple[list[Set], dict[str, Form]]]:  # fmt: skip
    """Return what writes large values over the states that were found, and the forms by which a checkpoint names them.

    They are those `of` the checkpoints with these ids. Of the channels that are `beside`, they go to the states beside.
    """
    sets, forms = list[Set](), dict[str, Form]()
    for channel, one in packed.items():
        versions, digests = list[int](), [*map(digest_of, one.pieces_of_bytes())]
        for at, piece in enumerate(one.pieces()):
            name = place.channel(channel, at, beside=channel in beside)
            before = found[name]
            if before is None:  # which may be a deleted one, whose version counts on
                before = yield from call("get", name, default=dict, read=read)
            document = channel_document(channel, channel_versions.get(channel, ""), of[channel], piece)
            sets.append(Set(name, document, expected=before))
            versions.append(before.version + 1)
        forms[channel] = {"type": one.type, "versions": versions, "digests": digests, "of": of[channel]}
        if channel in beside:
            forms[channel]["beside"] = True
    return sets, forms


def not_named(place: Place, head: State[Any] | None, channels: Iterable[str]) -> Plan[set[str]]:
    """Return those of the channels whose values have to go beside: the other state holds a value of the latest one.

    That is one that the latest checkpoint names, or that its delta channels are made of.
    """
    latest_id = latest_id_of(head)
    state = (yield from call("get", place.checkpoint(latest_id), read="primary")) if latest_id else None
    if state is None or not holds_checkpoint(state.value):
        return set()
    document, wanted = own(state), set(channels)
    forms: dict[str, Form] = {**document["channel_values"]}
    for seed, made_of_it in (yield from seeds_of(place, document)) if delta_channels(document) & wanted else ():
        forms |= {channel: seed["channel_values"][channel] for channel in made_of_it}
    return {one for one, form in forms.items() if one in wanted and "versions" in form and not form.get("beside")}


def latest_id_of(head: State[Any] | None) -> str:
    """Return the id of the checkpoint that a head names, or an empty text."""
    return "" if head is None else str(own(head)["checkpoint_id"])


def parted(sets: Iterable[Set], sizes: Iterable[int]) -> Iterator[list[Set]]:
    """Yield what writes values in as many parts as it takes for each to have room in a commit."""
    part, of = list[Set](), list[int]()
    for one, size in zip(sets, sizes, strict=True):
        if part and not has_room([*of, size]):
            yield part
            part, of = [], []
        part.append(one)
        of.append(size)
    if part:
        yield part


def put_ahead(
    place: Place, head: State[Any] | None, parts: Iterable[Sequence[Set]]
) -> Plan[tuple[list[State[Any]], State[Any] | None]]:
    """Commit values that the latest checkpoint does not name; return their states, and the head, which names it still.

    It is written once more with each, so that nobody else has come between when the commit behind them goes through.
    """
    made = list[State[Any]]()
    for part in parts:
        *some, head = yield from call("commit", [*part, _unmoved(place, head)])
        made += some
    return made, head


def _unmoved(place: Place, head: State[Any] | None) -> Any:
    """Return what writes a head once more as it is, or what fails where there is one by now."""
    if head is None:
        return Delete(place.head, expected=None)
    return Set(place.head, next_head(place, head, latest_id_of(head), head.value.get("newest", "")), expected=head)
