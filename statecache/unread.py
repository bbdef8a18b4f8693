"""What a type leaves out of stored data: the fields that would be gone once what it read of them is written back.

The decoders say it themselves. msgspec converts the data once more into twins of the type's records: Structs that
refuse unknown fields and ask for nothing else, with lists for sets, so that each member is looked at. A pydantic model
is validated with its extra fields forbidden. What it refuses and yet writes back is kept: a model that keeps extra
fields does so, and one with a serializer of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from inspect import signature
from itertools import chain
from operator import or_
from typing import Any

import msgspec
from msgspec import inspect

from statecache.record_classes import is_model
from statecache.signal_errors import pass_on
from statecache.value_loss import step_of

_unknown = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$.*`)?", re.DOTALL).fullmatch
_too_long = re.compile(r"Expected `array` of at most length (\d+), got \d+(?: - at `\$.*`)?", re.DOTALL).fullmatch
_no_name = re.compile(r'[\\"\x00-\x1f]').search
_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_DICTS = tuple(getattr(inspect, name) for name in ("DictType", "FrozenDictType") if hasattr(inspect, name))
_OPEN = (inspect.AnyType, inspect.RawType)
_FORBIDDEN = ("extra_forbidden", "unexpected_keyword_argument")
_MARK = "statecache: is this read?"
_MARKS_MAX = 32
"""How many parts of a model's data are tried one by one; it is not known of the others that they are read."""

Steps = tuple[Any, ...]
_NOWHERE: Steps = ()


class Twin:
    """A reader of plain data that finds what a type leaves out of them; it is made from the type."""

    def __init__(self, kind: Any) -> None:
        self._kind = _Twins().of(inspect.type_info(kind)) | None

    def left_out(self, plain: Any) -> str:
        """Return the path of a part of data that the type reads without it; empty where it reads all of them."""
        plain = msgspec.to_builtins(plain, enc_hook=lambda _: None)
        found: list[tuple[Any, str]] = []

        def ask(held: Any, node: Any) -> Any:
            if not found and (path := _left_out_by(held.model, node)):
                found.append((node, path))
            return held()

        if self._refused(plain, ask):
            return "$" + self._place_refused(plain)
        return f"${_place_of(found[0][0], plain)}{found[0][1]}" if found else ""

    def _refused(self, plain: Any, ask: Callable[[Any, Any], Any]) -> str:
        """Return the step to a part that the twins refuse, without what is before it; empty where they take all."""
        try:
            msgspec.convert(plain, self._kind, dec_hook=ask)
        except msgspec.ValidationError as error:
            message = str(error)
            if field := _unknown(message):
                return step_of(field.group(1))
            if length := _too_long(message):
                return f"[{length.group(1)}]"
        return ""

    def _place_refused(self, plain: Any) -> str:
        """Return the path to a part that the twins refuse: at each level, the first with such a part is kept alone."""
        around: list[tuple[Any, Any]] = []
        path, node = "", plain
        while True:
            bare = _emptied(node, ())
            if step := self._refused(_within(around, bare), _held):
                return path + step
            places = [at for at, part in _parts_of(node) if part.__class__ in (dict, list)]
            if not places:
                return path
            low, high = 0, len(places)
            while high - low > 1:
                middle = (low + high) // 2
                if self._refused(_within(around, _emptied(node, places[:middle])), _held):
                    high = middle
                else:
                    low = middle
            at = places[high - 1]
            path += step_of(at) if node.__class__ is dict else f"[{at}]"
            around.append((bare, at))
            node = node[at]


class _Held:
    """Stands for a value of a pydantic model, of which it is asked what it leaves out."""

    model: Any = None


def _held(held: Any, _: Any) -> Any:
    return held()


class _Twins:
    """The twins of the records within one type."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, info: Any) -> Any:
        """Return the twin of a type; Any for all that has no fields inside."""
        if isinstance(info, _RECORDS):
            return self._of_record(info)
        if isinstance(info, _LISTS):
            return list.__class_getitem__(self.of(info.item_type) | None)
        if isinstance(info, inspect.TupleType):
            return tuple.__class_getitem__(tuple(self.of(part) | None for part in info.item_types))
        if isinstance(info, _DICTS):
            return dict.__class_getitem__((Any, self.of(info.value_type) | None))
        if isinstance(info, inspect.UnionType):
            return self._of_union(info.types)
        if isinstance(info, inspect.CustomType) and is_model(info.cls):
            return type("_Held", (_Held,), {"model": info.cls})
        return Any

    def _of_union(self, infos: Sequence[Any]) -> Any:
        """Return the twin of a union: its containers, and any scalar; Any where one of its types is that."""
        parts: list[Any] = [part for part in map(self.of, infos) if part is not Any]
        if any(isinstance(info, _OPEN) or getattr(info, "cls", None) is object for info in infos):
            return Any
        if any(isinstance(part, type) and issubclass(part, _Held) for part in parts):  # beside nothing but None
            return parts[0]
        return reduce(or_, [*parts, str, int, float, bool])

    def _of_record(self, info: Any) -> Any:
        made, _ = self._made.get(id(info), (None, None))
        if made is None:
            names = {f"f{at}": field.encode_name for at, field in enumerate(info.fields)}
            if any(_no_name(name) for name in names.values()):  # a TypedDict's may be, no Struct's
                return Any
            made = msgspec.defstruct(
                "Twin", [(name, Any, None) for name in names], rename=names, forbid_unknown_fields=True,
                array_like=isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False),
                tag=getattr(info, "tag", None), tag_field=getattr(info, "tag_field", None),
            )  # fmt: skip
            self._made[id(info)] = made, info
            for name, field in zip(names, info.fields, strict=True):
                made.__annotations__[name] = self.of(field.type) | None
        return made


def _left_out_by(model: Any, node: Any) -> str:
    """Return the path, from a model's data on, of a part that the model leaves out; empty where it reads all."""
    data = msgspec.json.encode(node)
    back = _written(model.model_validate_json(data))
    if not _may_forbid(model):  # what is written back by another name is not looked into
        lacking = _lacking(node, back)
        return _spelled(
            next((at for at in lacking if _holds(at, node) or not _is_read(model, node, at)), _NOWHERE), node
        )
    try:
        strictly = _written(model.model_validate_json(data, extra="forbid"))
    except Exception as error:  # pydantic runs users' code
        pass_on(error)
        return _first_unread(model, node, back, _forbidden(error))
    # another member of a union, or a default, may have stood in for what was refused
    return _spelled(next(chain(_lacking(strictly, back), _lacking(back, strictly)), _NOWHERE), node)


def _first_unread(model: Any, node: Any, back: Any, suspects: Iterable[Steps]) -> str:
    """Return the path of the first of some parts of the data that is neither written back nor read."""
    tried = 0
    for suspect in suspects:
        stored, kept = _part_at(suspect, node), _part_at(suspect, back)
        for below in [()] if stored is None or kept is None else _lacking(stored[0], kept[0]):
            tried += 1
            if tried > _MARKS_MAX or not _is_read(model, node, (*suspect, *below)):
                return _spelled((*suspect, *below), node)
    return ""


def _forbidden(error: Any) -> list[Steps]:
    """Return the places of the extra fields that pydantic has refused."""
    if not hasattr(error, "errors"):
        return []
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [one["loc"] for one in found if one["type"] in _FORBIDDEN]


def _lacking(stored: Any, back: Any) -> Iterator[Steps]:
    """Yield the places of the names and items in data that are not in what is written back."""
    if stored.__class__ is not back.__class__:
        return
    for at, part in _parts_of(stored):
        if at not in back if back.__class__ is dict else at >= len(back):
            yield (at,)
        else:
            yield from ((at, *below) for below in _lacking(part, back[at]))


def _is_read(model: Any, node: Any, steps: Steps) -> bool:
    """Return whether a model reads a part of its data: with another value there it raises, or writes that back."""
    marked = around = _emptied(node, None)
    for step in steps[:-1]:
        if _has(around, step):
            around[step] = around = _emptied(around[step], None)
    if not _has(around, steps[-1]):
        return False
    around[steps[-1]] = _MARK
    try:
        value = model.model_validate_json(msgspec.json.encode(marked))
    except Exception as error:  # pydantic runs users' code
        pass_on(error)
        return True
    return _MARK.encode() in msgspec.json.encode(_written(value))


@lru_cache(maxsize=1000)
def _may_forbid(model: Any) -> bool:
    """Return whether a model can be told to forbid extra fields, as pydantic can from 2.12 on."""
    return "extra" in signature(model.model_validate_json).parameters


def _written(value: Any) -> Any:
    """Return what a model writes as plain data; None where it cannot."""
    try:
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    except Exception as error:  # pydantic runs users' code
        pass_on(error)
        return None


def _parts_of(node: Any) -> Iterable[tuple[Any, Any]]:
    """Return the members of a dict or a list, each behind its name or place."""
    return node.items() if node.__class__ is dict else enumerate(node) if node.__class__ is list else ()


def _has(node: Any, step: Any) -> bool:
    """Return whether a step leads from a node to one of its members; of pydantic's steps, some only name a type."""
    if node.__class__ is dict:
        return step in node
    return node.__class__ is list and isinstance(step, int) and step < len(node)


def _part_at(steps: Steps, node: Any) -> tuple[Any] | None:
    for step in steps[:-1]:
        node = node[step] if _has(node, step) else node
    return (node[steps[-1]],) if _has(node, steps[-1]) else None


def _holds(steps: Steps, node: Any) -> bool:
    """Return whether there is a container with something in it at a place."""
    found = _part_at(steps, node)
    return found is not None and found[0].__class__ in (dict, list) and bool(found[0])


def _emptied(node: Any, keep: Sequence[Any] | None) -> Any:
    """Return a copy of a dict or a list that keeps some of the containers in it, or all of them."""
    if keep is None:
        return node.copy() if node.__class__ in (dict, list) else node
    kept = {*keep}
    parts = [(at, None if part.__class__ in (dict, list) and at not in kept else part) for at, part in _parts_of(node)]
    return dict(parts) if node.__class__ is dict else [part for _, part in parts]


def _within(around: Sequence[tuple[Any, Any]], node: Any) -> Any:
    """Return data with a part in its place."""
    for outer, at in reversed(around):
        copied = outer.copy()
        copied[at] = node
        node = copied
    return node


def _spelled(steps: Steps, node: Any) -> str:
    """Return steps as the text of a path, without those that name a type."""
    path = ""
    for step in steps:
        if _has(node, step):
            path += step_of(step) if node.__class__ is dict else f"[{step}]"
            node = node[step]
    return path or ("[...]" if steps else "")


def _place_of(part: Any, node: Any) -> str:
    """Return the path to a part of data, which is known by its identity."""
    levels: list[tuple[str, Any, Iterator[tuple[Any, Any]]]] = [("", node, iter(_parts_of(node)))]
    while levels and levels[-1][1] is not part:
        path, within, parts = levels[-1]
        found = next(parts, None)
        if found is None:
            levels.pop()
        elif found[1].__class__ in (dict, list):
            step = step_of(found[0]) if within.__class__ is dict else f"[{found[0]}]"
            levels.append((path + step, found[1], iter(_parts_of(found[1]))))
    return levels[-1][0] if levels else ""
