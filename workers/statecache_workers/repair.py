"""Repair of a gap: the entries are gone, the states' hashes are not.

First the states are gone through (`recall`), for some of those in the gap may be clean. Then a key that is dirty at a
position inside the gap still holds, in its hash, the very change whose entry is lost; it is rebuilt from there and
flushed in its place. A version that was already overwritten when its entry got lost is gone for good: it is counted,
and the change that comes behind it is taken in with the gap recorded. So is a state that has left Redis meanwhile: of a
commit of several the others are rebuilt, and only the shard's count of bytes tells that something is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from statecache.entries import ForeignEntry, change_set_of_states, position_of
from statecache.model import Position
from statecache_workers.holdings import set_apart
from statecache_workers.logs import alarm
from statecache_workers.streams import Entry, Gap, Slice, Streams, weight

if TYPE_CHECKING:
    from statecache._async.redis.connection import AsyncLink
    from statecache.keys import KeySpace
    from statecache.settings import Settings

_Dirty = tuple[int, str]
_KEYS_PER_READ = 64
KEYS_MAX = 10
"""How many keys of lost changes are named."""


class Repair:
    """The repair of gaps."""

    def __init__(self, settings: Settings, keys: KeySpace, streams: Streams) -> None:
        self._settings = settings
        self._keys = keys
        self._streams = streams

    async def fill(self, link: AsyncLink, one: Slice) -> None:
        """Fill a gap's slice with what can be rebuilt, as much as fits into a batch, and raise the alarm."""
        start, last = one.start, one.end.n
        first, end = start.n + 1, min(last, start.n + self._settings.flush_batch_max)
        unflushed = self._keys.unflushed(one.shard)
        (reply,) = await self._streams.run(link, [("ZRANGEBYSCORE", unflushed, first, end, "WITHSCORES")])
        if isinstance(reply, Exception):
            set_apart(one.holding, "foreign_data", f"{unflushed}: {reply}")
            one.end = start
            return
        named = zip(reply[::2], reply[1::2], strict=True)
        dirty = [(int(float(n)), key.decode("utf-8", "replace")) for key, n in named if b"/" in key]
        end = await self._rebuild(link, one, dirty, end)
        found = {entry.position.n for entry in one.entries}
        hopeless = [key for n, key in dirty if n <= end and n not in found]
        lost, known = end - first + 1 - len(found), _bytes_of(one)
        if end < last:  # where some of it is lost, nobody knows what the rest counts for
            one.end = start._replace(n=end, bytes=one.end.bytes if lost or known is None else start.bytes + known)
        missing_bytes = 0 if known is None else max(0, one.end.bytes - start.bytes - known)
        lost = lost or int(missing_bytes > 0)
        one.gap = Gap(first, end, lost, hopeless[:KEYS_MAX])
        alarm("gap", shard=one.shard, first=first, last=end, repaired=len(found), lost=lost,
              missing_bytes=missing_bytes, keys=hopeless[:KEYS_MAX])  # fmt: skip

    async def _rebuild(self, link: AsyncLink, one: Slice, dirty: Sequence[_Dirty], end: int) -> int:
        """Add the entries of the dirty keys up to where the batch is full, and return where that is."""
        size = 0
        for n, group in groupby(dirty, key=lambda pair: pair[0]):
            if size > self._settings.flush_bytes_max:
                return int(n) - 1
            states = await self._states(link, [self._keys.state(key) for _, key in group])
            states = [state for state in states if state.get("position", b"").endswith(b"-%d" % n)]
            size += sum(len(state.get("value", b"")) for state in states)
            if states:
                one.entries.append(_entry(one, n, states))
        return end

    async def _states(self, link: AsyncLink, redis_keys: Sequence[str]) -> list[dict[str, bytes]]:
        states: list[dict[str, bytes]] = []
        for start in range(0, len(redis_keys), _KEYS_PER_READ):
            some = redis_keys[start : start + _KEYS_PER_READ]
            for reply in await self._streams.run(link, [("HGETALL", redis_key) for redis_key in some]):
                if not isinstance(reply, Exception):
                    pairs = zip(reply[::2], reply[1::2], strict=True)
                    states.append({name.decode("utf-8", "replace"): value for name, value in pairs})
        return states


def _bytes_of(one: Slice) -> int | None:
    """Return what the rebuilt entries count for in the shard's bytes; None where one of them cannot be read."""
    sizes = [weight(entry.change_set) for entry in one.entries if entry.change_set is not None]
    return sum(sizes) if len(sizes) == len(one.entries) else None


def _entry(one: Slice, n: int, states: Sequence[dict[str, bytes]]) -> Entry:
    fields = [part for state in states for name, value in state.items() for part in (name.encode(), value)]
    try:
        position = position_of(states[0]["position"])
        return Entry(fields, position, change_set_of_states(position, (one.end.entries, one.end.bytes), states))
    except ForeignEntry as error:
        return Entry(fields, Position(one.head.epoch or 0, n), None, str(error))
