"""Pydantic models that write a field otherwise than they read it: refused, unless that is their author's word."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
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


# What a model writes in one form and reads in another.

FORMS = ["utf8", "base64", "hex"]


def _blob_model(written: Any, read: Any) -> Any:
    class Blob(BaseModel):
        model_config = ConfigDict(ser_json_bytes=written, val_json_bytes=read)
        data: bytes = b""
        more: list[bytes] = []
        some: set[bytes] = set()

    return Blob


@both
@pytest.mark.parametrize("read", FORMS)
@pytest.mark.parametrize("written", FORMS)
def test_bytes_that_a_model_does_not_read_as_it_writes_them_are_refused(
    encoding: Encoding, written: Any, read: Any
) -> None:
    kind = _blob_model(written, read)
    for data in (b"hello", b"aGVsbG8=", b"deadbeef", b"DEADBEEF", b"a-_b"):
        values = {"$.data": kind(data=data), "$.more[1]": kind(more=[b"", data]), "$.some[...]": kind(some={data})}
        for path, value in values.items():
            if written == read:
                assert returned(value, kind, encoding) == value
            else:
                assert refused(value, kind, encoding).path in (path, "$.some[0]")  # by pydantic, which cannot read it


@both
@pytest.mark.parametrize(
    ("written", "read"), [("base64", "utf8"), ("hex", "utf8"), ("utf8", "base64"), ("hex", "base64")]
)
def test_the_reason_says_what_to_set(encoding: Encoding, written: Any, read: Any) -> None:
    kind = _blob_model(written, read)
    error = refused({"a": [kind(data=b"deadbeef")]}, dict[str, list[kind]], encoding)  # type: ignore[valid-type]
    assert error.path == "$.a[0].data"
    assert "a form in which it does not read" in error.reason


class Stripped(BaseModel):
    data: bytes = b""
    left_out: bytes = Field(default=b"", exclude=True)

    @field_serializer("data")
    def _stripped(self, data: bytes) -> bytes:
        return data.strip()


@both
def test_bytes_that_an_author_changes_or_leaves_out_are_let_through(encoding: Encoding) -> None:
    value = Stripped(data=b" a ", left_out=b"b")
    assert returned(value, Stripped, encoding) == Stripped(data=b"a")


class InSeconds(BaseModel):
    model_config = ConfigDict(ser_json_timedelta="float")
    lasts: timedelta = timedelta()


class InMilliseconds(BaseModel):
    model_config = ConfigDict(ser_json_temporal="milliseconds")
    lasts: timedelta = timedelta()
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


class InSecondsToo(BaseModel):
    model_config = ConfigDict(ser_json_temporal="seconds")
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


EARLY, LATE, LATER = (datetime(year, 3, 1, microsecond=1, tzinfo=UTC) for year in (1970, 2400, 2900))


@both
@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (InSeconds(lasts=timedelta(days=400000, microseconds=1)), "$.lasts", "a float cannot hold"),
        (InMilliseconds(lasts=timedelta(seconds=16)), "$.lasts", "does not read"),
        (InMilliseconds(lasts=-timedelta(seconds=16)), "$.lasts", "does not read"),
        (InMilliseconds(at=EARLY), "$.at", "does not read"),
        (InSecondsToo(at=LATER), "$.at", "does not read"),
        (InSecondsToo(at=LATE), "$.at", "a float cannot hold"),
    ],
)
def test_a_time_that_comes_back_as_another_is_refused(
    encoding: Encoding, value: BaseModel, path: str, reason: str
) -> None:
    error = refused(value, type(value), encoding)
    assert error.path == path
    assert reason in error.reason


@both
@pytest.mark.parametrize(
    "value",
    [
        InSeconds(lasts=timedelta(days=9000, microseconds=123457)),
        InSeconds(lasts=timedelta(days=400000)),
        InMilliseconds(at=datetime(2026, 1, 1, 1, 2, 3, 456789, tzinfo=UTC)),
        InSecondsToo(at=datetime(2026, 1, 1, 1, 2, 3, 456789, tzinfo=UTC)),
    ],
)
def test_a_time_that_a_number_holds_is_stored(encoding: Encoding, value: BaseModel) -> None:
    assert returned(value, type(value), encoding) == value


class Coarse(BaseModel):
    lasts: timedelta = timedelta()
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    @field_serializer("lasts")
    def _whole_seconds(self, lasts: timedelta) -> int:
        return int(lasts.total_seconds())

    @field_serializer("at")
    def _to_the_second(self, at: datetime) -> str:
        return at.replace(microsecond=0).isoformat()


@both
def test_a_time_that_its_author_rounds_is_let_through(encoding: Encoding) -> None:
    value = Coarse(lasts=timedelta(seconds=1.5), at=datetime(2026, 1, 1, 1, 1, 1, 7, tzinfo=UTC))
    assert returned(value, Coarse, encoding).lasts == timedelta(seconds=1)
