"""What time it is for the Redis of a deployment, by whose clock changes say when they were committed.

It is asked on a connection of its own each time: whoever was the primary before may have another clock. Another
deployment's Redis, or one that holds nothing, tells nothing of the clock by which changes were committed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from statecache.errors import ConfigurationError

if TYPE_CHECKING:
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier
    from statecache.settings import Settings


class RedisTime:
    """The time of the primary that belongs to a Postgres, which was connected to before."""

    def __init__(self, settings: Settings, redis: RedisTier, postgres: PostgresTier) -> None:
        self._settings = settings
        self._redis = redis
        self._postgres = postgres

    async def now(self) -> datetime:
        """Return what time it is there, at least.

        Raises RedisUnavailable, and ConfigurationError where that is not known to be the Redis of this Postgres.
        """
        link = await self._redis.link(self._settings.timeout_s)
        await link.close()
        if not self._redis.cluster:
            wrong = f"no data set under the prefix {self._settings.prefix!r} has been opened in this Redis"
            hint = "Ages count by the clock of the deployment's Redis: name it in STATECACHE_REDIS_URL."
            raise ConfigurationError(wrong, hint=hint)
        self._postgres.check_pair()
        return datetime.fromtimestamp(self._redis.clock.now_ms() / 1000, UTC)
