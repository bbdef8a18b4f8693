"""Putting large values again that are not the newest of their states: of checkpoints that stand, without changing them.

The head may be about to name such a checkpoint, or one whose delta channels are made of its values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statecache import Set, State, VersionNotFound
from statecache.adapters.langgraph.ancestors import seeds_of
from statecache.adapters.langgraph.channels import (
    has_room,
    names_of,
    not_named,
    parted,
    put_ahead,
    read_states,
    sets_of,
    sizes_of,
)
from statecache.adapters.langgraph.documents import Document, holds_checkpoint, next_head, own
from statecache.adapters.langgraph.pieces import not_newest
from statecache.adapters.langgraph.values import Packed
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from statecache.adapters.langgraph.names import Place
    from statecache.adapters.langgraph.recent import Recent


class Part(NamedTuple):
    """A checkpoint, and those of its large values that are to be put again, for they are not the newest."""

    state: State[Any]
    again: Mapping[str, Packed]


def seeds_again(
    place: Place, document: Document, recent: Recent, doomed: Collection[str] = ()
) -> Plan[tuple[list[Part], dict[str, VersionNotFound]]]:
    """Return what is not the newest of the values that a checkpoint's delta channels are made of.

    Also return of which channels there is none any more, in this process or in the history, and what says so. Ancestors
    that are `doomed`, by the last segments of their names, are taken for deleted.
    """
    parts, lost = list[Part](), dict[str, VersionNotFound]()
    for seed, channels in (yield from seeds_of(place, document, doomed)):
        forms = {channel: seed["channel_values"][channel] for channel in channels}
        again, are_lost = yield from not_newest(seed, forms, recent)
        name = place.checkpoint(seed["checkpoint_id"])
        state = (yield from call("get", name, read="primary")) if again else None
        parts += [Part(state, again)] if state is not None and holds_checkpoint(state.value) else []
        lost |= are_lost
    return parts, lost


def puts_again(
    place: Place, parts: Sequence[Part], beside: Collection[str] | None
) -> Plan[tuple[list[Set], list[Set]]]:
    """Return what writes values again, and what has their checkpoints name them.

    They stay those of the checkpoints that have changed them, and go to the states that they were in, or, of the
    channels that are `beside`, where that is said, to those beside.
    """
    sets, named = list[Set](), list[Set]()
    for part in parts:
        document = own(part.state)
        checkpoint_id, forms = document["checkpoint_id"], document["channel_values"]
        versions = document["checkpoint"].get("channel_versions", {})
        of = {channel: forms[channel].get("of", checkpoint_id) for channel in part.again}
        there = {one for one in part.again if forms[one].get("beside")} if beside is None else beside
        found = yield from read_states(names_of(place, part.again, there), "primary")
        some, new = yield from sets_of(place, of, versions, part.again, there, found, "primary")
        sets += some
        if new:
            over = document | {"channel_values": forms | new}
            named.append(Set(place.checkpoint(checkpoint_id), over, expected=part.state))
    return sets, named


def channels_of(parts: Iterable[Part]) -> list[str]:
    """Return the channels whose values are put again."""
    return [channel for part in parts for channel in part.again]


def sizes_of_all(parts: Iterable[Part]) -> list[int]:
    """Return how many bytes the states of the values that are put again are of, about."""
    return [size for part in parts for size in sizes_of(part.again.values())]


def moved_back(place: Place, head: State[Any], parts: Sequence[Part]) -> Plan[list[Set]]:
    """Return what has the head name an earlier checkpoint, the first of these, of which large values are put again.

    They go to the states that they were in. What one commit has no room for is put ahead, in states that the latest
    does not name.
    """
    sizes = sizes_of_all(parts)
    written = [len(msgspec.json.encode(part.state.value)) for part in parts if part.again]
    fits = not sizes or has_room([*sizes, *written])
    beside = None if fits else (yield from not_named(place, head, channels_of(parts)))
    sets, named = yield from puts_again(place, parts, beside)
    latest: State[Any] | None = head
    if not fits:
        _, latest = yield from put_ahead(place, head, parted(sets, sizes))
        sets = []
    document = own(parts[0].state)
    checkpoint_id, forms = document["checkpoint_id"], document["channel_values"]
    moved = Set(place.head, next_head(place, latest, checkpoint_id, checkpoint_id, forms), expected=latest)
    return [moved, *sets, *named]
