"""The turn of threads at a TLS socket, of which a signal handler that raises may interrupt any."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest

from statecache.concurrency import run, sockets
from statecache.concurrency.sockets import ThreadSocketTurn, thread_readable, thread_receiving, thread_sending


class Connection:
    """A connection over a TLS socket on which nothing was said yet."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        self._sock = context.wrap_socket(ours, do_handshake_on_connect=False)
        self._parser: Any = type("Parser", (), {"_reader": None})

    def close(self) -> None:
        self._sock.close()
        self.theirs.close()


@pytest.fixture
def connection() -> Any:
    """A connection, closed at the end."""
    made = Connection()
    yield made
    made.close()


@pytest.mark.parametrize("bounded", [thread_sending, thread_receiving])
def test_a_turn_that_was_interrupted_as_it_began_is_over(
    connection: Any, bounded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interruption comes when the turn is had, and nobody has noted it."""
    turn = ThreadSocketTurn()
    connection.theirs.send(b"x")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sockets, "thread_deadline", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(bounded(connection, 1.0, turn).__aenter__())
    assert run(turn.take(0)) is not None


async def test_nothing_is_known_to_have_come_while_another_thread_uses_the_socket(connection: Any) -> None:
    turn = ThreadSocketTurn()
    connection.theirs.send(b"x")
    other = await turn.take(0)
    assert other is not None
    assert not await thread_readable(connection, 0.0, turn)
    with pytest.raises(TimeoutError, match="another thread"):
        await thread_sending(connection, 0.0, turn).__aenter__()
    other.release()
    assert await thread_readable(connection, 0.0, turn)
