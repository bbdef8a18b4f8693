"""What a signal handler raises in the middle of a call goes through: it is not what a class of users raised."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import ClassVar

import msgspec
import pytest

from statecache import AsyncStateCache, Settings, StateCache
from tests.fixtures.servers import MakeSettings
from tests.support.local_reads import kept
from tests.support.polling import pause_thread

KEY = "runs/1"


class OwnError(Exception):
    """What the handler raises."""


class Moody(msgspec.Struct):
    """A class in the middle of whose reading a signal may come: as often as `signals` says."""

    signals: ClassVar[int] = 0

    x: int

    def __post_init__(self) -> None:
        if Moody.signals:
            Moody.signals -= 1
            signal.raise_signal(signal.SIGUSR1)


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of clients that read locally."""
    return make_settings(read="local")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Have a signal raise OwnError."""

    def interrupt(*_: object) -> None:
        raise OwnError("the time is up")

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    Moody.signals = 0
    signal.signal(signal.SIGUSR1, before)


async def test_a_handler_that_raises_in_a_get_is_heard(settings: Settings) -> None:
    """One signal is enough: what is kept here is not decoded again."""
    async with AsyncStateCache(settings=settings) as cache:
        view = cache.namespace("runs", type=Moody)
        await view.set("1", Moody(1))
        await kept(cache, KEY)
        for _ in range(3):
            assert await view.get("1")
        hits = cache.near.hits
        Moody.signals = 1
        with pytest.raises(OwnError, match="the time is up"):
            await view.get("1")
        assert cache.near.hits == hits + 1
        Moody.signals = 1
        with pytest.raises(OwnError, match="the time is up"):
            await view.get("1", read="primary")
        assert await view.get("1") is not None


def test_a_handler_that_raises_in_a_get_of_the_synchronous_client_is_heard(settings: Settings) -> None:
    with StateCache(settings=settings) as cache:
        view = cache.namespace("runs", type=Moody)
        view.set("1", Moody(1))
        while not cache.near.hits:
            assert view.get("1")
            pause_thread()
        assert view.get("1")
        hits = cache.near.hits
        Moody.signals = 1
        with pytest.raises(OwnError, match="the time is up"):
            view.get("1")
        assert cache.near.hits == hits + 1
        Moody.signals = 1
        with pytest.raises(OwnError, match="the time is up"):
            view.get("1", read="primary")
        assert view.get("1") is not None


async def test_a_handler_that_raises_in_the_function_of_an_update_ends_it(settings: Settings) -> None:
    """Whatever has become of the state meanwhile: it is not the function's word on it."""
    seen: list[int] = []
    async with AsyncStateCache(settings=settings) as cache, AsyncStateCache(settings=settings) as other:
        await cache.set(KEY, 1)
        await kept(cache, KEY)

        async def function(value: int) -> int:
            seen.append(value)
            await other.set(KEY, value + 10)
            signal.raise_signal(signal.SIGUSR1)
            return value

        with pytest.raises(OwnError, match="the time is up"):
            await cache.update(KEY, function)
    assert seen == [1]


def test_a_handler_that_raises_in_the_function_of_a_synchronous_update_ends_it(settings: Settings) -> None:
    seen: list[int] = []
    with StateCache(settings=settings) as cache, StateCache(settings=settings) as other:
        cache.set(KEY, 1)
        while not cache.near.hits:
            assert cache.get(KEY)
            pause_thread()

        def function(value: int) -> int:
            seen.append(value)
            other.set(KEY, value + 10)
            signal.raise_signal(signal.SIGUSR1)
            return value

        with pytest.raises(OwnError, match="the time is up"):
            cache.update(KEY, function)
    assert seen == [1]
