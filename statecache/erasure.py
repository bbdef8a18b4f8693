"""What an erasure did, as its caller gets it: a proof of what went, and of what is left elsewhere."""

from __future__ import annotations

from datetime import datetime

import msgspec

from statecache.model import Position


class ErasedFrom(msgspec.Struct, frozen=True, kw_only=True):
    """What went from one place: rows of a table, or entries of a stream, and how many bytes of values these held."""

    place: str
    rows: int
    bytes: int


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased: nothing of these `keys` is left but their names, versions and change_ids.

    Each was deleted first, by a commit at one of the `positions`; what was before that is gone from each of the
    `places`: the tables of Postgres, and the `stream` of Redis. `branches` are other keys whose values began with one
    of these, or were merged from it: they are keys of their own, and have to be erased on their own. `left` says in
    words what holds it still: copies that were made before.
    """

    key: str
    keys: tuple[str, ...]
    positions: tuple[Position, ...]
    at: datetime
    places: tuple[ErasedFrom, ...]
    branches: tuple[str, ...]
    left: tuple[str, ...]
