"""A TCP proxy on loopback that does harm to order.

    async with FaultProxy(host, port) as proxy:
        fault = proxy.arm("drop_reply", at=b"EVAL")
        …                                               # the next request with these bytes meets the fault
        await fault.wait()

A fault strikes once, at the first request (from now on) that holds its bytes:

    drop_request   the connection ends before the server sees anything of it
    cut            the server sees the request up to the bytes, then the connection ends
    drop_reply     the server gets the request and answers; the connection ends before the answer goes on
    hold_request   the request waits for `fault.release()`, and goes on even if its sender has given it up
    hold_reply     the answer waits for `fault.release()`
    half_reply     half of the answer goes on; the connection stays, and nothing more passes over it
    silence        the server sees the request up to the bytes; the connection stays, and nothing more passes over it
    reset          like drop_reply, with a reset instead of an orderly end

`trickle` hands on every byte by itself, `bytes_per_s` no more than so many a second on each connection, `refusing`
ends new connections at once, `silent` accepts and never answers, `delay_s` lets all that is handed on wait so long. Of
all connections, or of those that the server knows by these ports: `slow` lets what is handed on wait, `freeze` leaves
them open and reads from neither end until `thaw`, `cut` ends them. `requests` holds what clients have sent, so that a
test can count (`keep=False` keeps nothing); `holding` counts held requests that the server has not answered yet. With
`tls` clients come by TLS, and the server gets plain bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable
from ssl import SSLContext
from typing import Any, Literal, Self

WAIT_S = 60.0
_TURNS = 5

Kind = Literal["drop_request", "cut", "drop_reply", "hold_request", "hold_reply", "half_reply", "silence", "reset"]


class Fault:
    """One armed fault; it has struck when `wait` returns."""

    def __init__(self, kind: Kind, at: bytes) -> None:
        self.kind = kind
        self.at = at
        self._struck = asyncio.Event()
        self._released = asyncio.Event()
        self._answered = asyncio.Event()
        self._then: Callable[[], object] = lambda: None

    @property
    def struck(self) -> bool:
        """Whether the fault has struck."""
        return self._struck.is_set()

    def then(self, function: Callable[[], object]) -> None:
        """Call the function at the moment at which the fault strikes, before anybody can notice."""
        self._then = function

    def strike(self) -> None:
        """Mark the fault as struck and wake whoever waits for it."""
        self._then()
        self._struck.set()

    def release(self) -> None:
        """Let go of what the fault holds."""
        self._released.set()

    def answer(self) -> None:
        """Note that the server has answered a request that was held."""
        self._answered.set()

    async def answered(self) -> None:
        """Wait until the server has answered a request that was held and released."""
        async with asyncio.timeout(WAIT_S):
            await self._answered.wait()

    async def wait(self) -> None:
        """Wait until the fault has struck: with hold_reply and drop_reply, until the server has answered."""
        async with asyncio.timeout(WAIT_S):
            await self._struck.wait()

    async def held(self) -> None:
        """Wait until the fault is released."""
        await self._released.wait()


class _Cut(Exception):
    """The end of a connection, ordered by a fault."""


class FaultProxy:
    """A proxy between clients and one server."""

    def __init__(self, host: str, port: int, *, keep: bool = True, tls: SSLContext | None = None) -> None:
        self._target = (host, port)
        self._keep = keep
        self._tls = tls
        self._never = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._faults: list[Fault] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: dict[int, _Line] = {}
        self._server: asyncio.Server | None = None
        self.requests = bytearray()
        self.connections = 0
        self.holding = 0
        self.delay_s = 0.0
        self.trickle = False
        self.bytes_per_s = 0.0
        self.refusing = False
        self.silent = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._server is not None:
            await self._accept_no_more(self._server)
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def _accept_no_more(self, server: asyncio.Server) -> None:
        """Accept nothing more, and let what was accepted become connections: else asyncio leaves a socket open."""
        loop = asyncio.get_running_loop()
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    @property
    def port(self) -> int:
        """The port to connect to instead of the server's."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def retarget(self, host: str, port: int) -> None:
        """Lead new connections to another server; those that stand stay where they are."""
        self._target = (host, port)

    def arm(self, kind: Kind, *, at: bytes) -> Fault:
        """Let the next request that holds these bytes meet the fault."""
        fault = Fault(kind, at)
        self._faults.append(fault)
        return fault

    def disarm(self, fault: Fault) -> None:
        """Take back a fault that has not struck, and release what it holds."""
        if fault in self._faults:
            self._faults.remove(fault)
        fault.release()

    def slow(self, seconds: float, ports: Iterable[int] | None = None) -> None:
        """Delay everything that is handed on by that many seconds; 0 ends the delay of all connections."""
        if ports is None or not seconds:
            self.delay_s = seconds
        for port in self._lines if not seconds else ports or ():
            if port in self._lines:
                self._lines[port].delay_s = seconds

    def freeze(self, ports: Iterable[int] | None = None) -> None:
        """Leave all connections open, new ones too, or those of these ports, and read from neither end."""
        if ports is None:
            self._flowing.clear()
        for port in ports or ():
            if port in self._lines:
                self._lines[port].flowing.clear()

    def thaw(self) -> None:
        """Let everything flow again, except over connections that a fault has silenced for good."""
        self._flowing.set()
        for line in self._lines.values():
            if not line.silenced:
                line.flowing.set()

    @property
    def ports(self) -> set[int]:
        """The ports by which the server knows the open connections."""
        return set(self._lines)

    @property
    def tasks(self) -> set[asyncio.Task[Any]]:
        """What the proxy does at the moment."""
        return {task for task in asyncio.all_tasks() if "fault_proxy" in repr(task.get_coro())}

    @property
    def standing(self) -> int:
        """The number of clients' connections that are open."""
        return len(self._tasks)

    def cut(self, ports: Iterable[int]) -> None:
        """Close the connections that the server knows by these ports."""
        for port in ports:
            if port in self._lines:
                self._lines[port].task.cancel()

    async def passes(self, seconds: float) -> None:
        """Let that many seconds pass."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._never.wait()

    async def flow(self, line: _Line) -> None:
        """Wait until something may be handed on over that connection."""
        if delay_s := max(self.delay_s, line.delay_s):
            await self.passes(delay_s)
        await self._flowing.wait()
        await line.flowing.wait()

    def note(self, data: bytes) -> None:
        """Keep what a client has sent."""
        if self._keep:
            self.requests += data

    def cut_all(self) -> None:
        """Close every open connection."""
        for task in list(self._tasks):
            task.cancel()

    async def cut_off(self) -> None:
        """Close every connection, refuse new ones, and wait until all are gone."""
        self.refusing = True
        self.cut_all()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or not self._server.is_serving():  # it was accepted when the proxy was ended
            writer.close()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # of a task that is cancelled before it begins, nothing runs

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        both = [writer]
        try:
            if self.refusing:
                return
            if self.silent:
                while self.silent and (data := await reader.read(65536)):
                    self.note(data)
                return
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            both.append(far_writer)
            port: int = far_writer.get_extra_info("sockname")[1]
            line = self._lines[port] = _Line(self, (reader, writer), (far_reader, far_writer))
            try:
                await line.run()
            finally:
                if self._lines.get(port) is line:  # one port may serve for connections to two servers
                    del self._lines[port]
        except (_Cut, OSError, asyncio.CancelledError):
            return
        finally:
            for one in both:
                one.close()
            for one in both:
                with contextlib.suppress(OSError):
                    await one.wait_closed()

    def struck_by(self, before: bytes, data: bytes) -> Fault | None:
        """Disarm and return the first fault whose bytes end in `data`; `before` is what was sent ahead of it."""
        fault = next((fault for fault in self._faults if fault.at in before[1 - len(fault.at) :] + data), None)
        if fault is not None:
            self._faults.remove(fault)
        return fault


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Line:
    """One connection through the proxy."""

    def __init__(self, proxy: FaultProxy, near: _Ends, far: _Ends) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = near
        self._from_server, self._to_server = far
        self._at_reply: Fault | None = None
        self._late: Fault | None = None
        self._before = b""
        self._holds = 0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.silenced = False
        self.delay_s = 0.0
        task = asyncio.current_task()
        assert task is not None
        self.task = task

    async def run(self) -> None:
        """Hand bytes on in both directions until an end is closed or a fault closes both."""
        ways = {asyncio.ensure_future(way) for way in (self._requests(), self._replies())}
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            self._hold(-self._holds)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(self) -> None:
        while data := await self._from_client.read(65536):
            self._proxy.note(data)
            fault = self._proxy.struck_by(self._before, data)
            self._before = (self._before + data)[-256:]
            if fault is None:
                await self._hand_on(self._to_server, data)
                continue
            await self._meet(fault, data)
        if self._late is not None:
            await self._late.answered()

    async def _meet(self, fault: Fault, data: bytes) -> None:
        if fault.kind == "drop_request":
            fault.strike()
            raise _Cut
        if fault.kind in ("cut", "silence"):
            await self._hand_on(self._to_server, data[: max(data.find(fault.at), 0)])
            if fault.kind == "silence":
                self._silence()
            fault.strike()
            await self._proxy.flow(self)
            raise _Cut
        if fault.kind == "hold_request":
            self._hold(1)
            fault.strike()
            await fault.held()
            self._late = fault
        else:
            self._at_reply = fault
        await self._hand_on(self._to_server, data)

    def _silence(self) -> None:
        self.silenced = True
        self.flowing.clear()

    def _hold(self, more: int) -> None:
        self._holds += more
        self._proxy.holding += more

    async def _replies(self) -> None:
        while data := await self._from_server.read(65536):
            self._hold(-self._holds)
            if self._late is not None:
                self._late.answer()
            fault, self._at_reply = self._at_reply, None
            if fault is not None:
                fault.strike()
                if fault.kind == "reset":
                    _set_to_reset(self._to_client)
                if fault.kind == "half_reply":
                    await self._hand_on(self._to_client, data[: len(data) // 2])
                    self._silence()
                elif fault.kind != "hold_reply":
                    raise _Cut
                else:
                    await fault.held()
            await self._hand_on(self._to_client, data)

    async def _hand_on(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._proxy.flow(self)
        if not self._proxy.trickle:
            writer.write(data)
            await writer.drain()
            if self._proxy.bytes_per_s:
                await self._proxy.passes(len(data) / self._proxy.bytes_per_s)
            return
        for at in range(len(data)):
            writer.write(data[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)


def _set_to_reset(writer: asyncio.StreamWriter) -> None:
    """Make the closing of a connection a reset."""
    line: socket.socket = writer.get_extra_info("socket")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
