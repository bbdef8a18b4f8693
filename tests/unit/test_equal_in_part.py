"""What a class's own `==` passes over is looked at all the same."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest

from statecache.model import Encoding
from statecache.record_classes import is_equal_in_part
from tests.support.sample_values import Attributed, Box, Order, Run, Tree, both, refused, returned


@dataclasses.dataclass
class Scored:
    id: int
    score: Any = dataclasses.field(default=None, compare=False)


@attrs.define
class Rated:
    id: int
    score: Any = attrs.field(default=None, eq=False)


class Entity(msgspec.Struct, eq=False):
    """Is equal by its id."""

    id: int
    score: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and other.id == self.id


@dataclasses.dataclass
class Own:
    id: int
    score: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and other.id == self.id


@attrs.define
class Keyed:
    id: int
    score: Any = attrs.field(default=None, eq=str)

    def __repr__(self) -> str:
        return "one"


@dataclasses.dataclass
class Base:
    id: int


@dataclasses.dataclass(eq=False)
class Heir(Base):
    """Is compared as its base is."""

    score: Any = None


class OwnTuple(NamedTuple):
    id: int
    score: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnTuple) and other.id == self.id


class OwnModel(pydantic.BaseModel):
    id: int
    score: Any = None

    def __init__(self, id: int, score: Any = None) -> None:  # noqa: A002
        super().__init__(id=id, score=score)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnModel) and other.id == self.id


PARTLY = (Scored, Rated, Entity, Own, Heir, OwnTuple)


@pytest.mark.parametrize("kind", PARTLY)
@pytest.mark.parametrize("lost", [float("nan"), b"ab", {1: "a", "1": "b"}, datetime(2026, 1, 1), [{"a": float("inf")}]])  # noqa: DTZ001
def test_what_a_classs_own_comparison_passes_over_is_refused_where_it_is_lost(kind: Any, lost: Any) -> None:
    for value, of, path in (
        (kind(1, lost), kind, "$.score"),
        ([kind(0), kind(1, lost)], list[kind], "$[1].score"),
        ({"a": {"b": kind(1, lost)}}, dict[str, dict[str, kind]], "$.a.b.score"),
        (kind(1, lost), Any, "$.score"),
    ):
        assert refused(value, of, "json").path.startswith(
            path if kind is not OwnTuple else path.replace(".score", "[1]")
        )


@both
@pytest.mark.parametrize("kind", PARTLY)
@pytest.mark.parametrize("kept", [None, 1, "a", [1, {"a": None}], (1, 2), 2.5])
def test_what_it_passes_over_is_stored_where_it_is_kept(encoding: Encoding, kind: Any, kept: Any) -> None:
    stored = [*kept] if isinstance(kept, tuple) else kept
    assert returned(kind(1, kept), kind, encoding).score == stored
    assert [one.score for one in returned([kind(1, kept)] * 3, list[kind], encoding)] == [stored] * 3


def test_whether_a_comparison_passes_over_fields_is_seen_of_its_class() -> None:
    made = [dataclasses.make_dataclass("D", [("a", int)], frozen=one, order=not one) for one in (False, True)]
    whole = (Run, Attributed, Tree, Order, pydantic.RootModel[int], Box[int], *made)
    assert [is_equal_in_part(kind) for kind in (*PARTLY, Keyed, OwnModel, *whole)] == [True] * 8 + [False] * 8


class Login(pydantic.BaseModel):
    token: pydantic.SecretStr


@dataclasses.dataclass
class Connection:
    id: int
    login: Login = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Member:
    id: int
    note: Any = dataclasses.field(default=None, compare=False)


@attrs.define
class Private:
    name: str
    _balance: int = 0


class Excluding(pydantic.BaseModel):
    """Never writes what it keeps for itself alone."""

    model_config = pydantic.ConfigDict(ser_json_bytes="base64", ser_json_timedelta="float")
    a: int = 0
    thumb: bytes = pydantic.Field(default=b"", exclude=True)
    cache: dict[str, Any] = pydantic.Field(default_factory=dict, exclude=True)
    above: Any = pydantic.Field(default=None, exclude=True)


@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        (Connection(1, Login(token=pydantic.SecretStr("s3cret"))), Connection, "$.login.token"),
        ({Member(1, b"ab")}, set[Member], "$[...].note"),
        ({"a": frozenset({Member(1), Member(2, float("nan"))})}, dict[str, frozenset[Member]], "$.a[...].note"),
        (Private("n", 5), Private, "$._balance"),
        (OwnModel(1, b"ab"), OwnModel, "$.score"),
        ([OwnModel(1, {1: "a", "1": "b"})], list[OwnModel], "$[0].score"),
    ],
)
def test_what_is_lost_in_silence_otherwise_is_refused(value: Any, kind: Any, path: str) -> None:
    assert refused(value, kind, "json").path.startswith(path)


@both
def test_what_a_model_never_writes_is_not_looked_at(encoding: Encoding) -> None:
    value = Excluding(a=1, thumb=b"x", cache={"a": datetime(2026, 1, 1)})  # noqa: DTZ001
    value.above = [value, float("inf")]
    for kind, given in ((Excluding, value), (list[Excluding], [value]), (Any, value)):
        stored = returned(given, kind, encoding)
        assert stored in (Excluding(a=1), [Excluding(a=1)], {"a": 1})
    assert returned(Private("n"), Private, encoding) == Private("n")


@dataclasses.dataclass
class Account:
    user: str
    password: pydantic.SecretStr = dataclasses.field(compare=False)


class WithAccount(pydantic.BaseModel):
    login: Account


class Accounts(pydantic.BaseModel):
    by_name: dict[str, list[Account]]


class WithOwn(pydantic.BaseModel):
    inner: OwnModel
    password: pydantic.SecretStr | None = None


@both
def test_what_is_equal_in_part_within_a_model_is_looked_at(encoding: Encoding) -> None:
    login = Account("ann", pydantic.SecretStr("s"))
    for value, kind, path in (
        (WithAccount(login=login), WithAccount, "$.login.password"),
        ([Accounts(by_name={"a": [login]})], list[Accounts], "$[0].by_name.a[0].password"),
        (WithOwn(inner=OwnModel(1, login)), WithOwn, "$.inner.score.password"),
    ):
        error = refused(value, kind, encoding)
        assert (error.path, "asterisks" in error.reason) == (path, True)
    assert returned(WithOwn(inner=OwnModel(1, "a")), WithOwn, encoding).inner.score == "a"
