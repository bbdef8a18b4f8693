"""What `commit` does to single states: written, created, deleted, or changed by a merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from statecache.model import Expected, Ttl


class Mutation(msgspec.Struct, frozen=True):
    """What `commit` does to one state: a Set, a Create, a Delete, an Increment, an Append, an Add or a Remove."""

    name: str


class Set(Mutation, frozen=True):
    """A value to be written by `commit`; `expected` and `ttl` as in `set`."""

    value: Any
    expected: Expected = ...
    ttl: Ttl | None = None


class Create(Mutation, frozen=True):
    """A first value to be written by `commit`; `assume_new` and `ttl` as in `create`."""

    value: Any
    assume_new: bool = False
    ttl: Ttl | None = None


class Delete(Mutation, frozen=True):
    """A state to be deleted by `commit`; `expected` as in `delete`."""

    expected: Expected = ...


class Increment(Mutation, frozen=True):
    """A number to be added by `commit` to what is there; `by` and `ttl` as in `increment`."""

    by: int = 1
    ttl: Ttl | None = None


class Append(Mutation, frozen=True):
    """Items to be put behind those of a list by `commit`; `ttl` as in `append`."""

    items: Sequence[Any]
    ttl: Ttl | None = None


class Add(Mutation, frozen=True):
    """Items to be put into a collection by `commit`, unless they are there; `ttl` as in `add`."""

    items: Sequence[Any]
    ttl: Ttl | None = None


class Remove(Mutation, frozen=True):
    """Items to be taken out of a collection by `commit`; `ttl` as in `remove`."""

    items: Sequence[Any]
    ttl: Ttl | None = None
