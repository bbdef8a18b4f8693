"""The near cache shared: by threads that read while others drop it, and decoded values by all readers."""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from statecache.model import State
from statecache.near import Entry, Near, decoded_bytes
from tests.support.near_entries import KEY, fill, made, record, version_at


@pytest.fixture
def short_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_what_another_thread_forgets_in_the_middle_of_a_look_was_there_when_it_began() -> None:
    class Overtaken(OrderedDict[str, Entry]):
        """Another thread comes between the steps of whoever looks."""

        def get(self, key: str, default: Any = None) -> Any:
            entry = super().get(key, default)
            near.invalidate([key])
            return entry

    near = made()
    fill(near, record(3))
    near._entries = Overtaken(near._entries)
    assert version_at(near) == 3
    assert version_at(near) is None


def test_dropping_goes_well_while_other_threads_read(short_switches: None) -> None:
    keys = [f"runs/{number}" for number in range(2000)]
    near = made(bytes_max=10**9, entries_max=len(keys))
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            for key in keys:
                near.look(key, 0.5)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for version in range(1, 31):
            near.answered(0.0)
            for key in keys:
                fill(near, record(version, key=key))
            near.drop()
            assert near.statistics(0.5).entries == 0
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert not near.seen(keys[0], (1, 29))  # the floors are kept


class Note(msgspec.Struct, frozen=True):
    """A value that nobody can change, much larger when decoded than in JSON."""

    numbers: tuple[int, ...]
    words: frozenset[str] = frozenset()


def shared(near: Near, key: str, numbers: int) -> Entry | None:
    """Read a value that all readers share, as a client does; return its entry."""
    value = Note(tuple(range(1000, 1000 + numbers)))
    fill(near, record(1, key=key, value=msgspec.json.encode(value)))
    entry = near.look(key, 0.5)
    if entry is not None:
        made_of = msgspec.json.decode(entry.record.value, type=Note)
        near.share(entry, Note, State(key=key, value=made_of, epoch=1, version=1, change_id="c", parent_change_id="",
                                      position=None, updated_at=datetime.now(UTC), writer=""))  # fmt: skip
    return entry


def test_what_is_decoded_for_all_readers_counts_too() -> None:
    near = made(bytes_max=2_000_000, entries_max=1000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(300):
            shared(near, f"runs/{number}", 1000)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counted = near.statistics(0.5)
    assert counted.bytes <= 2_000_000
    assert taken < 2_200_000
    assert 30 < counted.entries < 60


def test_what_fits_only_as_bytes_is_decoded_for_every_reader() -> None:
    near = made(bytes_max=20_000)
    entry = shared(near, KEY, 1000)
    assert entry is not None
    assert entry.shared[0] is not Note
    assert version_at(near) == 1


def test_a_value_s_weight_is_about_what_python_takes_for_it() -> None:
    for value in (
        Note(tuple(range(10**6, 10**6 + 5000))),
        Note((), frozenset(f"word {number}" for number in range(2000))),
        Note((1, 2, 3)),
    ):
        spelled = msgspec.json.encode(value)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            held = [msgspec.json.decode(spelled, type=Note) for _ in range(10)]
            taken = (tracemalloc.get_traced_memory()[0] - before) / len(held)
        finally:
            tracemalloc.stop()
        assert 0.8 * taken < decoded_bytes(held[0]) < 1.5 * taken + 200
