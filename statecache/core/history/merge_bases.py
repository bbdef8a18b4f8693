"""What a merge begins from: the version that both sides were made from, or what several such versions come to.

There are several where keys were merged into one another at once. They are merged as both sides were, part by part, or
by the function that decides; what they come to is a value that nobody has stored.

A value that a policy has let go is read from a branch that began with it, as long as that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import UNSET

from statecache.codec import codec_for
from statecache.core.history.branches import link_of
from statecache.core.history.reader import Point
from statecache.core.history.set_types import with_members
from statecache.errors import LimitExceeded, UsageError
from statecache.expiry import form_of
from statecache.rules.ancestry import Ancestry, Place, Three, base_value, copies_of
from statecache.rules.sameness import same
from statecache.rules.three_way import merged_base

if TYPE_CHECKING:
    from statecache.core.view import View
    from statecache.model import Record
    from statecache.rules.ancestry import Link, Search
    from statecache.rules.versions import Version

T = TypeVar("T")
Decide = Callable[[Any, Any, Any], Any]
"""A user's function of base, ours and theirs; it may be async."""
COPIES_MAX = 100
"""In how many other versions the value of a base is looked for that its own key no longer keeps."""


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
    """Return where a merge of two versions begins; raise UsageError for those that have nothing in common.

    Raises it too where one has taken back a merge of the other one that is part of their base.
    """
    branches = view.runtime.branches
    links = [*map(link_of, await branches.above([ours.key, theirs.key], end=end))]
    ancestry = Ancestry(links, await branches.restores(links, end=end))
    mine, others = [place_of(ours)], [place_of(theirs)]
    bases = ancestry.bases(mine, others)
    if not bases:
        raise UsageError(
            f"{theirs.key!r} and {ours.key!r} have no common ancestor to be merged from",
            hint="What branch() makes of a key can be merged into it, and into its other branches.",
        )
    await branches.refuse_missing(ancestry.unshared(mine, others), end=end)
    _refuse_taken_back(ancestry, mine[0], others[0])
    links.sort(key=lambda link: link.key != theirs.key)
    sides = [await _at(view, base, links, end) for base in bases]
    if len(sides) == 1:
        return Base(bases[0], (sides[0],))
    search = base_value(ancestry, mine, others, same if function is None else _equal)
    return Base(bases[0], tuple(sides), await _found(view, ours.key, search, links, function, end))


def _refuse_taken_back(ancestry: Ancestry, ours: Place, theirs: Place) -> None:
    """Raise UsageError where it is not known whether what a side did is to be taken in again, or was removed."""
    found = ancestry.taken_back(ours, theirs)
    if found is None:
        return
    side, taken = found
    other = theirs.key if side.key == ours.key else ours.key
    raise UsageError(
        f"{side.key!r} has taken back a merge of {taken.key!r} up to its version {taken.version}; {other!r} builds on "
        f"that by itself, and was merged with {side.key!r} before: a merge would take what was done in {taken.key!r} "
        "up to there for removed",
        hint=f"Bring the merge back in {side.key!r} with redo or rollback, or write what is wanted and branch anew.",
    )


def place_of(version: Version) -> Place:
    """Return where a version stands among those of all keys."""
    return Place(version.key, version.version)


def _equal(one: Any, other: Any) -> bool:
    return bool(one.__class__ is other.__class__ and one == other)


async def _at(view: View[Any], base: Place, links: Sequence[Link], end: float) -> Side:
    """Return what a version held; raise VersionNotFound where no copy of its value is kept."""
    history = view.runtime.history
    version = await history.version_at(base.key, Point(version=base.version), end=end)
    if version.op != "set":
        return Side("delete", b"", "", "")
    (value,) = await history.values_of([version], end=end)
    if value is None:
        value = await _copy(view, version, links, end)
    if value is None:
        value = await history.value_of(version, end=end)  # says why
    return Side("set", value, form_of(version.encoding), version.schema)


async def _copy(view: View[Any], version: Version, links: Sequence[Link], end: float) -> bytes | None:
    """Return a value that its own key no longer keeps, from what was made of it elsewhere; None where none has it.

    A branch begins with its origin's value, and a merge may have taken it as it was: the digest says. Without one, as
    after an erasure, nothing is taken for it.
    """
    if version.digest is None:
        return None
    found = await _first_copy(view, version, copies_of(place_of(version), links), end)
    if found is None:
        with suppress(LimitExceeded):
            below = await view.runtime.branches.below(version.key, whole=False, end=end)
            others = copies_of(place_of(version), map(link_of, below))
            found = await _first_copy(view, version, others, end)
    return found


async def _first_copy(view: View[Any], version: Version, copies: Sequence[Place], end: float) -> bytes | None:
    """Return the value of the first of some versions that has the digest of another one; None where none has."""
    history = view.runtime.history
    for place in copies[:COPIES_MAX]:
        copy = await history.version_at(place.key, Point(version=place.version), end=end)
        if copy.op == "set" and copy.digest in (None, version.digest):
            (value,) = await history.values_of([copy], end=end)
            if value is not None and sha256(value).digest() == version.digest:
                return value
    return None


async def _found(
    view: View[Any], key: str, search: Search, links: Sequence[Link], function: Decide | None, end: float
) -> Any:
    """Read what a search asks for, merge what it asks to have merged, and return what it comes to."""
    asked: Any = next(search)
    found, size = False, 0
    while not found:
        if isinstance(asked, Three) and function is not None:
            answer = await decided(view, function, asked)
        elif isinstance(asked, Three):
            answer = await merging(view, partial(merged_base, *asked), size, end)
        else:
            side = await _at(view, asked, links, end)
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
