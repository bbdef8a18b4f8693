"""Merging what was done on a branch into another key, by the version that both were made from.

Both newest versions are in Postgres before anything is compared, so what it knows of branches and merges is all that
there is. The merge is an ordinary commit on the state that was read, whose reason names the branch and its version;
that is what the next merge begins from, unless the merge was taken back since. Where theirs is what the base was, there
is nothing to be done; where ours is, theirs is taken as it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from statecache.codec import codec_for
from statecache.core.history.branching import durable_origin
from statecache.core.history.merge_bases import base_of, decided, is_typed, merging, plain, shown, side_of
from statecache.core.history.repeats import Asked, made_before
from statecache.core.history.restoring import applied_again, newest, write_of
from statecache.core.history.set_types import with_lists
from statecache.core.history.terms import Terms, again, applied_before, committed
from statecache.errors import NotFound, VersionConflict
from statecache.expiry import form_of
from statecache.history_errors import MergeConflict
from statecache.rules.ancestry import Three
from statecache.rules.provenance import Provenance
from statecache.rules.three_way import merged
from statecache.schemas import common

if TYPE_CHECKING:
    from statecache.core.history.merge_bases import Base, Decide, Side
    from statecache.core.view import View
    from statecache.model import Encoding, Record, State, Write
    from statecache.rules.versions import Version


async def merge(view: View[Any], branch: str, into: str, function: Decide | None, terms: Terms) -> State[Any]:
    """Commit what both sides made of their common ancestor, and return the state; raise MergeConflict."""
    while True:
        ours, theirs = await _current(view, into, terms.end), await _current(view, branch, terms.end)
        if (found := await applied_before(view, into, terms)) is not None:
            made = await made_before(view, into, found, Asked("merge", branch), terms)
            return await applied_again(view, made, found, terms)
        try:
            mine, other = await _durable(view, ours, terms.end), await _durable(view, theirs, terms.end)
            base = await base_of(view, mine, other, function, terms.end)
            write = await _write(view, ours, theirs, other, base, function, terms.end)
            if write is None:
                return view.shown(ours, _value(view, ours))
            why = Provenance(kind="merge", version=other.version, origin=branch, reason=terms.reason)
            _, done = await committed(view, [write], terms, str(why))
        except VersionConflict as error:
            await again(view, terms, error)
        else:
            return view.committed_state(write, done, 0)


async def _current(view: View[Any], key: str, end: float) -> Record:
    """Return a state that there is, of which the view's type knows all."""
    record = await view.runtime.reader.record(key, end=end)
    view.refuse_quarantined(record)
    if not record.exists:
        raise NotFound(key, hint="There is nothing to merge.")
    view.refuse_to_drop(record)
    return record


async def _durable(view: View[Any], record: Record, end: float) -> Version:
    """Return the change that made a state, once Postgres holds it, and with it what it was made from."""
    version = await newest(view, record, end)
    await durable_origin(view, version, end)
    return version


def _value(view: View[Any], record: Record) -> Any:
    return view.codec.decode(record.value, key=record.key, encoding=record.encoding, schema=record.schema)


async def _write(
    view: View[Any], ours: Record, theirs: Record, other: Version, base: Base, function: Decide | None, end: float
) -> Write | None:
    """Return the write of what both made of their base; None where theirs is what that was.

    Where ours is that, theirs is taken as it is stored.
    """
    sides, read = (side_of(ours), side_of(theirs)), plain if function is None else shown
    size = sum(len(side.value) for side in (*base.sides, *sides))
    values: list[Any] = []
    if base.crossed:
        values = [base.value, *(read(view, ours.key, side) for side in sides)]

        def compared() -> list[bool]:
            return [base.is_same(value, by_function=function is not None) for value in values[1:]]

        is_ours, is_theirs = compared() if function is not None else await merging(view, compared, size, end)
    else:
        is_ours, is_theirs = (base.sides[0] == side for side in sides)
    if is_theirs:
        return None
    if is_ours:
        taken = write_of(view, other, theirs.value, ours.tip, key=ours.key)
        return taken if view.lasts_ms is not None else replace(taken, encoding=_lasting_as(ours, taken.encoding))
    three = Three(*(values or (read(view, ours.key, side) for side in (base.sides[0], *sides))))
    if function is not None:
        return view.write_of(ours.key, await decided(view, function, three), expected=ours.tip, over=ours)
    result = await merging(view, partial(merged, *three, crossed=base.crossed), size, end)
    if result.conflicts:
        paths = tuple(one.place for one in result.conflicts)
        raise MergeConflict(theirs.key, ours.key, base=base.place.version, paths=paths)
    return _plain_write(view, ours, (*base.sides, *sides), result.value)


def _plain_write(view: View[Any], ours: Record, sides: Sequence[Side], value: Any) -> Write:
    """Return the write of merged plain data: as the view's type, or like ours, with what the schemas agree in."""
    if is_typed(view):
        form: Encoding = view.codec.encoding
        value = with_lists(value, view.codec.type)
        data, _ = codec_for(Any, form).encode(value, key=ours.key, bytes_max=view.value_bytes_max)
        typed = view.codec.decode(data, key=ours.key, encoding=form, schema=view.codec.schema)
        return view.write_of(ours.key, typed, expected=ours.tip, over=ours)
    form = _form(ours.encoding)
    data, seen = codec_for(Any, form).encode(value, key=ours.key, bytes_max=view.value_bytes_max)
    schemas = {side.schema for side in sides if side.op == "set"}
    like = view.write_of(ours.key, b"" if view.codec.encoding == "raw" else None, expected=ours.tip, over=ours)
    return replace(
        like, value=data, seen=seen, encoding=form + like.encoding[len(form_of(like.encoding)) :],
        schema=common(schemas),
    )  # fmt: skip


def _form(encoding: str) -> Encoding:
    form = form_of(encoding)
    return "msgpack" if form == "msgpack" else "raw" if form == "raw" else "json"


def _lasting_as(ours: Record, encoding: str) -> str:
    """Return an encoding with the end that our state has, if it has one."""
    return form_of(encoding) + ours.encoding[len(form_of(ours.encoding)) :]
