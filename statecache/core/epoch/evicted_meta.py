"""A data set whose meta and stream are both gone, as when they were evicted: what its states' hashes tell of it.

Each state names its position, so the newest of them is where the data set ends as far as anybody can tell, and each
holds the change that wrote it last. To find the states of a shard, the names of all keys in Redis are gone through.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.entries import ForeignEntry, position_of
from statecache.model import Position

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace

_NAMES_PER_PAGE = 2_000
_STATES_PER_READ = 64
_FIRST = b"0"


class HeldState(NamedTuple):
    """A state: its shard, key, hash's name, and the position and the id of its change; of an absence 0-0 and ''."""

    shard: int
    key: str
    redis_key: bytes
    position: Position
    change_id: str


async def ends(link: Link, keys: KeySpace, shards: Collection[int], *, seconds: float) -> dict[int, tuple[int, int]]:
    """Return for each of these shards the highest position (epoch, n) of its states; (0, 0) where there are none.

    Raises the error with which Redis refuses to name its keys.
    """
    found = dict.fromkeys(shards, (0, 0))
    async for page in held_states(link, keys, shards, seconds=seconds):
        for one in page:
            found[one.shard] = max(found[one.shard], (one.position.epoch, one.position.n))
    return found


async def beyond(
    link: Link, keys: KeySpace, shard: int, n: int, *, seconds: float
) -> AsyncIterator[list[tuple[Position, Mapping[str, bytes]]]]:
    """Yield, page by page, the positions and fields of a shard's states whose changes lie beyond n."""
    async for page in held_states(link, keys, (shard,), seconds=seconds):
        names = [one.redis_key for one in page if one.position.n > n]
        for start in range(0, len(names), _STATES_PER_READ):
            some = [("HGETALL", name) for name in names[start : start + _STATES_PER_READ]]
            states = [_mapping(reply) for reply in await link.run(some, seconds=seconds)]
            yield [(position_of(state["position"]), state) for state in states if "position" in state]


async def held_states(
    link: Link, keys: KeySpace, shards: Collection[int], *, seconds: float
) -> AsyncIterator[list[HeldState]]:
    """Yield, page by page, the states of these shards, and known absences: SCAN goes through all keys once.

    Raises the error with which Redis refuses to name its keys.
    """
    stems = {keys.state_stem(shard).encode(): shard for shard in shards}
    scan = ("MATCH", keys.every_state(), "COUNT", _NAMES_PER_PAGE)
    cursor = _FIRST
    while True:
        (reply,) = await link.run([("SCAN", cursor, *scan)], seconds=seconds)
        if isinstance(reply, Exception):
            raise reply
        cursor, names = reply
        ours = [(shard, name) for name in names if (shard := stems.get(_stem(name))) is not None]
        asked = [("HMGET", name, "op", "position", "change_id", "key") for _, name in ours]
        replies = await link.run(asked, seconds=seconds) if asked else []
        yield [
            HeldState(shard, _text(reply[3]), name, position, _text(reply[2]))
            for (shard, name), reply in zip(ours, replies, strict=True)
            if (position := _position(reply)) is not None
        ]
        if cursor == _FIRST:
            return


def _stem(redis_key: bytes) -> bytes:
    head, colon, _ = redis_key.partition(b":state:")
    return head + colon


def _position(reply: Any) -> Position | None:
    """Return the position of the commit that wrote a state, 0-0 for a known absence; None for foreign data."""
    if isinstance(reply, list) and reply[0] == b"absent":
        return Position(0, 0)
    if isinstance(reply, list) and reply[0] in (b"set", b"delete") and reply[1]:
        with suppress(ForeignEntry):
            return position_of(reply[1])
    return None


def _text(field: bytes | None) -> str:
    return (field or b"").decode("utf-8", "replace")


def _mapping(reply: Any) -> dict[str, bytes]:
    fields: Sequence[bytes] = () if isinstance(reply, Exception) else reply
    return {name.decode("utf-8", "replace"): value for name, value in zip(fields[::2], fields[1::2], strict=True)}
