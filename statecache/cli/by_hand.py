"""What `get`, `set`, `rm` and `ls` do, through the client; a stored state with its value as JSON."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from statecache._async.client import AsyncStateCache
from statecache._async.redis import refusal
from statecache.errors import CodecError, PostgresUnavailable
from statecache.model import Position, Record, State
from statecache.settings import Settings


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """This is a state with everything that is known of it; `durable` is None where Postgres could not be asked."""

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
    durable: bool | None

    def facts(self) -> list[tuple[str, str]]:
        """This gives all but the value, as text."""
        durable = {True: "yes", False: "not yet", None: "not known: Postgres cannot be asked"}[self.durable]
        names = (
            "key", "epoch", "version", "change_id", "parent_change_id", "position", "updated_at", "writer", "encoding",
            "schema", "bytes",
        )  # fmt: skip
        return [(name, str(getattr(self, name))) for name in names] + [("durable", durable)]

    def absence(self) -> str:
        """This says why there is no value."""
        if self.op == "quarantined":
            return (
                f"version {self.version} is in quarantine (change {self.change_id}); see `statecache quarantine list`"
            )
        if self.op == "delete":
            return f"deleted at version {self.version}"
        return "there is nothing"


def seen_of(record: Record, durable: bool | None) -> Seen:
    """This shows a record."""
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
        encoding=record.encoding,
        schema=record.schema,
        bytes=len(record.value),
        durable=durable,
    )


def json_of(value: bytes, encoding: str, *, key: str) -> bytes:
    """This gives a stored value as JSON; what JSON has no word for as an object that names it."""
    try:
        if encoding == "msgpack":
            return msgspec.json.encode(msgspec.msgpack.decode(value), enc_hook=_named)
        msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise CodecError(key=key, verb="decoded", reason=f"{encoding}: {error}") from None
    return value


def _named(value: Any) -> Any:
    if isinstance(value, msgspec.msgpack.Ext):
        return {"msgpack_ext": value.code, "base64": base64.b64encode(value.data).decode()}
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


async def watermarks(cache: AsyncStateCache, *, seconds: float) -> dict[int, int]:
    """This gives each shard's watermark, as Redis knows it."""
    keys = cache.tier.keys
    replies = await cache.tier.redis.read(
        [("HGET", keys.meta(shard), "flushed") for shard in range(keys.shards)], seconds=seconds
    )
    for shard, reply in enumerate(replies):
        if isinstance(reply, Exception):
            raise refusal(reply, keys.meta(shard)) from reply
    return {shard: int(reply or 0) for shard, reply in enumerate(replies)}


async def is_durable(cache: AsyncStateCache, record: Record) -> bool | None:
    """This says whether Postgres holds the record's change; Postgres is asked only where Redis cannot tell."""
    position = Position.parse(record.position)
    if position is None:
        return record.op == "absent"
    keys, seconds = cache.tier.keys, cache.settings.timeout_s
    shard = keys.shard(record.key)
    reply = (
        await cache.tier.redis.read([("HMGET", keys.meta(shard), "epoch", "flushed", "excepted")], seconds=seconds)
    )[0]
    if isinstance(reply, Exception):
        raise refusal(reply, keys.meta(shard)) from reply
    epoch, flushed, excepted = (int(part or 0) for part in reply)
    if position.n > flushed:
        return False
    if epoch == position.epoch and excepted < position.n:
        return True
    try:
        rows = await cache.tier.postgres.fetch(
            "lookup_change", {"change_id": record.change_id, "shard": shard}, seconds=seconds
        )
    except PostgresUnavailable:
        return None
    return any(row[0] == "change" and row[1] == record.key for row in rows)


async def get(settings: Settings, key: str) -> Seen:
    """This reads a state from the primary."""
    async with AsyncStateCache(settings=settings) as cache:
        record = await cache.tier.reader.record(key, end=cache.end_of(None))
        return seen_of(record, await is_durable(cache, record))


async def put(settings: Settings, key: str, value: Any, *, create: bool, more: dict[str, Any]) -> State[Any]:
    """This writes a value; with `create` only where there is none."""
    async with AsyncStateCache(settings=settings) as cache:
        verb = cache.create if create else cache.set
        written: State[Any] = await verb(key, value, **more)
        return written


async def rm(settings: Settings, key: str, more: dict[str, Any]) -> State[None] | None:
    """This deletes; a quarantined change counts as something to delete, which the verb alone would not find."""
    async with AsyncStateCache(settings=settings) as cache:
        tombstone = await cache.delete(key, **more)
        if tombstone is None:
            record = await cache.tier.reader.record(key, end=cache.end_of(None))
            if record.op == "quarantined":
                tombstone = await cache.delete(key, expected=record.change_id, **more)
        return tombstone


async def ls(settings: Settings, prefix: str, *, newest: bool, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """This lists; the watermarks are read first, so what is at or below one came from Postgres."""
    found: list[dict[str, Any]] = []
    async with AsyncStateCache(settings=settings) as cache:
        seconds = cache.settings.timeout_s
        marks = await watermarks(cache, seconds=seconds)
        records = cache.tier.listing.records(
            prefix, order="newest" if newest else "key", limit=limit + 1 if limit else None, seconds=seconds
        )
        async for record in records:
            n = int(record.position.partition("-")[2] or 0)
            found.append({
                "key": record.key, "version": record.version, "epoch": record.epoch, "change_id": record.change_id,
                "updated_at": record.updated_at, "durable": n <= marks[cache.tier.keys.shard(record.key)],
                "bytes": len(record.value), "encoding": record.encoding, "schema": record.schema,
                "writer": record.writer,
            })  # fmt: skip
    return (found[:limit], len(found) > limit) if limit else (found, False)
