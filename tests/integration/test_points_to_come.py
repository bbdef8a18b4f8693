"""Points that have not come yet: what is there now is not taken for what will be there then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from statecache import AsyncStateCache, Change, Position, VersionNotFound
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush

KEY = "runs/42"


@pytest.fixture(params=["flushed", "half flushed", "unflushed"])
async def newest(request: pytest.FixtureRequest, cache: AsyncStateCache, worker: Worker) -> Change[Any]:
    """The newest change of a key, of which Postgres holds all, half, or nothing."""
    for value in (1, 2, 3):
        await cache.set(KEY, value)
        if request.param == "half flushed" and value == 2:
            await flush(worker)
    if request.param == "flushed":
        await flush(worker)
    return [change async for change in cache.history(KEY)][-1]


async def test_what_is_yet_to_come_is_not_taken_for_what_is_there(cache: AsyncStateCache, newest: Change[Any]) -> None:
    behind = Position(newest.epoch, newest.position.n + 1)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for when in (tomorrow, behind):
        with pytest.raises(VersionNotFound) as caught:
            await cache.diff(KEY, 1, when)
        assert caught.value.nearest == newest.version
    for asked, why in (({"time": tomorrow}, "yet to come"), ({"position": behind}, f"newest .* is {newest.position}")):
        with pytest.raises(VersionNotFound, match=why) as caught:
            await cache.get_at(KEY, **asked)
        assert caught.value.nearest == newest.version
        with pytest.raises(VersionNotFound, match=why):
            await cache.get_group_at(KEY, **asked)


async def test_a_moment_that_comes_soon_is_waited_for(
    cache: AsyncStateCache, newest: Change[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the clock of the caller's machine is ahead of that of Redis: what is written until then is seen."""
    slept: list[float] = []
    clock, sleep = cache._runtime.redis.clock, cache._runtime.redis.io.sleep

    async def written_meanwhile(seconds: float) -> None:
        if not slept and seconds > 0.1:
            slept.append(seconds)
            await cache.set(KEY, 21)
        await sleep(seconds)

    monkeypatch.setattr(cache._runtime.redis.io, "sleep", written_meanwhile)
    soon = datetime.fromtimestamp(clock.now_ms() / 1000 + 0.5, UTC)
    state = await cache.get_at(KEY, time=soon)
    assert state is not None
    assert (state.value, len(slept)) == (21, 1)
    assert clock.now_ms() / 1000 > soon.timestamp()
    with pytest.raises(VersionNotFound, match="yet to come"):
        await cache.get_at(KEY, time=datetime.fromtimestamp(clock.now_ms() / 1000 + 0.9, UTC), timeout=0.3)


@pytest.mark.parametrize("version", [2**63 - 1, 2**63, 2**80])
async def test_a_version_that_no_key_reaches_is_not_the_newest(
    cache: AsyncStateCache, newest: Change[Any], version: int
) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: cache.get_at(KEY, version=version),
        lambda: cache.diff(KEY, 1, version),
        lambda: cache.rollback(KEY, version),
        lambda: cache.branch(KEY, "runs/43", at=version, timeout=1),
    ]
    for call in calls:
        with pytest.raises(VersionNotFound, match=f"newest is version {newest.version}") as caught:
            await call()
        assert caught.value.nearest == newest.version


async def test_a_moment_counts_whatever_the_offset_of_its_zone(cache: AsyncStateCache, newest: Change[Any]) -> None:
    """Postgres takes none of 16 hours and more."""
    far = timezone(timedelta(hours=23, minutes=59))
    found = await cache.get_at(KEY, time=newest.at.astimezone(far))
    assert found is not None
    assert found.version == newest.version
