"""Tuples in a type: a namedtuple that readers would get as a plain tuple is refused, though the two are equal.

Equality does not show it, so where a type has tuples, the classes of what stands there are looked at. In a union, each
value goes by its own class: what one class of it says of a field is nothing to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import inspect

from statecache.errors import CodecError
from statecache.record_classes import class_of, name_of
from statecache.value_loss import spelled, walk

_PLAIN = frozenset({tuple, list, set, frozenset, dict, str, int, float, bool, type(None), bytes})
_RECORDS = (inspect.StructType, inspect.DataclassType)


class Way(NamedTuple):
    """How to get from values to those one level below: by an attribute of the records of one class, or otherwise."""

    go: Callable[[list[Any]], list[Any]]
    attribute: str = ""
    owner: type = object


class Attributes(NamedTuple):
    """The attributes of the records of one class in which tuples stand that have no tuples below them."""

    owner: type
    names: tuple[str, ...]
    get: Callable[[Any], tuple[Any, ...]]

    def parts(self, records: list[Any]) -> list[Any]:
        """Return what stands there in some records."""
        return [getattr(record, name, None) for record in records for name in self.names]


class Slot:
    """A place in a type where a tuple may stand, or below which one may stand.

    `ways` lead from the values at this place to those one level below, for all values at once. `tuples` has the
    attributes of the records of each class here that are tuples with none below them: these are looked at from here.
    `is_alike` says that records of one class alone may stand here.
    """

    def __init__(self) -> None:
        self.ways: list[tuple[Way, Slot]] = []
        self.is_tuple = False
        self.is_alike = False
        self.named: set[type] = set()
        self.tuples: list[Attributes] = []

    def simplify(self) -> None:
        """Replace the ways to tuples that have nothing below them by `tuples`, which gets all of a class at once."""
        flat: dict[type, list[str]] = {}
        for way, inner in [*self.ways]:
            if way.attribute and inner.is_tuple and not inner.ways and not inner.named:
                flat.setdefault(way.owner, []).append(way.attribute)
                self.ways.remove((way, inner))
        for owner, names in flat.items():
            get = attrgetter(*names, names[0])  # of one name it gives no tuple
            self.tuples.append(Attributes(owner, tuple(names), get))

    def odd_tuples(self, nodes: list[Any], odd: set[type]) -> list[Any]:
        """Return the tuples of some classes that are looked at from here."""
        parts = [node for node in nodes if node.__class__ not in self.named] if self.is_tuple else []
        for attributes in self.tuples:
            parts += attributes.parts(_instances(nodes, attributes.owner))
        return [part for part in parts if part.__class__ in odd]


def slot_of(kind: Any) -> Slot | None:
    """Return the place at the top of a type, with the ways to its tuples; None where it has no tuples."""
    slots: dict[int, Slot] = {}
    top = _slot(inspect.type_info(kind), slots)
    matter = {id(slot) for slot in slots.values() if slot.is_tuple}
    for _ in slots:  # what leads to one of them, at most as many levels up as there are slots
        matter |= {id(slot) for slot in slots.values() if any(id(inner) in matter for _, inner in slot.ways)}
    for slot in slots.values():
        slot.ways = [(way, inner) for way, inner in slot.ways if id(inner) in matter]
    for slot in slots.values():
        slot.simplify()
    return top if id(top) in matter else None


def refuse_namedtuples(value: Any, slot: Slot, key: str) -> None:
    """Raise CodecError for a namedtuple, or another subclass of a tuple, that readers would get as a plain one."""
    if odd := _odd_tuples(value, slot):
        places = {*map(id, odd)}
        for path, node in walk(value, key):
            if id(node) in places:
                what = f"it is a {name_of(node.__class__)} and readers would get a tuple"
                raise CodecError(key=key, path=spelled(path), reason=f"{what}; make a tuple of it")


def _odd_tuples(value: Any, slot: Slot) -> list[Any]:
    """Return tuples that readers would get as others: those of the first place that has some."""
    todo: list[tuple[list[Any], Slot]] = [([value], slot)]
    while todo:
        nodes, slot = todo.pop()
        kinds = set() if slot.is_alike else {*map(type, nodes)}
        found = kinds - slot.named if slot.is_tuple else set()
        for attributes in slot.tuples:
            owner, _, get = attributes
            if slot.is_alike or owner in kinds:
                records = nodes if slot.is_alike or len(kinds) == 1 else _instances(nodes, owner)
                try:
                    found.update(map(type, chain.from_iterable(map(get, records))))
                except AttributeError:  # of what a record is read from, or one that leaves some to be set later
                    found.update(map(type, attributes.parts(_instances(records, owner))))
        if not _PLAIN.issuperset(found) and (odd := {kind for kind in found - _PLAIN if issubclass(kind, tuple)}):
            return slot.odd_tuples(nodes, odd)
        for way, inner in slot.ways:
            if below := way.go(nodes):
                todo.append((below, inner))
    return []


def _slot(info: inspect.Type, slots: dict[int, Slot]) -> Slot:
    if id(info) in slots:
        return slots[id(info)]
    slot = slots[id(info)] = Slot()
    slot.is_alike = isinstance(info, _RECORDS)
    for member in info.types if isinstance(info, inspect.UnionType) else (info,):
        slot.is_tuple |= isinstance(member, (inspect.NamedTupleType, inspect.TupleType, inspect.VarTupleType))
        if isinstance(member, inspect.NamedTupleType):
            slot.named.add(class_of(member))
        slot.ways += [(way, _slot(inner, slots)) for way, inner in _ways_of(member)]
    return slot


def _ways_of(info: inspect.Type) -> list[tuple[Way, inspect.Type]]:
    if isinstance(info, inspect.CollectionType):
        return [(Way(_elements), info.item_type)]
    if isinstance(info, inspect.DictType):
        return [(Way(_keys), info.key_type), (Way(_values), info.value_type)]
    if isinstance(info, inspect.TupleType):
        return [(_item(at), inner) for at, inner in enumerate(info.item_types)]
    if isinstance(info, inspect.NamedTupleType):
        return [(_item(at), field.type) for at, field in enumerate(info.fields)]
    if isinstance(info, inspect.TypedDictType):
        return [(_entry(field.name), field.type) for field in info.fields]
    if isinstance(info, _RECORDS):
        return [(_attribute(field.name, class_of(info)), field.type) for field in info.fields]
    return []


def _elements(nodes: list[Any]) -> list[Any]:
    return [*chain.from_iterable(node for node in nodes if isinstance(node, (list, tuple, set, frozenset)))]


def _keys(nodes: list[Any]) -> list[Any]:
    return [*chain.from_iterable(node for node in nodes if isinstance(node, dict))]


def _values(nodes: list[Any]) -> list[Any]:
    return [*chain.from_iterable(node.values() for node in nodes if isinstance(node, dict))]


def _item(at: int) -> Way:
    return Way(lambda nodes: [node[at] for node in nodes if isinstance(node, (list, tuple)) and len(node) > at])


def _entry(name: str) -> Way:
    return Way(lambda nodes: [node[name] for node in nodes if isinstance(node, dict) and name in node])


def _attribute(name: str, owner: type) -> Way:
    return Way(lambda nodes: [getattr(node, name, None) for node in _instances(nodes, owner)], name, owner)


def _instances(nodes: list[Any], kind: type) -> list[Any]:
    """Return the records of a class itself: one of a subclass that its type does not name is refused anyway."""
    return [node for node in nodes if node.__class__ is kind]
