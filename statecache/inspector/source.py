"""What the pages ask of a deployment: the connections, and bounded reads over them.

States are read from the primary and history from Postgres, past the near cache: a page shows what is there now. A
server that is away is told by each part of a page that needs it. Requests are given a short time: a person waits.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from statecache._async.client import AsyncStateCache
from statecache.cli.states.by_hand import Fate, fate_of
from statecache.cli.status.rates import Looks
from statecache.cli.status.sample import Sampler
from statecache.clock import monotonic
from statecache.codec import codec_for
from statecache.core.history.reader import Point
from statecache.core.read.listed import Listed, Sight
from statecache.errors import PostgresUnavailable, StateCacheError, Unavailable
from statecache.expiry import expires_at, form_of
from statecache.history_errors import HistoryIncomplete, VersionNotFound
from statecache.keys import beyond_prefix
from statecache.model import Position, Record
from statecache.records import time_of
from statecache.rules.filters import Selection
from statecache.rules.versions import Version

if TYPE_CHECKING:
    from datetime import datetime

    from statecache.checkpoints import Checkpoint
    from statecache.core.runtime import Runtime
    from statecache.settings import Settings

PATIENCE_S = 3.0
"""How long a page waits for a server, in seconds."""
VERSIONS_MAX = 50
"""How many versions a page lists."""
COMMITS_MAX = 60
"""How many commits of a group a page lists."""
CHECKPOINTS_MAX = 200

T = TypeVar("T")
_PLAIN = codec_for(Any, "json")


class Part(msgspec.Struct, Generic[T], frozen=True):
    """A part of a page: what was read, or why it could not be."""

    value: T | None = None
    error: StateCacheError | None = None


async def part(reading: Awaitable[T]) -> Part[T]:
    """Return what is read as a part of a page, or the error that is to be shown there."""
    try:
        return Part(await reading)
    except StateCacheError as error:
        return Part(error=error)


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a key as a page shows it; `value` is None where there is none, or it is no longer kept."""

    key: str
    version: int
    op: str
    at: datetime
    change_id: str
    parent_change_id: str
    position: Position | None
    encoding: str
    schema: str
    size: int
    value: bytes | None
    writer: str
    actor: str = ""
    reason: str = ""
    sha256: str = ""
    durable: bool | None = None
    gap: bool = False
    lacking: StateCacheError | None = None
    """Why its value cannot be shown."""
    caution: str = ""
    """Why there may be a newer version than the one that was asked for."""

    @property
    def form(self) -> str:
        """How the bytes of the value are to be read."""
        return form_of(self.encoding)

    @property
    def expires_at(self) -> datetime | None:
        """When the value ends."""
        return expires_at(self.encoding)

    def plain(self) -> Any:
        """Return the value as plain data; raise CodecError where the bytes are not what their encoding says."""
        return _PLAIN.decode(self.value or b"", key=self.key, encoding=self.encoding)


class Now(msgspec.Struct, frozen=True):
    """What agents see of a key at this moment, and what is known of its change."""

    record: Record
    fate: Fate


class Member(msgspec.Struct, frozen=True):
    """A key that began as a branch, was merged with one, or from which one began: its newest version, and one place.

    Its change `version`, made `at`, began from, or was `merged` with, the version of the origin, made `origin_at`.
    """

    key: str
    newest: int
    op: str
    updated_at: datetime | None
    version: int | None
    origin: str | None
    origin_version: int | None
    at: datetime | None
    origin_at: datetime | None
    merged: bool = False


class GroupCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit of a group: its position, and of its changes the count and the first key."""

    position: Position
    at: datetime
    count: int
    key: str
    writer: str
    actor: str
    reason: str


class Source:
    """The connections of an inspector, and what it was started with."""

    def __init__(self, settings: Settings, *, write: bool, operator: str) -> None:
        seconds = min(settings.timeout_s, PATIENCE_S)
        waits = {"timeout_s": seconds, "hydrate_token_s": min(settings.hydrate_token_s, seconds)}
        self.settings = settings.model_copy(update={**waits, "read": "primary", "near_bytes_max": 0})
        self.write = write
        self.operator = operator
        self.form_token = secrets.token_urlsafe(24)
        self.cache = AsyncStateCache(settings=self.settings)
        self.sampler = Sampler(self.settings, patience_s=seconds)
        self.looks = Looks(self.settings)
        self.streams = 0
        """How many pages are live."""
        self.stopping = asyncio.Event()

    @property
    def runtime(self) -> Runtime:
        """The parts of the client."""
        return self.cache._runtime

    @property
    def seconds(self) -> float:
        """How long one exchange may take."""
        return self.settings.timeout_s

    @property
    def end(self) -> float:
        """The moment until which a read that begins now may take."""
        return monotonic() + self.settings.timeout_s

    async def close(self) -> None:
        """Close the connections."""
        await self.sampler.close()
        await self.cache.close()

    # What there is now.

    async def now(self, key: str) -> Now:
        """Return what agents see of a key."""
        record = await self.runtime.reader.primary(key, end=self.end)
        return Now(record, await fate_of(self.cache, record))

    async def sights(self, listed: Listed) -> list[Sight]:
        """Return a listing."""
        return [sight async for sight in self.runtime.listing.sights(listed, seconds=self.seconds)]

    async def newest_of(self, namespace: str) -> Sight | None:
        """Return the state of a namespace that changed last."""
        listed = Listed(selection=Selection(prefix=f"{namespace}/"), order="newest", limit=1, values=False)
        return next(iter(await self.sights(listed)), None)

    # What there was.

    async def shown(self, key: str, point: Point, *, values: bool = True) -> Shown:
        """Return the version of a key that was the newest at a point.

        Where what is not flushed cannot be known, it is the newest that Postgres holds, and says so. Where Postgres
        cannot be asked, it is what Redis holds, if that is the version that is meant.
        """
        caution = ""
        try:
            found = await self.runtime.history.version_at(key, point, as_bound=point == Point(), end=self.end)
        except HistoryIncomplete as error:
            held = await self._newest_held(key, point)
            if held is None:
                raise
            found, caution = held, f"There may be newer changes than this: {error.reason}."
        except PostgresUnavailable as error:
            return await self._from_redis(key, point, error)
        return await self.shown_of(found, values=values, caution=caution)

    async def shown_of(self, found: Version, *, values: bool = True, caution: str = "") -> Shown:
        """Return a version with its value."""
        value, lacking = None, None
        if values and found.op == "set":
            try:
                value = await self.runtime.history.value_of(found, end=self.end)
            except StateCacheError as error:
                lacking = error
        return Shown(
            key=found.key, version=found.version, op=found.op, at=found.at, change_id=found.change_id,
            parent_change_id=found.parent_change_id, position=found.position, encoding=found.encoding,
            schema=found.schema, size=found.size, value=value, writer=found.writer, actor=found.actor,
            reason=found.reason, sha256=(found.digest or b"").hex(), durable=found.durable, gap=found.gap,
            lacking=lacking, caution=caution,
        )  # fmt: skip

    async def _newest_held(self, key: str, point: Point) -> Version | None:
        """Return the newest version at a point that Postgres holds."""
        pages = self.runtime.history.versions(
            key, last=point.version, reverse=True, unflushed=False, seconds=self.seconds
        )
        async for page in pages:
            for one in page:
                if point.reached(one):
                    return one
        return None

    async def _from_redis(self, key: str, point: Point, away: PostgresUnavailable) -> Shown:
        try:
            record = await self.runtime.reader.primary(key, end=self.end)
        except Unavailable:
            raise away from None
        position = Position.parse(record.position)
        if not record.version or position is None or point not in (Point(), Point(version=record.version)):
            raise away
        return Shown(
            key=key, version=record.version, op=record.op, at=time_of(record.updated_at), change_id=record.change_id,
            parent_change_id=record.parent_change_id, position=position, encoding=record.encoding,
            schema=record.schema, size=len(record.value), value=record.value if record.exists else None,
            writer=record.writer, caution="Postgres cannot be asked: this is what Redis holds.",
        )  # fmt: skip

    async def newest_version(self, key: str) -> int:
        """Return the number of a key's newest version, 0 where there is none."""
        try:
            found = await self.runtime.history.version_at(key, Point(), as_bound=True, end=self.end)
        except HistoryIncomplete:
            held = await self._newest_held(key, Point())
            return 0 if held is None else held.version
        except VersionNotFound:
            return 0
        return found.version

    async def versions(self, key: str, until: int | None) -> list[Version]:
        """Return a page of a key's versions, the newest first: those up to `until`, and one more than are listed.

        They are listed as their rows are, so that what is damaged hides nothing: what one held is compared when shown.
        """
        last = {} if until is None else {"last": until}
        try:
            return await self._page(key, unflushed=True, **last)
        except HistoryIncomplete:
            return await self._page(key, unflushed=False, **last)

    async def _page(self, key: str, *, unflushed: bool, **last: int) -> list[Version]:
        found: list[Version] = []
        pages = self.runtime.history.versions(
            key, reverse=True, unflushed=unflushed, proven=False, seconds=self.seconds, **last
        )
        async for page in pages:
            found += page
            if len(found) > VERSIONS_MAX:
                break
        return found[: VERSIONS_MAX + 1]

    async def checkpoints(self, key: str) -> list[Checkpoint]:
        """Return the newest checkpoints of a key and of its group."""
        return (await self.cache.checkpoints(key))[-CHECKPOINTS_MAX:]

    async def family(self, key: str) -> list[Member]:
        """Return the branches that a key belongs to, as far as Postgres knows them."""
        rows = await self.runtime.postgres.fetch("branch_family", {"key": key}, seconds=self.seconds)
        return [Member(*row) for row in rows]

    # A group.

    async def group_at(self, group: str, n: int | None) -> list[Version]:
        """Return the newest version of each key of a group at a position of its shard, those that were deleted too."""
        point = Point() if n is None else Point(n=n)
        return await self.runtime.history.keys_at(group, point, as_bound=n is None, end=self.end)

    async def group_checkpoints(self, group: str) -> list[Checkpoint]:
        """Return the newest checkpoints of a group and of its keys."""
        return (await self.cache.checkpoints(group, group=True))[-CHECKPOINTS_MAX:]

    async def commits(self, group: str, until: int | None) -> list[GroupCommit]:
        """Return the newest commits of a group up to a position that Postgres holds, the newest first."""
        asked = {
            "group": group, "beyond": beyond_prefix(group + "/"), "n": 2**62 if until is None else until,
            "most": COMMITS_MAX + 1,
        }  # fmt: skip
        rows = await self.runtime.postgres.fetch("group_commits", asked, seconds=self.seconds)
        return [
            GroupCommit(
                position=Position(epoch, n), at=at, count=count, key=key, writer=writer, actor=actor, reason=reason
            )
            for epoch, n, at, count, key, writer, actor, reason in rows
        ]
