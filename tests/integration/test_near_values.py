"""What local reads make of the bytes that are kept: each view in its own way, and one value for all where it may be."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec
import pytest

from statecache import AsyncStateCache, CodecError, Settings
from tests.fixtures.servers import MakeSettings
from tests.support.local_reads import KEY, kept
from tests.support.sample_values import Box

pytestmark = pytest.mark.counts_seconds


@pytest.fixture
def settings(make_settings: MakeSettings, request: pytest.FixtureRequest) -> Settings:
    """Settings of clients that read locally."""
    return make_settings(**{"read": "local"} | getattr(request, "param", {}))


class Old(msgspec.Struct):
    """A state as it was written first; it can be changed, so every reader has one of its own."""

    goal: str


class New(msgspec.Struct):
    """The same in a later version, which was renamed."""

    __schema_version__: ClassVar[int] = 2

    aim: str


class Dated(msgspec.Struct):
    """A class of which no value with a naive time is read."""

    at: datetime


async def test_views_of_one_state_read_it_each_in_their_own_way(one: AsyncStateCache) -> None:
    runs = one.namespace("runs")
    await runs.set("1", {"goal": "tea"})
    await kept(one, "runs/1")
    old = one.namespace("runs", type=Old)
    new = one.namespace("runs", type=New, upgrade={0: lambda value: value, 1: lambda value: {"aim": value["goal"]}})
    hits = one.near.hits
    for _ in range(3):
        for view, value in ((runs, {"goal": "tea"}), (old, Old("tea")), (new, New("tea"))):
            first, second = await view.get("1"), await view.get("1")
            assert first is not None
            assert second is not None
            assert (first.value, second.value) == (value, value)
            assert first.value is not second.value
        with pytest.raises(CodecError, match="Expected `int`"):
            await one.get("runs/1", type=dict[str, int])
    assert one.near.hits == hits + 21


class Frozen(msgspec.Struct, frozen=True):
    """A class of which a value may be shared, where there is room for it."""

    steps: tuple[int, ...]


@pytest.mark.parametrize("settings", [{"near_bytes_max": 20_000}], indirect=True)
async def test_what_takes_more_room_than_there_is_once_decoded_is_decoded_for_every_reader(
    one: AsyncStateCache,
) -> None:
    frozen = Frozen(tuple(range(1000, 2000)))
    runs = one.namespace("runs", type=Frozen)
    await runs.set("1", frozen)
    await kept(one)
    for _ in range(3):
        first, second = await runs.get("1"), await runs.get("1")
        assert first is not None
        assert second is not None
        assert (first.value, second.value) == (frozen, frozen)
        assert first.value is not second.value


async def test_what_is_wrong_with_a_value_is_told_to_every_reader(one: AsyncStateCache) -> None:
    await one.set(KEY, {"at": "2026-01-01T00:00:00"})
    await kept(one)
    for _ in range(3):
        with pytest.raises(CodecError, match="at"):
            await one.get(KEY, type=Dated)
        assert (await one.get(KEY, type=dict[str, str])).value == {"at": "2026-01-01T00:00:00"}  # type: ignore[union-attr]


async def test_one_value_of_a_generic_class_that_nobody_can_change_is_shared(one: AsyncStateCache) -> None:
    boxes = one.namespace("boxes", type=Box[int])
    await boxes.set("a", Box(1))
    await kept(one, "boxes/a")
    first, second = [await boxes.get("a"), *(await boxes.get_many(["a"])).values()]
    assert first is not None
    assert second is not None
    assert first.value == Box(1)
    assert first.value is second.value
