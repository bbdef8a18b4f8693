"""What a pydantic model leaves out of its data, whatever code of its users reads and writes it."""

# mypy: disable-error-code="valid-type,misc"
from __future__ import annotations

from contextlib import nullcontext
from datetime import date
from random import random
from typing import Any, Literal, NamedTuple, Self

import msgspec
import pydantic
import pytest
import typing_extensions as te

from statecache import SchemaNewer
from statecache.codec import codec_for
from statecache.model import Encoding
from tests.support.sample_values import KEY, both

K1 = msgspec.defstruct("K", [("a", int)], frozen=True)


class M1(pydantic.BaseModel, frozen=True):
    a: int


class M2(pydantic.BaseModel, frozen=True):
    a: int
    z: int = 0


class Written(pydantic.BaseModel):
    """Writes a name that it does not read, as LlamaIndex's models do."""

    text: str = pydantic.Field("", alias="txt")
    below: list[Written] = []

    @pydantic.model_serializer(mode="wrap")
    def with_name(self, dump: Any) -> Any:
        return dump(self) | {"class_name": "Written"}


class Open(pydantic.BaseModel, extra="allow"):
    __pydantic_extra__: dict[str, M1]
    old: str = pydantic.Field("", validation_alias=pydantic.AliasChoices("new", "old"))


class First(pydantic.BaseModel):
    q: M1 | M2 = pydantic.Field(union_mode="left_to_right")


class Lenient(pydantic.BaseModel):
    q: pydantic.OnErrorOmit[M1] | None = None
    r: list[pydantic.OnErrorOmit[M1]] = []


class Renaming(pydantic.BaseModel):
    title: str
    number: float = pydantic.Field(default_factory=random)

    @pydantic.model_validator(mode="before")
    @classmethod
    def named(cls, data: Any) -> Any:
        return {"title": data["name"]} | {at: data[at] for at in data if at != "name"} if "name" in data else data


class Dumb(pydantic.BaseModel):
    """Cannot be written."""

    a: int

    @pydantic.field_serializer("a")
    def no(self, _: int) -> int:
        raise LookupError


class Loud(pydantic.BaseModel):
    """Has a way of its own to be made, as LlamaIndex's nodes have: nothing that pydantic is told reaches below it."""

    inner: M1 | None = None

    def __init__(self, **data: Any) -> None:
        super().__init__(**data)


class Reworded(pydantic.BaseModel):
    """Reads with code of its own that no longer knows what pydantic is told."""

    wrapped: M1 | None = None
    built: M1 | None = None
    picked: dict[str, int] = {}

    @pydantic.field_validator("wrapped", mode="wrap")
    @classmethod
    def reword(cls, data: Any, read: Any) -> Any:
        try:
            return read(data)
        except ValueError:
            raise ValueError("in other words") from None

    @pydantic.field_validator("built", mode="before")
    @classmethod
    def build(cls, data: Any) -> Any:
        return M1.model_validate(data) if isinstance(data, dict) else data

    @pydantic.field_validator("picked", mode="before")
    @classmethod
    def pick(cls, data: Any) -> Any:
        return {name: data[name] for name in data if name != "z"} if isinstance(data, dict) else data


class Part(pydantic.BaseModel):
    """Has a field of the name that tells it from others."""

    type: Literal["image_url"] = "image_url"
    image_url: dict[str, str] = {}

    @pydantic.model_serializer(mode="wrap")
    def with_name(self, dump: Any) -> Any:
        return dump(self) | {"class_name": "Part"}


class Other(pydantic.BaseModel):
    type: Literal["other"] = "other"


class Parts(pydantic.BaseModel):
    parts: list[te.Annotated[Part | Other, pydantic.Field(discriminator="type")]]


class Turned(pydantic.BaseModel):
    """Makes new fields of old ones, and of nothing."""

    state: str = "open"
    tags: list[str] = []
    first: str = ""

    @pydantic.model_validator(mode="before")
    @classmethod
    def turned(cls, data: Any) -> Any:
        data = {"of_nothing": 1} | data
        if "done" in data:
            data["state"] = "done" if data.pop("done") else "open"
        if "text" in data:
            data["tags"] = data.pop("text").split()
        return data

    @pydantic.computed_field
    @property
    def full(self) -> str:
        return self.first + "!"


class Many(pydantic.BaseModel):
    of: list[Turned] = []


class Once(pydantic.BaseModel):
    """Is read once only."""

    of: int = 0

    @pydantic.model_validator(mode="after")
    def once(self) -> Self:
        if self.of in ONCE:
            raise LookupError
        ONCE.add(self.of)
        return self


class Far(pydantic.BaseModel, frozen=True):
    b: int
    z: int = 0


class Mixed(pydantic.BaseModel):
    of: frozenset[M1 | Far] = frozenset()


class Renamed(pydantic.BaseModel):
    inner: M1 | None = pydantic.Field(None, validation_alias=pydantic.AliasChoices("inner", "former"))


class Day(pydantic.BaseModel, frozen=True):
    when: date = pydantic.Field(validation_alias=pydantic.AliasChoices("when", "on"))


class Days(pydantic.BaseModel):
    of: frozenset[Day] = frozenset()


class Rooted(pydantic.RootModel[list[Renamed]]):
    pass


class Leg(pydantic.BaseModel):
    on: date | None = None
    to: str = ""
    by: bool = False


class Taking(pydantic.BaseModel):
    """Takes in all of the data, and what is in some of them."""

    stage: M1 | None = None
    at: int = 0
    total: int = 0
    of: list[int] = []

    @pydantic.model_validator(mode="before")
    @classmethod
    def take(cls, data: Any) -> Any:
        data = {**data, "total": sum(one for one in data.values() if isinstance(one, int))}
        if "leg" in data:
            data["stage"] = {"a": data.pop("leg")["at"]}
        return data | {"at": data["data"]["at"]} if "data" in data else data

    legs: list[Leg] = []

    @pydantic.field_validator("legs", mode="before")
    @classmethod
    def listed(cls, legs: Any) -> Any:
        return [legs] if isinstance(legs, dict) else legs

    @pydantic.field_validator("of")
    @classmethod
    def last(cls, of: list[int]) -> list[int]:
        return of[-2:]


ONCE = set[int]()
Quoted = te.TypedDict("Quoted", {'a"b': int})
Holds = msgspec.defstruct("Holds", [("q", Quoted | None, None), ("r", K1 | None, None)])
Row = NamedTuple("Row", [("k", K1), ("n", int)])  # noqa: UP014
Either = msgspec.defstruct("Either", [("q", list[Row | K1 | None])])


class Earlier(Renaming):
    """Is of a pydantic that cannot be told to forbid extra fields."""

    inner: M1 | None = pydantic.Field(None, validation_alias=pydantic.AliasChoices("inner", "former"))

    @classmethod
    def model_validate_json(cls, json_data: Any) -> Any:  # type: ignore[override]
        return super().model_validate_json(json_data)


@both
@pytest.mark.parametrize(
    ("kind", "plain", "path"),
    [
        (Written, {"txt": "a", "class_name": "Written", "below": [{"txt": "b", "class_name": "Written"}]}, ""),
        (Written, {"txt": "a", "class_name": "Written", "more": 1}, "$.more"),
        (Written, {"txt": "a", "class_name": "W", "below": [{}, {"txt": "b", "more": 1}]}, "$.below[1].more"),
        (list[Written], [{"txt": "a", "class_name": "Written"}, {"class_name": "a", "text": 1}], "$[1].text"),
        (Open, {"old": "a", "x": {"a": 1}, "y": {"a": 2}}, ""),
        (Open, {"old": "a", "x": {"a": 1}, "y": {"a": 2, "z": 7}}, "$.y.z"),
        (First, {"q": {"a": 1}}, ""),
        (First, {"q": {"a": 1, "z": 7}}, "$.q.z"),
        (Lenient, {"r": [{"a": 1}]}, ""),
        (Lenient, {"r": [{"a": 1}, {"a": 1, "z": 7}, {"a": 1}]}, "$.r[1].z"),
        (Dumb, {"a": 1}, ""),
        (Dumb, {"a": 1, "z": 1}, "$.z"),
        (Quoted, {'a"b': 1}, ""),
        (Quoted, {'a"b': 1, "z": 7}, "$.z"),
        (Mixed, {"of": [{"b": 1, "z": 7}, {"a": 1}]}, ""),
        (Mixed, {"of": [{"b": 1, "z": 7}, {"a": 1, "z": 7}, {"a": 2}]}, "$.of[1].z"),
        (Days, {"of": [{"on": "2026-01-02"}, {"when": "2026-01-01"}]}, ""),
        (Days, {"of": [{"on": "2026-01-02", "z": 7}]}, "$.of[0].z"),
        (Rooted, [{"former": {"a": 1}}], ""),
        (Rooted, [{"inner": {"a": 1}}, {"former": {"a": 1, "z": 7}}], "$[1].former.z"),
        (Holds, {"q": {'a"b': 1}, "r": {"a": 1}}, ""),
        (Holds, {"q": {'a"b': 1}, "r": {"a": 1, "z": 7}}, "$.r.z"),
        (Either, {"q": [[{"a": 1}, 2], {"a": 1}, None]}, ""),
        (Either, {"q": [[{"a": 1}, 2], {"a": 1, "z": 7}]}, "$.q[1].z"),
        (Either, {"q": [{"a": 1}, [{"a": 1, "z": 7}, 2]]}, "$.q[1][0].z"),
        (Loud, {"inner": {"a": 1}}, ""),
        (Loud, {"inner": {"a": 1}, "z": 7}, "$.z"),
        (list[Loud], [{}, {"inner": {"a": 1, "z": 7}}], "$[1].inner.z"),
        (Reworded, {"wrapped": {"a": 1}, "built": {"a": 1}, "picked": {"a": 1}}, ""),
        (Reworded, {"wrapped": {"a": 1, "z": 7}}, "$.wrapped.z"),
        (Reworded, {"built": {"a": 1, "z": 7}}, "$.built.z"),
        (Reworded, {"picked": {"a": 1, "z": 7}}, "$.picked.z"),
        (Parts, {"parts": [{"type": "image_url", "image_url": {"detail": "x"}, "class_name": "Part"}]}, ""),
        (Parts, {"parts": [{"type": "image_url", "image_url": {"detail": "x"}, "detail": 1}]}, "$.parts[0].detail"),
        (Turned, {"first": "a", "full": "a!"}, ""),
        (Turned, {"text": "a"}, ""),
        (Turned, {"text": "a", "more": 1}, "$.more"),
        (Turned, {"done": True}, "$.done"),
        (Many, {"of": [{"text": str(at)} for at in range(100)]}, ""),
        (Many, {"of": [{"text": str(at)} for at in range(100)] + [{"z": 1}]}, "$.of[100].z"),
        (Taking, {"leg": {"at": 1}, "of": [1, 2], "data": {"at": 5}, "total": 3}, ""),
        (Taking, {"leg": {"at": 1, "driver": "Ann"}}, "$.leg.driver"),
        (Taking, {"data": {"at": 5, "z": 7}}, "$.data.z"),
        (Taking, {"total": 3, "z": 7}, "$.z"),
        (Taking, {"of": [1, 2, 3]}, "$.of[0]"),
        (Taking, {"legs": {"on": "2026-01-02", "to": "a", "by": True}}, ""),
        (Taking, {"legs": {"on": "2026-01-02", "to": "a", "z": "b"}}, "$.legs.z"),
        (Taking, {"of": [1, 2], "odd ` - at `$.a": "z"}, "$['odd ` - at `$.a']"),
        (Holds, {"odd ` - at `$.a": 1}, "$['odd ']"),
        (Renaming, {"name": "a", "number": 2}, ""),
        (Renaming, {"name": "a"}, ""),
        (Renaming, {"name": "a", "more": 1}, "$.more"),
        (Earlier, {"name": "a", "number": 2, "inner": {"a": 1}}, ""),
        (Earlier, {"name": "a", "number": 2, "more": 1}, "$.more"),
        (Earlier, {"name": "a", "number": 2, "former": {"a": 1, "z": 7}}, "$.former.z"),
    ],
)
def test_what_a_model_reads_in_its_own_way_is_kept(encoding: Encoding, kind: Any, plain: Any, path: str) -> None:
    library: Any = msgspec.json if encoding == "json" else msgspec.msgpack
    data, codec = library.encode(plain), codec_for(kind, encoding)
    codec.decode(data, key=KEY)
    with pytest.raises(SchemaNewer) if path else nullcontext() as refused:
        codec.refuse_to_drop(data, key=KEY, encoding=encoding, schema="Run@1#0")
    assert not path or (refused and refused.value.path) == path


def test_what_cannot_be_read_twice_is_refused() -> None:
    with pytest.raises(SchemaNewer):
        codec_for(Once).refuse_to_drop(b'{"of":1}', key=KEY, encoding="json", schema="Once@1#0")
