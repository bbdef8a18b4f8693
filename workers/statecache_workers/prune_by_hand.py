"""Letting values of changes go at once, as an operator asks for it, or counting what would go."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import msgspec

from statecache.clock import monotonic
from statecache.concurrency import TASKS
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.errors import ConfigurationError, PostgresUnavailable
from statecache.keys import KeySpace
from statecache.rules.retention import retention_of
from statecache_workers.database import Call, Database
from statecache_workers.prune_passes import patiently
from statecache_workers.pruning import Lots, Place, Pruned, Pruner
from statecache_workers.redis_time import RedisTime

if TYPE_CHECKING:
    from statecache.retention import Retention
    from statecache.settings import Settings

RIGHTS = "42501"
"""The SQLSTATE of a missing right."""
REST = 0.5
"""How many times as long as it worked it rests, so that flushes find the servers free in between."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What went of a namespace, or would go."""

    namespace: str
    policy: str
    values: int
    bytes: int
    pinned: int
    damaged: list[tuple[str, int, str]]


async def prune(
    settings: Settings, namespace: str | None, *, dry_run: bool, progress: Callable[[int], None] = lambda _: None
) -> list[Outcome]:
    """Let values go of one namespace, or of all whose policy says so; return what went, with `dry_run` what would."""
    outcomes = []
    async with _opened(settings) as (database, redis_time):
        policies = [(name, one) for name, one in await _policies(database) if namespace in (None, name)]
        if any(retention.max_age is not None for _, retention in policies):
            await redis_time.now()  # who cannot be told it is told so before anything goes
        for name, retention in policies:
            if retention.bounded:
                pruner = Pruner(database, redis_time, seconds=settings.timeout_s)
                done = await _through(database, pruner, name, retention, progress=progress, dry_run=dry_run)
                outcomes.append(Outcome(
                    namespace=name, policy=str(retention), values=done.values, bytes=done.bytes, pinned=done.pinned,
                    damaged=done.damaged,
                ))  # fmt: skip
    return outcomes


async def _policies(database: Database) -> list[tuple[str, Retention]]:
    async with database.transaction(snapshot=True) as transaction:
        (rows,) = await transaction.run(Call("history_policies", {}))
    return [(name, retention_of(*policy)) for name, *policy, _, _ in rows]


async def _through(
    database: Database, pruner: Pruner, name: str, retention: Retention, *, progress: Callable[[int], None],
    dry_run: bool,
) -> Pruned:  # fmt: skip
    done, lots = Pruned(), Lots()
    place: Place | None = None
    while True:
        place = await pruner.page(name, retention, place, lots)
        for lot in lots.take(every=place is None):
            begun = monotonic()
            done.add(await (pruner.count(lot) if dry_run else patiently(pruner, lot)))
            progress(done.values)
            if not dry_run:
                await TASKS.sleep((monotonic() - begun) * REST)
        kept = dict(await _policies(database)).get(name)
        if place is None or kept is None or not kept.bounded:
            return done
        if kept != retention:
            retention, lots = kept, Lots()


@contextlib.asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[tuple[Database, RedisTime]]:
    keys = KeySpace(settings.prefix, settings.shards)
    redis = RedisTier(settings, keys)
    postgres = PostgresTier(settings, keys, cluster=lambda: redis.cluster)
    database = Database(await postgres.session(), settings)
    try:
        yield database, RedisTime(settings, redis, postgres)
    except PostgresUnavailable as error:
        if error.reason != RIGHTS:
            raise
        hint = "Use a worker's role, or the schema owner's."
        raise ConfigurationError(f"Postgres: {error.detail}", hint=hint) from error
    finally:
        await database.close()
