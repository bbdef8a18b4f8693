"""A bound on what is done with Postgres, of a thread that a signal handler may have interrupted."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from statecache.concurrency import run
from statecache.concurrency.bounding import ThreadTimeout

NEVER_S = 3600.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection; reading from a silent one fails at once."""
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        yield one, other


async def test_a_bound_shuts_the_connection_when_its_time_is_up(pair: tuple[socket.socket, socket.socket]) -> None:
    async with ThreadTimeout(NEVER_S, pair[0]) as bound:
        timer = bound._timer
        timer.function(*timer.args)
        assert bound.expired
        assert pair[0].recv(1) == b""


def test_a_bound_that_nobody_has_any_more_shuts_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    """Its holder was interrupted before he called it off, and the connection may be somebody else's by then."""
    bound = run(ThreadTimeout(NEVER_S, pair[0]).__aenter__())
    timer = bound._timer
    del bound
    timer.function(*timer.args)
    timer.cancel()
    with pytest.raises(BlockingIOError):
        pair[0].recv(1)
