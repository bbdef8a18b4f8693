"""What a client has under way, and how far Postgres must have come for all that it was acknowledged.

Of acknowledged commits only the highest position of each shard and epoch is kept: within one, positions reach Postgres
in their order. Across epochs they do not, so a position of an earlier epoch is not replaced by one of a later. The last
thousand commits are kept one by one, for a failover may take some of them (see `lost`). Without a fence a position
may be given out twice in one epoch, so each commit is kept until it was compared. A call is under way from its first
step to its last: closing waits for it, and what is called inside of it is part of it. One that was interrupted at
whatever place is over once nobody refers to it. A forked child starts with neither.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, ExitStack, suppress
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from statecache._process import begins_anew_after_fork, mutex
from statecache.errors import UsageError
from statecache.model import Position

if TYPE_CHECKING:
    from statecache.commit_protocol.commit import Commit

Tail = tuple[int, int, int]
"""Shard, epoch, and the highest n acknowledged there."""

RECENT_MAX = 1000
"""How many acknowledged commits are kept, the latest ones."""
COMPARED_AT_ONCE = 500
"""How many states' commits are compared with Postgres by one statement, and after how many more it is time to."""
UNCOMPARED_MAX = 10_000
"""How many commits that were not compared are kept."""


class Acknowledged(NamedTuple):
    """An acknowledged position, with its commit and the keys that it wrote; '' and none where these are not known."""

    shard: int
    epoch: int
    n: int
    change_id: str
    keys: tuple[str, ...]


_numbers = count(1)
_inside: ContextVar[int] = ContextVar("statecache_call", default=0)
"""The number of the call that this context is in."""


class InFlight:
    """A client's calls under way and acknowledged positions; a commit costs an entry and a comparison."""

    def __init__(self, *, fenced: bool = True) -> None:
        self._fenced = fenced
        self.closing = False
        self.closed = False
        """Whether it is over: nothing begins any more, in a call under way neither."""
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget what a forked child's parent has under way, and what was acknowledged to it."""
        self.under_way: WeakValueDictionary[str | int, Commit | Call] = WeakValueDictionary()
        self._heads: dict[tuple[int, int], int] = {}
        self._newest: dict[int, int] = {}
        self._recent: deque[Acknowledged] = deque(maxlen=RECENT_MAX)
        self._withdrawn: set[Tail] = set()
        self.moved = False
        """Whether a shard has begun another epoch, and nobody has checked which commits were lost with the old one."""
        self.uncompared: deque[Acknowledged] = deque(maxlen=UNCOMPARED_MAX)
        """Without a fence, the commits of which it is not known whether they are what Postgres holds there."""
        self.due = False
        """Whether it is time to compare them."""
        self._counted = 0
        self._mutex = mutex

    def refuse_if_closing(self) -> None:
        """Raise UsageError for a new call while the client is closing; calls within one under way may still begin.

        Once it is closed, none does.
        """
        if self.closed:
            raise UsageError("it is closed", hint="Make a new client.")
        if self.closing and _inside.get() not in self.under_way:
            raise UsageError("it is closing", hint="Make a new client.")

    def call(self) -> Call:
        """Return a call of several steps, which is under way inside its `with` block."""
        return Call(self)

    @property
    def doubted(self) -> bool:
        """Whether commits may be lost of which nobody has looked."""
        return self.moved or self.due

    def acknowledge(self, shard: int, position: Position, change_id: str = "", keys: tuple[str, ...] = ()) -> None:
        """Note that a commit at this position was acknowledged."""
        if change_id:
            self._recent.append(one := Acknowledged(shard, *position, change_id, keys))
            if not self._fenced:
                self.uncompared.append(one)
                self._counted += max(1, len(keys))  # about: threads may count at one moment
                if self._counted >= COMPARED_AT_ONCE:
                    self.due, self._counted = True, 0
        place = (shard, position.epoch)
        if position.n > self._heads.get(place, 0):
            with self._mutex:
                if position.n > self._heads.get(place, 0):  # another thread may have been quicker
                    before = self._newest.get(shard, position.epoch)
                    self.moved = self.moved or before != position.epoch
                    self._newest[shard] = max(before, position.epoch)
                    self._heads[place] = position.n

    def recent(self) -> list[Acknowledged]:
        """Return the last commits that were acknowledged, the oldest first."""
        recent = _listed(self._recent)
        return [one for one in recent if one[:3] not in self._withdrawn] if self._withdrawn else recent

    def take_uncompared(self) -> list[Acknowledged]:
        """Take commits of some hundred states that were not compared, the oldest first."""
        taken: list[Acknowledged] = []
        states = 0
        with suppress(IndexError):  # another thread takes some as well
            while states < COMPARED_AT_ONCE:
                taken.append(one := self.uncompared.popleft())
                states += max(1, len(one.keys))
        return taken

    def uncompared_shards(self) -> set[int]:
        """Return the shards of commits that were not compared."""
        return {one.shard for one in _listed(self.uncompared)}

    def withdraw(self, shard: int, position: Position) -> None:
        """Forget a position that is nowhere any more, and of which the caller has not been told: he waits for another.

        What was acknowledged before it in its epoch is awaited still.
        """
        gone, place = (shard, *position), (shard, position.epoch)
        with self._mutex:
            self._withdrawn.add(gone)
            if self._heads.get(place) == position.n:
                recent = self.recent()
                head = max((one.n for one in recent if (one.shard, one.epoch) == place), default=0)
                if not head and len(self._recent) == RECENT_MAX:  # of so many not all are known
                    head = _before(*gone, self._withdrawn)
                self._heads[place] = head
                if not head:
                    del self._heads[place]

    def acknowledged(self, change_id: str, key: str) -> Acknowledged | None:
        """Return where a commit of this key was acknowledged, if it is one of the last."""
        found = (one for one in reversed(self.recent()) if one.change_id == change_id and key in one.keys)
        return next(found, None)

    def position_of(self, change_id: str, key: str) -> Position | None:
        """Return the position of such a commit."""
        found = self.acknowledged(change_id, key)
        return None if found is None else Position(found.epoch, found.n)

    def tails(self) -> list[Tail]:
        """Return the highest acknowledged position of each shard and epoch."""
        with self._mutex:
            return [(shard, epoch, n) for (shard, epoch), n in sorted(self._heads.items())]

    def awaited_tails(self) -> list[Tail]:
        """Return the tails without what was acknowledged again at another position: it was applied anew, and is there.

        Of a thousand commits and more not all are known, so any before the ones that were applied anew may be left.
        """
        tails, recent = self.tails(), self.recent()
        latest = {(one.change_id, one.keys): one[:3] for one in recent}
        replaced = {one[:3] for one in recent} - {*latest.values()}
        if not replaced:
            return tails
        if len(recent) < RECENT_MAX:
            highest: dict[tuple[int, int], int] = {}
            for shard, epoch, n in latest.values():
                highest[shard, epoch] = max(highest.get((shard, epoch), 0), n)
            return [(*place, highest[place]) for place in (tail[:2] for tail in tails) if place in highest]
        kept = [(shard, epoch, _before(shard, epoch, n, replaced)) for shard, epoch, n in tails]
        return [tail for tail in kept if tail[2]]


def _listed(commits: deque[Acknowledged]) -> list[Acknowledged]:
    while True:
        try:
            return list(commits)
        except RuntimeError:  # another thread has just noted one
            continue


def _before(shard: int, epoch: int, n: int, replaced: set[Tail]) -> int:
    """Return the highest n up to one that was not replaced."""
    while (shard, epoch, n) in replaced:
        n -= 1
    return n


class Call:
    """A call of several steps; it is over when left, even in another context than it was entered in."""

    __slots__ = ("__weakref__", "_before", "_in_flight", "_number")

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._before = 0
        self._number = next(_numbers)

    def ending(self) -> ExitStack:
        """Return a block, entered already, at whose end the call is over."""
        block = ExitStack()
        block.push(self)
        return block

    def __enter__(self) -> None:
        self._before = _inside.get()
        _inside.set(self._number)
        self._in_flight.under_way[self._number] = self

    def __exit__(self, *exc_info: object) -> None:
        self._in_flight.under_way.pop(self._number, None)
        _inside.set(self._before)
