"""The changes of a key and of the keys that belong to it, the newest first, each before the ones that it was made from.

A key's **branches** belong to it, and theirs: the table `branch` names them. What it was **made from** belongs to it as
far as it went into it: a key that it is a branch of, up to there, and one that was merged. At most `KEYS_MAX` keys are
read; where others are meant, the changes say so.

Each key is a chain, read a page at a time. Of the chains' next changes the newest comes first, by the clock of Redis;
but where something is known to be made from a change, that comes before it, whatever clocks say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from statecache.cli.history.headers import MadeFrom, made_from
from statecache.cli.history.points import PointName
from statecache.cli.history.reading import version_at
from statecache.clock import monotonic
from statecache.core.history.reader import VERSION_MAX
from statecache.errors import LimitExceeded, RedisUnavailable
from statecache.history_errors import HistoryIncomplete, VersionNotFound
from statecache.model import Position
from statecache.rules.versions import Version

if TYPE_CHECKING:
    from datetime import datetime

    from statecache._async.client import AsyncStateCache
    from statecache.checkpoints import Checkpoint

KEYS_MAX = 8
"""How many keys are read, at most: each takes a lane of the graph."""
Node = tuple[str, int]


class Link(msgspec.Struct, frozen=True):
    """A change of another key that was made from a change: a branch began with it, or was merged."""

    kind: str
    key: str
    version: int

    def __str__(self) -> str:
        return f"branch {self.key}" if self.kind == "branch" else f"merged into {self.key}@{self.version}"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A change in a log: what it was made from, among what is read, and what was made from it.

    `newest` is the first version of the key itself that the log has, 0 where it has none.
    """

    version: Version
    made_from: MadeFrom | None
    parents: Sequence[Node]
    checkpoints: Sequence[str]
    links: Sequence[Link]
    newest: int

    @property
    def node(self) -> Node:
        """Its name in the graph."""
        return self.version.key, self.version.version


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Which changes are meant: of the key itself by versions, of all by time."""

    first: int = 1
    last: int = VERSION_MAX
    since: datetime | None = None
    until: datetime | None = None


class _Chain:
    """The changes of one key from a version down; `head` is the next one, which was not taken yet."""

    def __init__(self, cache: AsyncStateCache, key: str, asked: Range, *, flushed: bool) -> None:
        self._cache = cache
        self.key = key
        self.head: Version | None = None
        self.checkpoints: list[Checkpoint] = []
        self._above = 0
        self._asked = asked
        seconds = cache._view.end_of(None) - monotonic()
        self._pages = cache._runtime.history.versions(
            key, first=asked.first, last=asked.last, reverse=True, unflushed=not flushed, seconds=seconds
        )
        self._page: list[Version] = []

    async def go_on(self) -> None:
        """Let `head` be the next change; None where there are no more."""
        while True:
            while not self._page:
                page = await anext(self._pages, None)
                if page is None:
                    self.head = None
                    return
                self._page = page[::-1]
            self.head = self._page.pop()
            if self._asked.until is None or self.head.at <= self._asked.until:
                break
        if self._asked.since is not None and self.head.at < self._asked.since:
            self.head, self._page, self._pages = None, [], _nothing()

    async def labels(self, version: Version) -> list[str]:
        """Return the labels of the checkpoints at a change, and forget them."""
        here = [one for one in self.checkpoints if _is_at(one, version)]
        self.checkpoints = [one for one in self.checkpoints if one not in here]
        if self._above > version.version + 1:
            here = [one for one in here if one.version or await self._is_known(one)]
        self._above = version.version
        return [one.label for one in here]

    async def _is_known(self, one: Checkpoint) -> bool:
        """Whether it is known what the key held at a group's checkpoint: behind the change versions are missing."""
        try:
            await version_at(self._cache, self.key, PointName(position=one.position))
        except (VersionNotFound, HistoryIncomplete):
            return False
        return True


class Log:
    """A log that is read.

    `too_many` are keys of which so many branches began that none are looked at; `unmarked` is why checkpoints are not
    known, if they are not.
    """

    def __init__(
        self, cache: AsyncStateCache, key: str, asked: Range, *, alone: bool = False, flushed: bool = False
    ) -> None:
        self._cache = cache
        self._key = key
        self._asked = asked
        self._alone = alone
        self._flushed = flushed
        self.too_many: list[str] = []
        self.unmarked: RedisUnavailable | None = None
        self._chains: dict[str, _Chain] = {}
        self._links: dict[Node, list[Link]] = defaultdict(list)

    async def entries(self) -> AsyncIterator[Entry]:
        """Yield the changes; raises as `history` does."""
        ours = await self._open(self._key, self._asked)
        newest = 0 if ours.head is None else ours.head.version
        await self._open_branches()
        while (chain := self._next()) is not None:
            version = chain.head
            assert version is not None
            await chain.go_on()
            made = made_from(version)
            parents = [] if chain.head is None else [(chain.key, chain.head.version)]
            if made is not None and made.kind in ("branch", "merge") and not self._alone:
                parents += await self._origin(made)
            drawn = [link for link in self._links[version.key, version.version] if link.key not in self._chains]
            labels = await chain.labels(version)
            yield Entry(
                version=version, made_from=made, parents=parents, checkpoints=labels, links=drawn, newest=newest
            )  # fmt: skip

    def _next(self) -> _Chain | None:
        """Return the chain whose next change comes first."""
        left = [head for chain in self._chains.values() if (head := chain.head) is not None]
        free = [head for head in left if not any(map(self._is_to_come, self._links[head.key, head.version]))]
        first = max(free or left, key=lambda head: (head.at, head.key), default=None)
        return None if first is None else self._chains[first.key]

    def _is_to_come(self, link: Link) -> bool:
        chain = self._chains.get(link.key)
        return chain is not None and chain.head is not None and chain.head.version >= link.version

    async def _open(self, key: str, asked: Range) -> _Chain:
        chain = self._chains[key] = _Chain(self._cache, key, asked, flushed=self._flushed)
        await chain.go_on()
        if chain.head is not None:
            seconds = self._cache._view.end_of(None) - monotonic()
            try:
                chain.checkpoints = await self._cache._runtime.checkpoints.all(key, whole=False, seconds=seconds)
            except RedisUnavailable as error:
                self.unmarked = error
        return chain

    async def _open_branches(self) -> None:
        """Learn what was made of the key; open its branches, and theirs, those of the oldest versions first."""
        keys = [self._key]
        for key in keys:
            try:
                below = await self._cache._runtime.branches.below(key, whole=False, end=self._cache._view.end_of(None))
            except LimitExceeded:
                self.too_many.append(key)
                continue
            for one in below:
                self._links[one.origin, one.origin_version].append(Link(one.kind, one.key, one.version))
                full = self._alone or len(self._chains) >= KEYS_MAX
                if one.kind == "branch" and one.key not in self._chains and not full:
                    keys.append(one.key)
                    await self._open(one.key, await self._times())

    async def _times(self) -> Range:
        """Return the range of other keys than the one that was asked for: bounds by its versions are made times."""
        since, until = self._asked.since, self._asked.until
        if since is None and self._asked.first > 1:
            since = await self._time_of(self._asked.first)
        if until is None and self._asked.last < VERSION_MAX:
            until = await self._time_of(self._asked.last)
        return Range(since=since, until=until)

    async def _time_of(self, version: int) -> datetime | None:
        try:
            return (await version_at(self._cache, self._key, PointName(version=version))).at
        except VersionNotFound:
            return None

    async def _origin(self, made: MadeFrom) -> list[Node]:
        """Return the change of another key that a change was made from, which is read from there on."""
        version = made.version
        if version is None:
            try:
                point = PointName(position=Position.parse(made.position))
                version = (await version_at(self._cache, made.key, point)).version
            except VersionNotFound:
                return []
        if made.key not in self._chains:
            if len(self._chains) >= KEYS_MAX:
                return []
            asked = msgspec.structs.replace(await self._times(), last=version)
            await self._open(made.key, asked)
        return [(made.key, version)]


async def _nothing() -> AsyncIterator[list[Version]]:
    for page in list[list[Version]]():
        yield page


def _is_at(checkpoint: Checkpoint, version: Version) -> bool:
    """Whether a checkpoint marks a change, of all that are no newer than the change the one that is the newest."""
    if checkpoint.version is not None:
        return checkpoint.version == version.version
    return version.position.n <= checkpoint.position.n
