"""How a client gets a closed shard opened: by itself where the data set continues the row, else on others' word.

Writes that find the gate closed while Postgres is down raise `Unavailable(reason="epoch")`: better no write than one
that may have to be taken back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from statecache._async.gate import Gate
from statecache._bridge import async_sleep
from statecache.clock import monotonic
from statecache.errors import PostgresUnavailable, Unavailable

if TYPE_CHECKING:
    from statecache._async.postgres import PostgresTier
    from statecache._async.redis import RedisTier
    from statecache.keys import KeySpace
    from statecache.settings import Settings


class Opener:
    """This opens a shard on a client's word."""

    def __init__(self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier) -> None:
        self._gate = Gate(settings, keys, by=settings.writer, authority="client")
        self._redis = redis
        self._postgres = postgres

    async def open(self, shard: int, *, end: float) -> None:
        """This returns when the shard is open; Postgres is asked until `end`, then Unavailable(reason="epoch")."""
        pause = 0.01
        while True:
            try:
                return await self._open(shard, max(end - monotonic(), 0.001))
            except (PostgresUnavailable, psycopg.OperationalError) as error:
                await self._postgres.pool.drop_idle()
                if monotonic() + pause > end:
                    raise Unavailable("epoch", detail=f"shard {shard} waits for its epoch: {error}") from error
            await async_sleep(pause)
            pause = min(pause * 2, 0.25)

    async def _open(self, shard: int, seconds: float) -> None:
        session = await self._postgres.pool.take(seconds)
        try:
            link = await self._redis.pool.take(seconds)
            try:
                await self._gate.open(link, session.connection, [shard])
            finally:
                self._redis.pool.give(link)
        finally:
            self._postgres.pool.give(session)
