"""The locks of a deployment as they stand in Redis: who holds them, for how long, and who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from statecache.cli.connecting import client
from statecache.clock import monotonic
from statecache.errors import ConfigurationError
from statecache.model import Token
from statecache.redis_errors import refusal
from statecache.rules.leases import StandingLease, lease_of, queue_of
from statecache.settings import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from statecache.settings import Settings


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """One who waits for a lock; times are in seconds."""

    waiter: str
    age_s: float


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that somebody holds; times are in seconds, by the server's clock."""

    key: str
    holder: str
    token: str
    age_s: float
    left_s: float
    ttl_s: float
    waiters: list[Waits]


async def locks(settings: Settings, key: str | None) -> list[Lock]:
    """Return the locks that are held, longest first, or that of `key`; raise ConfigurationError without a data set."""
    async with client(settings) as cache:
        keys, settings = cache._runtime.keys, cache.settings
        shards = range(keys.shards) if key is None else [keys.shard(key)]
        names = [name for shard in shards for name in (keys.leases(shard), keys.waiters(shard))]
        commands = [("TIME",), *(("HGETALL", name) for name in names)]
        (seconds, micros), *replies = await cache._runtime.redis.read(commands, seconds=settings.timeout_s)
    if not any(replies):  # a shard that was opened has these keys, whoever holds a lock
        raise ConfigurationError(
            f"{masked(settings.redis_url)}: no data set under the prefix {keys.prefix!r} has been opened here",
            hint="Name the Redis and the prefix of the deployment. Where they are right: `statecache migrate` adopts a "
            "new Redis; of one that lost its data `statecache status` says more.",
        )
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    found: list[Lock] = []
    for at in range(0, len(names), 2):
        leases, waiters = (_pairs(names[at + i], replies[at + i]) for i in range(2))
        found += _held(leases, waiters, now_ms)
    return sorted((one for one in found if key in (None, one.key)), key=lambda one: (-one.age_s, one.key))


async def take_away(settings: Settings, lock: Lock) -> bool:
    """Break a lock if it is still as it was shown; return whether it is broken."""
    async with client(settings) as cache:
        token = Token.parse(lock.token) or Token(0, 0)
        return await cache._runtime.leases.take_away(lock.key, token, end=monotonic() + cache.settings.timeout_s)


def _pairs(redis_key: str, reply: Any) -> dict[bytes, bytes]:
    if isinstance(reply, Exception):
        raise refusal(reply, redis_key) from reply
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _held(leases: Mapping[bytes, bytes], waiters: Mapping[bytes, bytes], now_ms: int) -> Iterator[Lock]:
    for name, value in leases.items():
        lease = lease_of(name.decode("utf-8", "replace"), value)
        if lease is not None and lease.until_ms > now_ms:
            queue = [one for one in queue_of(waiters.get(name, b"")) if one.until_ms > now_ms]
            waits = [Waits(waiter=one.holder, age_s=_age(one.since_ms, now_ms)) for one in queue]
            yield _lock(lease, waits, now_ms)


def _lock(lease: StandingLease, waits: list[Waits], now_ms: int) -> Lock:
    return Lock(
        key=lease.key,
        holder=lease.holder,
        token=str(lease.token),
        age_s=_age(lease.since_ms, now_ms),
        left_s=(lease.until_ms - now_ms) / 1000,
        ttl_s=lease.ttl_ms / 1000,
        waiters=waits,
    )


def _age(since_ms: int, now_ms: int) -> float:
    return max(0, now_ms - since_ms) / 1000
