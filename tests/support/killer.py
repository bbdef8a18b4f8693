"""Kills servers and the worker while somebody uses them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

from statecache.testing.embedded import Servers


class Killer:
    """Kills one after the other, each when it is called, and starts it again while those who use it go on."""

    def __init__(self, running: Servers, *names: str) -> None:
        self._running, self._names, self.struck = running, names, list[str]()
        self._restarting: list[Thread] = []

    def __call__(self, number: int) -> None:
        """Kill what is due in this round, the one before running again."""
        self.wait()
        name = self._names[number % len(self._names)]
        if name == "worker":
            self._running.kill_worker()
            again: Callable[[], Any] = self._running.start_workers
        else:
            self._running.kill(name)

            def again() -> None:
                self._running.restart(name)

        self.struck.append(name)
        self._restarting.append(Thread(target=again))
        self._restarting[-1].start()

    def wait(self) -> None:
        """Wait until all run again."""
        for one in self._restarting:
            one.join()
        self._restarting.clear()
