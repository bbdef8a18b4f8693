"""What a pydantic model leaves out of its data: what is neither written back, nor a field's, nor read at all.

A model may run code of its users wherever it reads and writes. So it is not told to refuse what it does not know: a
validator may pass that by. What was read is looked through beside the data and beside what it is written back as. A
name is known where it is written back, or where the class of what was read there has a field by it, also by another of
the names that it is read by; the first of them that is stored counts. Whether anything else is read is tried: each text
and number in it is another one that occurs nowhere else, and is to be found in what is written back.

The members of a set have no order to go by: a name that any of them is written back with is known in each. What
pydantic refuses of them, once extra fields are forbidden, is tried too. Of these, and of what became a list of a dict,
or the reverse, what may be anything and is not written back is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from inspect import signature
from typing import Any

import msgspec

from statecache.record_classes import is_record, is_root, read_by
from statecache.set_order import dump_in_order, has_sets
from statecache.signal_errors import pass_on

Steps = tuple[Any, ...]
_FORBIDDEN = ("extra_forbidden", "unexpected_keyword_argument")
_MARKED, _APART = 7_100_004_242, 10_007
"""What stands for the first of other numbers while it is tried whether these are read, and how far apart they are."""
_marks = re.compile(rb"7[1-9]\d{8}").findall
_TRIED_MAX = 64
_TRIED_BYTES_MAX = 4 * 1024 * 1024
"""How many parts are tried one by one, and with how much data at most; of the others it is not known."""
_PLACES_MAX = 16
"""How many places in data one of pydantic's is taken for at most, those furthest in first."""
_UNKNOWN = object()


def left_out_by(model: Any, node: Any) -> Steps | None:
    """Return the steps to a part of plain data that a model reads without it; None where it reads all of them."""
    try:
        value = _read(model, node)
    except Exception as error:  # what it has read once, it may not read twice
        pass_on(error)
        return ()
    back = _written(value)
    made_over: list[Steps] = []
    suspects = [*_lacking(node, back, value, made_over)]
    of_sets = dict.fromkeys(at for at in suspects if _is_in_set(at, value))
    unread = _unread(model, node, [at for at in suspects if at not in of_sets])
    return unread or _ignored(model, node, [*of_sets, *_refused_in_sets(model, node, value), *made_over])


def lacking_anywhere(node: Any, back: Any) -> Iterator[Steps]:
    """Yield the places of names in data that what is written back does not have, in whatever order its items are."""
    return _lacking_in(node, _merged([back]))


def _lacking(node: Any, back: Any, value: Any, made_over: list[Steps]) -> Iterator[Steps]:
    """Yield the places of what is neither written back nor, going by the class of what was read there, a field's.

    The places of dicts that became lists, and of lists that became dicts, are added to `made_over`.
    """
    todo: list[tuple[Steps, Any, Any, Any]] = [((), node, back, value)]
    while todo:
        steps, node, back, value = todo.pop()
        while is_root(value.__class__):
            value = value.root
        if node.__class__ is list and isinstance(value, Set):
            merged = _merged(back if back.__class__ is list else [])
            yield from ((*steps, at, *below) for at, part in enumerate(node) for below in _lacking_in(part, merged))
            continue
        read = _members_of(value, node)
        shown = back if back.__class__ is node.__class__ else None
        if read is None and shown is None:  # a form of its own
            made_over += [steps] if steps and back.__class__ in (dict, list) else []
            continue
        inner = []
        if node.__class__ is list and len(node) > max(len(shown or ()), len(read or ())):  # whichever are the ones
            yield from ((*steps, at) for at in range(len(node)))
            continue
        for at, part in parts_of(node):
            is_shown, is_named = shown is not None and has(shown, at), read is not None and at in read
            if not is_shown and not is_named:
                yield (*steps, at)
            elif part.__class__ is dict or part.__class__ is list:
                written = shown[at] if is_shown and shown is not None else _UNKNOWN
                inner.append(((*steps, at), part, written, read[at] if is_named and read is not None else _UNKNOWN))
        todo += reversed(inner)


def _members_of(value: Any, node: Any) -> Mapping[Any, Any] | None:
    """Return what was read of the members of data, by their names or places; None where that has no members."""
    if node.__class__ is list:
        is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        return dict(enumerate(value)) if is_list else None
    if node.__class__ is not dict:
        return None
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else str(name): part for name, part in value.items()}
    if not is_record(value.__class__):
        return None
    found = dict.fromkeys(getattr(value.__class__, "model_computed_fields", ()), _UNKNOWN)
    for name, ways in read_by(value.__class__):
        for way in ways:
            if way[0] in node:
                found[way[0]] = getattr(value, name, _UNKNOWN) if len(way) == 1 else _UNKNOWN
                break
    return found


def _merged(parts: Iterable[Any]) -> Any:
    """Return what any of some data has, as one: of dicts all names, and of lists all items."""
    names: dict[Any, list[Any]] = {}
    items: list[Any] = []
    for part in parts:
        if part.__class__ is dict:
            for name, below in part.items():
                names.setdefault(name, []).append(below)
        elif part.__class__ is list:
            items += part
    return ({name: _merged(below) for name, below in names.items()}, _merged(items)) if names or items else None


def _lacking_in(node: Any, merged: Any) -> Iterator[Steps]:
    for at, part in parts_of(node):
        if node.__class__ is list:
            yield from ((at, *below) for below in _lacking_in(part, merged and merged[1]))
        elif merged is None or at not in merged[0]:
            yield (at,)
        else:
            yield from ((at, *below) for below in _lacking_in(part, merged[0][at]))


def _refused_in_sets(model: Any, node: Any, value: Any) -> list[Steps]:
    """Return the steps to what pydantic refuses in members of sets where extra fields are forbidden."""
    if not has_sets(model) or not _may_forbid(model):
        return []
    try:
        model.model_validate_json(msgspec.json.encode(node), extra="forbid")
    except Exception as error:  # pydantic runs users' code
        pass_on(error)
        if not hasattr(error, "errors"):
            return []
        found = error.errors(include_url=False, include_input=False, include_context=False)
        places = [at for one in found if one["type"] in _FORBIDDEN for at in _places_of(one["loc"], node)]
        return [at for at in places if _is_in_set(at, value)]
    return []


def _places_of(loc: Steps, node: Any) -> list[Steps]:
    """Return the places in data that a place of pydantic's may be: some of its steps only name a type."""
    reached: list[tuple[Steps, Any]] = [((), node)]
    for step in loc[:-1]:
        within = [((*steps, step), part[step]) for steps, part in reached if has(part, step)]
        reached = (within + reached)[:_PLACES_MAX]
    return [(*steps, loc[-1]) for steps, part in reached if has(part, loc[-1])]


def _is_in_set(steps: Steps, value: Any) -> bool:
    """Return whether the steps lead through a set."""
    for at, step in enumerate(steps):
        while is_root(value.__class__):
            value = value.root
        if isinstance(value, Set):
            return at < len(steps) - 1
        read = _members_of(value, [None] * (step + 1) if isinstance(step, int) else {step: None})
        value = _UNKNOWN if read is None else read.get(step, _UNKNOWN)
    return False


def _unread(model: Any, node: Any, suspects: Sequence[Steps]) -> Steps | None:
    """Return the first of some parts of data in which there is something that a model does not read, or None."""
    leaves = _leaves(suspects, node)
    found = _marks_kept(model, node, leaves)
    if found is None:  # something in it may be of one form alone
        few = leaves[: _tries(node)]
        found = {at for at, leaf in enumerate(few) if _marks_kept(model, node, [leaf])}
    return next((leaf for at, leaf in enumerate(leaves) if at not in found), None)


def _ignored(model: Any, node: Any, suspects: Sequence[Steps]) -> Steps | None:
    """Return the first of some parts of data that a model takes whatever it is, and does not write back; or None."""
    leaves = _leaves(suspects, node)
    found = _marks_kept(model, node, leaves) or set()
    few = [leaf for at, leaf in enumerate(leaves) if at not in found][: _tries(node)]
    return next((leaf for leaf in few if _marks_kept(model, node, [leaf]) == set()), None)


def _tries(node: Any) -> int:
    """Return how many parts of data may be tried one by one."""
    return min(_TRIED_MAX, max(4, _TRIED_BYTES_MAX // len(msgspec.json.encode(node))))


def _leaves(suspects: Sequence[Steps], node: Any) -> list[Steps]:
    """Return the places of what has no parts, within some parts of data."""
    found: dict[Steps, None] = {}
    for suspect in suspects:
        part = node
        for step in suspect:
            part = part[step]
        todo = [(suspect, part)]
        while todo:
            steps, part = todo.pop()
            inner = [((*steps, at), below) for at, below in parts_of(part)]
            todo += reversed(inner)
            found |= {} if inner else {steps: None}
    return [*found]


def _marks_kept(model: Any, node: Any, leaves: Sequence[Steps]) -> set[int] | None:
    """Return which of some leaves, counted from 0, a model writes back, whatever they are; None where it raises."""
    if not leaves:
        return set()
    changed = msgspec.json.decode(msgspec.json.encode(node))
    known: dict[bytes, int] = {}
    for number, steps in enumerate(leaves):
        around, mark = changed, _MARKED + number * _APART
        for step in steps[:-1]:
            around = around[step]
        around[steps[-1]] = mark if around[steps[-1]].__class__ in (int, float) else f"mark {mark}"
        known[b"%d" % mark] = number
    try:
        value = _read(model, changed)
    except Exception as error:  # pydantic runs users' code
        pass_on(error)
        return None
    return {known[mark] for mark in _marks(msgspec.json.encode(_written(value))) if mark in known}


@lru_cache(maxsize=1000)
def _may_forbid(model: Any) -> bool:
    """Return whether a model can be told to forbid extra fields, as pydantic can from 2.12 on."""
    return "extra" in signature(model.model_validate_json).parameters


def _read(model: Any, node: Any) -> Any:
    return model.model_validate_json(msgspec.json.encode(node))


def _written(value: Any) -> Any:
    """Return what a model writes as plain data; None where it cannot."""
    try:
        plain = value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    except Exception as error:  # pydantic runs users' code
        pass_on(error)
        return None
    return dump_in_order(plain, value) if has_sets(value.__class__) else plain


def parts_of(node: Any) -> Iterable[tuple[Any, Any]]:
    """Return the members of a dict or a list, each behind its name or place."""
    return node.items() if node.__class__ is dict else enumerate(node) if node.__class__ is list else ()


def has(node: Any, step: Any) -> bool:
    """Return whether a step leads from data to one of their members."""
    if node.__class__ is dict:
        return step in node
    return node.__class__ is list and isinstance(step, int) and step < len(node)
