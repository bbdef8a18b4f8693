"""Reading checkpoints: one by its label, or all of a key or a group. How they are stored: `rules.checkpoints`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from statecache.core.read.listed import Listed
from statecache.errors import InvalidKey
from statecache.history_errors import CheckpointNotFound
from statecache.keys import checked_key, group_of
from statecache.model import Position
from statecache.rules.checkpoints import (
    CHECKPOINT_SCHEMA,
    CheckpointRecord,
    checked_label,
    decoded,
    record_key,
    records_under,
)
from statecache.rules.filters import Selection

if TYPE_CHECKING:
    from statecache.checkpoints import Checkpoint
    from statecache.core.read.listing import Listing
    from statecache.core.read.many import ManyReader
    from statecache.model import Record


class Checkpoints:
    """The checkpoints that there are."""

    def __init__(self, many: ManyReader, listing: Listing) -> None:
        self._many = many
        self._listing = listing

    async def find(self, key: str, label: str, *, end: float) -> Checkpoint:
        """Return the checkpoint of a key with that label: its own, or else that of its group.

        Raises CheckpointNotFound, and Unavailable where that cannot be learnt.
        """
        group = group_of(key)
        places = [place for place in dict.fromkeys((key, group)) if _is_key(record_key(place, checked_label(label)))]
        records = await self._many.primary([record_key(place, label) for place in places], end=end) if places else {}
        for place in places:
            found = checkpoint_in(records, record_key(place, label))
            if found is not None and found.key in (key, group) and (place == key or found.scope == "group"):
                return found
        raise CheckpointNotFound(key, label=label)

    async def all(self, key: str, *, whole: bool, seconds: float) -> list[Checkpoint]:
        """Return the checkpoints of a key and of its group, in the order of their positions.

        With `whole` the key is a group, and those of all of its keys are meant. `seconds` bounds each exchange.
        """
        group = group_of(key)
        prefixes = {group: group + "/"} if whole else {place: records_under(place) for place in (key, group)}
        found: list[Checkpoint] = []
        for place, prefix in prefixes.items():
            if not _is_key(prefix + "_"):
                continue
            listed = Listed(selection=Selection(prefix=prefix))
            async for record in self._listing.records(listed, seconds=seconds):
                one = checkpoint_of(record)
                if one is not None and (whole or (one.key == place and (place == key or one.scope == "group"))):
                    found.append(one)
        return sorted(found, key=lambda one: (one.position, one.label))


def checkpoint_in(records: Mapping[str, Record], key: str) -> Checkpoint | None:
    """Return the checkpoint that is stored at a key, among records that were read; None where there is none."""
    record = records.get(key)
    return None if record is None else checkpoint_of(record)


def checkpoint_of(record: Record) -> Checkpoint | None:
    """Return the checkpoint that a record is; None for another state, or none."""
    stored = stored_in(record)
    return None if stored is None else stored.shown(Position.parse(record.position) or Position(0, 0))


def stored_in(record: Record) -> CheckpointRecord | None:
    """Return what is stored of a checkpoint in a record; None for another state, one of another place, or none."""
    if not record.exists or record.schema != CHECKPOINT_SCHEMA:
        return None
    try:
        said = decoded(record.value)
    except msgspec.DecodeError:
        return None
    return said if record.key == record_key(said.key, said.label) else None


def _is_key(text: str) -> bool:
    """Return whether there can be a state of that key: a long key leaves no room for labels."""
    try:
        checked_key(text)
    except InvalidKey:
        return False
    return True
