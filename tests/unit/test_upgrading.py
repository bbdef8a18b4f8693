"""Values that an earlier version of a type wrote: read through its upgrades, stored anew by the next write."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from statecache import CodecError, SchemaNewer, UsageError
from statecache.codec import codec_for
from statecache.expiry import ending
from statecache.model import Encoding
from statecache.testing import memory
from statecache.upgrading import UpgradingCodec


class V1(msgspec.Struct):
    """The first release's run."""

    goal: str
    left: str


class V2(msgspec.Struct):
    """The second one's: what is left is a list, and two fields are gone or new."""

    __schema_version__ = 2
    goal: str
    steps: list[str]


class V3(msgspec.Struct, frozen=True):
    """The third one's."""

    __schema_version__ = 3
    goal: str
    steps: tuple[str, ...]
    budget: float


class Model(BaseModel):
    """A model of pydantic's, at its second version."""

    __schema_version__ = 2
    goal: str


def from_1(run: Any) -> Any:
    return {"goal": run["goal"], "steps": run["left"].split()}


def from_2(run: Any) -> Any:
    return run | {"budget": 0.5}


UPGRADE = {1: from_1, 2: from_2}
NOW = V3("refund", ("look", "pay"), 0.5)


@pytest.mark.parametrize("stored", ["json", "msgpack"])
@pytest.mark.parametrize("ours", ["json", "msgpack"])
@pytest.mark.parametrize("value", [V1("refund", "look pay"), V2("refund", ["look", "pay"]), NOW], ids=["1", "2", "3"])
def test_every_version_is_read_as_the_newest(value: Any, stored: Encoding, ours: Encoding) -> None:
    wrote = codec_for(type(value), stored)
    data, _ = wrote.encode(value, key="k", bytes_max=999)
    reads = UpgradingCodec(V3, UPGRADE, encoding=ours)
    assert reads.decode(data, key="k", encoding=stored, schema=wrote.schema) == NOW
    reads.refuse_to_drop(data, key="k", encoding=stored, schema=wrote.schema)


class Blob1(msgspec.Struct):
    """What has bytes, and numbers as keys."""

    __schema_version__ = 1
    blob: bytes
    by_number: dict[int, str] = {}


class Blob2(msgspec.Struct):
    """The next release's."""

    __schema_version__ = 2
    data: bytes
    by_number: dict[int, str] = {}
    count: int = 0


def _renamed(blob: Any) -> Any:
    return {"data": blob["blob"], "by_number": blob["by_number"], "count": 1}


@pytest.mark.parametrize("stored", ["json", "msgpack"])
@pytest.mark.parametrize("ours", ["json", "msgpack"])
def test_bytes_and_keys_are_upgraded_in_the_form_that_they_are_stored_in(stored: Encoding, ours: Encoding) -> None:
    wrote = codec_for(Blob1, stored)
    data, _ = wrote.encode(Blob1(b"\xff\0", {7: "x"}), key="k", bytes_max=999)
    reads = UpgradingCodec(Blob2, {1: _renamed}, encoding=ours)
    for encoding in (stored, ending(stored, datetime(2030, 1, 1, tzinfo=UTC))):
        assert reads.decode(data, key="k", encoding=encoding, schema=wrote.schema) == Blob2(b"\xff\0", {7: "x"}, 1)


@pytest.mark.parametrize("stored", ["json", "msgpack"])
@pytest.mark.parametrize("ours", ["json", "msgpack"])
@pytest.mark.parametrize("given", [b"\xff\0", "/wA="])
def test_an_upgrade_gives_bytes_in_either_form(stored: Encoding, ours: Encoding, given: Any) -> None:
    wrote = codec_for(V1, stored)
    data, _ = wrote.encode(V1("g", "l"), key="k", bytes_max=999)
    reads = UpgradingCodec(Blob2, {1: lambda _: {"data": given}}, encoding=ours)
    assert reads.decode(data, key="k", encoding=stored, schema=wrote.schema) == Blob2(b"\xff\0")


def test_a_version_may_be_a_date() -> None:
    dated: Any = msgspec.defstruct("Dated", [("a", int)])
    dated.__schema_version__ = 2**62
    began = perf_counter()
    with pytest.raises(UsageError, match="every version from the first to the last"):
        UpgradingCodec(dated, {1: from_1}, encoding="json")
    with pytest.raises(UsageError, match="a dictionary of versions"):
        UpgradingCodec(dated, {10**5000: from_1}, encoding="json")
    assert perf_counter() - began < 1
    reads = UpgradingCodec(dated, {2**62 - 1: from_1, 2**62 - 2: lambda one: one}, encoding="json")
    assert reads.decode(b'{"goal":"g","left":"","a":1}', key="k", schema=f"Dated@{2**62}#0") == dated(1)


def test_version_0_is_what_was_written_without_a_type() -> None:
    reads = UpgradingCodec(V3, {0: lambda text: {"goal": text, "left": "look pay"}, **UPGRADE}, encoding="json")
    assert reads.decode(b'"refund"', key="k", encoding="json") == NOW
    assert UpgradingCodec(V3, UPGRADE, encoding="json").decode(
        b'{"goal":"refund","steps":["look","pay"],"budget":0.5}', key="k"
    ) == NOW  # fmt: skip


def test_an_upgrade_may_give_the_value_itself() -> None:
    def whole(run: Any) -> V3:
        return V3(run["goal"], tuple(run["steps"]), 0.5)

    reads = UpgradingCodec(V3, {2: whole}, encoding="json")
    data, _ = codec_for(V2).encode(V2("refund", ["look", "pay"]), key="k", bytes_max=999)
    assert reads.decode(data, key="k", schema=codec_for(V2).schema) == NOW
    models = UpgradingCodec(Model, {1: lambda run: {"goal": run["goal"]}}, encoding="json")
    assert models.decode(b'{"goal":"g","left":""}', key="k", schema="V1@1#0") == Model(goal="g")


def test_an_upgrade_that_fails_says_which_and_where() -> None:
    reads = UpgradingCodec(V2, {1: from_1}, encoding="json")
    with pytest.raises(CodecError, match=r"its upgrade from version 1 failed: KeyError: .left.") as caught:
        reads.decode(b'{"goal":"g"}', key="runs/42", schema="V1@1#0")
    assert caught.value.key == "runs/42"
    with pytest.raises(CodecError, match="its upgrade from version 1 made what does not fit") as caught:
        UpgradingCodec(V2, {1: lambda run: run}, encoding="json").decode(b'{"goal":"g"}', key="k", schema="V1@1#0")
    assert "steps" in caught.value.reason
    assert "plain data" not in str(caught.value)
    with pytest.raises(CodecError, match="it was written as V2@9, and is read as V2@2"):
        UpgradingCodec(V2, {1: from_1}, encoding="json").decode(b'{"aim":"g"}', key="k", schema="V2@9#0")


def test_what_is_newer_is_never_upgraded_nor_written_over() -> None:
    reads = UpgradingCodec(V2, {1: from_1}, encoding="json")
    data, schema = b'{"goal":"g","steps":[],"budget":1.0}', "V2@3#0"
    assert reads.decode(data, key="k", schema=schema) == V2("g", [])
    with pytest.raises(SchemaNewer):
        reads.refuse_to_drop(data, key="k", encoding="json", schema=schema)
    with pytest.raises(SchemaNewer):  # of another name, only the data tell
        reads.refuse_to_drop(data, key="k", encoding="json", schema="V3@3#0")


@pytest.mark.parametrize(
    ("kind", "upgrade", "what"),
    [
        (V3, {}, "a dictionary of versions"),
        (V3, {1: from_1}, "every version"),
        (V3, {1: from_1, 2: from_2, 3: from_2}, "every version"),
        (V3, {-1: from_1, 0: from_1, **UPGRADE}, "every version"),
        (V3, {1: from_1, 2: "no function"}, "a dictionary of versions"),
        (V1, {1: from_1}, "every version"),
        (V2, {True: from_1}, "a dictionary of versions"),
        (V3, {1: from_1, 3: from_2}, "every version"),
        (V2, from_1, "a dictionary of versions"),
        (V2, [from_1], "a dictionary of versions"),
        (Any, {1: from_1}, "needs type="),
        (dict[str, V2], {1: from_1}, "needs type="),
    ],
)
def test_upgrades_that_do_not_fit_the_type_are_refused(kind: Any, upgrade: Any, what: str) -> None:
    with memory(shards=1) as cache, pytest.raises(UsageError, match=what):
        cache.namespace("runs", type=kind, upgrade=upgrade)


def test_raw_bytes_have_no_versions() -> None:
    with memory(shards=1) as cache, pytest.raises(UsageError, match="raw bytes"):
        cache.namespace("runs", type=bytes, encoding="raw", upgrade={0: bytes})


def test_a_view_within_keeps_its_upgrades_and_another_type_has_none() -> None:
    with memory(shards=1) as cache:
        runs = cache.namespace("runs", type=V2, upgrade={1: from_1})
        cache.namespace("runs", type=V1).set("42/plan", V1("g", "a b"))
        assert runs.get("42/plan").value == V2("g", ["a", "b"])  # type: ignore[union-attr]
        assert runs.namespace("42").get("plan").value == V2("g", ["a", "b"])  # type: ignore[union-attr]
        assert runs.namespace("42", type=V1).get("plan").value == V1("g", "a b")  # type: ignore[union-attr]
        with runs.lock("42/plan") as lease:
            assert lease.get("42/plan").value == V2("g", ["a", "b"])  # type: ignore[union-attr]


def test_every_verb_reads_upgraded_and_writes_the_newest() -> None:
    with memory(shards=1) as cache:
        cache.namespace("runs", type=V1).set_many({name: V1("refund", "look pay") for name in "abcdef"})
        runs: Any = cache.namespace("runs", type=V3, upgrade=UPGRADE)
        assert [state.value for state in runs.list()] == [NOW] * 6
        assert {name: state.value for name, state in runs.get_many([*"abc"]).items()} == dict.fromkeys("abc", NOW)
        assert [change.value for change in runs.changes(follow=False)] == [NOW] * 6
        assert runs.wait_for("a").value == NOW
        before = runs.get("a")
        assert (before.schema.partition("#")[0], before.version) == ("V1@1", 1)
        assert runs.update("a", lambda run: run).schema.startswith("V3@3#")
        assert runs.set("b", NOW, expected=runs.get("b")).schema.startswith("V3@3#")
        with runs.transaction("c") as tx:
            tx.set("c", tx.get("c").value)
        assert tx.states["c"].schema.startswith("V3@3#")
        assert runs.step("d", "s", lambda step: 7, apply=lambda run, result: run) == 7
        assert runs.get("d").schema.startswith("V3@3#")
        assert runs.copy("e", "e/copy").value == NOW
        assert [state.schema.partition("#")[0] for state in cache.list("runs/", after="runs/e", limit=2)] == [
            "V1@1", "V1@1"
        ]  # fmt: skip
        with pytest.raises(CodecError, match="V3@3, and is read as V1@1, which is older"):
            cache.namespace("runs", type=V1).update("a", lambda run: run, default=V1("", ""))
        with pytest.raises(CodecError, match=r"V1@1, and is read as V3@3: give namespace\(\) an upgrade="):
            cache.namespace("runs", type=V3).get("f")
        assert runs.get("a").value == NOW


async def test_an_asynchronous_view_has_upgrades_too() -> None:
    async with memory(shards=1) as cache:
        await cache.set("runs/42", V1("refund", "look pay"))
        runs: Any = cache.namespace("runs", type=V3, upgrade=UPGRADE)
        read = await asyncio.gather(*(runs.get("42") for _ in range(3)))
        assert [state.value for state in read] == [NOW] * 3
