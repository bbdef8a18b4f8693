"""A bound on what is done with Postgres, of a thread that a signal handler may have interrupted."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from statecache.concurrency import run
from statecache.concurrency.bounding import ThreadTimeout

NEVER_S = 3600.0


class Line:
    """One end of a connection, as far as a bound knows it."""

    bound: Any = None

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.fileno = end.fileno

    @property
    def shut(self) -> bool:
        """Whether reading from it finds its end; from a silent one it fails at once."""
        try:
            return self.end.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def line() -> Iterator[Line]:
    """One end of a connection on which the other says nothing."""
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        yield Line(one)


def _waiting() -> Generator[str, bool, str]:
    """Wait as psycopg does: for what to wait goes out, and whether it came in comes back."""
    while not (yield "for the answer"):
        pass
    return "the answer"


@pytest.mark.parametrize(("seconds", "shut"), [(0.0, True), (NEVER_S, False)])
async def test_who_waits_shuts_the_connection_when_the_time_is_up(line: Line, seconds: float, shut: bool) -> None:
    async with ThreadTimeout(seconds, line) as bound:
        assert line.bound() is bound
        waiting = bound.watched(_waiting())
        assert next(waiting) == "for the answer"
        assert not line.shut
        assert waiting.send(False) == "for the answer"
        assert (bound.expired, line.shut) == (shut, shut)
        with pytest.raises(StopIteration, match="the answer"):
            waiting.send(True)
    assert line.bound is None


async def test_what_waits_for_nothing_is_done_at_once(line: Line) -> None:
    async with ThreadTimeout(0.0, line) as bound:
        with pytest.raises(StopIteration):
            next(bound.watched(iter(())))
        assert not bound.expired


def test_a_bound_that_nobody_has_any_more_is_none(line: Line) -> None:
    """Its holder was interrupted before he took it off, and the connection may be somebody else's by then."""
    bound = run(ThreadTimeout(NEVER_S, line).__aenter__())
    assert line.bound() is bound
    del bound
    assert line.bound() is None


async def test_the_time_is_looked_at_often_and_last_when_it_is_up(line: Line) -> None:
    async with ThreadTimeout(0.12, line) as bound:
        assert 0.03 < bound.look_s() <= 0.04
    async with ThreadTimeout(NEVER_S, line) as bound:
        assert 0.04 < bound.look_s() <= 0.05
    async with ThreadTimeout(0.0, line) as bound:
        assert 0 < bound.look_s() <= 0.001


async def test_a_bound_within_another_gives_way_to_it_again(line: Line) -> None:
    async with ThreadTimeout(NEVER_S, line) as outer:
        async with ThreadTimeout(1.0, line) as inner:
            assert line.bound() is inner
        assert line.bound() is outer
