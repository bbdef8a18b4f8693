"""Schemas: what a state's value was written as, and whether another release may write over it.

A schema is `Run@2#1c9e55d0`: the name of the value's class, its `__schema_version__` (1 where it has none), and a
fingerprint of the names under which its fields, and those of all records inside, are stored. Where two releases run
side by side, the older one reads what the newer one wrote and leaves out what it does not know. Written back, that
would be gone. So whoever writes over what it has read, and what has another schema than its own, is asked first:

    same class, a lower version     goes on: this release is the newer one, and may do without fields
    same class, a higher version    is refused: somebody has said that it is newer
    anything else                   is refused where the value has something that the type leaves out, and only there

Where a type is a union, all of this is about the class that the value has: it is written with the schema of that, and
data of a class are judged by the member of its name. What is of the union as a whole, as it was written before, or as
None is, is looked at.

What is read without a type is read whole, and what is written without being read is meant as it is.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection
from typing import Any, Literal, NamedTuple, get_origin

from msgspec import inspect

from statecache.errors import UsageError
from statecache.field_names import names_in
from statecache.record_classes import class_of, is_model, name_of

VERSION_MAX = 2**63 - 1
"""The highest `__schema_version__`."""
_FINGERPRINT_DIGITS = 8
_VERSION = "Say __schema_version__ = 2 in the class; a dataclass or a Struct says it of a ClassVar[int]."
_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
Verdict = Literal["free", "newer", "look"]


class Schema(NamedTuple):
    """A schema in its parts; `name` is empty for a type that is not a class of its own."""

    name: str
    version: int
    fingerprint: str

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Read a schema as it is stored."""
        stem, _, fingerprint = text.partition("#")
        name, _, version = stem.rpartition("@")
        return cls(name, int(version), fingerprint) if version.isdecimal() else cls(stem, 0, fingerprint)


class Schemas:
    """The schemas of a type: `whole` is its own, `members` those of the classes that it is a union of.

    A value of a union is written as its own class, whose version counts, and not as the union.
    """

    __slots__ = ("_known", "members", "whole")

    def __init__(self, kind: Any) -> None:
        self.whole = schema_of(kind)
        self.members: dict[type, str] = {}
        union = None if kind is Any else inspect.type_info(kind)
        while isinstance(union, inspect.Metadata):
            union = union.type
        for one in union.types if isinstance(union, inspect.UnionType) else ():
            if isinstance(one, _RECORDS) or (isinstance(one, inspect.CustomType) and is_model(one.cls)):
                place = dict if isinstance(one, inspect.TypedDictType) else class_of(one)
                self.members[place] = schema_of(one.cls)
        self._known = frozenset({self.whole, *self.members.values()})

    def __bool__(self) -> bool:
        return bool(self.whole or self.members)

    def of(self, value: object) -> str:
        """Return the schema that a value of this type is written with."""
        return self.members.get(value.__class__, self.whole) if self.members else self.whole

    def knows(self, stored: object) -> bool:
        """Return whether what was written with a schema was written as this type, or as a class of this union."""
        return stored in self._known

    def judge(self, stored: str) -> Verdict:
        """Return whether what this type read of data of a schema may be written over them, as far as schemas say.

        `free`: yes. `newer`: no, a newer release wrote it. `look`: they do not say, so compare the data.
        """
        if not self or self.knows(stored):
            return "free"
        name = Schema.parse(stored).name
        alike = [one for one in self.members.values() if name and same_class(stored, one)]
        if self.members and not alike:
            return "look"
        verdicts = {judged(stored, one) for one in alike or [self.whole]}
        return verdicts.pop() if len(verdicts) == 1 else "look"


def schema_of(kind: Any) -> str:
    """Return the schema of a type, as it is stored; empty for plain data. Raises UsageError for a wrong version."""
    names = sorted(names_in(kind))
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:_FINGERPRINT_DIGITS]
    fingerprint = f"#{digest}" if names else ""
    owner = get_origin(kind) or kind
    if not isinstance(owner, type) or owner.__module__.partition(".")[0] in sys.stdlib_module_names:
        return fingerprint
    return f"{owner.__qualname__}@{version_of(owner)}{fingerprint}"


def version_of(kind: Any) -> int:
    """Return the `__schema_version__` of a class, 1 where it has none; raise UsageError for what is no version."""
    version = getattr(kind, "__schema_version__", 1)
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= VERSION_MAX:
        wrong = f"the __schema_version__ of {name_of(kind)} is not an integer from 0 to 2**63 - 1"
        raise UsageError(wrong, hint=_VERSION)
    return int(version)


def judged(stored: str, ours: str) -> Verdict:
    """Return whether data of the schema `stored` may be overwritten by what a type of the schema `ours` read of it."""
    if stored == ours or not ours:
        return "free"
    there, here = Schema.parse(stored), Schema.parse(ours)
    if here.name and there.name == here.name and there.version != here.version:
        return "newer" if there.version > here.version else "free"
    return "look"


def common(schemas: Collection[str]) -> str:
    """Return the schema of plain data that were made of data of several: of their class and version, if all agree.

    Without a fingerprint it is no type's own, so whoever writes over it compares the data.
    """
    if len(schemas) < 2:
        return next(iter(schemas), "")
    parsed = [Schema.parse(one) for one in schemas]
    first = parsed[0]
    agree = first.name and all(one[:2] == first[:2] for one in parsed)
    return f"{first.name}@{first.version}#" if agree else ""


def same_class(stored: str, ours: str) -> bool:
    """Return whether two schemas are of one class, or both of none, whatever their versions and fields."""
    return Schema.parse(stored).name == Schema.parse(ours).name


def versions(stored: str, ours: str) -> str:
    """Return what schemas say of why data of the one cannot be read as a type of the other: the end of a reason."""
    there, here = Schema.parse(stored), Schema.parse(ours)
    if not here.name or there.version == here.version:
        return ""
    names = (
        f"; it was written as {there.name or 'plain data'}@{there.version}, and is read as {here.name}@{here.version}"
    )
    if there.version > here.version:
        return f"{names}, which is older: read it where the newer release runs"
    return f"{names}: give namespace() an upgrade= from version {there.version} on"
