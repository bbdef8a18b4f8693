"""The near cache by itself: trust, bounds, sharing of reads, and that nothing ever goes back."""

from __future__ import annotations

import contextlib
import threading
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from statecache.concurrency import run
from statecache.concurrency.waking import ThreadSignal
from statecache.near import ENTRY_OVERHEAD_BYTES, FLOORS_MIN, Entry, EpochVersion, shareable
from tests.support.near_entries import KEY, WINDOW_S, fill, made, record, version_at
from tests.support.sample_values import Box, Shelf


def test_a_state_is_here_until_its_end() -> None:
    near = made()
    fill(near, replace(record(3), encoding="json until 500"))
    assert version_at(near, 0.499) == 3
    assert version_at(near, 0.5) is None
    assert near.seen(KEY, (1, 3))
    assert not near.seen(KEY, (1, 2))


def test_what_was_read_is_here() -> None:
    near = made()
    assert version_at(near) is None
    fill(near, record(3))
    assert version_at(near) == 3
    counted = near.statistics(0.5)
    assert (counted.hits, counted.misses, counted.entries, counted.trusted) == (1, 1, 1, True)


def test_it_is_believed_for_a_window_from_the_sending_of_the_last_answered_heartbeat() -> None:
    near = made()
    fill(near, record(3))
    assert version_at(near, WINDOW_S - 0.01) == 3
    assert version_at(near, WINDOW_S) is None
    assert not near.trusted(WINDOW_S)
    near.answered(1.0)
    assert version_at(near, WINDOW_S) == 3
    near.answered(0.5)  # an answer that was overtaken takes nothing back
    assert version_at(near, 2.9) == 3


def test_a_caller_may_ask_for_less_staleness_but_not_for_more() -> None:
    near = made()
    fill(near, record(3))
    assert version_at(near, 0.5, stale_s=0.6) == 3
    assert version_at(near, 0.5, stale_s=0.5) is None
    assert version_at(near, WINDOW_S, stale_s=100.0) is None


def test_what_somebody_wrote_is_forgotten_and_nothing_else() -> None:
    near = made()
    fill(near, record(3))
    fill(near, record(1, key="runs/2"))
    near.invalidate([KEY, "runs/9"])
    assert version_at(near) is None
    assert version_at(near, key="runs/2") == 1
    assert near.statistics(0.5).invalidations == 2


def test_readers_of_one_key_share_one_read() -> None:
    near = made()
    first, mine = near.reserve(KEY, ThreadSignal(), 0.0)
    again, mine_too = near.reserve(KEY, ThreadSignal(), 0.0)
    assert mine
    assert not mine_too
    assert again is first
    near.settle(first, record(3))
    assert run(again.signal.wait(0))
    assert again.record == record(3)


def test_a_read_that_brings_nothing_wakes_and_keeps_nothing() -> None:
    near = made()
    reading, _ = near.reserve(KEY, ThreadSignal(), 0.0)
    near.settle(reading, None, OSError("gone"))
    assert run(reading.signal.wait(0))
    assert version_at(near) is None
    assert near.reserve(KEY, ThreadSignal(), 0.0)[1]  # the next one asks anew


def test_a_read_from_before_everything_was_dropped_is_not_kept() -> None:
    near = made()
    reading, _ = near.reserve(KEY, ThreadSignal(), 0.0)
    near.drop()
    near.answered(0.0)
    near.settle(reading, record(3))
    assert reading.record == record(3)
    assert version_at(near) is None


def test_dropping_forgets_all_and_the_trust() -> None:
    near = made()
    fill(near, record(3))
    near.drop()
    assert not near.trusted(0.0)
    near.answered(0.1)
    assert version_at(near) is None
    assert near.statistics(0.5).bytes == 0


def test_nothing_is_believed_any_more_even_where_dropping_fails() -> None:
    class Failing(contextlib.AbstractContextManager[None]):
        """The mutex cannot be had."""

        def __exit__(self, *exc_info: object) -> None: ...

        def __enter__(self) -> None:
            raise RuntimeError("no")

    near = made()
    fill(near, record(3))
    near._mutex = Failing()
    with pytest.raises(RuntimeError):
        near.drop()
    assert version_at(near) is None


def test_what_this_process_wrote_is_never_read_older() -> None:
    near = made()
    fill(near, record(3))
    reading, _ = near.reserve(KEY, ThreadSignal(), 0.0)
    assert not near.wrote(KEY, (1, 4))
    assert version_at(near) is None
    near.settle(reading, record(3))  # it was on its way when the commit was made
    assert version_at(near) is None
    assert not near.seen(KEY, (1, 3))
    fill(near, record(4))
    assert version_at(near) == 4


def test_a_state_that_is_in_use_is_told_from_one_that_is_not() -> None:
    near = made()
    fill(near, record(3))
    version_at(near)
    assert near.wrote(KEY, (1, 4))
    fill(near, record(4))
    assert not near.wrote(KEY, (1, 5))


def test_a_later_epoch_is_newer_whatever_the_version() -> None:
    near = made()
    assert near.seen(KEY, (1, 9))
    assert near.seen(KEY, (2, 4))
    assert not near.seen(KEY, (1, 10))


def test_what_is_proven_to_be_lost_is_not_missed_for_ever() -> None:
    near = made()
    near.seen(KEY, (1, 9))
    assert near.epoch_of(KEY) == 1
    near.lowered(KEY, (1, 4))
    assert near.seen(KEY, (1, 4))


def test_floors_outlive_eviction_and_connections() -> None:
    near = made(entries_max=2)
    fill(near, record(7))
    fill(near, record(1, key="runs/2"))
    fill(near, record(1, key="runs/3"))
    assert near.statistics(0.0).evictions == 1
    assert not near.seen(KEY, (1, 6))
    near.drop()
    assert not near.seen("runs/3", (1, 0))


def test_the_least_recently_used_goes_first() -> None:
    near = made(entries_max=2)
    fill(near, record(1, key="runs/1"))
    fill(near, record(1, key="runs/2"))
    version_at(near, key="runs/1")
    fill(near, record(1, key="runs/3"))
    assert [version_at(near, key=f"runs/{i}") for i in (1, 2, 3)] == [1, None, 1]


def test_it_is_bounded_in_bytes() -> None:
    near = made(bytes_max=3 * (ENTRY_OVERHEAD_BYTES + 1100))
    for i in range(10):
        fill(near, record(1, key=f"runs/{i}", value=b"x" * 1000))
    counted = near.statistics(0.0)
    assert counted.entries == 3
    assert counted.bytes == sum(Entry(record(1, key=f"runs/{i}", value=b"x" * 1000)).size for i in (7, 8, 9))
    fill(near, record(1, key="runs/big", value=b"x" * 10_000))
    assert version_at(near, key="runs/big") is None
    assert near.statistics(0.0).entries == 3  # nothing went for what has no room at all


def test_floors_are_bounded_too() -> None:
    near = made(entries_max=10)
    for i in range(FLOORS_MIN + 1):
        near.seen(f"runs/{i}", (1, 5))
    assert not near.seen("runs/1", (1, 1))
    assert near.seen("runs/0", (1, 1))


def test_watchers_are_woken_by_a_write_and_by_a_drop_until_they_leave() -> None:
    near = made()
    one, other = ThreadSignal(), ThreadSignal()
    near.watch(KEY, one)
    near.invalidate(["runs/2"])
    assert not run(one.wait(0))
    near.invalidate([KEY])
    assert run(one.wait(0))
    near.unwatch(KEY, one)
    near.watch(KEY, other)
    near.drop()
    assert run(other.wait(0))
    near.unwatch(KEY, other)
    near.unwatch(KEY, other)


def test_a_forked_child_begins_with_nothing() -> None:
    near = made()
    fill(near, record(3))
    mutex = threading.Lock()
    near.begin_anew(mutex)
    assert not near.trusted(0.0)
    near.answered(0.0)
    assert version_at(near) is None
    assert near.statistics(0.0).hits == 0


class Frozen(msgspec.Struct, frozen=True):
    """A value that nobody can change."""

    at: datetime
    names: tuple[str, ...]
    next: Frozen | None = None


class Caching(msgspec.Struct, frozen=True, dict=True):
    count: int


class Heir(Caching, frozen=True):
    name: str


class Holding(msgspec.Struct, frozen=True):
    """A value that holds one that can be changed."""

    names: list[str]


class Open(msgspec.Struct):
    """A value that can be changed."""

    name: str


@pytest.mark.parametrize(
    ("kind", "is_shared"),
    [
        (int, True), (str, True), (bytes, True), (Frozen, True), (Caching, False), (Heir, False),
        (tuple[Frozen, int], True), (frozenset[str], True),
        (int | None, True), (Any, False), (dict, False), (list[int], False), (Holding, False), (Open, False),
        (tuple[Open, ...], False), (Frozen | Open, False), (set[int], False), (object(), False), ([], False),
        (Box[int], True), (Box[Box[str]], True), (tuple[Shelf[int], ...], True), (Box[list[int]], False),
    ],
)  # fmt: skip
def test_only_what_nobody_can_change_is_shared(kind: Any, is_shared: bool) -> None:
    assert shareable(kind) is is_shared


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2)),
        st.tuples(st.just("own write"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["send", "execute", "deliver", "look", "primary"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["push", "drop"]), st.just(0)),
    ),
    max_size=60,
)


class World:
    """A server of three keys, its tracked connection with all that is on it in order, and one near cache."""

    def __init__(self) -> None:
        self.near = made(entries_max=2)
        self.versions = [1, 1, 1]
        self.tracked: set[int] = set()
        self.asked: dict[int, Any] = {}
        self.wire: list[tuple[str, int, Any, int]] = []
        self.seen: dict[int, EpochVersion] = {}

    def write(self, key: int) -> None:
        """Write as somebody else: whoever tracks the key is told, once, behind all that is on the wire."""
        self.versions[key] += 1
        if key in self.tracked:
            self.tracked.discard(key)
            self.wire.append(("push", key, None, 0))

    def own_write(self, key: int) -> None:
        """Write as the near cache's own process, which has the answer before the push."""
        self.write(key)
        self.near.wrote(f"k/{key}", (1, self.versions[key]))
        self.seen[key] = (1, self.versions[key])

    def send(self, key: int) -> None:
        """Ask the server for a local read that is not answered here."""
        reading, mine = self.near.reserve(f"k/{key}", ThreadSignal(), 0.0)
        if mine:
            self.asked[key] = reading

    def execute(self, key: int) -> None:
        """Let the server answer a read, and track the key from then on."""
        if key in self.asked:
            self.tracked.add(key)
            self.wire.append(("reply", key, self.asked.pop(key), self.versions[key]))

    def deliver(self) -> None:
        """Let the oldest thing on the wire arrive."""
        if self.wire:
            kind, key, reading, version = self.wire.pop(0)
            if kind == "push":
                self.near.invalidate([f"k/{key}"])
            else:
                self.near.settle(reading, record(version, key=f"k/{key}"))

    def drop(self) -> None:
        """Lose the connection, and open it again."""
        self.near.drop()
        self.near.answered(0.0)
        self.tracked.clear()
        self.asked.clear()
        self.wire.clear()

    def look(self, key: int) -> None:
        """Read locally: never older than was seen, and current but for what is still on the wire."""
        entry = self.near.look(f"k/{key}", 0.5)
        if entry is not None:
            assert entry.place >= self.seen.get(key, (0, 0))
            on_its_way = any(kind == "push" and one == key for kind, one, _, _ in self.wire)
            assert entry.record.version == self.versions[key] or on_its_way
            self.seen[key] = entry.place

    def primary(self, key: int) -> None:
        """Read the primary: never older than what was seen."""
        place = (1, self.versions[key])
        assert self.near.seen(f"k/{key}", place)
        self.seen[key] = place


@given(EVENTS)
def test_in_every_order_of_events_it_is_coherent_and_never_goes_back(events: list[tuple[str, int]]) -> None:
    world = World()
    for what, key in events:
        if what in ("push", "deliver"):
            world.deliver()
        elif what == "drop":
            world.drop()
        else:
            getattr(world, what.replace(" ", "_"))(key)
    for _ in range(len(world.wire)):
        world.deliver()
    for key in range(3):
        world.look(key)
