"""What a signal handler raises while a thread is started is what its caller sees."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from statecache.concurrency.starting import start


class Interrupted(threading.Thread):
    """A thread whose start is interrupted as it waits: Python then releases a lock that it has not taken back."""

    def start(self) -> None:
        """Start, and be interrupted where the wait takes its lock back."""
        condition = threading.Condition(threading.Lock())
        condition._acquire_restore = self._interrupt  # type: ignore[attr-defined]
        super().start()
        with condition:
            condition.wait(0)

    def _interrupt(self, _: object) -> None:
        raise KeyboardInterrupt


def test_what_interrupts_the_start_is_raised_and_not_what_breaks_of_it() -> None:
    ran = threading.Event()
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        Interrupted(target=ran.set).start()
    with pytest.raises(KeyboardInterrupt):
        start(Interrupted(target=ran.set))
    assert ran.wait(60)


def test_what_interrupts_it_before_the_thread_is_known_to_run_is_raised_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread runs, and has taken itself off the list of those that are being started, where Python looks for it."""
    name = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
    ran, begin = threading.Event(), getattr(threading, name)

    def interrupted(*arguments: Any, **named: Any) -> None:
        begin(*arguments, **named)
        assert ran.wait(60)
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(threading, name, interrupted)
        with pytest.raises(KeyError):
            threading.Thread(target=ran.set).start()
        ran.clear()
        with pytest.raises(InterruptedError):
            start(threading.Thread(target=ran.set))


def test_a_thread_that_cannot_be_started_says_so() -> None:
    thread = threading.Thread(target=int)
    start(thread)
    try:
        raise KeyError
    except KeyError:
        with pytest.raises(RuntimeError, match="once"):
            start(thread)
