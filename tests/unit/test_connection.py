"""A link of which one exchange broke is closed, whatever broke it, so that nobody reads what was left on it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from statecache import RedisUnavailable, Settings
from statecache.concurrency import TASKS
from statecache.core.redis.connection import Link


class FakeConnection:
    """A connection that stays open whatever happens on it, until it is told to close."""

    def __init__(self, replies: list[Any], *, at_sending: BaseException | None = None) -> None:
        self.is_connected = True
        self._replies = replies
        self._at_sending = at_sending

    async def send_packed_command(self, packed: list[bytes]) -> None:
        if self._at_sending is not None:
            raise self._at_sending

    async def read_response(self) -> Any:
        reply = self._replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def disconnect(self, *, nowait: bool = False) -> None:
        self.is_connected = False


FAULTS = [
    (asyncio.CancelledError(), asyncio.CancelledError),
    (TimeoutError(), RedisUnavailable),
    (redis.ConnectionError("closed"), RedisUnavailable),
    (OSError("reset"), RedisUnavailable),
    (redis.InvalidResponse("no protocol of ours"), RedisUnavailable),
    (MemoryError(), MemoryError),
    (KeyboardInterrupt(), KeyboardInterrupt),
]


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
@pytest.mark.parametrize("when", ["while it is sent", "before the first reply", "between two replies"])
async def test_an_exchange_that_broke_closes_its_connection(fault: Any, kind: type[BaseException], when: str) -> None:
    line = FakeConnection(["one"] if when == "between two replies" else [])
    if when == "while it is sent":
        line = FakeConnection([], at_sending=fault)
    line._replies += [fault, "left behind"]
    link = Link(line, "somewhere", TASKS)
    with pytest.raises(kind):
        await link.run([("GET", "a"), ("GET", "b")], seconds=5)
    assert not link.alive


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
async def test_a_sending_that_broke_closes_its_connection(fault: Any, kind: type[BaseException]) -> None:
    """How much was sent, and so which answer belongs to which command, nobody would know."""
    link = Link(FakeConnection([], at_sending=fault), "somewhere", TASKS)
    with pytest.raises(kind):
        await link.send(("GET", "a"), seconds=5)
    assert not link.alive


@pytest.mark.parametrize(
    ("where", "replies", "hinted"),
    [
        ("redis://h:6379/0", [], True),
        ("redis://h:6379/0", [b"one"], False),
        ("rediss://h:6379/0", [], False),
        ("unix:///redis.sock", [], False),
    ],
)
async def test_a_plain_connection_that_is_closed_before_any_answer_may_lead_to_a_port_for_tls(
    where: str, replies: list[Any], hinted: bool
) -> None:
    link = Link(FakeConnection([*replies, redis.ConnectionError("Connection closed by server.")]), where, TASKS)
    with pytest.raises(RedisUnavailable, match="Connection closed by server") as caught:
        await link.run([("GET", "a"), ("GET", "b")], seconds=5)
    assert caught.value.reason == "connection"
    assert ("rediss://" in caught.value.hint) == hinted


async def test_a_plain_connection_that_has_been_answered_leads_to_no_port_for_tls() -> None:
    replies = [b"one", redis.ConnectionError("Connection closed by server.")]
    link = Link(FakeConnection(replies), "redis://h:6379/0", TASKS)
    await link.run([("GET", "a")], seconds=5)
    with pytest.raises(RedisUnavailable) as caught:
        await link.run([("GET", "a")], seconds=5)
    assert not caught.value.hint


async def test_an_error_reply_is_a_reply_and_the_connection_stays() -> None:
    link = Link(FakeConnection([redis.ResponseError("WRONGTYPE"), b"two"]), "somewhere", TASKS)
    first, second = await link.run([("GET", "a"), ("GET", "b")], seconds=5)
    assert isinstance(first, redis.ResponseError)
    assert second == b"two"
    assert link.alive


class Pushed(FakeConnection):
    """A connection on which messages come in without being asked for; all of them have arrived whole."""

    def __init__(self, messages: list[Any]) -> None:
        super().__init__(messages)
        self._parser = self._reader = self

    def has_data(self) -> bool:
        return bool(self._replies)

    async def read_response(self, **_: Any) -> Any:
        return await super().read_response()


async def test_pushed_messages_that_have_come_are_given_together_so_many_at_once() -> None:
    link = Link(Pushed([f"message {number}" for number in range(40)]), "somewhere", TASKS)
    counts = [len(await link.receive(seconds=5)) for _ in range(3)]
    assert counts == [16, 16, 8]


async def test_messages_that_came_before_the_connection_broke_are_given_and_then_it_is_closed() -> None:
    link = Link(Pushed(["one", redis.ConnectionError("closed")]), "somewhere", TASKS)
    assert await link.receive(seconds=5) == ["one"]
    assert not link.alive
    late = Link(Pushed(["one", TimeoutError(), "two"]), "somewhere", TASKS)
    assert [await late.receive(seconds=5) for _ in range(2)] == [["one"], ["two"]]
    broken = Link(Pushed([redis.ConnectionError("closed")]), "somewhere", TASKS)
    with pytest.raises(RedisUnavailable):
        await broken.receive(seconds=5)


class Interrupted(Pushed):
    """A connection on which a signal comes whatever is done on it, and which may tell of that as redis-py does."""

    def __init__(self, *, told: bool) -> None:
        super().__init__([])
        self._told = told

    def _meet(self) -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except OSError:
            if not self._told:
                raise
            raise redis.TimeoutError("Timeout reading from socket") from None

    async def connect(self) -> None:
        self._meet()

    async def send_packed_command(self, packed: list[bytes]) -> None:
        self._meet()

    async def read_response(self, **_: Any) -> Any:
        self._meet()


ASKED: dict[str, Callable[[Link], Awaitable[Any]]] = {
    "run": lambda link: link.run([("GET", "a")], seconds=5),
    "send": lambda link: link.send(("GET", "a"), seconds=5),
    "receive": lambda link: link.receive(seconds=5),
    "heard": lambda link: link.heard(seconds=5),
    "open": lambda link: Link.open(lambda: link._connection, Settings(redis_url="redis://h:6379/0")),
}


@pytest.fixture(params=[TimeoutError, ConnectionResetError])
def raised(request: pytest.FixtureRequest) -> Iterator[type[Exception]]:
    """Have a signal raise an error of a kind that sockets raise too."""
    kind: type[Exception] = request.param

    def interrupt(*_: object) -> None:
        raise kind("the time is up")

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield kind
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("told", [False, True])
async def test_what_a_signal_handler_raises_goes_through_and_closes_the_connection(
    raised: type[Exception], what: str, told: bool
) -> None:
    link = Link(Interrupted(told=told), "somewhere", TASKS)
    with pytest.raises(raised, match="the time is up"):
        await ASKED[what](link)
    assert not link.alive
