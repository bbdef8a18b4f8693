"""What a release may write over: all that the other one wrote and that its own types read whole, and nothing else."""

# mypy: disable-error-code="valid-type,misc,name-match"
from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from re import fullmatch
from typing import Any, Generic, NamedTuple, NewType, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
import typing_extensions as te

from statecache import SchemaNewer
from statecache.codec import codec_for
from statecache.model import Encoding
from statecache.schemas import schema_of
from tests.support.sample_values import AWARE, KEY, Colour, Point, both


def _model(**fields: Any) -> Any:
    given: dict[str, Any] = {one: kind if isinstance(kind, tuple) else (kind, ...) for one, kind in fields.items()}
    return pydantic.create_model("Run", __config__=pydantic.ConfigDict(frozen=True), **given)


class Call1(te.TypedDict):
    a: int


class Call2(te.TypedDict):
    z: te.NotRequired[int]
    a: te.Required[te.Annotated[int, "what"]]


Call1.__qualname__ = Call2.__qualname__ = "Call"
K1 = msgspec.defstruct("K", [("a", int)], frozen=True)
K2 = msgspec.defstruct("K", [("a", int), ("z", int, 0)], frozen=True)
T1 = msgspec.defstruct("T", [("a", int)], frozen=True, tag=True)
T2 = msgspec.defstruct("T", [("a", int), ("z", int, 0)], frozen=True, tag=True)
U = msgspec.defstruct("U", [("a", int), ("z", int, 0)], frozen=True, tag=True)
M1, M2 = _model(a=int), _model(a=int, z=(int, 0))
NONE: set[Any] = {frozenset()}
T = TypeVar("T")
STRUCTS = (K1, K1(1)), (K2, K2(1, 7))
TAGGED = (T1, T1(1)), (T2, T2(1, 7))
MODELS = (M1, M1(a=1)), (M2, M2(a=1, z=7))
L1, L2 = make_dataclass("L", [("a", int)]), make_dataclass("L", [("a", int), ("z", int, 0)])
LINES = (L1, L1(1)), (L2, L2(1, 7))
CALLS = (Call1, {"a": 1}), (Call2, {"z": 7, "a": 1})


def _run(kind: Any, part: Any) -> tuple[Any, Any]:
    made = _model(q=kind)
    return made, made(q=part)


def _root(kind: Any, part: Any) -> tuple[Any, Any]:
    made = type("Root", (pydantic.RootModel[kind],), {})
    return made, made(part)


def _alias(kind: Any) -> Any:
    return te.TypeAliasType("Calls", kind)


def _pair(kind: Any, part: Any) -> tuple[Any, Any]:
    made: Any = NamedTuple("Pair", [("of", kind)])
    return _run(made, made(part))


def _in_dataclass(kind: Any, part: Any) -> tuple[Any, Any]:
    made = make_dataclass("D", [("q", deque[kind])])
    return _run(made, made(deque([part])))


def _in_root(kind: Any, part: Any) -> tuple[Any, Any]:
    return _run(*_root(list[kind], [part]))


def _refused(ours: Any, theirs: Any, value: Any, encoding: Encoding) -> str:
    """Return the path that is refused where a release writes over what another one wrote; empty where none is."""
    wrote = codec_for(theirs, encoding)
    return _path(ours, wrote.encode(value, key=KEY, bytes_max=1 << 20)[0], wrote.schema, encoding)


def _path(ours: Any, data: bytes, schema: str, encoding: Encoding) -> str:
    reads, path = codec_for(ours, encoding), ""
    reads.decode(data, key=KEY)
    try:
        reads.refuse_to_drop(data, key=KEY, encoding=encoding, schema=schema)
    except SchemaNewer as error:
        path = error.path
    return path


class Page1(te.TypedDict, Generic[T]):
    of: T


class Page2(te.TypedDict, Generic[T]):
    of: T
    z: te.NotRequired[int]


Page, PAGES = Page1, ((Page1, {"of": 1}), (Page2, {"of": 1, "z": 7}))
Page1.__qualname__ = Page2.__qualname__ = "Page"


def _bound(kind: Any, part: Any) -> tuple[Any, Any]:
    of: Any = TypeVar("of", bound=kind)

    class Bound(pydantic.BaseModel, Generic[of]):
        of: of

    return _run(Bound, Bound(of=part))


def _again(kind: Any, part: Any) -> tuple[Any, Any]:
    pair: Any = NamedTuple("Pair", [("of", kind)])

    class Again(pair):
        pass

    return _run(Again, Again(part))


def _extras(kind: Any, part: Any) -> tuple[Any, Any]:
    space = {"__annotations__": {"__pydantic_extra__": dict[str, kind]}, "model_config": {"extra": "allow"}}
    made = type("Extras", (pydantic.BaseModel,), space)
    return made, made(x=part)


SHAPES: dict[str, tuple[Any, Any, str]] = {
    "set": (STRUCTS, lambda k, one: (set[k], {one}), "$[0].z"),
    "set of frozensets": (
        STRUCTS,
        lambda k, one: (set[frozenset[k]], {frozenset({one}), frozenset()}),
        "$[1][0].z",
    ),
    "set of tuples": (STRUCTS, lambda k, one: (set[tuple[k | None, ...]], {(one, None)}), "$[0][0].z"),
    "tagged set": (TAGGED, lambda k, one: (frozenset[k | U], frozenset({one, U(1, 7), U(2, 7)})), "$[0].z"),
    "set in a model": (MODELS, lambda k, one: _run(frozenset[k | int], frozenset({one, *range(30)})), "$.q[30].z"),
    "list": (MODELS, lambda k, one: _run(list[k], [one]), "$.q[0].z"),
    "typed dict": (CALLS, lambda k, one: _run(list[k], [one]), "$.q[0].z"),
    "typed dict in a root": (CALLS, lambda k, one: _root(dict[str, k], {"x": one}), "$.x.z"),
    "alias": (MODELS, lambda k, one: _run(_alias(list[k]), [one]), "$.q[0].z"),
    "alias in a list": (MODELS, lambda k, one: _run(list[_alias(k | None)], [None, one]), "$.q[1].z"),
    "root list": (MODELS, lambda k, one: _root(list[k], [one]), "$[0].z"),
    "root dict": (MODELS, lambda k, one: _root(dict[str, k], {"x": one}), "$.x.z"),
    "root model": (MODELS, _root, "$.z"),
    "root inside": (MODELS, _in_root, "$.q[0].z"),
    "deque": (MODELS, lambda k, one: _run(deque[k], deque([one])), "$.q[0].z"),
    "deque in a dataclass": (MODELS, _in_dataclass, "$.q.q[0].z"),
    "dataclass": (LINES, lambda k, one: _run(list[k], [one]), "$.q[0].z"),
    "new type": (MODELS, lambda k, one: _run(list[NewType("K", k)], [one]), "$.q[0].z"),
    "generic typed dict": (CALLS, lambda k, one: _run(Page[k], {"of": one}), "$.q.of.z"),
    "generic typed dict of its own": (PAGES, lambda k, one: _run(k[int], one), "$.q.z"),
    "bound": (MODELS, _bound, "$.q.of.z"),
    "named again": (MODELS, _again, "$.q[0].z"),
    "extras": (MODELS, _extras, "$.x.z"),
    "sequence": (MODELS, lambda k, one: _run(Sequence[k], [one]), "$.q[0].z"),
    "mapping": (MODELS, lambda k, one: _run(Mapping[int, k], {5: one}), "$.q['5'].z"),
    "namedtuple": (MODELS, _pair, "$.q[0].z"),
}


@both
@pytest.mark.parametrize(("releases", "shape", "path"), SHAPES.values(), ids=SHAPES)
def test_what_an_older_release_would_drop_is_refused_and_a_newer_one_goes_on(
    encoding: Encoding, releases: Any, shape: Any, path: str
) -> None:
    (old, wrote), (new, writes) = (shape(*one) for one in releases)
    assert _refused(old, new, writes, encoding) == path
    assert _refused(new, old, wrote, encoding) == ""
    assert _refused(new, new, writes, encoding) == ""


@both
@pytest.mark.parametrize(
    ("other", "beside"), [(int, {*range(50)}), (str, {*map(str, range(50))}), (None, {None}), (U, {U(1, 7), U(2)})]
)
def test_each_member_of_a_set_is_looked_at_whatever_else_is_in_it(encoding: Encoding, other: Any, beside: Any) -> None:
    for at in range(20):
        path = _refused(set[T1 | other], set[T2 | other], {*beside, T2(at, 7)}, encoding)
        assert fullmatch(r"\$\[\d+\]\.z", path)
        assert _refused(set[T2 | other], set[T1 | other], {*beside, T1(at)}, encoding) == ""


def _seen(kind: Any, value: Any, part: str = "") -> Any:
    fields: list[Any] = [("seen", kind)] + ([(part, int, 0)] if part else [])
    made = msgspec.defstruct("Seen", fields)
    return made, made(value)


SETS: dict[str, tuple[Any, Any]] = {
    "tuples of all lengths": (set[tuple[str, ...]], {("a",), ("b", "c"), (), ("d", "e", "f"), ("b",)}),
    "tagged": (frozenset[T2 | U], frozenset({T2(1), T2(2), U(1), U(3, 4)})),
    "moments": (set[tuple[datetime, int]], {(AWARE, at) for at in range(9)} | {(AWARE + timedelta(1), 3)}),
    "numbers": (set[tuple[Decimal, UUID, bytes]], {(Decimal("1.50"), UUID(int=at), b"%d" % at) for at in range(9)}),
    "colours": (set[tuple[Colour, float]], {(Colour.RED, 1.0), (Colour.RED, 0.5)}),
    "frozensets": (set[frozenset[str | None]], {frozenset({"a", None}), frozenset({"a"}), frozenset()}),
    "named": (set[Point], {Point(1, 0.5), Point(2, 0.5)}),
    "models in a struct": (set[M2], {M2(a=1), M2(a=2, z=3)}),
}


@both
@pytest.mark.parametrize(("kind", "value"), SETS.values(), ids=SETS)
def test_sets_of_all_kinds_are_read_whole(encoding: Encoding, kind: Any, value: Any) -> None:
    old, wrote = _seen(kind, value)
    new, writes = _seen(kind, value, "more")
    assert _refused(new, old, wrote, encoding) == ""
    assert _refused(old, new, writes, encoding) == "$.more"


def _aliased(**config: Any) -> Any:
    return _model(title=(str, pydantic.Field(**config)))


CHOICES, PATH = pydantic.AliasChoices, pydantic.AliasPath


@both
@pytest.mark.parametrize(
    ("kind", "plain", "path"),
    [
        (_aliased(validation_alias=CHOICES("title", "name")), {"name": "x"}, ""),
        (_aliased(validation_alias=CHOICES("title", "name")), {"title": "x"}, ""),
        (_aliased(validation_alias=CHOICES("title", "name")), {"title": "x", "name": "y"}, "$.name"),
        (_aliased(validation_alias=CHOICES("title", PATH("names", 0))), {"names": ["x"]}, ""),
        (_aliased(validation_alias=PATH("meta", "title")), {"meta": {"title": "x"}}, ""),
        (_aliased(alias="name"), {"name": "x", "title": "y"}, "$.title"),
    ],
)
def test_a_renamed_field_is_read_by_the_first_of_its_names(
    encoding: Encoding, kind: Any, plain: Any, path: str
) -> None:
    library: Any = msgspec.json if encoding == "json" else msgspec.msgpack
    assert _path(kind, library.encode(plain), "Run@1#0", encoding) == path


def test_a_model_is_another_where_its_field_is_stored_by_another_name() -> None:
    old, new = (_model(x=(int, pydantic.Field(0, alias=alias))) for alias in "mn")
    assert _refused(new, old, old(m=7), "json") == "$.m"
    lines = [make_dataclass("L", [("x", int, pydantic.Field(0, alias=alias))]) for alias in "mn"]
    old, new = (_model(q=pydantic.dataclasses.dataclass(line)) for line in lines)
    assert _refused(new, old, old(q={"m": 7}), "json") == "$.q.m"


def test_the_fingerprint_says_which_class_is_where() -> None:
    line = make_dataclass("Line", [("at", int), ("by", M1)])
    kept = _model(lines=list[line], first=M1 | None, more=dict[str, M1], any=Any)
    names = ["Run.lines: Line", "Run.first: Run", "Run.more: Run", "Run.any", "Run.a", "Line.at", "Line.by: Run"]
    assert schema_of(kept) == f"Run@1#{sha256(chr(10).join(sorted(names)).encode()).hexdigest()[:8]}"


@both
@pytest.mark.parametrize("of", [(K1, T2), (M1, M2)])
def test_a_field_that_is_of_another_class_than_before_is_looked_at(encoding: Encoding, of: Any) -> None:
    plain, detailed = of
    detailed.__qualname__ = "Detailed"
    made = [
        msgspec.defstruct("Run", [("first", plain), ("last", detailed | None, None), ("steps", list[steps], [])])
        for steps in (plain, detailed)
    ]
    one = detailed(a=1, z=7)
    assert _refused(made[0], made[1], made[1](plain(a=1), None, [one]), encoding).startswith("$.steps[0].")
    assert _refused(made[1], made[0], made[0](plain(a=1), one), encoding) == ""
