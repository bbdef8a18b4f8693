"""What a type leaves out of stored data: the fields that would be gone once what it read of them is written back.

msgspec converts the data once more into twins of the type's records: Structs that refuse unknown fields and ask for
nothing else, with lists for sets, so that each member is looked at. Pydantic's models among them are looked at by
`unread_by_model`. What the twins cannot say is told by the names in what is written back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import msgspec
from msgspec import inspect

from statecache.record_classes import is_model
from statecache.unread_by_model import Steps, has, lacking_anywhere, left_out_by, parts_of
from statecache.value_loss import step_of

_unknown = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$.*`)?", re.DOTALL).fullmatch
_is_too_long = re.compile(r"Expected `array` of at most length \d+, got \d+").match
_no_name = re.compile(r'[\\"\x00-\x1f]').search
_OBJECTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_DICTS = tuple(getattr(inspect, name) for name in ("DictType", "FrozenDictType") if hasattr(inspect, name))
_OPEN = (inspect.AnyType, inspect.RawType)
Ask = Callable[[Any, Any], None]


class Twin:
    """A reader of plain data that finds what a type leaves out of them; it is made from the type."""

    def __init__(self, kind: Any) -> None:
        twins = _Twins()
        self._kind = twins.of(inspect.type_info(kind)) | None
        self._is_whole = twins.are_whole

    def left_out(self, plain: Any, written: Callable[[], Any]) -> str:
        """Return the path of a part of data that the type reads without it; empty where it reads all of them.

        `written` returns what is written back of what the type has read, as plain data.
        """
        plain = msgspec.to_builtins(plain, enc_hook=lambda _: None)
        found: list[tuple[Any, Steps]] = []

        def ask(model: Any, node: Any) -> None:
            if not found and (steps := left_out_by(model, node)) is not None:
                found.append((node, steps))

        refused = self._refused(plain, ask)
        if refused:
            return _spelled(self._place_refused(plain), plain)
        if found:
            return _spelled((*_place_of(found[0][0], plain), *found[0][1]), plain)
        lacking = lacking_anywhere(plain, written()) if refused is None or not self._is_whole else iter(())
        return next((_spelled(steps, plain) for steps in lacking), "")

    def _refused(self, plain: Any, ask: Ask = lambda _, __: None) -> Steps | None:
        """Return the name that the twins refuse, or None for an item; nothing where they take all.

        None is returned alone where they cannot say.
        """
        try:
            _convert(plain, self._kind, ask)
        except (msgspec.ValidationError, TypeError) as error:
            if field := _unknown(str(error)):
                return (field.group(1),)
            return (None,) if _is_too_long(str(error)) else None
        return ()

    def _place_refused(self, plain: Any) -> Steps:
        """Return the steps to a part that the twins refuse: at each level, the first with such a part is kept alone."""
        around: list[tuple[Any, Any]] = []
        steps: Steps = ()
        node = plain
        while True:
            bare = _emptied(node, ())
            if refused := self._refused(_within(around, bare)):
                if node.__class__ is dict:
                    return (*steps, *refused)
                lengths = range(1, len(bare) + 1)
                return (*steps, next(at for at in lengths if self._refused(_within(around, bare[:at]))) - 1)
            places = [at for at, part in parts_of(node) if part.__class__ in (dict, list)]
            if not places:
                return steps
            low, high = 0, len(places)
            while high - low > 1:
                middle = (low + high) // 2
                if self._refused(_within(around, _emptied(node, places[:middle]))):
                    high = middle
                else:
                    low = middle
            steps = (*steps, places[high - 1])
            around.append((bare, places[high - 1]))
            node = node[places[high - 1]]


class _Held:
    """Stands for a value of a pydantic model, of which it is asked what it leaves out."""

    model: Any = None


class _Either:
    """Stands for a union of what is stored as an object and of what is stored as a list, each with twins."""

    of_dict: Any = None
    of_list: Any = None


def _convert(plain: Any, kind: Any, ask: Ask) -> None:
    """Have twins read data; raise ValidationError for what they refuse."""

    def hook(held: Any, node: Any) -> Any:
        if issubclass(held, _Held):
            ask(held.model, node)
        elif node.__class__ in (dict, list):
            _convert(node, held.of_dict if node.__class__ is dict else held.of_list, ask)
        return held()

    msgspec.convert(plain, kind, dec_hook=hook)


class _Twins:
    """The twins of the records within one type."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}
        self.are_whole = True
        """Whether all records have one: a TypedDict may have names that no Struct can."""

    def of(self, info: Any) -> Any:
        """Return the twin of a type; Any for all that has no fields inside."""
        if isinstance(info, (*_OBJECTS, inspect.NamedTupleType)):
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
        if any(isinstance(info, _OPEN) or getattr(info, "cls", None) is object for info in infos):
            return Any
        parts = [(info, twin) for info in infos if (twin := self.of(info)) is not Any]
        if any(isinstance(info, inspect.CustomType) for info, _ in parts):  # beside nothing but None
            return parts[0][1]
        objects = [twin for info, twin in parts if _is_object(info)]
        lists = [twin for info, twin in parts if not _is_object(info)]
        if objects and lists:  # of which msgspec would have each Struct tagged
            return type("_Either", (_Either,), {"of_dict": _any_of(objects), "of_list": _any_of(lists)})
        return _any_of([twin for _, twin in parts])

    def _of_record(self, info: Any) -> Any:
        made, _ = self._made.get(id(info), (None, None))
        if made is None:
            names = {f"f{at}": field.encode_name for at, field in enumerate(info.fields)}
            if any(map(_no_name, names.values())):
                self.are_whole = False
                return dict[str, Any]
            made = msgspec.defstruct(
                "Twin", [(name, Any, None) for name in names], rename=names, forbid_unknown_fields=True,
                array_like=not _is_object(info), tag=getattr(info, "tag", None),
                tag_field=getattr(info, "tag_field", None),
            )  # fmt: skip
            self._made[id(info)] = made, info
            for name, field in zip(names, info.fields, strict=True):
                made.__annotations__[name] = self.of(field.type) | None
        return made


def _is_object(info: Any) -> bool:
    return isinstance(info, (*_OBJECTS, *_DICTS)) and not getattr(info, "array_like", False)


def _any_of(twins: Iterable[Any]) -> Any:
    return reduce(or_, [*twins, str, int, float, bool])


def _emptied(node: Any, keep: Sequence[Any]) -> Any:
    """Return a copy of data that has, of the containers in it, those in some places alone."""
    kept = {*keep}
    parts = [(at, None if part.__class__ in (dict, list) and at not in kept else part) for at, part in parts_of(node)]
    return dict(parts) if node.__class__ is dict else [part for _, part in parts] if node.__class__ is list else node


def _within(around: Sequence[tuple[Any, Any]], node: Any) -> Any:
    """Return data with a part in its place."""
    for outer, at in reversed(around):
        copied = outer.copy()
        copied[at] = node
        node = copied
    return node


def _spelled(steps: Steps, node: Any) -> str:
    """Return the steps into data as the text of a path."""
    path = "$"
    for step in steps:
        path += step_of(step) if node.__class__ is dict else f"[{step}]"
        node = node[step] if has(node, step) else None  # a name is as the message of msgspec has it
    return path


def _place_of(part: Any, node: Any) -> Steps:
    """Return the steps to a part of data, which is known by its identity."""
    todo: list[tuple[Steps, Any]] = [((), node)]
    while todo:
        steps, within = todo.pop()
        if within is part:
            return steps
        todo += [((*steps, at), below) for at, below in parts_of(within) if below.__class__ in (dict, list)]
    return ()
