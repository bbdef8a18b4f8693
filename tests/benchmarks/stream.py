"""What whole values in the change stream cost, and what they save.

Recorded agent runs, the whole state of each committed after every message, with no worker: all of it waits in Redis'
streams as the commit script has written it. Each stream is laid a second and a third time beside it, entry by entry,
with every value compressed by itself, and as a delta to the key's value before. Nothing in statecache writes either.

What a lost entry costs is counted on what these streams then give back. A version comes out whose bytes are right; the
newest of a key always does, for its state stands whole in a hash of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import Any

import redis

from statecache.keys import KeySpace
from statecache.testing import servers
from statecache.zstd import compressed, compressed_behind, decompressed, plain_frame
from tests.benchmarks.backlog import Backlog
from tests.benchmarks.history import Pair, states_of
from tests.benchmarks.measuring import Measure, Row

LAYOUTS = ("whole", "alone", "delta")
_VALUE = b"value1"
_FRAME = b"\x28\xb5\x2f\xfd"
"""How each zstd frame begins, and no JSON."""

Entries = dict[str, list[bytes]]
"""What the entries of each key hold for its value, in the order of its versions."""


def stream(runs: Path, rounds: int) -> Iterator[Row]:
    """Measure the rows on servers of their own."""
    changes = list(states_of(runs))
    with servers(workers=0) as running:
        bare: Any = redis.Redis.from_url(running.redis_url)
        with bare:
            space = KeySpace()
            Backlog(bare, space, []).lay_values(changes)
            sizes, found = _laid(bare, space)
    size, many = fmean(len(value) for _, value in changes) / 1024, len(changes)
    named = {
        "whole": f"stream bytes a change of {many:,}, {size:.1f} KB each, whole",
        "alone": "the same, each compressed by itself",
        "delta": "the same, each as a delta to the one before",
    }
    for layout, name in named.items():
        yield Row(subject=Measure(name=name), figures=[sizes[layout] / many / 1024], unit="KB")
    yield _time("client's CPU to compress one by itself", changes, rounds, lambda _, value: compressed(value))
    yield _time("client's CPU to make one a delta", changes, rounds, _as_delta)
    truth = _by_key(changes)
    for layout in LAYOUTS:
        if any(_all(found[layout][key]) != values for key, values in truth.items()):
            raise RuntimeError(f"what the streams hold ({layout}) does not give the values")
        lost = [lost_with(found[layout][key], values, at) for key, values in truth.items() for at in range(len(values))]
        name, worst = f"versions lost with one entry, {layout}", Measure(name=f"the worst one: {max(lost)}")
        yield Row(subject=Measure(name=name), against=worst, figures=[fmean(lost)])


def _laid(bare: Any, space: KeySpace) -> tuple[dict[str, int], dict[str, Entries]]:
    """Lay every stream in the other layouts; return the bytes of each layout in Redis, and what is read back of it."""
    sizes = dict.fromkeys(LAYOUTS, 0)
    found: dict[str, Entries] = {layout: {} for layout in LAYOUTS}
    for shard in range(space.shards):
        names = {"whole": space.changes(shard)} | {layout: f"{{{shard}}}:{layout}" for layout in LAYOUTS[1:]}
        pipe, before = bare.pipeline(transaction=False), dict[bytes, bytes]()
        for entry_id, fields in bare.xrange(names["whole"]):
            if _VALUE in fields:
                key, value = fields[b"key1"], fields[_VALUE]
                pipe.xadd(names["alone"], fields | {_VALUE: compressed(value)}, id=entry_id)
                pipe.xadd(names["delta"], fields | {_VALUE: _as_delta(before.get(key), value)}, id=entry_id)
                before[key] = value
        pipe.execute()
        for layout, name in names.items():
            if before:
                sizes[layout] += int(bare.memory_usage(name, samples=0))
            for _, fields in bare.xrange(name):
                if _VALUE in fields:
                    found[layout].setdefault(fields[b"key1"].decode(), []).append(fields[_VALUE])
    return sizes, found


def _as_delta(before: bytes | None, value: bytes) -> bytes:
    return compressed(value) if before is None else compressed_behind(before, value)


def _by_key(changes: Sequence[Pair]) -> dict[str, list[bytes]]:
    values: dict[str, list[bytes]] = {}
    for key, value in changes:
        values.setdefault(key, []).append(value)
    return values


def _all(entries: Sequence[bytes]) -> list[bytes | None]:
    """Return the values of a key of which no entry is lost."""
    values: list[bytes | None] = [None]
    for entry in entries:
        values.append(_read(entry, values[-1]))
    return values[1:]


def lost_with(entries: Sequence[bytes], values: Sequence[bytes], at: int) -> int:
    """Return how many versions of a key do not come out, given that the entry of one of them is lost."""
    last, before = len(values) - 1, values[at - 1] if at else None
    lost = int(at != last)
    for version in range(at + 1, last + 1):
        if _read(entries[version], before) == values[version]:
            break  # what comes behind it comes out too
        lost, before = lost + int(version != last), None
    return lost


def _read(entry: bytes, before: bytes | None) -> bytes | None:
    """Return the value of an entry: as it is, by itself, or behind the last one that came out; None where none is."""
    if not entry.startswith(_FRAME):
        return entry
    for frames in ([entry], [plain_frame(before or b""), entry]):
        try:
            return decompressed(frames)
        except ValueError:
            continue
    return None


def _time(name: str, changes: Sequence[Pair], rounds: int, pack: Callable[[bytes | None, bytes], bytes]) -> Row:
    spent: list[float] = []
    for _ in range(rounds):
        before: dict[str, bytes] = {}
        started = process_time()
        for key, value in changes:
            pack(before.get(key), value)
            before[key] = value
        spent.append(1e6 * (process_time() - started) / len(changes))
    return Row(subject=Measure(name=name), figures=spent, unit="µs")
