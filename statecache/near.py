"""The near cache's contract, decided from values alone: what this process may still believe of what it has read.

Every entry came over one connection that the server tracks: it pushes the name of whatever somebody writes afterwards,
once, in the order of its answers. So what an answer brings is newer than every push before it, and is true until the
next one behind it; an entry is as true as the last answer of that connection is young:

    trust      a local read is valid only while `now` is less than a window past the sending of the last answered
               heartbeat, on a clock that counts suspend: a half-open connection, a stopped process or a blocked loop
               runs out of trust by itself
    reserve    a read is announced before it is sent, and fills unless everything was dropped meanwhile. Who asks for
               the same key in the meantime shares it, unless it began longer ago than the staleness that is asked for
    floors     what this process has seen of a key, written or read in any mode, it never sees go down: a read that
               brings less is not believed, whoever answered it, until the key's shard is proven to be in a later epoch
               or Postgres says that it is the current state
    drop       with the connection, the server's role or identity, or a fork goes everything, announcements too

Bounded in bytes and entries, the least recently used goes first. Values are kept as bytes and decoded for every reader,
but for those that nobody can change, which are shared, and then weigh what they take when decoded. Thread-safe: the
mutex is held for a few dictionary operations and never while anything is waited for; a hit does without.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import islice
from math import inf
from sys import getsizeof
from typing import Any, Protocol

from msgspec import inspect

from statecache.expiry import until_of
from statecache.model import NearStatistics, Record, State
from statecache.record_classes import class_of

EpochVersion = tuple[int, int]
"""The epoch and version of a state, which never go down for a reader."""

ENTRY_OVERHEAD_BYTES = 1200
"""What an entry counts beside its key and value, in bytes."""
FLOORS_MIN = 1000
"""The least number of keys of which the last place seen is remembered, the latest ones."""
_SAMPLED = 8
"""How many items of a large container are measured, at least, to estimate its size."""
_NEVER = -inf
_FROZEN = (
    inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType, inspect.BytesType,
    inspect.DateTimeType, inspect.TimeType, inspect.DateType, inspect.TimeDeltaType, inspect.UUIDType,
    inspect.DecimalType, inspect.EnumType, inspect.LiteralType,
)  # fmt: skip


class Signal(Protocol):
    """A means to wake those who wait for something to change."""

    def set(self) -> None:
        """Wake them."""


class Entry:
    """A state as it was read: its record, and the last reader's value where that may be shared.

    `shape` is the state but for its value, once somebody has read it: that alone differs from reader to reader.
    `private` is the last codec of whose values every reader has one of its own, with what reads the bytes if nothing
    else has to be looked at. `until` is when it ends, in ms by the server's clock; None where it lasts.
    """

    __slots__ = ("place", "private", "record", "shape", "shared", "size", "until", "used")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.until = until_of(record.encoding)
        self.place = (record.epoch, record.version)
        self.size = bytes_of(record)
        self.used = False
        self.shape: State[Any] | None = None
        self.private: tuple[Any, Callable[[bytes], Any] | None] = (Entry, None)
        self.shared: tuple[Any, State[Any] | None] = (Entry, None)  # nobody reads it as that type


def bytes_of(record: Record) -> int:
    """Return what a record counts in the near cache, in bytes, without a decoded value."""
    return len(record.value) + 2 * len(record.key) + ENTRY_OVERHEAD_BYTES


class Reading:
    """A read under way since the moment `begun`; its result is kept unless it is below `floor`."""

    __slots__ = ("begun", "error", "floor", "key", "record", "signal")

    def __init__(self, key: str, floor: EpochVersion, signal: Signal, begun: float) -> None:
        self.key = key
        self.begun = begun
        self.floor = floor
        self.signal: Any = signal
        self.record: Record | None = None
        self.error: Exception | None = None


class Near:
    """The near cache of one client: the states that it has read lately.

    `server_ms` gives what time it is for the server at a moment, in ms since 1970: its clock may be set meanwhile.
    """

    def __init__(
        self, *, bytes_max: int, entries_max: int, window_s: float, mutex: AbstractContextManager[Any],
        server_ms: Callable[[float], float],
    ) -> None:  # fmt: skip
        self.keeps = bytes_max > 0 and entries_max > 0
        self._server_ms = server_ms
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        self._floors_max = max(entries_max, FLOORS_MIN)
        self._window_s = window_s
        self._begin(mutex)

    def _begin(self, mutex: AbstractContextManager[Any]) -> None:
        self._mutex = mutex
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._readings: dict[str, Reading] = {}
        self._watchers: dict[str, list[Signal]] = {}
        self._floors: dict[str, EpochVersion] = {}
        self._bytes = 0
        self._sent = _NEVER
        self._hits = self._misses = self._invalidations = self._evictions = 0

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget everything in a forked child, where the thread that held the mutex may not exist."""
        self._begin(mutex)

    # Reading.

    def look(self, key: str, now: float, stale_s: float = inf) -> Entry | None:
        """Return what may be believed of a key now, no more than `stale_s` seconds old; else None.

        It takes no mutex, which would be a fifth of its time: what it finds was there and trusted at one moment of the
        call, whatever other threads do between its steps.
        """
        age_s = now - self._sent
        entry = self._entries.get(key)
        if entry is None or age_s >= self._window_s or age_s >= stale_s:
            self._misses += 1
            return None
        if entry.until is not None and entry.until <= self._server_ms(now):
            self._misses += 1
            return None
        self._hits += 1
        entry.used = True
        try:
            self._entries.move_to_end(key)
        except KeyError:  # gone meanwhile: it was the key's state when the call began
            return entry
        return entry

    def reserve(self, key: str, signal: Signal, now: float) -> tuple[Reading, bool]:
        """Announce a read, or find the one under way; return it, and whether the caller has to send it."""
        with self._mutex:
            reading = self._readings.get(key)
            if reading is not None:
                return reading, False
            reading = self._readings[key] = Reading(key, self._floor(key), signal, now)
            return reading, True

    def settle(self, reading: Reading, record: Record | None, error: Exception | None = None) -> None:
        """End a read and wake its waiters; keep its record, unless all was dropped meanwhile or it is too old."""
        reading.record, reading.error = record, error
        with self._mutex:
            if self._readings.get(reading.key) is reading:
                del self._readings[reading.key]
                if record is not None and (record.epoch, record.version) >= reading.floor:
                    self._put(record)
        reading.signal.set()

    def _put(self, record: Record) -> None:
        entry = Entry(record)
        if entry.size > self._bytes_max:
            return
        self._take(record.key)
        self._floors.pop(record.key, None)
        self._entries[record.key] = entry
        self._bytes += entry.size
        self._make_room()

    def _make_room(self) -> None:
        while self._bytes > self._bytes_max or len(self._entries) > self._entries_max:
            key, old = self._entries.popitem(last=False)
            self._bytes -= old.size
            self._evictions += 1
            self._raise_floor(key, old.place)

    def share(self, entry: Entry, kind: Any, state: State[Any]) -> bool:
        """Keep the decoded value for all readers of its type, which is immutable, and count its size as the entry's.

        Return False where the value does not fit: then only the bytes are kept.
        """
        size = bytes_of(entry.record) + decoded_bytes(state.value)
        if size > self._bytes_max:
            return False
        with self._mutex:
            if self._entries.get(entry.record.key) is entry:
                self._bytes += size - entry.size
                entry.size = size
                self._make_room()
        entry.shared = kind, state
        return True

    def _take(self, key: str) -> Entry | None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size
            self._raise_floor(key, entry.place)
        return entry

    # Never going back.

    def _floor(self, key: str) -> EpochVersion:
        entry = self._entries.get(key)
        return entry.place if entry is not None else self._floors.get(key, (0, 0))

    def _raise_floor(self, key: str, place: EpochVersion) -> None:
        floors = self._floors
        known = floors.pop(key, None)  # what was met last is remembered longest
        floors[key] = place if known is None or place > known else known
        if len(floors) > self._floors_max:
            del floors[next(iter(floors))]

    def seen(self, key: str, place: EpochVersion) -> bool:
        """Note what was read past the near cache; return False where it is below what was seen before."""
        with self._mutex:
            return self._saw(key, place)

    def _saw(self, key: str, place: EpochVersion) -> bool:
        entry = self._entries.get(key)
        if entry is not None:
            if entry.place == place:
                return True
            if entry.place > place:
                return False
            self._take(key)
        elif self._floors.get(key, place) > place:
            return False
        self._raise_floor(key, place)
        reading = self._readings.get(key)
        if reading is not None and reading.floor < place:
            reading.floor = place
        return True

    def lowered(self, key: str, place: EpochVersion) -> None:
        """Note a state that is proven although it is below what was seen: its shard has begun a later epoch."""
        with self._mutex:
            self._take(key)
            self._floors[key] = place

    def epoch_of(self, key: str) -> int:
        """Return the epoch in which the key was last seen, or 0."""
        with self._mutex:
            return self._floor(key)[0]

    def known_under(self, prefix: str) -> list[str]:
        """Return the keys under a prefix that are remembered to have a state."""
        with self._mutex:
            known = {key: entry.place for key, entry in list(self._entries.items())} | self._floors
        return [key for key, place in known.items() if place[1] and key.startswith(prefix)]

    def wrote(self, key: str, place: EpochVersion) -> bool:
        """Note what this process has written; return whether the key's old state was kept here and was used."""
        with self._mutex:
            entry = self._entries.get(key)
            self._saw(key, place)
        return entry is not None and entry.used

    # Coherence.

    def invalidate(self, keys: Iterable[str]) -> None:
        """Forget keys that somebody has written, and wake those who watch them."""
        with self._mutex:
            for key in keys:
                self._invalidations += 1
                self._take(key)
                for signal in self._watchers.get(key, ()):
                    signal.set()

    def drop(self) -> None:
        """Forget everything but the floors: the connection, the server or its role has changed.

        Trust ends first, so nothing is believed whatever happens next. What a concurrent hit may reorder is detached
        before it is iterated.
        """
        self._sent = _NEVER
        with self._mutex:
            self._sent = _NEVER  # a heartbeat of before may have been answered meanwhile
            entries, self._entries, self._bytes = self._entries, OrderedDict(), 0
            self._readings.clear()
            for key, entry in list(entries.items()):
                self._raise_floor(key, entry.place)
            for signals in self._watchers.values():
                for signal in signals:
                    signal.set()

    def answered(self, sent: float) -> None:
        """Renew the trust: a heartbeat that was sent at that moment has been answered."""
        with self._mutex:
            self._sent = max(self._sent, sent)

    def trusted(self, now: float) -> bool:
        """Return whether what is kept here may be believed now."""
        return now - self._sent < self._window_s

    def watch(self, key: str, signal: Signal) -> None:
        """Set the signal whenever the key is invalidated, until `unwatch`."""
        with self._mutex:
            self._watchers.setdefault(key, []).append(signal)

    def unwatch(self, key: str, signal: Signal) -> None:
        """Stop setting the signal when the key is invalidated."""
        with self._mutex:
            signals = self._watchers.get(key, [])
            if signal in signals:
                signals.remove(signal)
            if not signals:
                self._watchers.pop(key, None)

    def statistics(self, now: float) -> NearStatistics:
        """Return what has been counted since the client was made."""
        with self._mutex:
            return NearStatistics(
                hits=self._hits,
                misses=self._misses,
                invalidations=self._invalidations,
                evictions=self._evictions,
                entries=len(self._entries),
                bytes=self._bytes,
                trusted=self.trusted(now),
            )


def decoded_bytes(value: Any) -> int:
    """Return about how many bytes a decoded value of a shareable type takes.

    Of a container with many items, evenly spread ones stand for all.
    """
    size = getsizeof(value)
    if isinstance(value, (tuple, frozenset)):
        return size + _items_bytes(value)
    names = getattr(value, "__struct_fields__", ())
    return size + sum(decoded_bytes(getattr(value, name)) for name in names)


def _items_bytes(items: Collection[Any]) -> int:
    step = max(1, len(items) // _SAMPLED)
    sampled = [decoded_bytes(item) for item in islice(items, 0, None, step)]
    return sum(sampled) * len(items) // len(sampled) if sampled else 0


def shareable(kind: Any) -> bool:
    """Return whether values of that type are immutable, so that all readers may share one."""
    try:
        return _shareable(kind)
    except (TypeError, ValueError, NameError):  # unhashable, or of a kind that msgspec does not know
        return False


@lru_cache(maxsize=1024)
def _shareable(kind: Any) -> bool:
    return _is_frozen(inspect.type_info(kind), ())


def _is_frozen(info: inspect.Type, above: tuple[int, ...]) -> bool:
    if isinstance(info, _FROZEN):
        return True
    if id(info) in above:
        return True  # it holds itself, and is frozen if all the rest is
    within = (*above, id(info))
    if isinstance(info, inspect.Metadata):
        return _is_frozen(info.type, within)
    if isinstance(info, inspect.UnionType):
        return all(_is_frozen(part, within) for part in info.types)
    if isinstance(info, (inspect.VarTupleType, inspect.FrozenSetType)):
        return _is_frozen(info.item_type, within)
    if isinstance(info, inspect.TupleType):
        return all(_is_frozen(part, within) for part in info.item_types)
    if isinstance(info, inspect.NamedTupleType):
        return all(_is_frozen(field.type, within) for field in info.fields)
    if isinstance(info, inspect.StructType):
        kind = class_of(info)
        if not kind.__struct_config__.frozen or kind.__dictoffset__:
            return False  # what a reader keeps in a __dict__, as cached_property does, is his alone
        return all(_is_frozen(field.type, within) for field in info.fields)
    return False
