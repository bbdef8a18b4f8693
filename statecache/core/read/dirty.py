"""What is dirty in Redis: states that Postgres may not have yet, as far as a listing means them.

A look is one exchange: which of the shards are open, how far each is flushed, and which keys are dirty. Behind it, what
Redis holds of these is read, of shards that are open still. Behind a closed gate nothing dirty is believed: what this
process has seen of such a shard, or Redis holds, must be in Postgres, unless the setting `stale_reads` accepts less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from statecache.backoff import LATE_S, Backoff
from statecache.clock import monotonic
from statecache.core.parts import in_parts
from statecache.core.read.listed import (
    BEHIND,
    UNKNOWN,
    Listed,
    Overlay,
    Watermark,
    opened_by,
    remembered,
    watermarks_of,
)
from statecache.errors import ForeignData, RedisUnavailable, Unavailable
from statecache.lua import script
from statecache.model import Record
from statecache.records import FIELDS, absence, record_of, record_of_row
from statecache.redis_errors import refusal
from statecache.rules.filters import Selection

if TYPE_CHECKING:
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.read.reader import Reader
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.near import Near
    from statecache.resp import Command
    from statecache.settings import Settings

_ROWS_PER_READ = 500
_KEYS_PER_READ = 200
_SHARDS_PER_SCRIPT = 16
_VALUE = FIELDS.index("value")
_LIGHT = tuple(name for name in FIELDS if name != "value")


class Look(NamedTuple):
    """Which of the shards were open, with their watermarks, and the replies to what was asked for beside.

    `proven` are those whose gates were open, which `stale_reads` does not ask for; `behind` is how far Redis remembers
    that Postgres holds the others. `earlier` are those that were open in an epoch before one that this process has met,
    with that epoch and the replid of the server: they are as closed, for an old primary has them so.
    """

    opened: dict[int, Watermark]
    replies: list[Any]
    proven: frozenset[int]
    behind: dict[int, Watermark]
    earlier: dict[int, tuple[int, str]]

    def refuse_less(self, watermarks: Mapping[int, Watermark]) -> None:
        """Raise Unavailable where Postgres, at these watermarks, holds less of a closed shard than Redis remembers."""
        for shard, flushed in self.behind.items():
            if not watermarks.get(shard, UNKNOWN).reaches(flushed):
                detail = f"the gate of shard {shard} is closed, and Postgres holds less of it than it did"
                raise Unavailable("epoch", detail=detail)


class Dirty:
    """What Redis holds that Postgres may not have."""

    def __init__(
        self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier, *, near: Near,
        reader: Reader,
    ) -> None:  # fmt: skip
        self._fence, self._stale_reads = settings.fence, settings.stale_reads
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._near = near
        self._reader = reader

    async def look(self, shards: Sequence[int], seconds: float) -> Look:
        """Look once which keys of the shards are dirty; a fault is raised as RedisUnavailable."""
        return await self._read(shards, self._commands(shards, None), seconds, again=False)

    async def names(
        self, shards: Sequence[int], *, seconds: float, watermarks: Mapping[int, Watermark] | None = None
    ) -> tuple[list[str], Look]:
        """Return the dirty keys of the shards, as `overlay` has them, and the look that they were had with."""
        commands = self._commands(shards, watermarks)
        look, told = await self._told(shards, commands, b"", monotonic() + seconds, waits=watermarks is None)
        return [key for _, keys in told for key in keys], look

    async def overlay(
        self, listed: Listed, shards: Sequence[int], seconds: float, watermarks: Mapping[int, Watermark] | None = None,
        most: int | None = None, looked: Look | None = None,
    ) -> Overlay:  # fmt: skip
        """Return the selected states that Postgres may not have yet, tombstones too, of the open shards.

        `watermarks` are given for a Postgres that went back: they count where they are lower than what Redis has of
        them. Raises Unavailable where nothing tells any more what such a one lacks. Of more than `most` the first ones
        are returned, in the order of their keys. `looked` is a look that was had already.

        A closed gate is left a moment to open; one behind which there is more than Postgres holds, all of the time. So
        is a worker that has yet to go through what an epoch began without.
        """
        end, backoff = monotonic() + seconds, Backoff(0.005, 0.1)
        patient_until, gates = monotonic() + seconds / 4, self._reader.closed_gates
        commands, start = self._commands(shards, watermarks), listed.selection.prefix.encode()
        less: Unavailable | None = None
        while True:
            look, told = await self._told(shards, commands, start, end, looked, less, waits=watermarks is None)
            looked, opened = None, look.opened
            found, behind = list[str](), list[str]()
            for shard, keys in told:
                (found if shard in opened else behind).extend(filter(listed.selection.means, keys))
            closed, missed, less = set(shards) - opened.keys(), None, None
            for shard in shards:
                (gates.met if shard in closed else gates.opened)(shard)
            settled = not closed or monotonic() >= min(gates.patient_until(closed), patient_until)
            if closed and settled and await self._reader.are_current(look.earlier, end):
                continue
            if closed and settled:
                missed = await self._missed(listed.selection, closed, behind, seconds)
                less = await self._less(look, seconds)
            if missed is not None:
                await self._reader.primary(missed, end=end)
            elif less is not None:
                if backoff.outlasts(end):
                    raise less
            elif settled:
                first, up_to = _first(found, most, down=listed.down)
                held, shut = await self.held(first, seconds, values=listed.reads_values)
                if not shut:  # the gate of none of them has closed meanwhile
                    reached = opened if watermarks is None else {
                        shard: flushed.least(watermarks.get(shard, UNKNOWN)) for shard, flushed in opened.items()
                    }  # fmt: skip
                    return Overlay(held, reached, up_to, gone=len(held) < len(first))
            await self._redis.io.sleep(backoff.take())

    async def held(self, keys: Sequence[str], seconds: float, *, values: bool) -> tuple[dict[str, Record], set[int]]:
        """Return what Redis holds of the keys whose shards are open, and which of their shards are not."""
        held, closed = dict[str, Record](), set[int]()
        for at in range(0, len(keys), _KEYS_PER_READ):
            some = keys[at : at + _KEYS_PER_READ]
            shards = {*map(self._keys.shard, some)}
            reads = [("HMGET", self._keys.state(key), *(FIELDS if values else _LIGHT)) for key in some]
            opened, replies, *_ = await self._read(sorted(shards), reads, seconds)
            closed |= shards - opened.keys()
            for key, reply in zip(some, replies, strict=True):
                if isinstance(reply, Exception):
                    raise refusal(reply, self._keys.state(key)) from reply
                if not values:
                    reply.insert(_VALUE, None if all(part is None for part in reply) else b"")
                record = record_of(self._keys.state(key), key, reply) if self._keys.shard(key) in opened else None
                if record is not None:
                    held[key] = record
        return held, closed

    async def _told(
        self, shards: Sequence[int], commands: Sequence[Command], start: bytes, end: float,
        looked: Look | None = None, met: Unavailable | None = None, *, waits: bool,
    ) -> tuple[Look, list[tuple[int, list[str]]]]:  # fmt: skip
        """Return a look, and for each shard its dirty keys that begin with `start`.

        With `waits` a worker is left time to go through what an epoch began without. A look for which none was left
        raises what one before `met`.
        """
        backoff = Backoff(0.005, 0.1)
        while True:
            try:
                look = looked or await self._read(shards, commands, max(end - monotonic(), 0.001))
                return look, [*self._names(shards, look, start)]
            except RedisUnavailable as error:
                if met is None or monotonic() + LATE_S < end:
                    raise
                raise met from error
            except Unavailable as error:
                if not waits or backoff.outlasts(end):
                    raise
                looked, met = None, error
            await self._redis.io.sleep(backoff.take())

    def _commands(self, shards: Sequence[int], watermarks: Mapping[int, Watermark] | None) -> list[Command]:
        """Return what asks which keys are dirty: a few shards in each command, during which nobody else is served."""
        names, text, commands = self._keys, script("dirty").text, list[Any]()
        for some in in_parts(shards, _SHARDS_PER_SCRIPT):
            keys = [name for at in some for name in (names.meta(at), names.unflushed(at), names.changes(at))]
            commands.append(("EVAL", text, len(keys), *keys, *(_spelled(watermarks, shard) for shard in some)))
        return commands

    def _names(self, shards: Sequence[int], look: Look, start: bytes) -> Iterator[tuple[int, list[str]]]:
        """Yield for each shard its dirty keys that begin with `start`."""
        for some, reply in zip(in_parts(shards, _SHARDS_PER_SCRIPT), look.replies, strict=True):
            for shard, names in zip(some, [reply] * len(some) if isinstance(reply, Exception) else reply, strict=True):
                if not isinstance(names, int):
                    yield shard, _keys_in(names, self._keys.unflushed(shard), start)
                elif shard in look.proven:
                    raise Unavailable("hydration", detail=f"in shard {shard} {BEHIND}")

    async def _missed(
        self, selection: Selection, closed: set[int], behind: Sequence[str], seconds: float
    ) -> str | None:
        """Return a key of a closed shard of which this process, or Redis, has a newer state than Postgres; or None."""
        seen = filter(selection.means, self._near.known_under(selection.prefix))
        known = [key for key in seen if self._keys.shard(key) in closed]
        places = await self._places(behind, seconds)
        wanted = [*dict.fromkeys([*known, *places])]
        for at in range(0, len(wanted), _ROWS_PER_READ):
            some = wanted[at : at + _ROWS_PER_READ]
            rows = await self._postgres.fetch("states", {"keys": some}, seconds=seconds)
            held = {record.key: record for record, _ in map(record_of_row, rows)}
            for key in some:
                record = held.get(key) or absence(key, self._near.epoch_of(key))
                place = (record.epoch, record.version)
                if place < places.get(key, place) or not self._near.seen(key, place):
                    return key
        return None

    async def _less(self, look: Look, seconds: float) -> Unavailable | None:
        """Return why Postgres cannot be believed of the closed shards; None where it holds no less than it did."""
        rows = await self._postgres.fetch("watermarks", {"shards": [*look.behind]}, seconds=seconds)
        try:
            look.refuse_less(watermarks_of(rows))
        except Unavailable as error:
            return error
        return None

    async def _places(self, keys: Sequence[str], seconds: float) -> dict[str, tuple[int, int]]:
        """Return epoch and version of those of the states that Redis holds, believed or not."""
        places: dict[str, tuple[int, int]] = {}
        for at in range(0, len(keys), _KEYS_PER_READ):
            some = keys[at : at + _KEYS_PER_READ]
            reads = [("HMGET", self._keys.state(key), "epoch", "version") for key in some]
            for key, reply in zip(some, await self._redis.read(reads, seconds=seconds), strict=True):
                if isinstance(reply, Exception):
                    raise refusal(reply, self._keys.state(key)) from reply
                if None not in reply:
                    places[key] = (int(reply[0]), int(reply[1]))
        return places

    async def _read(
        self, shards: Sequence[int], commands: Sequence[Command], seconds: float, *, again: bool = True
    ) -> Look:
        """Return which of the shards are open on the server, with their watermarks, and the replies to the commands."""
        metas = [self._keys.meta(shard) for shard in shards]
        try:
            answer, *replies = await self._redis.read_script(
                "heads", metas, [self._fence], behind=commands, seconds=seconds, again=again
            )
        except ResponseError as error:
            raise refusal(error, metas[0]) from error
        server, _, *heads = answer
        told, replid = dict(zip(shards, map(remembered, heads), strict=True)), server.decode()
        proven = {shard for shard, head in zip(shards, heads, strict=True) if opened_by(head) == replid}
        newest = self._reader.newest_epoch
        earlier = {shard: (told[shard].epoch, replid) for shard in proven if told[shard].epoch < newest(shard)}
        proven -= earlier.keys()
        opened = {
            shard: told[shard]
            for shard in shards
            if shard in proven or (self._stale_reads and shard not in earlier)
        }  # fmt: skip
        behind = {shard: told[shard] for shard in shards if shard not in opened}
        return Look(opened, replies, frozenset(proven), behind, earlier)


def _spelled(watermarks: Mapping[int, Watermark] | None, shard: int) -> str:
    """Return how far Postgres was seen to hold a shard as the script `dirty` takes it."""
    return "" if watermarks is None else "{}-{}".format(*watermarks.get(shard, UNKNOWN))


def _keys_in(reply: Any, redis_key: str, start: bytes) -> list[str]:
    """Return the dirty keys of one shard that begin with `start`."""
    if isinstance(reply, bytes):
        reply = ResponseError(reply.decode("utf-8", "replace"))
    if isinstance(reply, Exception):
        raise refusal(reply, redis_key) from reply
    try:
        return [name.decode() for name in reply if name.startswith(start)]
    except UnicodeDecodeError as error:
        raise ForeignData(redis_key, reason=f"it holds a member that is not UTF-8: {error.reason}") from None


def _first(keys: list[str], most: int | None, *, down: bool) -> tuple[list[str], str | None]:
    """Return the keys, or the first of them and the last one of these where there are more than `most`."""
    if most is None or len(keys) <= most:
        return keys, None
    first = sorted(keys, reverse=down)[:most]
    return first, first[-1]
