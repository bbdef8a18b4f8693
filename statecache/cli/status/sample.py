"""One look at a deployment: a pipeline to Redis and a query to Postgres, side by side; either may be away.

What one side does not say is left open rather than guessed: without Redis there is no lag and no gate, without
Postgres no owner and no worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.cli.exits import CONFIGURATION, status_of
from statecache.cli.screen import size_text
from statecache.cli.status.postgres import ask, unfit
from statecache.cli.status.replicas import REPLICAS, replicas_min_of, unreplicated
from statecache.clock import monotonic, wall
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.errors import ConfigurationError, StateCacheError, Unavailable
from statecache.keys import KeySpace
from statecache.lua import script
from statecache.records import time_of
from statecache.settings import masked
from statecache_workers.redis_memory import shortage

if TYPE_CHECKING:
    from statecache.cli.status.table_locks import TableLock
    from statecache.core.redis.connection import Link
    from statecache.settings import Settings

READ_BYTES_MAX = 2 * 1024 * 1024
"""How much of the streams one look may read, for the age of the oldest entry and for the keys."""
ENTRIES_MAX = 20
"""How many of a shard's newest entries one look may read."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """How a server stands; `trouble` says why nothing else is known."""

    url: str
    trouble: str = ""
    version: str = ""
    role: str = ""
    keeps: str = ""
    memory: int = 0
    memory_max: int = 0
    problems: list[str] = []
    """What a person should see to, each with what to do."""

    @property
    def reachable(self) -> bool:
        """Whether the server answered."""
        return not self.trouble


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """How a shard stands; None is what was not told."""

    shard: int
    epoch: int | None = None
    open: bool | None = None
    closed_because: str = ""
    owned: bool | None = None
    flushed: int | None = None
    lag_entries: int | None = None
    lag_bytes: int | None = None
    lag_s: float | None = None
    postgres_behind: bool = False
    """Whether Redis was told of a later epoch, or of more that was flushed, than Postgres knows of."""


class WorkerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that said lately that it lives."""

    id: str
    shards: int
    heartbeat_s: float
    up_s: float
    avoids: int = 0
    trouble: str = ""


class HeldRow(msgspec.Struct, frozen=True):
    """A shard's row that a session or a prepared transaction holds, so that no worker can take the shard."""

    shard: int
    pid: int | None
    user: str | None
    application: str | None
    standbys: str = ""
    """`synchronous_standby_names`: what a COMMIT waits for."""
    waits: bool | None = False
    """Whether that session waits for those; None where this role may not see it."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a deployment. Totals count commits and flushed change-sets since the shards were made."""

    at: datetime
    at_s: float
    redis: Server
    postgres: Server
    shards: list[Shard]
    workers: list[WorkerSeen] | None
    held: list[HeldRow] = []
    locks: list[TableLock] = []
    quarantined: int | None
    conflicts: int | None
    committed_total: int | None
    flushed_total: int | None
    keys: list[str]
    """Keys of the newest commits since the look before, as far as it was cheap to read them."""


class Sampler:
    """A maker of looks at a deployment, one after the other, on connections that it keeps."""

    def __init__(self, settings: Settings, *, patience_s: float) -> None:
        self.settings = settings
        self.keys = KeySpace(settings.prefix, settings.shards)
        self._patience_s = patience_s
        self._redis = RedisTier(settings, self.keys)
        self._postgres = PostgresTier(settings, self.keys, cluster=lambda: self._redis.cluster, standby_too=True)
        self._link: Link | None = None
        self._last: dict[int, tuple[bytes, bytes]] = {}

    async def take(self, *, strict: bool = False) -> Sample:
        """Take one look; with `strict`, raise a configuration that does not fit, and a server's refusal of the user."""
        asked = (self._ask_redis(), self._ask_postgres())
        answers: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
        try:
            self._postgres.check_pair()
        except ConfigurationError as error:
            answers[1] = error
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, (StateCacheError, TimeoutError)):
                raise answer
            if strict and isinstance(answer, BaseException) and status_of(answer) == CONFIGURATION:
                raise answer
        return sample_of(self.settings, *answers)

    async def history(self, **parameters: Any) -> dict[str, Any]:
        """Ask Postgres what happened lately, and return its answer."""
        rows = await self._postgres.fetch("overview_history", parameters, seconds=self.settings.timeout_s)
        found: dict[str, Any] = rows[0][0]
        return found

    async def foreign_entries(self) -> dict[int, str]:
        """Return, for each shard whose stream goes on beyond what its meta knows, the id of the first such entry.

        Where that was taken out again, it is the id with which the stream still ends.
        """
        end = monotonic() + self._patience_s
        link = await self._linked()
        asked = [([self.keys.meta(shard), self.keys.changes(shard)], [1, 1]) for shard in range(self.keys.shards)]
        text = script("foreign_entries").text
        commands = [("EVAL", text, len(names), *names, *arguments) for names, arguments in asked]
        replies = await link.run(commands, seconds=max(end - monotonic(), 0.001))
        return {
            shard: reply[1].decode("utf-8", "replace")
            for shard, reply in enumerate(replies)
            if isinstance(reply, list) and reply[1]
        }

    async def _ask_redis(self) -> FromRedis:
        end = monotonic() + self._patience_s
        link, which = await self._linked(), script("overview")
        names = [
            name for shard in range(self.keys.shards) for name in (self.keys.meta(shard), self.keys.changes(shard))
        ]
        arguments: list[Any] = [self.settings.fence, READ_BYTES_MAX, ENTRIES_MAX]
        for shard in range(self.keys.shards):
            arguments += self._last.get(shard, ("", ""))
        info, reply = await link.run(
            [("INFO",), link.call(which, names, arguments)], seconds=max(end - monotonic(), 0.001)
        )
        if isinstance(reply, Exception):
            reply = await link.script(which, names, arguments, seconds=max(end - monotonic(), 0.001))
        link.knows(which, True)
        found = from_redis(info, reply)
        if found.info.get("min_slaves_good_slaves", "0") != "0":  # none at all is too few, whatever is asked for
            (told,) = await link.run([("CONFIG", "GET", REPLICAS)], seconds=max(end - monotonic(), 0.001))
            found = msgspec.structs.replace(found, replicas_min=replicas_min_of(told))
        self._last = {
            shard: (parts[3], parts[4]) for shard, parts in enumerate(found.shards) if isinstance(parts, list)
        }
        return found

    async def _ask_postgres(self) -> dict[str, Any]:
        return await ask(self._postgres, self.settings, seconds=self._patience_s)

    async def _linked(self) -> Link:
        if self._link is None or not self._link.alive:
            self._link = await self._redis.link(self._patience_s)
        return self._link

    async def close(self) -> None:
        """Close the connections."""
        if self._link is not None:
            await self._link.close()
        await self._postgres.pool.close()


class FromRedis(msgspec.Struct, frozen=True, kw_only=True):
    """What Redis said."""

    info: dict[str, str]
    server: str
    now_ms: int
    shards: list[list[bytes] | str]
    full: dict[str, str | int] | None = None
    replicas_min: int | None = None
    """Without how many replicas it refuses to write; None where that was not asked, or is not shown."""


def from_redis(info: Any, reply: Sequence[Any]) -> FromRedis:
    """Read the two replies; a refused INFO leaves its facts open."""
    server, now_ms, *shards = reply
    return FromRedis(
        info=info_of(info) if isinstance(info, bytes) else {},
        full=shortage(info.decode("utf-8", "replace")) if isinstance(info, bytes) else None,
        server=server.decode(),
        now_ms=int(now_ms),
        shards=[one if isinstance(one, list) else one.decode("utf-8", "replace") for one in shards],
    )


def info_of(info: bytes) -> dict[str, str]:
    """Split INFO's text into its fields."""
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def software(info: Mapping[str, str]) -> str:
    """Return the server's name and version; Valkey calls itself Redis 7.2.4 too."""
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if "redis_version" in info else ""


def sample_of(settings: Settings, redis: Any, postgres: Any) -> Sample:
    """Return both answers as one look; an exception stands for a side that is away."""
    rows: dict[str, Any] = postgres if isinstance(postgres, dict) else {}
    told = redis if isinstance(redis, FromRedis) else None
    metas = dict(enumerate(told.shards)) if told else {}
    known = {row[0]: row for row in rows.get("shards", ())}
    shards = [_shard(shard, known.get(shard), metas.get(shard), told, bool(rows)) for shard in range(settings.shards)]
    whole = [parts for parts in metas.values() if isinstance(parts, list) and parts[3] and parts[6]]
    flushed = sum(int(parts[6]) for parts in whole) if told else sum(row[4] for row in known.values()) if rows else None
    return Sample(
        at=wall(),
        at_s=monotonic(),
        redis=_redis(settings, redis),
        postgres=_postgres(settings, postgres),
        shards=shards,
        workers=[_worker(row, settings.lease_s) for row in rows["workers"]] if rows else None,
        held=[HeldRow(*row) for row in rows.get("held", ())],
        locks=rows.get("locks", []),
        quarantined=rows.get("quarantined"),
        conflicts=rows.get("conflicts"),
        committed_total=sum(int(parts[3]) for parts in whole) if told else None,
        flushed_total=flushed,
        keys=[key.decode("utf-8", "replace") for parts in whole for key in parts[9:]],
    )


def _shard(shard: int, row: Sequence[Any] | None, meta: Any, told: FromRedis | None, asked: bool) -> Shard:
    owned = (row is not None and row[6] is not None) if asked else None
    facts: dict[str, Any] = {"shard": shard, "owned": owned}
    if row is not None:
        facts |= {"epoch": row[1], "flushed": row[3]}
    if told is None:
        return Shard(**facts)
    if not isinstance(meta, list):
        return Shard(**facts, open=False, closed_because=str(meta))
    epoch, replid, n, entries, size, flushed, flushed_entries, flushed_bytes, oldest, *_ = (
        part.decode("utf-8", "replace") for part in meta
    )
    why = _closed(epoch, replid, told.server, None if row is None else row[1])
    facts |= {"open": not why, "closed_because": why}
    if all(part.isdigit() for part in (epoch, n, entries, size, flushed, flushed_entries, flushed_bytes)):
        facts |= {
            "epoch": int(epoch) if row is None else row[1],
            "flushed": int(flushed) if row is None else row[3],
            "lag_entries": max(0, int(n) - int(flushed)),
            "lag_bytes": max(0, int(size) - int(flushed_bytes)),
            "lag_s": _age_s(oldest, told.now_ms, behind=int(n) > int(flushed)),
            "postgres_behind": row is not None and (int(epoch), int(flushed)) > (row[1], row[3]),
        }
    return Shard(**facts)


def _closed(epoch: str, replid: str, server: str, row_epoch: int | None) -> str:
    """Return why a shard's gate is closed, empty where it is open."""
    if not epoch:
        return "Redis holds no data set of it"
    if replid != server:
        return "its data set is not open on this server"
    if row_epoch is not None and int(epoch) != row_epoch:
        return f"Redis is at epoch {epoch}, Postgres at {row_epoch}"
    return ""


def _age_s(oldest: str, now_ms: int, *, behind: bool) -> float | None:
    if not behind:
        return 0.0
    return max(0.0, now_ms / 1000 - time_of(oldest).timestamp()) if oldest else None


def _worker(row: Sequence[Any], lease_s: float) -> WorkerSeen:
    name, up_s, left_s, shards, avoids, trouble = row
    lives = float(left_s) > 0  # one that does not has no trouble any more, whatever it told last
    return WorkerSeen(
        id=name, shards=shards, heartbeat_s=max(0.0, lease_s - float(left_s)), up_s=float(up_s),
        avoids=avoids if lives else 0, trouble=trouble if lives else "",
    )  # fmt: skip


def _redis(settings: Settings, answer: Any) -> Server:
    url = masked(settings.redis_url)
    if not isinstance(answer, FromRedis):
        return Server(url=url, trouble=trouble_of(answer))
    info = answer.info
    role = {"master": "primary", "slave": "replica"}.get(info.get("role", ""), info.get("role", ""))
    if int(info.get("connected_slaves", 0)):
        role += f" with {info['connected_slaves']} replicas"
    kept = ["append-only file"] if info.get("aof_enabled") == "1" else []
    kept += (
        ["not written of late"]
        if "err" in (info.get("aof_last_write_status"), info.get("rdb_last_bgsave_status"))
        else []
    )
    return Server(
        url=url, version=software(info), role=role, keeps=", ".join(kept) or ("memory only" if info else ""),
        memory=int(info.get("used_memory", 0)), memory_max=int(info.get("maxmemory", 0)),
        problems=[*_unwritten(info), *unreplicated(info, answer.replicas_min), *_full(answer.full)],
    )  # fmt: skip


def _unwritten(info: Mapping[str, str]) -> Iterator[str]:
    """Yield what Redis could not write to its disk; it refuses commits then."""
    for name, what in (
        ("aof_last_write_status", "its append-only file, and refuses every commit"),
        ("rdb_last_bgsave_status", "its last snapshot, and refuses every commit if stop-writes-on-bgsave-error is on"),
    ):
        if info.get(name) == "err":
            yield f"Redis could not write {what}: look at its disk and its log"


def _full(short: Mapping[str, str | int] | None) -> Iterator[str]:
    if short is None:
        return
    policy = str(short["policy"])
    of = f"{size_text(int(short['used_bytes']))} of {size_text(int(short['maxmemory_bytes']))}, {policy}"
    if policy.startswith("allkeys-"):
        yield (
            f"Redis is full ({of}) and evicts whatever it likes, changes that Postgres does not hold among it: "
            "CONFIG SET maxmemory-policy volatile-lru, and raise maxmemory"
        )
    else:
        yield (
            f"Redis is full of what may not be evicted ({of}) and refuses commits: raise maxmemory, or "
            "shorten retention_s; where there is a lag, see why workers do not flush"
        )


def _postgres(settings: Settings, answer: Any) -> Server:
    url = masked(settings.postgres_url)
    if not isinstance(answer, dict):
        return Server(url=url, trouble=trouble_of(answer))
    return Server(
        url=url, version=f"Postgres {answer['version'].partition(' ')[0]}",
        role="standby" if answer["standby"] else "primary",
        keeps=f"synchronous_commit {answer['synchronous_commit']}", problems=[*unfit(answer, settings)],
    )  # fmt: skip


def trouble_of(error: BaseException) -> str:
    """Return in one line why a server did not answer."""
    if isinstance(error, Unavailable):
        return " ".join(f"{error.reason}: {error.detail}".split())
    return " ".join(str(error).split()) or "no answer in time"
