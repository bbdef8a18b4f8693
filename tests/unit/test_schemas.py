"""What a schema says of a type, and what one release may do about what another one wrote."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, NewType, TypedDict

import msgspec
import pydantic
import pytest
import typing_extensions as te

from statecache import CodecError, SchemaNewer
from statecache.codec import codec_for
from statecache.model import Encoding
from statecache.schemas import Schema, common, judged, schema_of
from statecache.testing import memory
from statecache.unread import Twin
from tests.support.releases import NEW, OLD, release
from tests.support.sample_values import (
    ACCOUNT,
    KEY,
    Account,
    Basket,
    Colour,
    Message,
    OpenOrder,
    Order,
    Run,
    Shelf,
    Tree,
    both,
)


@pytest.mark.parametrize(
    ("kind", "stem"),
    [
        (Any, ""),
        (None, ""),
        (dict, ""),
        (datetime, ""),
        (Colour, "Colour@1"),
        (list[Run], "#"),
        (Run | None, "#"),
        (Run, "Run@1#"),
        (Account, "Account@3#"),
        (Order, "Order@2#"),
        (Message, "Message@1#"),
        (Tree, "Tree@1#"),
        (Shelf[int], "Shelf@1#"),
    ],
)
def test_a_schema_names_a_class_its_version_and_its_fields(kind: Any, stem: str) -> None:
    schema = codec_for(kind).schema
    assert schema == stem or (stem.endswith("#") and schema.startswith(stem) and len(schema) == len(stem) + 8)


def test_the_fingerprint_is_of_the_stored_names_of_all_records_inside() -> None:
    class Renamed(msgspec.Struct, rename="camel"):
        some_steps: int

    of_old, of_new = (release("Outer", inner=(list.__class_getitem__(inner), [])) for inner in (OLD, NEW))
    kinds = [OLD, NEW, release("Run", goal=(str,), stepz=(int, 0)), of_old, of_new, Renamed]
    assert len({schema_of(kind) for kind in kinds}) == len(kinds)
    assert schema_of(OLD) == schema_of(release("Run", steps=(int, 1), goal=(str | None, None)))


def test_a_schema_is_read_in_its_parts() -> None:
    assert Schema.parse("Run.Inner@12#00ff00ff") == ("Run.Inner", 12, "00ff00ff")
    assert [Schema.parse(text) for text in ("Run@1", "#00ff00ff", "")] == [
        ("Run", 1, ""),
        ("", 0, "00ff00ff"),
        ("", 0, ""),
    ]


@pytest.mark.parametrize(
    ("stored", "ours", "verdict"),
    [
        ("Run@1#aa", "Run@1#aa", "free"),
        ("Run@1#aa", "", "free"),
        ("Run@2#bb", "Run@1#aa", "newer"),
        ("Run@1#aa", "Run@2#bb", "free"),
        ("Run@1#bb", "Run@1#aa", "look"),
        ("Walk@9#bb", "Run@1#aa", "look"),
        ("", "Run@1#aa", "look"),
        ("#bb", "#aa", "look"),
    ],
)
def test_what_the_schemas_alone_say(stored: str, ours: str, verdict: str) -> None:
    assert judged(stored, ours) == verdict


class Kept(TypedDict, total=False):
    name: str


@dataclass
class Box:
    runs: list[Run]


class Row(msgspec.Struct, array_like=True):
    first: int
    second: int = 0


class Place(msgspec.Struct, array_like=True, tag=True):
    first: int


class Tagged(msgspec.Struct, tag=True, omit_defaults=True):
    name: str
    below: dict[int, Run] = {}


class Deep(pydantic.BaseModel):
    order: Order


@both
@pytest.mark.parametrize(
    ("kind", "plain", "path"),
    [
        (Run, {"step": 1}, ""),
        (Run, {"step": 1, "more": 2}, "$.more"),
        (Run, {"step": 1, "notes": {"any": {"thing": [1]}}}, ""),
        (Run, {"step": 1, "steps": [{"name": "a"}, {"name": "b", "more": 1}]}, "$.steps[1].more"),
        (list[Run], [{"step": 1, "steps": [{"name": "a", "odd name": 1}]}], "$[0].steps[0]['odd name']"),
        (Kept, {"name": "a", "other": 1}, "$.other"),
        (Box, {"runs": [{"step": 1}, {"step": 1, "x": 1}]}, "$.runs[1].x"),
        (Row, [1], ""),
        (Row, [1, 2, 3], "$[2]"),
        (Row, [1, 2, 3, 4], "$[2]"),
        (list[Place], [["Place", 1], ["Place", 1, 2, 3]], "$[1][2]"),
        (Tagged, {"type": "Tagged", "name": "a", "below": {"1": {"step": 1}}}, ""),
        (Tagged, {"type": "Tagged", "name": "a", "below": {"1": {"step": 1, "x": 1}}}, "$.below['1'].x"),
        (Tree, {"below": [{"below": [{"x": 1}]}]}, "$.below[0].below[0].x"),
        (Order, {"id": 1, "w": 2.5}, ""),
        (Order, {"id": 1, "x": 2.5}, "$.x"),
        (OpenOrder, {"id": 1, "x": 2.5}, ""),
        (Basket, {"order": {"id": 1, "x": 1}}, "$.order.x"),
        (Deep, {"order": {"id": 1, "x": 1}}, "$.order.x"),
        (Run | None, None, ""),
        (set[tuple[int, int]], [[1, 2]], ""),
        (dict[str, Any], {"x": {"y": [1, {"z": 2}]}}, ""),
    ],
)
def test_what_a_type_leaves_out_is_found(encoding: Encoding, kind: Any, plain: Any, path: str) -> None:
    if encoding == "msgpack" and kind is Tagged:
        plain = plain | {"below": {int(name): below for name, below in plain["below"].items()}}
        path = path.replace("'1'", "1")
    data = (msgspec.json if encoding == "json" else msgspec.msgpack).encode(plain)
    assert Twin(kind).left_out(codec_for(Any, encoding).decode(data, key=KEY), dict) == path


def test_what_may_hold_more_than_its_typed_dict_names_is_looked_at_even_where_all_names_are_the_same() -> None:
    before = f"Kept@1#{sha256(b'Kept.name').hexdigest()[:8]}"  # as it was written where no key was refused
    codec = codec_for(Kept)
    codec.refuse_to_drop(b'{"name":"a"}', key=KEY, encoding="json", schema=before)
    with pytest.raises(SchemaNewer, match=r"does not know \$.other"):
        codec.refuse_to_drop(b'{"name":"a","other":1}', key=KEY, encoding="json", schema=before)


def test_a_newer_release_may_do_without_fields_where_its_version_says_so() -> None:
    newer = release("Run", version=2, goal=(str,))
    data, schema = b'{"goal":"x","steps":3}', codec_for(OLD).schema
    codec_for(newer).refuse_to_drop(data, key=KEY, encoding="json", schema=schema)
    same = release("Run", goal=(str,))
    with pytest.raises(SchemaNewer, match=r"does not know \$.steps"):
        codec_for(same).refuse_to_drop(data, key=KEY, encoding="json", schema=schema)
    with pytest.raises(SchemaNewer, match="which is newer than Run@1"):
        codec_for(OLD).refuse_to_drop(b'{"goal":"x"}', key=KEY, encoding="json", schema=codec_for(newer).schema)


R1, R2 = (release("Refund", version, amount=(int,)) for version in (1, 2))


@both
@pytest.mark.parametrize("kinds", [(R1 | None, R2 | None), (R1 | int, R2 | str)])
def test_the_version_of_a_class_counts_where_the_type_is_a_union_with_it(encoding: Encoding, kinds: Any) -> None:
    with memory(shards=1) as cache:
        old, new = (cache.namespace("runs", type=kind, encoding=encoding) for kind in kinds)
        state = new.set("42", R2(500))
        assert state.schema == schema_of(R2)
        read = old.get("42")
        with pytest.raises(SchemaNewer, match="Refund@2"):
            old.update("42", lambda refund: refund)
        with pytest.raises(SchemaNewer, match="Refund@2"):
            old.set("42", R1(1), expected=read)
        with pytest.raises(SchemaNewer, match="Refund@2"), old.transaction("42") as tx:
            tx.set("42", R1(1))
        with pytest.raises(SchemaNewer, match="Refund@2"):
            cache.update("runs/42", lambda refund: refund, type=kinds[0])
        assert new.update("42", lambda refund: R2(refund.amount + 1)).schema == schema_of(R2)
        assert cache.update("runs/42", lambda refund: refund, type=kinds[1]).schema == schema_of(R2)
        assert old.set("42", R1(5)).schema == schema_of(R1)
        assert new.update("42", lambda refund: R2(refund.amount * 100)).value == R2(500)


@both
def test_a_version_that_cannot_be_read_as_a_member_of_a_union_counts_too(encoding: Encoding) -> None:
    newer = release("Refund", 2, amount=(str,))
    with memory(shards=1) as cache:
        new, old = (cache.namespace("runs", type=kind | None, encoding=encoding) for kind in (newer, R1))
        state = new.set("42", newer("5 EUR"))
        with pytest.raises(SchemaNewer, match="Refund@2"), old.transaction("42") as tx:
            tx.set("42", R1(1))
        with pytest.raises(SchemaNewer, match="Refund@2"):
            old.set("42", R1(1), expected=state.change_id)
        with pytest.raises(CodecError, match="written as Refund@2, and is read as Refund@1, which is older"):
            old.get("42")
        assert new.update("42", lambda refund: refund).version == 2


def test_what_was_written_as_a_union_is_still_written_over() -> None:
    data, old, new = b'{"amount":5}', codec_for(R1 | None), codec_for(R2 | None)
    assert old.schema == new.schema == schema_of(R1 | None)
    assert old.schema.startswith("#")
    for codec in (old, new, codec_for(R2)):
        codec.refuse_to_drop(data, key=KEY, encoding="json", schema=old.schema)
    with pytest.raises(SchemaNewer, match=r"does not know \$.more"):
        new.refuse_to_drop(b'{"amount":5,"more":1}', key=KEY, encoding="json", schema="#0")


class Done(msgspec.Struct, tag=True):
    pass


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (Run | None, Run(1), Run),
        (Run | None, None, Run | None),
        (Order | None, Order(id=1), Order),
        (Done | None, Done(), Done),
        (Done | Tagged, Done(), Done),
        (Done | Tagged, Tagged("a"), Tagged),
        (Annotated[Account | None, msgspec.Meta(description="whose")], ACCOUNT, Account),
        (Annotated[Done | Tagged, "one of them"] | None, Done(), Done),
        (NewType("Refunds", R1 | None), R1(1), R1),
        (list[Run] | None, [Run(1)], list[Run] | None),
        (Shelf[Run] | None, Shelf((), None), Shelf[Run]),  # type: ignore[arg-type]
        (Annotated[Run, msgspec.Meta(description="which")], Run(1), Run),
        (Annotated[Run, msgspec.Meta(description="which")] | None, Run(1), Run),
        (Run, Run(1), Run),
        (Any, Run(1), Run),
        (Any, {"a": 1}, Any),
    ],
)
def test_a_value_of_a_union_is_written_as_its_class(kind: Any, value: Any, written: Any) -> None:
    codec = codec_for(kind)
    assert codec.schema_for(value) == schema_of(written)
    assert codec.schema_for(value) in codec.known or kind is Any


@pytest.mark.parametrize(
    ("stored", "refused"),
    [
        ("Refund@3#aa", True),
        ("Refund@1#aa", False),
        ("Refund@2#aa", True),
        ("Walk@9#aa", True),
        ("#aa", True),
        ("", True),
    ],
)
def test_what_the_schemas_of_a_union_say(stored: str, refused: bool) -> None:
    tagged = msgspec.defstruct("Refund", [("amount", int)], tag=True)
    tagged.__schema_version__ = 2  # type: ignore[attr-defined]
    data = b'{"type":"Refund","amount":1,"more":1}'
    for kind in (tagged | Done, tagged | None, tagged):
        with pytest.raises(SchemaNewer) if refused else nullcontext():
            codec_for(kind).refuse_to_drop(data, key=KEY, encoding="json", schema=stored)
    codec_for(int | None).refuse_to_drop(b"1", key=KEY, encoding="json", schema=stored)


@pytest.mark.parametrize(
    ("schemas", "schema"),
    [
        (["Run@1#aa"], "Run@1#aa"),
        (["Run@1#aa", "Run@1#bb"], "Run@1#"),
        (["Run@1#aa", "Run@2#aa"], ""),
        (["Run@1#aa", "Walk@1#aa"], ""),
        (["#aa", "#bb"], ""),
        (["#aa"], "#aa"),
        (["Run@1#aa", ""], ""),
        ([], ""),
    ],
)
def test_what_is_made_of_several_is_of_the_class_and_version_of_all(schemas: list[str], schema: str) -> None:
    assert common(schemas) == schema
    assert judged("Run@1#", "Run@1") == "look"


def test_what_was_merged_without_a_type_is_upgraded_as_its_version() -> None:
    with memory(shards=1) as cache:
        cache.set("runs/main", OLD("a", 1))
        cache.branch("runs/main", "runs/side")
        cache.set("runs/side", NEW("a", 1, 7.5))
        cache.set("runs/main", OLD("b", 1))
        state = cache.merge("runs/side", "runs/main")
        assert (state.value, state.schema) == ({"goal": "b", "steps": 1, "budget": 7.5}, "Run@1#")
        newest = release("Run", version=2, aim=(str,))
        runs = cache.namespace("runs", type=newest, upgrade={1: lambda run: {"aim": run["goal"]}})
        assert runs.get("main").value == newest("b")  # type: ignore[union-attr]
        with pytest.raises(SchemaNewer, match="budget"):
            cache.namespace("runs", type=OLD).update("main", lambda run: run)


def test_a_typed_dict_of_typing_extensions_is_a_type_like_others() -> None:
    class Named(te.TypedDict):
        name: str

    with memory(shards=1) as cache:
        views = cache.namespace("kept", type=Named)
        views.set("a", {"name": "b"})
        assert views.update("a", lambda named: {"name": named["name"] + "c"}).value == {"name": "bc"}
