"""The newest epochs that a client has met, also where threads note them at once."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Any

import pytest

from statecache.core.epoch.newest_epochs import NewestEpochs

SHARD = 7
WAIT_S = 20.0


class Overtaken(dict[int, int]):
    """A dictionary beside which, as soon as it was first read, another thread does something."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile: Callable[[], None] | None = meanwhile

    def get(self, key: int, default: Any = None) -> Any:
        found = super().get(key, default)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found


class Another:
    """Another thread that notes an epoch, as far as it comes before it has to wait for the mutex."""

    def __init__(self, epochs: NewestEpochs, epoch: int) -> None:
        self._waits, self._lock = Event(), Lock()
        self._thread = Thread(target=self._note, args=(epochs, epoch))
        epochs.begin_anew(self)

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def _note(self, epochs: NewestEpochs, epoch: int) -> None:
        epochs.note(SHARD, epoch)
        self._waits.set()

    def begin(self) -> None:
        self._thread.start()
        assert self._waits.wait(WAIT_S)

    def end(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("read", ["_newest", "_highest"])
@pytest.mark.parametrize("verb", ["note", "prove"])
def test_nothing_is_lowered_by_a_thread_that_is_overtaken(verb: str, read: str) -> None:
    epochs = NewestEpochs()
    another = Another(epochs, 9)
    setattr(epochs, read, Overtaken(another.begin))
    getattr(epochs, verb)(SHARD, 5)
    another.end()
    assert epochs.highest(SHARD) == 9
    assert epochs.of(SHARD) == 9 or verb == "prove"


def test_what_postgres_says_counts_for_more_and_what_was_met_stays_known() -> None:
    epochs = NewestEpochs()
    epochs.note(SHARD, 9)
    epochs.note(SHARD, 8)
    assert (epochs.of(SHARD), epochs.highest(SHARD)) == (9, 9)
    epochs.prove(SHARD, 5)
    assert (epochs.of(SHARD), epochs.highest(SHARD)) == (5, 9)
    epochs.note(SHARD, 6)
    assert (epochs.of(SHARD), epochs.highest(SHARD)) == (6, 9)
    assert (epochs.of(SHARD + 1), epochs.highest(SHARD + 1)) == (0, 0)
