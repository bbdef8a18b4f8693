"""The proxy does the harm that it was asked for, and no other."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import AsyncIterator

import pytest

from statecache.clock import monotonic
from tests.support.fault_proxy import FaultProxy, Kind

WAIT_S = 60.0


class Echo:
    """A server that answers every line with the same line, and remembers what it was sent."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self._came = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        while data := await reader.read(65536):
            async with self._came:
                self.seen += data
                self._came.notify_all()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                writer.write(line + b"\n")
        writer.close()

    async def has_seen(self, wanted: bytes) -> None:
        """Wait until the server was sent these bytes."""
        async with asyncio.timeout(WAIT_S), self._came:
            await self._came.wait_for(lambda: wanted in self.seen)


class Caller:
    """A connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, line: bytes) -> None:
        self._writer.write(line)

    async def line(self) -> bytes:
        """Return the next answer; empty at the connection's end."""
        async with asyncio.timeout(WAIT_S):
            return await self._reader.readline()

    async def ask(self, line: bytes) -> bytes:
        self.send(line)
        return await self.line()

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, int]]:
    """The server behind the proxy, with its port."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    yield echo, server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def proxy(echo: tuple[Echo, int]) -> AsyncIterator[FaultProxy]:
    """The proxy in front of it."""
    async with FaultProxy("127.0.0.1", echo[1]) as started:
        yield started


@pytest.fixture
async def caller(proxy: FaultProxy) -> AsyncIterator[Caller]:
    """A client that came through the proxy and was answered."""
    caller = Caller(*await asyncio.open_connection("127.0.0.1", proxy.port))
    assert await caller.ask(b"hello\n") == b"hello\n"
    yield caller
    caller.close()


@pytest.mark.parametrize(
    ("kind", "arrives"), [("drop_request", b""), ("cut", b"get "), ("drop_reply", b"get EXEC it\n")]
)
async def test_a_connection_ends_before_within_or_after_the_request(
    echo: tuple[Echo, int], proxy: FaultProxy, caller: Caller, kind: Kind, arrives: bytes
) -> None:
    fault = proxy.arm(kind, at=b"EXEC")
    assert await caller.ask(b"harmless\n") == b"harmless\n"
    assert not fault.struck
    assert await caller.ask(b"get EXEC it\n") == b""
    assert fault.struck
    await echo[0].has_seen(arrives)
    assert bytes(echo[0].seen) == b"hello\nharmless\n" + arrives


async def test_a_reset_is_no_orderly_end(proxy: FaultProxy, caller: Caller) -> None:
    proxy.arm("reset", at=b"EXEC")
    with pytest.raises(ConnectionResetError):
        await caller.ask(b"EXEC\n")


async def test_a_fault_strikes_where_its_bytes_come_in_two_parts(
    echo: tuple[Echo, int], proxy: FaultProxy, caller: Caller
) -> None:
    fault = proxy.arm("drop_reply", at=b"COMMIT")
    caller.send(b"COM")
    await echo[0].has_seen(b"COM")
    assert await caller.ask(b"MIT\n") == b""
    assert fault.struck


async def test_a_fault_that_was_taken_back_does_not_strike(proxy: FaultProxy, caller: Caller) -> None:
    fault = proxy.arm("drop_reply", at=b"EXEC")
    proxy.disarm(fault)
    assert await caller.ask(b"EXEC\n") == b"EXEC\n"
    assert not fault.struck


async def test_a_frozen_connection_stays_open_and_goes_on_afterwards(
    echo: tuple[Echo, int], proxy: FaultProxy, caller: Caller
) -> None:
    proxy.freeze()
    caller.send(b"late\n")
    late = asyncio.ensure_future(caller.line())
    other = Caller(*await asyncio.open_connection("127.0.0.1", proxy.port))
    other.send(b"later\n")
    done, _ = await asyncio.wait({late}, timeout=0.1)
    assert not done
    assert b"late" not in echo[0].seen
    proxy.thaw()
    assert await late == b"late\n"
    assert await other.line() == b"later\n"
    other.close()


async def test_one_connection_is_frozen_or_cut_and_the_others_are_not(proxy: FaultProxy, caller: Caller) -> None:
    (first,) = proxy.ports
    other = Caller(*await asyncio.open_connection("127.0.0.1", proxy.port))
    assert await other.ask(b"other\n") == b"other\n"
    (second,) = proxy.ports - {first}
    proxy.freeze([first, 1])
    caller.send(b"late\n")
    late = asyncio.ensure_future(caller.line())
    assert await other.ask(b"meanwhile\n") == b"meanwhile\n"
    assert not late.done()
    proxy.thaw()
    assert await late == b"late\n"
    proxy.freeze([first])
    proxy.cut([first, 1])
    assert await caller.ask(b"never\n") == b""
    assert await other.ask(b"still\n") == b"still\n"
    assert proxy.ports == {second}
    other.close()


async def test_a_delay_holds_up_both_directions(proxy: FaultProxy, caller: Caller) -> None:
    proxy.delay_s = 0.05
    before = monotonic()
    assert await caller.ask(b"slow\n") == b"slow\n"
    assert monotonic() - before >= 0.1
    proxy.delay_s = 0.0


async def test_trickled_bytes_arrive_in_order(proxy: FaultProxy, caller: Caller) -> None:
    proxy.trickle = True
    line = bytes(range(97, 123)) * 20 + b"\n"
    assert await caller.ask(line) == line


async def test_a_proxy_that_keeps_nothing_still_finds_its_bytes(echo: tuple[Echo, int]) -> None:
    async with FaultProxy("127.0.0.1", echo[1], keep=False) as proxy:
        caller = Caller(*await asyncio.open_connection("127.0.0.1", proxy.port))
        assert await caller.ask(b"hello\n") == b"hello\n"
        fault = proxy.arm("drop_reply", at=b"EXEC")
        assert await caller.ask(b"EXEC\n") == b""
        assert fault.struck
        assert not proxy.requests
        caller.close()


async def test_a_silenced_connection_stays_open_and_says_nothing_any_more(
    proxy: FaultProxy, echo: tuple[Echo, int]
) -> None:
    silenced, other = [Caller(*await asyncio.open_connection("127.0.0.1", proxy.port)) for _ in range(2)]
    fault = proxy.arm("silence", at=b"middle")
    silenced.send(b"first\nbefore middle after\n")
    await fault.wait()
    await echo[0].has_seen(b"before ")
    assert await other.ask(b"spoken\n") == b"spoken\n"
    assert b"middle" not in echo[0].seen
    assert len(proxy.ports) == 2
    proxy.cut_all()
    assert await silenced.line() == await other.line() == b""
    silenced.close()
    other.close()


async def test_new_connections_are_led_elsewhere_and_those_that_stand_stay(
    proxy: FaultProxy, caller: Caller, echo: tuple[Echo, int]
) -> None:
    elsewhere = Echo()
    server = await asyncio.start_server(elsewhere.serve, "127.0.0.1", 0)
    async with server:
        proxy.retarget("127.0.0.1", server.sockets[0].getsockname()[1])
        assert await caller.ask(b"old\n") == b"old\n"
        fresh = Caller(*await asyncio.open_connection("127.0.0.1", proxy.port))
        assert await fresh.ask(b"new\n") == b"new\n"
        assert (b"new" in elsewhere.seen, b"new" in echo[0].seen) == (True, False)
        fresh.close()
        proxy.cut_all()
        assert await caller.line() == b""


class Hasty(FaultProxy):
    """A proxy that cuts each connection in the moment in which it accepts it."""

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super()._accept(reader, writer)
        self.cut_all()


async def test_a_connection_that_is_cut_as_it_is_accepted_ends(echo: tuple[Echo, int]) -> None:
    async with Hasty("127.0.0.1", echo[1]) as proxy:
        caller = Caller(*await asyncio.open_connection("127.0.0.1", proxy.port))
        assert await caller.line() == b""
        caller.close()


@pytest.mark.parametrize("turns", range(5))
async def test_what_is_accepted_at_the_end_is_closed(turns: int) -> None:
    """Else it is left to garbage, and told of in a test that has nothing to do with it."""
    proxy = FaultProxy("127.0.0.1", 1)
    async with proxy:
        clients = [socket.socket() for _ in range(5)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", proxy.port))
        for _ in range(turns):
            await asyncio.sleep(0)
    for client in clients:
        client.close()
    del proxy
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(one.message) for one in told] == []
