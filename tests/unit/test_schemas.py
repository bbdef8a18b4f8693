"""What a schema says of a type, and what one release may do about what another one wrote."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from statecache import SchemaNewer
from statecache.codec import codec_for
from statecache.model import Encoding
from statecache.schemas import Schema, judged, left_out, schema_of
from tests.support.releases import NEW, OLD, release
from tests.support.sample_values import KEY, Account, Basket, Colour, Message, OpenOrder, Order, Run, Shelf, Tree, both


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
    assert (
        left_out(codec_for(kind, encoding).decode(data, key=KEY), codec_for(Any, encoding).decode(data, key=KEY))
        == path
    )


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
