"""The wait of a thread that listens to a connection, which others hold off while they read themselves."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from statecache.clock import monotonic
from statecache.concurrency import run
from statecache.concurrency.arrivals import ThreadArrivals
from statecache.concurrency.sockets import ThreadSocketTurn

LIMIT_S = 60.0
TURN = ThreadSocketTurn()


class Shared:
    """A connection, its other side, and the wait for what that sends."""

    def __init__(self) -> None:
        self.line, self.theirs = socket.socketpair()
        self.connection: Any = SimpleNamespace(_sock=self.line, _parser=SimpleNamespace(_reader=None))
        self.arrivals = ThreadArrivals(self.connection)

    def came(self, seconds: float = 0.0) -> bool:
        """Return whether the listener is woken in that time."""
        return run(self.arrivals.wait(seconds, TURN))

    def close(self) -> None:
        """Close it, as redis-py does."""
        self.connection._sock = None
        self.line.shutdown(socket.SHUT_RDWR)
        self.line.close()


@pytest.fixture
def shared() -> Iterator[Shared]:
    """A connection on which somebody has listened before."""
    if not hasattr(select, "epoll"):
        pytest.skip("nobody is held off where the system has no epoll")
    made = Shared()
    assert not made.came()
    yield made
    made.line.close()
    made.theirs.close()


def listening(shared: Shared) -> tuple[threading.Thread, list[bool]]:
    """Start a listener that is there when something has arrived, or the time is up; return it, and what it finds."""
    found = list[bool]()
    begun = threading.Event()
    poll = shared.arrivals._poll

    class Poll:
        def poll(self, seconds: float, most: int) -> Any:
            begun.set()
            return poll.poll(seconds, most)

        def modify(self, *arguments: Any) -> None:
            poll.modify(*arguments)

    shared.arrivals._poll = Poll()
    listener = threading.Thread(target=lambda: found.append(shared.came(LIMIT_S)))
    listener.start()
    assert begun.wait(LIMIT_S)
    return listener, found


def test_what_arrives_wakes_who_listens(shared: Shared) -> None:
    shared.theirs.send(b"x")
    assert shared.came()
    assert shared.came(), "until somebody has read it"
    shared.line.recv(1)
    assert not shared.came()


def test_who_is_held_off_is_woken_by_what_is_left_when_the_other_goes_on(shared: Shared) -> None:
    listener, found = listening(shared)
    shared.arrivals.hold_off()
    shared.theirs.send(b"xy")
    listener.join(0.05)
    assert not found
    shared.line.recv(1)
    shared.arrivals.go_on()
    listener.join(LIMIT_S)
    assert found == [True]


def test_who_is_held_off_is_not_woken_by_what_the_other_reads(shared: Shared) -> None:
    listener, found = listening(shared)
    shared.arrivals.hold_off()
    shared.theirs.send(b"x")
    shared.line.recv(1)
    shared.arrivals.go_on()
    listener.join(0.05)
    assert not found
    shared.theirs.send(b"y")
    listener.join(LIMIT_S)
    assert found == [True]


def test_who_is_held_off_hears_that_another_thread_closed_the_connection(shared: Shared) -> None:
    listener, found = listening(shared)
    shared.arrivals.hold_off()
    begun = monotonic()
    shared.close()
    shared.arrivals.go_on()
    listener.join(LIMIT_S)
    assert found == [True]
    assert monotonic() - begun < LIMIT_S / 2


def test_nobody_is_held_off_by_who_was_interrupted(shared: Shared) -> None:
    """What was not put right is when the listener waits again."""
    shared.arrivals.hold_off()
    shared.theirs.send(b"x")
    assert shared.came()


def test_who_parts_with_a_connection_does_not_hold_it_open(shared: Shared) -> None:
    shared.theirs.settimeout(LIMIT_S)
    shared.arrivals.close()
    shared.arrivals.close()
    shared.line.close()
    assert shared.theirs.recv(1) == b""
    shared.arrivals.hold_off()
    shared.arrivals.go_on()


@pytest.mark.parametrize("fails", ["made", "told"])
def test_where_no_epoll_is_to_be_had_every_arrival_wakes_and_no_descriptor_is_lost(
    fails: str, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object) -> None:
        raise OSError("no more")

    class Epoll:
        register = lacking

    monkeypatch.setattr(select, "epoll", lacking if fails == "made" else Epoll)
    arrivals = ThreadArrivals(shared.connection)
    assert not run(arrivals.wait(0.0, TURN))
    spare = os.dup(shared.line.fileno())
    os.close(spare)
    shared.theirs.send(b"x")
    for _ in range(5):
        arrivals.hold_off()
        assert run(arrivals.wait(0.0, TURN))
        arrivals.go_on()
    again = os.dup(shared.line.fileno())
    os.close(again)
    assert again == spare, "the lowest that is free is still the same"


def test_who_parts_with_a_connection_leaves_no_epoll(shared: Shared) -> None:
    """A forked child has its listener's frame, and all that it refers to, for ever."""
    poll = shared.arrivals._poll
    shared.arrivals.close()
    assert poll.closed


def test_where_the_system_has_no_epoll_every_arrival_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll", raising=False)
    shared = Shared()
    assert not shared.came()
    shared.arrivals.hold_off()
    shared.theirs.send(b"x")
    assert shared.came()
    shared.arrivals.go_on()
    shared.close()
    assert shared.came(), "who reads finds it closed"
    shared.theirs.close()
