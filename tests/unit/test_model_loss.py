"""Pydantic models that write a field otherwise than they read it: refused, unless that is their author's word."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Self
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from pydantic import (
    AliasChoices,
    AliasGenerator,
    AliasPath,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    field_serializer,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

from statecache.model import Encoding
from tests.support.sample_values import both, refused, returned


class Colour(Enum):
    RED, BLUE = "red", "blue"


class Session(BaseModel):
    user: str = ""
    token: SecretStr | None = None
    tokens: list[SecretStr] = []


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(serialization_alias=to_camel))
    turn_count: int = 0
    all_names: list[str] = []
    by_name: dict[str, int] = {}
    last_colour: Colour = Colour.RED
    last_session: Session | None = None


class Aliased(BaseModel):
    n: int = Field(0, validation_alias="zed")


class Holder(msgspec.Struct):
    session: Session
    more: list[Session] = []


@both
@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        (Session(token=SecretStr("s3cret")), Session, "$.token"),
        (Session(tokens=[SecretStr("s3cret")]), Session, "$.tokens[0]"),
        (Session(token=SecretStr("s3cret")), Any, "$.token"),
        ({"at": Session(token=SecretStr("s3cret"))}, Any, "$.at.token"),
        ([Session(), Session(token=SecretStr("s3cret"))], list[Session], "$[1].token"),
        (Holder(Session(), [Session(token=SecretStr("s3cret"))]), Holder, "$.more[0].token"),
        (Camel(turn_count=5), Camel, "$.turn_count"),
        (Camel(all_names=["a"]), Camel, "$.all_names"),
        (Camel(by_name={"a": 1}), Camel, "$.by_name"),
        (Camel(last_colour=Colour.BLUE), Camel, "$.last_colour"),
        (Camel(last_session=Session()), Camel, "$.last_session"),
        (Aliased(zed=5), Aliased, "$.n"),  # type: ignore[call-arg]
    ],
)
def test_a_field_that_does_not_come_back_is_refused(encoding: Encoding, value: Any, kind: Any, path: str) -> None:
    error = refused(value, kind, encoding)
    assert error.path == path
    assert "readers would" in error.reason
    assert "s3cret" not in str(error)


class Rounded(BaseModel):
    budget: float = 0.0
    owner: Annotated[str, PlainSerializer(str.strip)] = ""
    token: SecretStr = SecretStr("")
    cached: int = Field(default=0, exclude=True)

    @field_serializer("budget")
    def _to_tenths(self, budget: float) -> float:
        return round(budget, 1)

    @field_serializer("token")
    def _to_text(self, token: SecretStr) -> str:
        return token.get_secret_value()


class Whole(BaseModel):
    n: int = 0

    @model_serializer
    def _nothing(self) -> dict[str, int]:
        return {}


@both
@pytest.mark.parametrize(
    ("value", "comes_back"),
    [
        (Rounded(budget=0.25, owner=" a ", cached=7), Rounded(budget=0.2, owner="a")),
        (Rounded(token=SecretStr("s3cret")), Rounded(token=SecretStr("s3cret"))),
        (Whole(n=5), Whole()),
    ],
)
def test_what_its_author_writes_in_a_way_of_its_own_is_let_through(
    encoding: Encoding, value: BaseModel, comes_back: BaseModel
) -> None:
    assert returned(value, type(value), encoding) == comes_back


class Deps(BaseModel):
    hits: int = 0
    token: SecretStr = SecretStr("")


Money = Annotated[Decimal, PlainSerializer(lambda value: round(float(value), 1))]


class Run(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, populate_by_name=True)
    answer: str = ""
    deps: Deps = Field(default_factory=Deps, exclude=True)
    all_deps: list[Deps] = Field(default_factory=list, exclude=True)
    money: Money | None = None
    at: datetime | None = None
    total: int = 0
    by_either: int = Field(default=0, validation_alias=AliasChoices("either", AliasPath("one", 0)))
    aliased: int = Field(default=0, alias="other")

    @model_validator(mode="after")
    def _summed(self) -> Run:
        self.total = len(self.answer)
        return self


BERLIN = ZoneInfo("Europe/Berlin")


@both
@pytest.mark.parametrize(
    "changes",
    [
        {"answer": "done \n"}, {"deps": Deps(hits=3, token=SecretStr("x"))}, {"all_deps": [Deps(hits=3)]},
        {"money": Decimal("1.234")}, {"at": datetime(2026, 10, 25, 2, 15, tzinfo=BERLIN)}, {"by_either": 5},
        {"at": datetime(2026, 10, 25, 2, 15, tzinfo=BERLIN, fold=1)}, {"total": 7}, {"aliased": 3},
    ],
)  # fmt: skip
def test_what_its_validators_and_serializers_make_of_it_is_let_through(encoding: Encoding, changes: Any) -> None:
    for value, kind in ((Run().model_copy(update=changes), Run), ([Run().model_copy(update=changes)], list[Run])):
        returned(value, kind, encoding)
    assert returned(Run(other=3), Run, encoding).aliased == 3


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")
    at: Any = None
    price: Decimal = Decimal(0)
    lasts: timedelta = timedelta()
    folder: Path = Path()
    when: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    colour: Colour = Colour.RED
    session: Session = Session()


@both
def test_what_only_changes_its_form_is_let_through(encoding: Encoding) -> None:
    more: list[Any] = [UUID(int=1), (1, 2), {1, 2}, datetime(2026, 1, 1, tzinfo=UTC), Colour.BLUE, 1.5, [UUID(int=2)]]
    for one in more:
        returned(Anything.model_validate({"at": one, "extra": one}), Anything, encoding)
    whole = Anything(
        price=Decimal("1.10"), lasts=timedelta(microseconds=1), folder=Path("/a"),
        when=datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=UTC), colour=Colour.BLUE, session=Session(user="ada"),
    )  # fmt: skip
    assert returned(whole, Anything, encoding) == whole


class Linked(BaseModel):
    url: AnyUrl


@both
def test_a_url_comes_back(encoding: Encoding) -> None:
    assert returned(Linked(url=AnyUrl("http://a.b/c")), Linked, encoding) == Linked(url=AnyUrl("http://a.b/c"))


class Base64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64")
    data: bytes = b""
    more: dict[str, list[bytes]] = {}
    below: Base64 | None = None


class Hex(BaseModel):
    model_config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
    data: bytes = b""


class Milliseconds(BaseModel):
    model_config = ConfigDict(ser_json_temporal="milliseconds")
    took: timedelta = timedelta()
    at: datetime = datetime(2026, 11, 30, tzinfo=UTC)
    of_day: time = time(0, tzinfo=UTC)


class Lowered(BaseModel):
    model_config = ConfigDict(ser_json_temporal="seconds")
    at: datetime
    name: bytes

    @model_validator(mode="after")
    def in_whole_seconds(self) -> Self:
        self.at, self.name = self.at.replace(microsecond=0), self.name.lower()
        return self


@both
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Base64(data=b"abc"), "$.data"),
        (Base64(more={"a": [b"", b"abc"]}), "$.more.a[1]"),
        (Base64(below=Base64(data=b"abc")), "$.below.data"),
        (Milliseconds(took=timedelta(seconds=5)), "$.took"),
        (Milliseconds(at=datetime(1970, 1, 1, 0, 1, tzinfo=UTC)), "$.at"),
        (Milliseconds(of_day=time(0, 0, 5, tzinfo=UTC)), "$.of_day"),
    ],
)
def test_bytes_and_times_that_are_written_in_one_form_and_read_in_another_are_refused(
    encoding: Encoding, value: BaseModel, path: str
) -> None:
    for kind in (type(value), Any):
        error = refused(value, kind, encoding)
        assert error.path == path
        assert "in one form and reads it in another" in error.reason


@both
@pytest.mark.parametrize("value", [Hex(data=b"abc"), Base64(), Milliseconds(), Milliseconds(took=timedelta(0))])
def test_bytes_and_times_in_one_form_for_both_are_stored(encoding: Encoding, value: BaseModel) -> None:
    assert returned(value, type(value), encoding) == value


class Short(Base64):
    @field_serializer("data")
    def _short(self, data: bytes) -> bytes:
        return data[:2]


@both
def test_what_a_serializer_makes_of_bytes_is_its_authors_word(encoding: Encoding) -> None:
    assert returned(Short(data=b"abcd"), Short, encoding).data != b"abcd"


@both
def test_what_a_validator_makes_of_times_and_bytes_is_its_authors_word(encoding: Encoding) -> None:
    value = Lowered.model_construct(name=b"A", at=datetime(2026, 11, 30, 1, 2, 3, 500_000, tzinfo=UTC))
    assert returned(value, Lowered, encoding) == Lowered(at=value.at, name=b"a")
