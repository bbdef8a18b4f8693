"""Repair of a gap: the entries are gone, the states' hashes are not.

First the states are gone through (`recall`), for some of those in the gap may be clean. Then a key that is dirty at a
position inside the gap still holds, in its hash, the very change whose entry is lost; it is rebuilt from there and
flushed in its place. A version that was already overwritten when its entry got lost is gone for good: it is counted,
and the change that comes behind it is taken in with the gap recorded. So is a state that has left Redis meanwhile.

Each state tells who made its commit, and why, and of one of several states how many it wrote (`parts`). Where some are
gone the others are rebuilt all the same, for what came later builds on them, and the position counts as lost. What an
earlier release committed does not tell that: the shard's count of bytes shows then that something is missing, and not
where.

Keys of what is lost are named by those who still know: the list of what is dirty, and the last commits that each state
remembers. These are kept by their change_ids too, so that they are not applied again when the state has forgotten them.

A gap may be passed in parts: what a batch leaves of it is a gap for the next one, which goes through it anew. What is
lost in a part is recorded with it, and the alarm is raised once that is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from statecache.entries import ForeignEntry, change_set_of_states, fields_of, many_of, position_of
from statecache.model import Position
from statecache_workers.owned_shards import set_apart
from statecache_workers.slices import Entry, Slice
from statecache_workers.stream_places import Gap, LostChange, place_of
from statecache_workers.streams import Streams

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache.settings import Settings

_Dirty = tuple[int, str]
_State = dict[str, bytes]
_KEYS_PER_READ = 64
_NAMED_AT_ONCE = 1000
"""How many dirty states behind a gap are asked at a time for the commits before theirs."""


class _Rebuilt(msgspec.Struct):
    """How far a gap was gone through, the positions that are whole again, and keys and changes of the others."""

    end: int
    whole: set[int] = set()
    keys: dict[int, list[str]] = {}
    changes: dict[int, set[LostChange]] = {}

    def name(self, n: int, key: str) -> None:
        """Note a key that was written at a position which is lost."""
        names = self.keys.setdefault(n, [])
        if key not in names:
            names.append(key)

    def name_earlier(self, states: Sequence[_State], first: int) -> None:
        """Note the states whose earlier commits, as they remember them, are lost, and the changes that these were."""
        for state in states:
            key = _text(state.get("key", b""))
            for change_id, epoch, n in map(_remembered, state.get("recent", b"").split()):
                if first <= n <= self.end and n not in self.whole:
                    self.name(n, key)
                    self.changes.setdefault(n, set()).add(LostChange(change_id, key, epoch, n))

    def lost(self, first: int) -> list[Gap]:
        """Return the runs of positions that are lost, each with keys of its commits."""
        runs: list[list[int]] = []
        for n in range(first, self.end + 1):
            if n not in self.whole and runs and runs[-1][-1] == n - 1:
                runs[-1].append(n)
            elif n not in self.whole:
                runs.append([n])
        return [self._gap(run) for run in runs]

    def _gap(self, run: Sequence[int]) -> Gap:
        changes = [change for n in run for change in sorted(self.changes.get(n, ()))]
        return Gap(run[0], run[-1], len(run), self.keys, changes)


class Repair:
    """The repair of gaps."""

    def __init__(self, settings: Settings, keys: KeySpace, streams: Streams) -> None:
        self._settings = settings
        self._keys = keys
        self._streams = streams

    async def fill(self, link: Link, one: Slice, most: int) -> None:
        """Fill a gap's slice with what can be rebuilt, of so many positions at most."""
        first, last = one.start.n + 1, one.end.n
        end = min(last, one.start.n + most)
        unflushed = self._keys.unflushed(one.shard)
        (reply,) = await self._streams.run(link, [("ZRANGEBYSCORE", unflushed, first, end, "WITHSCORES")])
        if isinstance(reply, Exception):
            set_apart(one.holding, "foreign_data", f"{unflushed}: {reply}")
            one.put_off()
            return
        named = zip(reply[::2], reply[1::2], strict=True)
        dirty = [(int(float(n)), key.decode("utf-8", "replace")) for key, n in named if b"/" in key]
        rebuilt = await self._rebuild(link, one, dirty, end)
        if len(rebuilt.whole) < rebuilt.end - first + 1:
            await self._name_overwritten(link, one.shard, rebuilt, first)
        one.gaps = rebuilt.lost(first)
        if rebuilt.end < last:
            one.stop_at(rebuilt.end)
        if not one.gaps and one.missing_bytes:
            begun = place_of(one.start.after).n + 1 if one.start.after else first  # parts of it may be passed already
            one.gaps = [Gap(min(first, begun), one.end.n, 1, {})]

    async def _rebuild(self, link: Link, one: Slice, dirty: Sequence[_Dirty], end: int) -> _Rebuilt:
        """Add the entries of the dirty keys up to where the batch is full, and return what came of it."""
        size, rebuilt, seen = 0, _Rebuilt(end), list[_State]()
        for n, group in groupby(dirty, key=lambda pair: pair[0]):
            if size > self._settings.flush_bytes_max:
                rebuilt.end = n - 1
                break
            keys = [key for _, key in group]
            there = await self._states(link, keys)
            seen += [{name: state.get(name, b"") for name in ("key", "recent")} for state in there]
            states = [state for state in there if state.get("position", b"").endswith(b"-%d" % n)]
            size += sum(len(state.get("value", b"")) for state in states)
            if states:
                one.entries.append(_entry(one, n, states))
            if states and len(states) >= max(len(keys), *map(many_of, states)):
                rebuilt.whole.add(n)
            else:
                rebuilt.keys[n] = keys
        rebuilt.name_earlier(seen, one.start.n + 1)
        return rebuilt

    async def _name_overwritten(self, link: Link, shard: int, rebuilt: _Rebuilt, first: int) -> None:
        """Name keys of what is lost by the states that were written again behind the gap, as far as they remember."""
        behind, at = ("ZRANGEBYSCORE", self._keys.unflushed(shard), rebuilt.end + 1, "+inf", "LIMIT"), 0
        while True:
            (names,) = await self._streams.run(link, [(*behind, at, _NAMED_AT_ONCE)])
            if isinstance(names, Exception) or not names:
                return
            keys = [name.decode("utf-8", "replace") for name in names if b"/" in name]
            rebuilt.name_earlier(await self._states(link, keys, ("key", "recent")), first)
            at += len(names)

    async def _states(self, link: Link, keys: Sequence[str], fields: Sequence[str] = ()) -> list[_State]:
        """Return the hashes of states that are there, or these fields of them."""
        states: list[_State] = []
        for start in range(0, len(keys), _KEYS_PER_READ):
            some = [self._keys.state(key) for key in keys[start : start + _KEYS_PER_READ]]
            commands = [("HMGET", name, *fields) if fields else ("HGETALL", name) for name in some]
            for reply in await self._streams.run(link, commands):
                if isinstance(reply, Exception):
                    continue
                pairs = zip(fields, reply, strict=True) if fields else zip(reply[::2], reply[1::2], strict=True)
                states.append({_text(name): value for name, value in pairs if value is not None})
        return states


def _text(name: bytes | str) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "replace")


def _remembered(one: bytes) -> tuple[str, int, int]:
    """Return change_id, epoch and n of a commit that a state remembers, `<change_id>@<epoch>-<n>`; 0 for no number."""
    change_id, _, place = one.partition(b"@")
    epoch, _, n = place.partition(b"-")
    known = epoch.isdigit() and n.isdigit()
    return _text(change_id), int(epoch) if known else 0, int(n) if known else 0


def _entry(one: Slice, n: int, states: Sequence[_State]) -> Entry:
    fields = [part for state in states for name, value in state.items() for part in (name.encode(), value)]
    try:
        position = position_of(states[0]["position"])
        found = change_set_of_states(position, (one.end.entries, one.end.bytes), states)
        return Entry(fields_of(found), position, found)
    except ForeignEntry as error:
        return Entry(fields, Position(one.head.epoch or 0, n), None, str(error))
