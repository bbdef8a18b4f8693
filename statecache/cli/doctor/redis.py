"""What `doctor` asks a Redis, and what it makes of the answers. It skips the handshake, which refuses unfit servers.

Managed servers often refuse CONFIG GET; what INFO tells is taken from there, and the rest is named as not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from redis.exceptions import ResponseError

from statecache.cli.doctor import redis_rights
from statecache.cli.doctor.findings import Finding, error, note, warning
from statecache.cli.status.replicas import REPLICAS, too_few_replicas
from statecache.cli.status.sample import info_of, software
from statecache.clock import wall
from statecache.core.redis.connection import Link, dialer
from statecache.core.redis.not_opened import hung_up
from statecache.core.redis.rights import Rights
from statecache.errors import RedisUnavailable
from statecache.keys import HASH, KeySpace
from statecache.lua import script
from statecache.model import COMMIT_BYTES_MAX
from statecache.redis_errors import (
    CLUSTER,
    CLUSTER_NODE,
    NO_CLUSTER,
    NO_SENTINEL,
    SENTINEL,
    code_of,
    is_sentinel,
)
from statecache.rules.looks import Look, look_of
from statecache.settings import pin_difference
from statecache_workers.redis_memory import shortage

if TYPE_CHECKING:
    from statecache.settings import Settings

CONFIG = (
    "appendfsync", "save", "maxmemory-clients", REPLICAS, "client-output-buffer-limit", "client-query-buffer-limit",
    "proto-max-bulk-len",
)  # fmt: skip
_LARGEST = {"proto-max-bulk-len": "512mb", "client-query-buffer-limit": "1gb"}
"""What a server allows unless told otherwise."""
_QUERY_BESIDE = 1024 * 1024
"""What a commit may weigh beside its values, in bytes."""
_BATCH_BESIDE = 1024 * 1024
"""What a batch may weigh beside its values, in bytes."""
_ROOM = 4
"""How many batches a limit is to leave room for: several workers and clients read at once."""
REPLICA_BUFFER_MIN = 256 * 1024 * 1024
"""A burst of large commits fits into this much, in bytes, before a replica is cut off and starts over."""


class RedisFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a Redis said. `config` lacks what was refused, and `lacking` is what the handshake found to lack."""

    info: Mapping[str, str]
    config: Mapping[str, str]
    config_refused: str
    pin: Sequence[str]
    lacking: Sequence[str]
    rights: redis_rights.Asked
    ahead_s: float
    kind: str = ""
    """'cluster' for a node of one, 'sentinel', or '' for what can be served."""
    full: bool = False
    """Whether it is nearly full of what may not be evicted."""
    looks: Mapping[int, Look] = {}
    """What it says of each shard, as far as it can be read."""


async def ask(settings: Settings) -> RedisFacts:
    """Ask a Redis; raise RedisUnavailable without an answer."""
    keys, seconds = KeySpace(settings.prefix, settings.shards), settings.timeout_s
    link = await Link.open(dialer(settings), settings)
    try:
        before = wall()
        now = (await link.run([("TIME",)], seconds=seconds))[0]
        after = wall()
        asked = [
            ("INFO",),
            ("CONFIG", "GET", *CONFIG),
            ("HMGET", keys.meta(0), "shards", "hash", "prefix", "schema", "cluster"),
        ]
        try:
            info, config, pin = await link.run(asked, seconds=seconds)
        except RedisUnavailable as closed:
            if isinstance(now, Exception) and code_of(now) != "NOPERM":
                raise hung_up(now, closed, settings) from closed
            raise
        handshake = await _handshake(link, keys, settings.fence, seconds)
        found = await redis_rights.ask(link, keys, settings.fence, seconds)
        looks = await looks_of(link, keys, settings.fence, seconds)
    finally:
        await link.close()
    middle = before + (after - before) / 2
    at = middle.timestamp() if isinstance(now, Exception) else int(now[0]) + int(now[1]) / 1e6
    return RedisFacts(
        info=info_of(info) if isinstance(info, bytes) else {},
        config=_pairs(config),
        config_refused=str(config) if isinstance(config, Exception) else "",
        pin=[] if isinstance(pin, Exception) or pin[0] is None else [(part or b"").decode() for part in pin],
        lacking=Rights((), handshake[7:]).unknown,
        rights=found,
        ahead_s=at - middle.timestamp(),
        kind="sentinel" if is_sentinel(info) else "cluster" if handshake[6] == "cluster" else "",
        full=isinstance(info, bytes) and shortage(info.decode("utf-8", "replace")) is not None,
        looks=looks,
    )


async def _handshake(link: Link, keys: KeySpace, fence: str, seconds: float) -> list[str]:
    """Run the handshake, which only looks; nothing is told where a server refuses it as a whole.

    The role of a node of a Redis Cluster is 'cluster'.
    """
    try:
        reply = await link.script(script("handshake"), [keys.meta(0)], [fence], seconds=seconds)
    except ResponseError as error:
        return [""] * 6 + ["cluster" if code_of(error) in CLUSTER else ""]
    return [part.decode("utf-8", "replace") for part in reply]


async def looks_of(link: Link, keys: KeySpace, fence: str, seconds: float) -> dict[int, Look]:
    """Return what the data set says of each shard; one that is another program's, or may not be read, is left out."""
    found: dict[int, Look] = {}
    for shard in range(keys.shards):
        fixed = [keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.hydrating(shard)]
        with suppress(ResponseError, ValueError):
            reply = await link.script(script("gate_look"), fixed, [fence], seconds=seconds)
            found[shard] = look_of([part.decode("utf-8", "replace") for part in reply])
    return found


def _pairs(reply: Any) -> dict[str, str]:
    if isinstance(reply, Exception):
        return {}
    words = [part.decode("utf-8", "replace") for part in reply]
    return dict(zip(words[::2], words[1::2], strict=False))


def findings(facts: RedisFacts, settings: Settings, *, worker: bool) -> Iterator[Finding]:
    """Yield what is wrong by the answers. Pure."""
    if facts.kind:
        what, remedy = (SENTINEL, NO_SENTINEL) if facts.kind == "sentinel" else (CLUSTER_NODE, NO_CLUSTER)
        yield error("redis", what, "clients and workers refuse it", remedy)
        return
    yield from _what_it_is(facts, settings)
    yield from _what_it_keeps(facts)
    yield from _memory(facts, settings)
    yield from _replicas(facts)
    server = software(facts.info) or "the server"
    yield from redis_rights.findings(facts.rights, facts.lacking, server, worker=worker)
    if facts.config_refused or not facts.config:
        yield note(
            "redis", f"CONFIG GET is refused ({facts.config_refused or 'it told nothing'})",
            f"not seen: {', '.join(CONFIG)}; `disk` is refused, for nobody knows whether the file is synced",
            "ACL SETUSER <user> +config|get, or look at your provider's parameters",
        )  # fmt: skip
    if not facts.info:
        yield error("redis", "INFO is refused", "the fence cannot tell servers apart: every commit is refused",
                    "ACL SETUSER <user> +info")  # fmt: skip


def _what_it_is(facts: RedisFacts, settings: Settings) -> Iterator[Finding]:
    if facts.info.get("role") == "slave":
        yield error("redis", "this is a replica", "it takes no writes", "give the primary's URL: STATECACHE_REDIS_URL")
    if facts.pin:
        names = ("shards", "hash", "prefix", "postgres_schema")
        ours = (str(settings.shards), HASH, settings.prefix, settings.postgres_schema)
        what, remedy = pin_difference(dict(zip(names, facts.pin, strict=False)), dict(zip(names, ours, strict=True)))
        if what:
            yield error("both", f"Redis is {what}", "clients and workers refuse it", remedy)


def _what_it_keeps(facts: RedisFacts) -> Iterator[Finding]:
    info, config = facts.info, facts.config
    if info.get("aof_enabled") == "0":
        snapshots = (
            "what came since the last snapshot" if config.get("save") else "everything that is not in Postgres yet"
        )
        yield warning("redis", "there is no append-only file", f"a restart of Redis loses {snapshots}; no `disk`",
                      "CONFIG SET appendonly yes, and in redis.conf")  # fmt: skip
    elif config.get("appendfsync") == "no":
        yield warning("redis", "appendfsync is no", "a power loss takes what the system had not written; no `disk`",
                      "CONFIG SET appendfsync everysec, and in redis.conf")  # fmt: skip
    elif config.get("appendfsync") == "everysec":
        yield note("redis", "appendfsync is everysec",
                   "a power loss takes up to two seconds of what `memory` acknowledged; `disk` waits")  # fmt: skip
    if "err" in (info.get("aof_last_write_status"), info.get("aof_last_bgrewrite_status")):
        yield error("redis", "the append-only file could not be written", "commits are refused, or kept in memory only",
                    "look at the server's log and its disk")  # fmt: skip
    if info.get("rdb_last_bgsave_status") == "err":
        yield warning("redis", "the last snapshot failed", "with stop-writes-on-bgsave-error commits are refused",
                      "look at the server's log and its disk")  # fmt: skip


def _memory(facts: RedisFacts, settings: Settings) -> Iterator[Finding]:
    policy, most = facts.info.get("maxmemory_policy", ""), facts.info.get("maxmemory")
    if facts.full and not policy.startswith("allkeys-"):
        yield error("redis", "Redis is nearly full of what may not be evicted", "commits are refused, or soon will be",
                    "CONFIG SET maxmemory <more>, or shorten retention_s; see `statecache status`")  # fmt: skip
    if policy.startswith("allkeys-"):
        yield error("redis", f"maxmemory-policy is {policy}", "Redis may evict changes that are not in Postgres yet",
                    "CONFIG SET maxmemory-policy volatile-lru, and in redis.conf")  # fmt: skip
    elif policy not in ("", "volatile-lru", "noeviction"):
        yield warning("redis", f"maxmemory-policy is {policy}",
                      "what leaves is in Postgres, but it is not what was used least",
                      "CONFIG SET maxmemory-policy volatile-lru, and in redis.conf")  # fmt: skip
    if most == "0":
        yield warning("redis", "there is no maxmemory", "Redis grows until the system kills it, and its tail with it",
                      "CONFIG SET maxmemory <three quarters of the machine's>, and in redis.conf")  # fmt: skip
    if facts.config.get("maxmemory-clients") == "0":
        yield warning("redis", "maxmemory-clients is 0", "one client that stops reading can fill the memory of all",
                      "CONFIG SET maxmemory-clients 20%, and in redis.conf")  # fmt: skip
    yield from _largest(facts, settings)
    yield from _batches(facts, settings)
    limits = facts.config.get("client-output-buffer-limit", "")
    if re.search(r"pubsub 0 0 ", limits):
        yield warning("redis", "client-output-buffer-limit has none for pubsub",
                      "a subscriber that stops reading can fill the memory",
                      'CONFIG SET client-output-buffer-limit "pubsub 32mb 8mb 60", and in redis.conf')  # fmt: skip


def _largest(facts: RedisFacts, settings: Settings) -> Iterator[Finding]:
    """Yield which limits of the server are below the largest value, or the largest commit, that a client may send."""
    for name, least, what in (
        ("proto-max-bulk-len", settings.value_bytes_max, "value"),
        ("client-query-buffer-limit", COMMIT_BYTES_MAX + _QUERY_BESIDE, "commit"),
    ):
        most = facts.config.get(name, "")
        if most.isdigit() and int(most) < least:
            yield warning("redis", f"{name} is {most} bytes",
                          f"a large {what} cuts its connection off: every try fails, others beside it are sent again",
                          f"CONFIG SET {name} {_LARGEST[name]}, and in redis.conf")  # fmt: skip


def _batches(facts: RedisFacts, settings: Settings) -> Iterator[Finding]:
    """Yield which limits of the server are below what is sent to a worker that reads a batch: it reads that again."""
    least = settings.flush_bytes_max + COMMIT_BYTES_MAX + _BATCH_BESIDE
    costs = "a worker that reads a batch of large changes is cut off, each time anew, and flushes nothing of any shard"
    most = f"{_ROOM * least >> 20}mb"
    limits = re.search(r"normal (\d+) (\d+) (\d+)", facts.config.get("client-output-buffer-limit", ""))
    hard, soft, seconds = map(int, limits.groups()) if limits else (0, 0, 0)
    if seconds > settings.timeout_s:  # who reads for that long has given up
        soft = 0
    if 0 < (limit := min(filter(None, (hard, soft)), default=0)) < least:
        yield warning("redis", f"client-output-buffer-limit for clients is {limit} bytes", costs,
                      f'CONFIG SET client-output-buffer-limit "normal {most} {most} 60", and in redis.conf; or lower '
                      f"flush_bytes_max, which is {settings.flush_bytes_max}")  # fmt: skip
    told = facts.config.get("maxmemory-clients", "")
    part = int(told[:-1] if told[:-1].isdigit() else 0) if told.endswith("%") else 0
    whole = int(facts.info.get("maxmemory", 0)) * part // 100 if part else int(told) if told.isdigit() else 0
    if 0 < whole < least:
        yield warning("redis", f"maxmemory-clients is {told}" + (f", {whole} bytes" if part else " bytes"), costs,
                      f"CONFIG SET maxmemory-clients {most}, and in redis.conf")  # fmt: skip


def _replicas(facts: RedisFacts) -> Iterator[Finding]:
    asked = facts.config.get(REPLICAS, "")
    if short := too_few_replicas(facts.info, int(asked) if asked.isdigit() else None):
        yield error("redis", f"too few replicas: {short}", "every commit and every lock is refused (NOREPLICAS)",
                    f"bring the replicas back; for as long as they are away: CONFIG SET {REPLICAS} 0")  # fmt: skip
    count = int(facts.info.get("connected_slaves", 0))
    if not count:
        return
    if asked == "0":
        yield warning("redis", f"{REPLICAS} is 0 with {count} replicas",
                      "a primary that was cut off goes on taking commits, which end in `conflict`",
                      f"CONFIG SET {REPLICAS} 1, and in redis.conf")  # fmt: skip
    limit = re.search(r"(?:replica|slave) (\d+) ", facts.config.get("client-output-buffer-limit", ""))
    if limit and 0 < int(limit.group(1)) < REPLICA_BUFFER_MIN:
        yield warning("redis", f"client-output-buffer-limit for replicas is {limit.group(1)} bytes",
                      "a burst of large commits cuts replicas off, again and again",
                      'CONFIG SET client-output-buffer-limit "replica 512mb 128mb 60", and in redis.conf')  # fmt: skip
