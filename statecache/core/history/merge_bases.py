"""What a merge begins from: the version that both sides were made from, or what several such versions come to.

There are several where keys were merged into one another at once. They are merged as both sides were, part by part, or
by the function that decides; what they come to is a value that nobody has stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import UNSET

from statecache.codec import codec_for
from statecache.core.history.branches import link_of
from statecache.core.history.reader import Point
from statecache.core.history.set_types import with_members
from statecache.errors import UsageError
from statecache.expiry import form_of
from statecache.rules.ancestry import Ancestry, Place, Three, base_value
from statecache.rules.sameness import same
from statecache.rules.three_way import merged_base

if TYPE_CHECKING:
    from statecache.core.view import View
    from statecache.model import Record
    from statecache.rules.ancestry import Search
    from statecache.rules.versions import Version

T = TypeVar("T")
Decide = Callable[[Any, Any, Any], Any]
"""A user's function of base, ours and theirs; it may be async."""


class Side(NamedTuple):
    """What one side has: bytes, how they are encoded, and their schema; op `delete` where it was deleted there."""

    op: str
    value: bytes
    form: str
    schema: str


class Base(NamedTuple):
    """Where a merge begins: the version, or the first of several, what it held, and what their merge comes to."""

    place: Place
    sides: tuple[Side, ...]
    value: Any = UNSET

    @property
    def crossed(self) -> bool:
        """Whether there are several."""
        return len(self.sides) > 1

    def is_same(self, value: Any, *, by_function: bool) -> bool:
        """Return whether what several bases come to is a value of a side."""
        return _equal(self.value, value) if by_function else same(self.value, value)


def side_of(record: Record) -> Side:
    """Return what a state is as a side of a merge."""
    return Side("set", record.value, form_of(record.encoding), record.schema)


def is_typed(view: View[Any]) -> bool:
    """Return whether a view has a type of its own."""
    return view.kind is not Any


def plain(view: View[Any], key: str, side: Side) -> Any:
    """Return a side as plain data, UNSET if deleted: in a typed view as the type has it now, with members for sets."""
    if side.op != "set":
        return UNSET
    if not is_typed(view) or side.form == "raw":
        return codec_for(Any).decode(side.value, key=key, encoding=side.form)
    typed = view.codec.decode(side.value, key=key, encoding=side.form, schema=side.schema)
    value, _ = view.codec.encode(typed, key=key, bytes_max=2**31)
    return with_members(codec_for(Any).decode(value, key=key, encoding=view.codec.encoding), view.codec.type)


def shown(view: View[Any], key: str, side: Side) -> Any:
    """Return a side as a user's function is given it; None if it was deleted."""
    if side.op != "set":
        return None
    return view.codec.decode(side.value, key=key, encoding=side.form, schema=side.schema)


async def base_of(view: View[Any], ours: Version, theirs: Version, function: Decide | None, end: float) -> Base:
    """Return where a merge of two versions begins; raise UsageError for those that have nothing in common."""
    links = map(link_of, await view.runtime.branches.above([ours.key, theirs.key], end=end))
    ancestry, mine, others = Ancestry(links), [place_of(ours)], [place_of(theirs)]
    bases = ancestry.bases(mine, others)
    if not bases:
        raise UsageError(
            f"{theirs.key!r} and {ours.key!r} have no common ancestor to be merged from",
            hint="What branch() makes of a key can be merged into it, and into its other branches.",
        )
    await view.runtime.branches.refuse_missing(ancestry.unshared(mine, others), end=end)
    sides = [await _at(view, base, end) for base in bases]
    if len(sides) == 1:
        return Base(bases[0], (sides[0],))
    search = base_value(ancestry, mine, others, same if function is None else _equal)
    return Base(bases[0], tuple(sides), await _found(view, ours.key, search, function, end))


def place_of(version: Version) -> Place:
    """Return where a version stands among those of all keys."""
    return Place(version.key, version.version)


def _equal(one: Any, other: Any) -> bool:
    return bool(one.__class__ is other.__class__ and one == other)


async def _at(view: View[Any], base: Place, end: float) -> Side:
    version = await view.runtime.history.version_at(base.key, Point(version=base.version), end=end)
    if version.op != "set":
        return Side("delete", b"", "", "")
    value = await view.runtime.history.value_of(version, end=end)
    return Side("set", value, form_of(version.encoding), version.schema)


async def _found(view: View[Any], key: str, search: Search, function: Decide | None, end: float) -> Any:
    """Read what a search asks for, merge what it asks to have merged, and return what it comes to."""
    asked: Any = next(search)
    found, size = False, 0
    while not found:
        if isinstance(asked, Three) and function is not None:
            answer = await decided(view, function, asked)
        elif isinstance(asked, Three):
            answer = await merging(view, partial(merged_base, *asked), size, end)
        else:
            side = await _at(view, asked, end)
            answer = plain(view, key, side) if function is None else shown(view, key, side)
            size += len(side.value)
        next_one = partial(_next_of, search, answer)
        asked, found = next_one() if function is not None else await merging(view, next_one, size, end)
    return None if function is not None and asked is UNSET else asked


def _next_of(search: Search, answer: Any) -> tuple[Any, bool]:
    """Return what a search asks for next, or what it found, and whether it has."""
    try:
        return search.send(answer), False
    except StopIteration as done:
        return done.value, True


async def merging(view: View[Any], work: Callable[[], T], size: int, end: float) -> T:
    """Return what a part of a merge comes to, of values of so many bytes in all."""
    return await view.runtime.computations.result(work, size=size, end=end, what=f"a merge of {size:,} bytes")


async def decided(view: View[Any], function: Decide, three: Three) -> Any:
    """Return what a user's function makes of three values, of which it has to be asked; raise UsageError for None."""
    base = None if three.base is UNSET else three.base
    value = await view.runtime.io.called(function(base, three.ours, three.theirs))
    if value is None:
        raise UsageError("the function given to merge returned None", hint="Return the merged value.")
    return value
