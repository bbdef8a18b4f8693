"""Reading shards' streams: heads first, then entries, which `slices` cuts where they no longer continue."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoScriptError

from statecache.clock import monotonic
from statecache.errors import RedisUnavailable
from statecache.lua import script
from statecache.model import Position
from statecache.redis_errors import DEMOTED, code_of, lacking_command, no_primary
from statecache_workers.owned_shards import Head, Heads, Holding, head_of, set_apart
from statecache_workers.slices import Slice, sliced
from statecache_workers.stream_places import StreamPlace

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache.resp import Command
    from statecache.settings import Settings

WAIT_GRACE_S = 0.25
"""How much longer than asked a server may take to say that nothing came; the flush waits for it."""


class Stock(NamedTuple):
    """What a shard's stream held at the moment `seen`, when the shard was flushed up to `flushed`.

    `entries` and `bytes` count what stands in it, flushed or not. `waiting` is the moment at which its oldest unflushed
    entry was committed, None where there was none; both moments are on the monotonic clock of this process.
    """

    seen: float
    flushed: int
    entries: int
    bytes: int
    waiting: float | None


class Woken(NamedTuple):
    """Why a wait ended: shards that have something to read, and whether shards are to be shared out anew."""

    shards: list[int]
    rung: bool


class Wanted(NamedTuple):
    """A request for so many entries of a shard from a place on."""

    holding: Holding
    head: Head
    start: StreamPlace
    most: int


class Streams:
    """The heads and entries of shards, read from Redis."""

    def __init__(self, settings: Settings, keys: KeySpace) -> None:
        self._settings = settings
        self._keys = keys
        self._known: dict[int, tuple[Any, Head | str]] = {}
        self._reached: dict[int, Position] = {}
        self.ended: dict[tuple[int, int], int] = {}
        """How far shards were seen to have come in epochs that another one has followed since: n by shard and epoch."""
        self._heard = b"0"
        self.listening = True
        """Whether the bell can be listened to; another program's key may be in its place."""

    async def run(self, link: Link, commands: Sequence[Command], *, seconds: float | None = None) -> list[Any]:
        """Run commands in one round trip; a reply that blames a key's type, or a script's absence, is a value.

        Every other error reply blames the server (loading, read only, out of memory, rights): RedisUnavailable, or, for
        a command that it does not know, ConfigurationError. The connection to a server that is no primary any more is
        closed: it would lead there for ever.
        """
        replies = await link.run(commands, seconds=seconds or self._settings.timeout_s)
        for reply in replies:
            if isinstance(reply, Exception) and code_of(reply) in DEMOTED:
                await link.close()
                raise no_primary(self._settings, str(reply)) from reply
            if isinstance(reply, Exception) and not isinstance(reply, NoScriptError) and "WRONGTYPE" not in str(reply):
                if (lacking := lacking_command(str(reply))) is not None:
                    raise lacking from reply
                raise RedisUnavailable("refused", detail=str(reply)) from reply
        return replies

    async def heads(self, link: Link, shards: Sequence[int], *, seconds: float | None = None) -> Heads:
        """Return what the server says of these shards now; wait for that many seconds, without them as usual."""
        (answer,) = await self.pipeline(link, "heads", [self._question(shards)], seconds=seconds)
        return self._told(shards, answer)

    async def read(self, link: Link, wanted: Sequence[Wanted]) -> list[Slice]:
        """Read so many entries of each shard; one whose stream cannot be read is set apart."""
        replies = await self.run(link, [self._range(one.holding.shard, one.start.after, one.most) for one in wanted])
        return self._cut(wanted, replies)

    async def glance(self, link: Link, asked: Sequence[tuple[Holding, int]]) -> tuple[Heads, list[Slice]]:
        """Read in one round trip the heads of these shards, and after them so many entries of each.

        There are no slices where not all of the heads can be read.
        """
        which = script("heads")
        shards = [holding.shard for holding, _ in asked]
        ranges = [self._range(holding.shard, holding.after, most) for holding, most in asked]
        answer, *replies = await self.run(link, [link.call(which, *self._question(shards)), *ranges])
        if isinstance(answer, Exception):  # the server has forgotten the script: these entries were not read behind it
            link.knows(which, False)
            return await self.heads(link, shards), []
        heads = self._told(shards, answer)
        found = [(holding, heads.of[holding.shard], most) for holding, most in asked]
        wanted = [Wanted(holding, head, holding.place, most) for holding, head, most in found if isinstance(head, Head)]
        return heads, self._cut(wanted, replies) if len(wanted) == len(asked) else []

    async def survey(self, link: Link, holdings: Sequence[Holding], most: int) -> tuple[Heads, list[Slice]]:
        """Read in one round trip the heads of these shards, and after them so many entries of each open one with any.

        There are no slices where not all of that can be read.
        """
        which, shards = script("heads"), [one.shard for one in holdings]
        asked = {self._keys.changes(one.shard): one for one in holdings if one.phase == "open"}
        after = [one.after for one in asked.values()]
        command = ("XREAD", "COUNT", most, "STREAMS", *asked, *after)
        answer, *found = await self.run(
            link, [link.call(which, *self._question(shards)), *([command] if asked else [])]
        )
        if isinstance(answer, Exception):  # the server has forgotten the script: these entries were not read behind it
            link.knows(which, False)
            return await self.heads(link, shards), []
        heads = self._told(shards, answer)
        if not found or isinstance(found[0], Exception):
            return heads, []
        wanted, replies = [], []
        for name, reply in found[0] or ():
            holding = asked[name.decode()]
            head = heads.of[holding.shard]
            if isinstance(head, Head):
                wanted.append(Wanted(holding, head, holding.place, most))
                replies.append(reply)
        return heads, self._cut(wanted, replies)

    def _question(self, shards: Sequence[int]) -> tuple[list[str], list[Any]]:
        return [self._keys.meta(shard) for shard in shards], [self._settings.fence]

    def _told(self, shards: Sequence[int], answer: Sequence[Any]) -> Heads:
        seen = monotonic()
        server, now_ms, *replies = answer
        heads = {}
        for shard, reply in zip(shards, replies, strict=True):
            raw, head = self._known.get(shard, (None, ""))
            if raw != reply:
                head = head_of(reply)
                self._known[shard] = (reply, head)
                self._note(shard, head)
            heads[shard] = head
        return Heads(server=server.decode(), now_ms=int(now_ms), seen=seen, of=heads)

    def _note(self, shard: int, head: Head | str) -> None:
        """Remember how far a shard has come; once it is in another epoch, keep in `ended` where the last one ended."""
        if isinstance(head, str) or head.epoch is None:
            return
        reached = self._reached.get(shard)
        if reached is not None and reached.epoch != head.epoch:
            self.ended[shard, reached.epoch] = max(reached.n, self.ended.get((shard, reached.epoch), 0))
        elif reached is not None and reached.n > head.n:
            return
        self._reached[shard] = Position(head.epoch, head.n)

    def _range(self, shard: int, after: bytes, most: int) -> Command:
        return ("XRANGE", self._keys.changes(shard), b"(" + after, "+", "COUNT", most)

    def _cut(self, wanted: Sequence[Wanted], replies: Sequence[Any]) -> list[Slice]:
        slices, left = [], self._settings.flush_bytes_max
        for one, reply in zip(wanted, replies, strict=True):
            if isinstance(reply, Exception):
                set_apart(one.holding, "foreign_data", f"{self._keys.changes(one.holding.shard)}: {reply}")
                continue
            found = sliced(one.holding, one.start, one.head, reply, one.most)
            left = max(0, left - found.shorten(left))
            slices.append(found)
        return slices

    async def measure(self, link: Link, holdings: Sequence[Holding], heads: Heads) -> dict[int, Stock]:
        """Measure the streams of the shards; one that cannot be read is left out."""
        asked = [one for one in holdings if isinstance(heads.of.get(one.shard), Head)]
        calls = [
            ([self._keys.changes(one.shard)], [one.after or f"{one.row.epoch}-{one.row.flushed}"]) for one in asked
        ]
        found: dict[int, Stock] = {}
        for one, reply in zip(asked, await self.pipeline(link, "measure", calls), strict=True):
            head = heads.of[one.shard]
            if not isinstance(reply, Exception) and isinstance(head, Head):
                found[one.shard] = _stock(reply, head, heads, flushed=one.row.flushed)
        return found

    async def pipeline(
        self, link: Link, name: str, calls: Sequence[tuple[Sequence[str], Sequence[Any]]], *,
        seconds: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Run one script many times in one round trip and return the replies, error replies as values."""
        if not calls:
            return []
        which = script(name)
        replies = await self.run(link, [link.call(which, *call) for call in calls], seconds=seconds)
        lost = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if lost:
            link.knows(which, False)
            again = await self.run(link, [link.call(which, *calls[at]) for at in lost], seconds=seconds)
            for at, reply in zip(lost, again, strict=True):
                replies[at] = reply
        if not isinstance(replies[0], Exception):
            link.knows(which, True)
        return replies

    async def wait(self, link: Link, holdings: Sequence[Holding], *, seconds: float) -> Woken:
        """Wait until a stream has an entry that was not read, the bell rings, or the time is up; return which."""
        names = [self._keys.changes(one.shard) for one in holdings]
        bell = [self._keys.bell()] if self.listening else []
        after = [*(one.after for one in holdings), *(self._heard for _ in bell)]
        block = max(1, round(seconds * 1000))
        command = ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", *names, *bell, *after)
        reply = (await link.run([command], seconds=seconds + WAIT_GRACE_S))[0]
        if isinstance(reply, Exception):  # one that cannot be read spoils it for all: reading each tells which
            listened, self.listening = self.listening, False
            return Woken([] if listened else [one.shard for one in holdings], False)
        told = dict(reply or ())
        rung = told.get(self._keys.bell().encode())
        if rung:
            self._heard = rung[-1][0]
        woken = [one.shard for one, name in zip(holdings, names, strict=True) if name.encode() in told]
        return Woken(woken, bool(rung))

    async def ring(self, link: Link) -> None:
        """Ring for the other workers; where that fails, they find out for themselves, only later."""
        with contextlib.suppress(RedisUnavailable):
            ring = ("XADD", self._keys.bell(), "MAXLEN", 1, "*", "shards", "moved")
            await link.run([ring], seconds=self._settings.timeout_s)


def _stock(reply: Sequence[Any], head: Head, heads: Heads, *, flushed: int) -> Stock:
    entries, first, oldest = reply
    size = head.bytes - int(first) if first.isdigit() else 0
    waiting = None
    if oldest:
        with contextlib.suppress(ValueError):
            waiting = heads.seen - max(0.0, heads.now_ms / 1000 - datetime.fromisoformat(oldest.decode()).timestamp())
    return Stock(heads.seen, flushed, entries, max(0, size), waiting)
