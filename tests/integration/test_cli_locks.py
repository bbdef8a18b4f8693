"""`statecache locks`: what is held and by whom, and a lock that an operator takes away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import typer

from statecache import AsyncStateCache, Settings, StaleToken, Token
from statecache.cli.locks import command
from statecache.keys import KeySpace
from tests.fixtures.locks import KEY, LONG, Place, entered
from tests.fixtures.servers import on_database
from tests.support.command_line import CommandLine


async def test_nobody_holds_anything(cli: CommandLine) -> None:
    assert await cli.beside("locks") == (0, "nobody holds a lock\n", "")
    assert (await cli.beside("locks", "--json")).json == {"locks": []}
    assert await cli.beside("locks", KEY) == (1, "", "statecache: runs/42: nobody holds its lock\n")
    assert (await cli.beside("locks", "--break", KEY, "--yes", "--json")).json == {
        "key": KEY, "broken": False, "holder": None,
    }  # fmt: skip
    assert (await cli.beside("locks", KEY, "--break", KEY)).status == 2
    assert (await cli.beside("locks", "runs")).status == 2


async def test_holders_and_those_who_wait_are_shown(
    cli: CommandLine, cache: AsyncStateCache, settings: Settings, place: Place
) -> None:
    async with asyncio.TaskGroup() as tasks, cache.lock(KEY, ttl=600), cache.lock("runs/43"):
        place.put_first(until=1)
        tasks.create_task(entered(cache, timeout=LONG))
        await place.until_waiting(2)
        shown = (await cli.beside("locks", "--json")).json["locks"]
        first, second = shown
        assert (first["key"], first["holder"], first["token"], first["ttl_s"]) == (KEY, settings.writer, "1-1", 600)
        assert 0 <= first["age_s"] < LONG
        assert 500 < first["left_s"] <= 600
        assert [one["waiter"] for one in first["waiters"]] == [settings.writer]
        assert (second["key"], second["waiters"]) == ("runs/43", [])
        told = await cli.beside("locks")
        assert [line.split()[0] for line in told.out.splitlines()] == ["key", KEY, "runs/43"]
        told = await cli.beside("locks", KEY)
        assert told.out.splitlines()[-1].startswith(f"1. {settings.writer}  waits for ")


async def test_a_lock_that_is_taken_away_goes_to_who_waits_and_its_holder_writes_nothing_more(
    cli: CommandLine, cache: AsyncStateCache, settings: Settings, place: Place
) -> None:
    with pytest.raises(StaleToken):  # noqa: PT012
        async with asyncio.TaskGroup() as tasks, cache.lock(KEY) as lease:
            waiting = tasks.create_task(entered(cache, timeout=LONG))
            await place.until_waiting(1)
            told = await cli.beside("locks", "--break", KEY, "--yes")
            assert told == (0, f"runs/42  taken away from {settings.writer}, token 1-1\n", "")
            assert await waiting == Token(1, 2)
            try:
                await lease.set(KEY, "late")
            except StaleToken as error:
                refused = error
            assert lease.lost
        raise refused
    assert await cache.get(KEY) is None


@pytest.mark.parametrize("answer", [True, False])
async def test_a_person_is_asked_first(
    cli: CommandLine, place: Place, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    asked: list[str] = []

    def confirm(text: str, **more: Any) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr(command, "is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", confirm)
    place.put(token="1-7", until=10**15)
    told = await cli.beside("locks", "--break", KEY)
    assert asked == ["Take runs/42 away from elsewhere:1?"]
    assert told.status == (0 if answer else 1)
    assert (place.lease() is None) is answer


async def test_a_lease_that_was_given_meanwhile_is_not_broken(cache: AsyncStateCache, place: Place) -> None:
    place.put(token="1-8", until=10**15)
    assert not await cache._runtime.leases.take_away(KEY, Token(1, 7), end=asyncio.get_running_loop().time() + LONG)
    assert place.lease().token == Token(1, 8)
    assert await cache._runtime.leases.take_away(KEY, Token(1, 8), end=asyncio.get_running_loop().time() + LONG)
    assert place.lease() is None


async def test_a_redis_that_cannot_know_is_not_asked_who_holds_what(
    cli: CommandLine, redis_raw: Any, keys: KeySpace, settings: Settings
) -> None:
    """Another database of the server, another prefix: there every lock would be free."""
    others = (
        ("--redis-url", on_database(settings.redis_url, 9)),
        ("--redis-url", on_database(settings.redis_url, 9), KEY),
        ("--redis-url", on_database(settings.redis_url, 9), "--break", KEY, "--yes"),
    )
    for other in others:
        told = await cli.beside("locks", *other)
        assert (told.status, told.out) == (3, "")
        assert f"no data set under the prefix '{settings.prefix}' has been opened here" in told.err
    redis_raw.hset(keys.meta(0), "cluster", "another")
    told = await cli.beside("locks")
    assert told.status == 3
    assert "cluster another" in told.err
