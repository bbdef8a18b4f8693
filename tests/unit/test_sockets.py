"""The turn of threads at a TLS socket, of which a signal handler that raises may interrupt any."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest

from statecache import _sockets
from statecache._sockets import SocketTurn, readable, receiving, sending


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


@pytest.mark.parametrize("bounded", [sending, receiving])
def test_a_turn_that_was_interrupted_as_it_began_is_over(
    connection: Any, bounded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interruption comes when the turn is had, and nobody has noted it."""
    turn = SocketTurn()
    connection.theirs.send(b"x")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_sockets, "deadline", interrupted)
    with pytest.raises(KeyboardInterrupt), bounded(connection, 1.0, turn):
        pass
    assert turn.take(0) is not None


def test_nothing_is_known_to_have_come_while_another_thread_uses_the_socket(connection: Any) -> None:
    turn = SocketTurn()
    connection.theirs.send(b"x")
    other = turn.take(0)
    assert other is not None
    assert not readable(connection, 0.0, turn)
    with pytest.raises(TimeoutError, match="another thread"), sending(connection, 0.0, turn):
        pass
    other.release()
    assert readable(connection, 0.0, turn)
