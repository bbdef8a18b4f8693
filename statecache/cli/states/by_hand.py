"""What `get`, `set`, `rm` and `ls` do, through the client; a stored state with its value as JSON."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from statecache._async.client import AsyncStateCache
from statecache.cli.connecting import client
from statecache.cli.screen import Counting
from statecache.core.read.listed import Listed, Order
from statecache.errors import CodecError, PostgresUnavailable
from statecache.expiry import expires_at, form_of
from statecache.model import Position, Record, State
from statecache.records import text_of
from statecache.redis_errors import refusal
from statecache.rules.filters import Selection
from statecache.settings import Settings
from statecache_workers.parked_entries import ParkedAt


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a state's change; `durable` is None where Postgres could not be asked.

    `quarantined_as` is the id under which `statecache quarantine` knows the change, empty for any other.
    """

    durable: bool | None
    quarantined_as: str = ""
    conflict: bool = False

    def __str__(self) -> str:
        if self.quarantined_as:
            return f"no: in quarantine as {self.quarantined_as}"
        if self.conflict:
            return "no: set aside as a conflict"
        return {True: "yes", False: "not yet", None: "not known: Postgres cannot be asked"}[self.durable]


class Seen(Fate, frozen=True, kw_only=True):
    """A state with everything that is known of it."""

    key: str
    exists: bool
    op: str
    value: msgspec.Raw
    epoch: int
    version: int
    change_id: str
    parent_change_id: str
    position: str
    updated_at: str
    writer: str
    encoding: str
    schema: str
    bytes: int
    expires_at: str = ""

    def facts(self) -> list[tuple[str, str]]:
        """Return all but the value, as pairs of name and text."""
        names = (
            "key", "epoch", "version", "change_id", "parent_change_id", "position", "updated_at", "writer", "encoding",
            "schema", "bytes", *(["expires_at"] if self.expires_at else []),
        )  # fmt: skip
        return [(name, str(getattr(self, name))) for name in names] + [("durable", str(self))]

    def absence(self) -> str:
        """Return in words why there is no value."""
        if self.op == "quarantined":
            return (
                f"version {self.version} is in quarantine (change {self.change_id}); see `statecache quarantine list`"
            )
        if self.op == "delete":
            return f"deleted at version {self.version}"
        if self.op == "expired":
            return f"version {self.version} ended at {self.expires_at}"
        return "there is nothing"


def seen_of(record: Record, fate: Fate) -> Seen:
    """Return what there is to show of a record."""
    value = json_of(record.value, record.encoding, key=record.key) if record.exists else b"null"
    return Seen(
        key=record.key,
        exists=record.exists,
        op=record.op,
        value=msgspec.Raw(value),
        epoch=record.epoch,
        version=record.version,
        change_id=record.change_id,
        parent_change_id=record.parent_change_id,
        position=record.position,
        updated_at=record.updated_at,
        writer=record.writer,
        encoding=form_of(record.encoding),
        schema=record.schema,
        bytes=len(record.value),
        expires_at=end_of(record),
        durable=fate.durable,
        quarantined_as=fate.quarantined_as,
        conflict=fate.conflict,
    )


def end_of(record: Record) -> str:
    """Return the moment at which a state ends as text, '' where it lasts."""
    at = expires_at(record.encoding)
    return "" if at is None else text_of(at)


def json_of(value: bytes, encoding: str, *, key: str) -> bytes:
    """Return a stored value as JSON, raw bytes and msgpack extensions as objects; raise CodecError for what is none.

    What msgpack holds and JSON cannot, as a list for a name, is told as raw bytes are: so an export has it.
    """
    encoding = form_of(encoding)
    if encoding == "raw":
        return _in_base64(value)
    try:
        if encoding == "msgpack":
            plain = msgspec.msgpack.decode(value)
            try:
                return msgspec.json.encode(plain, enc_hook=_named)
            except TypeError:
                return _in_base64(value)
        msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise CodecError(key=key, verb="decoded", reason=f"{encoding}: {error}") from None
    return value


def _in_base64(value: bytes) -> bytes:
    return msgspec.json.encode({"base64": base64.b64encode(value).decode()})


def _named(value: Any) -> Any:
    if isinstance(value, msgspec.msgpack.Ext):
        return {"msgpack_ext": value.code, "base64": base64.b64encode(value.data).decode()}
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


async def fate_of(cache: AsyncStateCache, record: Record) -> Fate:
    """Return whether Postgres holds the record's change, and where it went if not; ask it only if Redis cannot tell."""
    position = Position.parse(record.position)
    if position is None:
        return Fate(durable=record.op == "absent")
    keys, seconds = cache._runtime.keys, cache.settings.timeout_s
    shard = keys.shard(record.key)
    if record.op == "quarantined":
        return _parked(shard, position)
    reply = (
        await cache._runtime.redis.read([("HMGET", keys.meta(shard), "epoch", "flushed", "excepted")], seconds=seconds)
    )[0]
    if isinstance(reply, Exception):
        raise refusal(reply, keys.meta(shard)) from reply
    epoch, flushed, excepted = (int(part or 0) for part in reply)
    if position.n > flushed:
        return Fate(durable=False)
    if epoch == position.epoch and excepted < position.n:
        return Fate(durable=True)
    try:
        rows = await cache._runtime.postgres.fetch(
            "lookup_change", {"change_id": record.change_id, "shard": shard, "epoch": 0, "n": 0}, seconds=seconds
        )
    except PostgresUnavailable:
        return Fate(durable=None)
    found = {row[0]: Position(row[4], row[5]) for row in rows if row[1] == record.key}
    held = "change" in found or "part" in found  # the state is, whatever became of the others of its commit
    if "quarantine" in found and not held:
        return _parked(shard, found["quarantine"])
    return Fate(durable=held, conflict="conflict" in found and not held)


def _parked(shard: int, position: Position) -> Fate:
    return Fate(durable=False, quarantined_as=str(ParkedAt(shard, *position)))


async def get(settings: Settings, key: str) -> Seen:
    """Read a state from the primary."""
    async with client(settings) as cache:
        record = await cache._runtime.reader.primary(key, end=cache._view.end_of(None))
        return seen_of(record, await fate_of(cache, record))


async def put(settings: Settings, key: str, value: Any, *, create: bool, more: dict[str, Any]) -> State[Any]:
    """Write a value; with `create` only where there is none."""
    async with client(settings) as cache:
        verb = cache.create if create else cache.set
        written: State[Any] = await verb(key, value, **more)
        return written


async def rm(settings: Settings, key: str, more: dict[str, Any]) -> State[None] | None:
    """Delete a state, also a quarantined change, which the verb alone would not find; return the tombstone, if any."""
    async with client(settings) as cache:
        tombstone = await cache.delete(key, **more)
        if tombstone is None:
            record = await cache._runtime.reader.record(key, end=cache._view.end_of(None))
            if record.op == "quarantined":
                tombstone = await cache.delete(key, expected=record.change_id, **more)
        return tombstone


async def rm_many(
    settings: Settings, chosen: dict[str, Any], more: dict[str, Any], *, dry_run: bool = False, total: int | None = None
) -> int:
    """Delete the `names` or what is under the `prefix`, quarantined changes too, and return how many there were."""
    doing = "counting" if dry_run else "deleting"
    async with client(settings) as cache:
        with Counting(doing, total) as progress:
            return await cache.delete_many(**chosen, **more, dry_run=dry_run, progress=progress)


async def ls(settings: Settings, prefix: str, *, newest: bool, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return states and whether there are more; `durable` is what the listing saw, whatever this Redis knows of it."""
    found: list[dict[str, Any]] = []
    async with client(settings) as cache:
        seconds = cache.settings.timeout_s
        order: Order = "newest" if newest else "key"
        listed = Listed(selection=Selection(prefix=prefix), order=order, limit=limit + 1 if limit else None)
        async for sight in cache._runtime.listing.sights(listed, seconds=seconds):
            record, shard = sight.record, cache._runtime.keys.shard(sight.record.key)
            position = Position.parse(record.position) or Position(0, 0)
            fate = _parked(shard, position) if sight.parked else Fate(durable=sight.stored)
            found.append({
                "key": record.key, "version": record.version, "epoch": record.epoch, "change_id": record.change_id,
                "updated_at": record.updated_at, "durable": fate.durable, "quarantined_as": fate.quarantined_as,
                "bytes": len(record.value), "encoding": form_of(record.encoding), "schema": record.schema,
                "writer": record.writer, "expires_at": end_of(record),
            })  # fmt: skip
    return (found[:limit], len(found) > limit) if limit else (found, False)


async def namespaces(settings: Settings) -> list[str]:
    """Return the namespaces that hold states, or changes that are not yet in Postgres, sorted."""
    async with client(settings) as cache:
        return await cache.namespaces()
