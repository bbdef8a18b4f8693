"""Parked entries: what they hold, and where they would stand in their keys' chains. Pure: nothing is connected.

An entry that Postgres refused counts as flushed. Each of its keys that it would have continued was marked: the tip in
`state` is the parked change, with the op `quarantined` and no value, and what is committed behind it goes on from
there, with the gap recorded in `change`. So its version is still free, and taking the entry in later means filling it:

    tip       the key still ends with the parked change: the row goes in, and the state gets its value
    inside    the chain went on, and the change behind names it as its parent: the row goes in, the gap closes
    there     the row is in the chain already: nothing to do

Anything else is not the chain's: another change has its version, or nothing shows that the chain went through it.
Then the whole entry stays parked, as a commit's changes belong together. Where several changes of one key are parked
in a row, the newest goes first: it is what shows that those before it belong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec
from psycopg.errors import lookup

from statecache.entries import ForeignEntry, NewerFormat, change_set
from statecache.errors import InvalidKey, UsageError
from statecache.keys import KeySpace, checked_key
from statecache.model import ChangeRecord, ChangeSet, Position

NAMED_MAX = 10
UNREADABLE = "entry"
"""Stands in place of the SQLSTATE of an entry that could not be read."""
DROPPED = "dropped"
"""Stands in place of the SQLSTATE of an entry that an operator gave up."""
DROPPING = "dropping "
"""Stands before the SQLSTATE of an entry that an operator has begun to give up."""
_place = re.compile(r"(\d{1,9}):(\d{1,19})-(-?\d{1,19})").fullmatch


class ParkedAt(NamedTuple):
    """The name of a parked entry: `<shard>:<epoch>-<n>`; an n of -1 is an entry that no commit wrote."""

    shard: int
    epoch: int
    n: int

    def __str__(self) -> str:
        return f"{self.shard}:{self.epoch}-{self.n}"

    @classmethod
    def parse(cls, text: str) -> ParkedAt:
        """Read an id as `list` shows it; raise UsageError for anything else."""
        match = _place(text)
        if match is None:
            raise UsageError(f"{text!r} is not the id of a parked entry", hint="Take one from `quarantine list`.")
        return cls(*(int(part) for part in match.groups()))


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """A parked entry as `quarantine` holds it; `entry` are its raw fields, empty in a listing."""

    place: ParkedAt
    change_id: str
    keys: list[str]
    size: int
    sqlstate: str
    error: str
    recorded_at: datetime
    entry: bytes = b""

    @property
    def dropped(self) -> bool:
        """Whether an operator gave it up."""
        return self.sqlstate == DROPPED

    @property
    def being_dropped(self) -> bool:
        """Whether an operator has begun to give it up, and what was before may have to be committed anew yet."""
        return self.sqlstate.startswith(DROPPING)

    @property
    def refused_for(self) -> str:
        """The SQLSTATE for which it was refused, or DROPPED where it was given up."""
        return self.sqlstate.removeprefix(DROPPING)

    def fields(self) -> list[bytes]:
        """Return the entry's fields as they stood in the stream: name, value, name, value…"""
        return msgspec.msgpack.decode(self.entry, type=list[bytes])


class Spot(NamedTuple):
    """What Postgres has around one parked change's version, '' for nothing."""

    tip_version: int
    tip_change_id: str
    tip_op: str
    here: str
    parent_named_behind: str
    parent_is_there: bool
    parent_hash: bytes | None = b""


class Taking(NamedTuple):
    """A change that goes into its chain; `gap` where its parent is not there."""

    change: ChangeRecord
    gap: bool


class Unfit(Exception):
    """Raised where a parked entry cannot be taken in; the message says why."""


class TooEarly(Unfit):
    """Raised where the change behind has to go in first: it shows that the chain went through this one."""

    def __init__(self, key: str, version: int) -> None:
        super().__init__(f"version {version} of {key!r} is not there either")
        self.key = key


def readable(parked: Parked, keys: KeySpace) -> ChangeSet:
    """Read a parked entry as the flusher would have, or raise Unfit."""
    if not parked.fields():
        raise Unfit("it was dropped when its key was erased, and nothing is left of it")
    try:
        found = change_set(b"", parked.fields(), position=Position(parked.place.epoch, parked.place.n))
    except (ForeignEntry, NewerFormat) as error:
        raise Unfit(f"no commit of this release wrote it: {error}") from None
    for change in found.changes:
        try:
            shard = keys.shard(checked_key(change.key))
        except InvalidKey as error:
            raise Unfit(f"the key {change.key!r} can be in no chain: {error.reason}") from None
        if shard != parked.place.shard:
            raise Unfit(f"the key {change.key!r} belongs to shard {shard}")
    return found


def plan(parked: ChangeSet, spots: Mapping[str, Spot]) -> list[Taking]:
    """Decide which rows go in, or raise Unfit: the whole entry or nothing."""
    return [
        Taking(change, gap=change.parent_change_id != "" and not spots[change.key].parent_is_there)
        for change in parked.changes
        if _standing(change, spots[change.key]) != "there"
    ]


def _standing(change: ChangeRecord, spot: Spot) -> Literal["tip", "inside", "there"]:
    if spot.here == change.change_id:
        return "there"
    if spot.here:
        raise Unfit(f"version {change.version} of {change.key!r} is change {spot.here}")
    if (spot.tip_version, spot.tip_change_id) == (change.version, change.change_id) and spot.tip_op == "quarantined":
        return "tip"
    if spot.tip_version > change.version and spot.parent_named_behind == change.change_id:
        return "inside"
    if spot.tip_version > change.version and not spot.parent_named_behind:
        raise TooEarly(change.key, change.version + 1)
    if spot.tip_version > change.version:
        raise Unfit(f"the chain of {change.key!r} went on from change {spot.parent_named_behind}")
    raise Unfit(f"nothing in Postgres shows that the chain of {change.key!r} went through it; write its value anew")


def together(here: ParkedAt, key: str, others: Sequence[Parked]) -> str:
    """Return in words what has to be taken in with an entry: all that is parked of the key behind it."""
    behind = sorted(one.place for one in others if key in one.keys and one.place.shard == here.shard)
    behind = [place for place in behind if place > here]
    if not behind:
        return "and no parked entry holds it; write its value anew"
    ids = " ".join(map(str, (*reversed(behind), here))) if len(behind) < NAMED_MAX else "all"
    return f"take {behind[0]} in first: `statecache quarantine retry {ids}` keeps the order"


def reason_text(sqlstate: str) -> str:
    """Return an SQLSTATE with the words that Postgres has for it."""
    if sqlstate.startswith(DROPPING):
        return f"being dropped; {reason_text(sqlstate.removeprefix(DROPPING))}"
    try:
        name = lookup(sqlstate).__name__
    except KeyError:
        return "entry (it cannot be read)" if sqlstate == UNREADABLE else sqlstate
    return f"{sqlstate} ({' '.join(re.findall('[A-Z][a-z]*', name)).lower()})"


def newest_first(parked: Sequence[Parked]) -> list[Parked]:
    """Return entries in the order in which they are taken in."""
    return sorted(parked, key=lambda one: (one.place.shard, -one.place.n, -one.place.epoch))


def excerpt(value: bytes, most: int) -> str:
    """Return the beginning of a value: as text where it is, else in hexadecimal."""
    cut = value[:most]
    try:
        text = cut.decode()
    except UnicodeDecodeError as error:
        broken_by_cut = len(value) > most and error.start >= len(cut) - 3
        text = cut[: error.start].decode() if broken_by_cut else f"hex {cut.hex()}"
    return text + ("…" if len(value) > most else "")
