"""What belongs to one process: the mutex that a signal handler cannot wait for, nor leave behind held."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from statecache._process import Mutex
from statecache.errors import UsageError
from statecache.resp import packed

LIMIT_S = 60.0


@pytest.fixture
def handled() -> Iterator[list[Any]]:
    """What is called when this process gets SIGUSR1, the last one."""
    calls: list[Any] = [lambda: None]
    before = signal.signal(signal.SIGUSR1, lambda *_: calls[-1]())
    yield calls
    signal.signal(signal.SIGUSR1, before)


def is_free(mutex: Mutex) -> bool:
    """Return whether another thread can acquire it."""
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(mutex.acquire(timeout=LIMIT_S)))
    thread.start()
    thread.join()
    return got == [True]


def test_who_holds_it_is_refused_and_everyone_else_waits(handled: list[Any]) -> None:
    mutex = Mutex()

    def handler() -> None:
        with mutex:
            pass

    handled.append(handler)
    with pytest.raises(UsageError, match="signal handler"), mutex:
        signal.raise_signal(signal.SIGUSR1)
    assert is_free(mutex)


def test_a_handler_that_raises_leaves_it_free_wherever_it_comes() -> None:
    mutex, met = Mutex(), 0

    def interrupt(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(2000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number % 20))
                for _ in range(200):
                    with mutex:
                        pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except InterruptedError:
                met += 1
            assert not mutex._is_owned()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert met > 1000
    assert is_free(mutex)


def test_a_handler_that_raises_while_numbers_are_packed_ends_no_process() -> None:
    """Of what a handler interrupts in the middle, the library that packs would read what is not there."""
    command, met = ("SET", "key", b"value", 2**60, 0.5, *range(2000)), 0
    whole = packed([command])

    def interrupt(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while met < 300:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                while True:
                    assert packed([command]) == whole
            except InterruptedError:
                met += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert b"".join(packed([command, command])) == whole[0] * 2
