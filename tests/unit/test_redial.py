"""When a worker dials its address again, and what comes of that."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

from statecache.errors import RedisUnavailable
from statecache_workers.redial import Redial


class Server(NamedTuple):
    """What a server says of itself."""

    server: str


class Link:
    """A connection to a server of that name."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.alive = True

    async def close(self) -> None:
        self.alive = False


class Streams:
    """Tell to which server a connection leads."""

    async def heads(self, link: Link, shards: object) -> Server:
        return Server(link.server)


class Address:
    """An address that leads to one server at a time, and what it was dialled for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leads_to = "old"
        self.now = 0.0
        self.links: list[Link] = []
        self.told = 0
        streams: Any = Streams()
        unused: Any = None
        self.redial = Redial(
            unused, unused, streams, is_primary=self._is_primary, done=self._tell, monotonic=lambda: self.now
        )
        monkeypatch.setattr(self.redial, "dial", self._dial)

    async def _is_primary(self, server: str) -> bool:
        return server == "new"

    def _tell(self) -> None:
        self.told += 1

    async def _dial(self) -> Link:
        if not self.leads_to:
            raise RedisUnavailable("connect", detail="nobody is there")
        self.links.append(Link(self.leads_to))
        return self.links[-1]

    async def ask(self) -> Any:
        """Ask for it on a connection to the old primary, wait until it is done, and take what was found."""
        link: Any = Link("old")
        await self.redial.ask(link)
        if (task := self.redial._task) is not None:
            await asyncio.wait([task])
        assert link.alive
        return self.redial.take()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Address:
    """An address that leads to the old primary."""
    return Address(monkeypatch)


async def test_a_connection_to_the_same_server_is_closed_again(address: Address) -> None:
    assert await address.ask() is None
    assert [link.alive for link in address.links] == [False]
    assert not address.told


async def test_a_connection_to_another_server_is_taken_once(address: Address) -> None:
    address.leads_to = "new"
    found = await address.ask()
    assert (found.left, found.server) == ("old", "new")
    assert found.link is address.links[0]
    assert found.link.alive
    assert found.old.alive
    assert address.told == 1
    assert address.redial.take() is None


async def test_a_connection_to_a_server_that_is_no_primary_is_closed_again(address: Address) -> None:
    address.leads_to = "strange"
    assert await address.ask() is None
    assert [link.alive for link in address.links] == [False]
    assert not address.told


async def test_an_address_at_which_nobody_is_changes_nothing(address: Address) -> None:
    address.leads_to = ""
    assert await address.ask() is None
    address.leads_to, address.now = "new", 10.0
    assert await address.ask() is not None


async def test_it_is_dialled_not_more_often_than_once_a_second(address: Address) -> None:
    for tenth in range(300):
        address.now = tenth / 10
        await address.ask()
    assert 6 <= len(address.links) <= 30


async def test_what_nobody_has_taken_is_closed_in_the_end(address: Address) -> None:
    address.leads_to = "new"
    link: Any = Link("old")
    await address.redial.ask(link)
    task = address.redial._task
    assert task is not None
    await asyncio.wait([task])
    await address.redial.ask(link)
    await address.redial.stop()
    assert [link.alive for link in address.links] == [False]
