"""What a pydantic model leaves out of its data: what is neither written back, nor a field's, nor read at all.

A model may run code of its users wherever it reads and writes. So it is not told to refuse what it does not know: a
validator may pass that by. What was read is looked through beside the data and beside what it is written back as. A
name is known where it is written back, or where the class of what was read there has a field by it, also by another of
the names that it is read by; the first of them that is stored counts. Of any other name or item it is tried whether the
model reads it: with another value there, or without it, it raises, or writes something else.

The members of a set have no order to go by, so what was read of one may be compared with what another is written back
as. What pydantic refuses of them, once extra fields are forbidden, is tried too.
"""

from __future__ import annotations

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
_MARK = "statecache: is this read?"
_TRIED_MAX = 64
_ALIKE_MAX = 8
"""How many names or items of one kind, so many of a list's for instance, are tried; the others are as these are."""
_UNKNOWN = object()


def left_out_by(model: Any, node: Any) -> Steps | None:
    """Return the steps to a part of plain data that a model reads without it; None where it reads all of them."""
    try:
        value = _read(model, node)
    except Exception as error:  # what it has read once, it may not read twice
        pass_on(error)
        return ()
    back = _written(value)
    trial = _Trial(model, node, back)
    suspects = _lacking(node, back, value)
    return next((at for at in suspects if not trial.reads(at)), None) or _left_out_of_sets(model, node, value, trial)


def lacking_anywhere(node: Any, back: Any) -> Iterator[Steps]:
    """Yield the places of names in data that what is written back does not have, in whatever order its items are."""
    return _lacking_in(node, _merged([back]))


def _lacking(node: Any, back: Any, value: Any) -> Iterator[Steps]:
    """Yield the places of what is neither written back nor, going by the class of what was read there, a field's."""
    todo: list[tuple[Steps, Any, Any, Any]] = [((), node, back, value)]
    while todo:
        steps, node, back, value = todo.pop()
        while is_root(value.__class__):
            value = value.root
        read = _members_of(value, node)
        shown = back if back.__class__ is node.__class__ else None
        if read is None and shown is None:  # a form of its own
            continue
        inner = []
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


def _left_out_of_sets(model: Any, node: Any, value: Any, trial: _Trial) -> Steps | None:
    """Return the steps to what pydantic refuses in a set's member where extra fields are forbidden, or None."""
    if not has_sets(model) or not _may_forbid(model):
        return None
    try:
        model.model_validate_json(msgspec.json.encode(node), extra="forbid")
    except Exception as error:  # pydantic runs users' code
        pass_on(error)
        if not hasattr(error, "errors"):
            return None
        found = error.errors(include_url=False, include_input=False, include_context=False)
        places = [at for one in found if one["type"] in _FORBIDDEN for at in _places_of(one["loc"], node)]
        return next((at for at in places if _is_in_set(at, value) and not trial.reads(at)), None)
    return None


def _places_of(loc: Steps, node: Any) -> list[Steps]:
    """Return the places in data that a place of pydantic's may be: some of its steps only name a type."""
    if len(loc) == 1:
        return [loc] if has(node, loc[0]) else []
    found = [(loc[0], *below) for below in _places_of(loc[1:], node[loc[0]])] if has(node, loc[0]) else []
    return found + _places_of(loc[1:], node)


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


class _Trial:
    """Tries whether a model reads parts of its data."""

    def __init__(self, model: Any, node: Any, back: Any) -> None:
        self._model, self._node, self._back = model, node, back
        self._tried = 0
        self._alike: dict[Any, int] = {}
        self._is_steady: bool | None = None

    def reads(self, steps: Steps) -> bool:
        """Return whether the model reads a part, as far as can be told."""
        around = self._node
        for step in steps[:-1]:
            around = around[step]
        names = frozenset(around) if around.__class__ is dict else None
        kind = (*("[]" if isinstance(step, int) else step for step in steps), names)
        if self._alike.get(kind, 0) >= _ALIKE_MAX:
            return True
        self._tried += 1
        if self._tried > _TRIED_MAX or not any(map(self._tells, _changed(self._node, steps))):
            return False
        self._alike[kind] = self._alike.get(kind, 0) + 1
        return True

    def _tells(self, changed: Any) -> bool:
        try:
            back = _written(_read(self._model, changed))
        except Exception as error:  # pydantic runs users' code
            pass_on(error)
            return True
        return _MARK.encode() in msgspec.json.encode(back) or (back != self._back and self._steady())

    def _steady(self) -> bool:
        """Return whether the same data are written back as the same, which a default drawn by lot is not."""
        if self._is_steady is None:
            try:
                self._is_steady = _written(_read(self._model, self._node)) == self._back
            except Exception as error:  # pydantic runs users' code
                pass_on(error)
                self._is_steady = False
        return self._is_steady


def _changed(node: Any, steps: Steps) -> Iterator[Any]:
    """Yield data with another value in a place, and, where that has a name, without it."""
    for is_without in (False, True) if isinstance(steps[-1], str) else (False,):
        changed = around = node.copy()
        for step in steps[:-1]:
            around[step] = around = around[step].copy()
        if is_without:
            del around[steps[-1]]
        else:
            around[steps[-1]] = _MARK
        yield changed


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
