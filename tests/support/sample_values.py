"""Types of every kind, and what the tests of the codec ask of each value."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from statecache.codec import codec_for
from statecache.errors import CodecError
from statecache.model import Encoding

T = TypeVar("T")
KEY = "runs/42"
ENCODINGS: list[Encoding] = ["json", "msgpack"]
NAIVE = datetime(2026, 11, 20, 11, 21, 15)  # noqa: DTZ001
AWARE = datetime(2026, 11, 20, 11, 21, 15, 123456, tzinfo=UTC)

both = pytest.mark.parametrize("encoding", ENCODINGS)


class Step(msgspec.Struct, frozen=True):
    name: str
    score: float | None = None
    at: datetime | None = None


class Run(msgspec.Struct, frozen=True):
    step: int
    steps: list[Step] = []
    notes: dict[str, Any] = {}
    blob: bytes = b""


class LongRun(Run, frozen=True):
    more: int = 0


class Renamed(msgspec.Struct, rename="camel"):
    first_score: float | None = None
    by_number: dict[int, str] = {}


class Odd(msgspec.Struct, eq=False):
    x: float | None = None


class Tree(msgspec.Struct):
    below: list[Tree] = []


class Loose(msgspec.Struct):
    anything: object = None


class Box(msgspec.Struct, Generic[T], frozen=True):
    """A value of a generic class that nobody can change."""

    inside: T


class Pair(NamedTuple, Generic[T]):
    left: T
    right: T


class Shelf(msgspec.Struct, Generic[T], frozen=True):
    """One with tuples of both kinds below it."""

    boxes: tuple[Box[T], ...]
    ends: Pair[T]


@dataclass
class Account:
    owner: UUID
    balance: Decimal
    tags: set[str] = field(default_factory=set)
    opened: date = date(2026, 1, 1)
    limit: float | None = None
    __schema_version__: ClassVar[int] = 3


ACCOUNT = Account(UUID(int=7), Decimal("10.50"), {"a", "b"}, date(2026, 11, 20), 1.5)


class Attributed:
    """A class that looks like one of attrs, which need not be installed."""

    __attrs_attrs__ = (SimpleNamespace(name="x"),)

    def __init__(self, x: Any) -> None:
        self.x = x


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


class Message(TypedDict):
    role: str
    content: str


class Order(pydantic.BaseModel):
    __schema_version__ = 2
    id: int
    at: datetime | None = None
    price: Decimal | None = None
    weight: float | None = pydantic.Field(default=None, alias="w")
    any: Any = None
    raw: bytes = b""


class StrictOrder(pydantic.BaseModel, strict=True, extra="forbid"):
    id: UUID
    at: datetime
    tags: set[str] = set()

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shown(self) -> str:
        return f"order {self.id}"


class OpenOrder(pydantic.BaseModel, extra="allow"):
    id: int


class OrderBook(pydantic.BaseModel):
    orders: list[Order]


class Basket(msgspec.Struct):
    order: Order
    count: int = 1


def stored(value: Any, kind: Any = Any, encoding: Encoding = "json", bytes_max: int = 1 << 23) -> bytes:
    return codec_for(kind, encoding).encode(value, key=KEY, bytes_max=bytes_max)[0]


def returned(value: Any, kind: Any = Any, encoding: Encoding = "json") -> Any:
    return codec_for(kind, encoding).decode(stored(value, kind, encoding), key=KEY, encoding=encoding)


def refused(value: Any, kind: Any = Any, encoding: Encoding = "json") -> CodecError:
    with pytest.raises(CodecError) as caught:
        stored(value, kind, encoding)
    error = caught.value
    assert error.key == KEY
    assert error.verb == "encoded"
    assert KEY in str(error)
    assert error.path in str(error)
    str(error).encode()
    return error


def nested(levels: int, inner: Any = None) -> Any:
    value = inner
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value
