"""What `default=` gives: a value of the type that is read, and one of its own to every caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from statecache import AsyncStateCache, UsageError
from statecache.testing import memory
from tests.support.awaited import awaited


class Talk(msgspec.Struct):
    """A value that can be changed."""

    said: list[str] = []


@pytest.fixture(params=["async", "sync"])
async def cache(request: pytest.FixtureRequest) -> AsyncIterator[AsyncStateCache]:
    """A client in memory: the asynchronous one, and again the synchronous one."""
    deployment = memory()
    client: Any = deployment.async_client() if request.param == "async" else awaited(deployment.client())
    yield client
    await client.close()


async def _set_and_deleted(cache: AsyncStateCache, key: str) -> None:
    await cache.set(key, ["other"])
    await cache.delete(key)


async def test_a_function_that_is_called_again_gets_the_default_as_it_was_given() -> None:
    async with memory() as cache:
        given: list[str] = []
        seen: list[list[str]] = []

        async def add(value: list[str]) -> list[str]:
            seen.append([*value])
            value.append("x")
            if len(seen) == 1:
                await _set_and_deleted(cache, "runs/1")  # somebody else was quicker
            return value

        assert (await cache.update("runs/1", add, default=given)).value == ["x"]
        assert (await cache.update("runs/2", add, default=given)).value == ["x"]
        assert (seen, given) == ([[], [], []], [])


@pytest.mark.parametrize(
    ("kind", "default"), [(Any, {"said": []}), (Talk, Talk([])), (Any, Talk([])), (list[str] | None, [])]
)
async def test_what_a_caller_does_to_a_default_no_other_one_sees(
    cache: AsyncStateCache, kind: Any, default: Any
) -> None:
    for _ in range(2):
        state = await cache.get("runs/1", type=kind, default=default)
        assert (state.value, state.value.__class__) == (default, default.__class__)
        assert state.value is not default
        (state.value["said"] if kind is Any and isinstance(state.value, dict) else _said(state.value)).append("x")
    assert _said(default) == []


def _said(value: Any) -> list[str]:
    if isinstance(value, list):
        return value
    said: list[str] = value["said"] if isinstance(value, dict) else value.said
    return said


async def test_a_step_s_default_is_copied_too(cache: AsyncStateCache) -> None:
    given: list[str] = []
    for key in ("runs/1", "runs/2"):
        await cache.step(
            key, "s", lambda step: 1, apply=lambda value, result: value.append("x") or value, default=given
        )
    assert given == []
    state = await cache.get("runs/2")
    assert state is not None
    assert state.value == ["x"]


async def test_a_default_comes_as_a_reader_gets_a_value(cache: AsyncStateCache) -> None:
    assert repr((await cache.get("runs/1", type=float, default=0)).value) == "0.0"
    assert (await cache.get("runs/1", default=(1, 2))).value == [1, 2]
    raw = cache.namespace("raw", encoding="raw")
    assert (await raw.get("a", default=bytearray(b"ab"))).value == b"ab"
    assert (await cache.get("runs/1", type=Talk, default=None)).value is None
    assert (await cache.get("runs/1", type=Talk, default=Talk)).value == Talk([])


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    "verb",
    [
        lambda cache: cache.get("runs/1", type=Talk, default="x"),
        lambda cache: cache.namespace("runs", type=Talk).get("1", default="x"),
        lambda cache: cache.update("runs/1", lambda value: value, type=Talk, default="x"),
        lambda cache: cache.step("runs/1", "s", lambda step: 1, apply=_never, state_type=Talk, default="x"),
    ],
)
async def test_a_default_of_another_type_is_refused_at_once(
    cache: AsyncStateCache, verb: Callable[[Any], Any], stored: bool
) -> None:
    if stored:
        await cache.set("runs/1", Talk([]))
    with pytest.raises(UsageError, match="default= is a str, not a Talk"):
        await verb(cache)
    assert [one async for one in cache.list("runs/1/")] == []


async def test_a_default_that_cannot_be_stored_is_refused_by_its_place(cache: AsyncStateCache) -> None:
    for default in ({"a": object()}, lambda: {"a": object()}):
        with pytest.raises(UsageError, match=r"default= cannot be a value, at \$"):
            await cache.get("runs/1", default=default)
    with pytest.raises(UsageError, match=r"default= cannot be a value, at \$: Expected `int .* null`"):
        await cache.get("runs/1", type=int | None, default=lambda: "x")


def _never(*_: Any) -> None:
    raise AssertionError
