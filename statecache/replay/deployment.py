"""A deployment of a replay's own, on servers that others use.

It has a prefix of Redis keys and a Postgres schema that nobody else has, `sc-replay-1f2e3d4c` and
`statecache_replay_1f2e3d4c`. So nothing of the others is read, written or waited for, their workers serve none of it,
several replays may run at once, and what one has made is taken away whole, however it ended. Its keys are removed by
their names, which are all known: a scan would go through everybody's.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg
from redis.exceptions import ResponseError

from statecache.core.postgres.connection import brief, connect
from statecache.core.postgres.migrate import migrate
from statecache.core.postgres.transactions import asked
from statecache.core.redis.tier import RedisTier
from statecache.errors import PostgresUnavailable, RedisUnavailable, StateCacheError, Unavailable
from statecache.keys import KeySpace
from statecache.settings import Settings, masked

REMOVE_S = 30.0
_NAMES_AT_ONCE = 1000
_PREFIX_CHARACTERS, _SCHEMA_CHARACTERS = 48, 46
"""What is kept of the names that the settings say, so that ours are not too long."""


class NotRemoved(Unavailable):
    """What this replay made is still on its servers ({reason}): {detail}."""


@contextmanager
def beside_others(settings: Settings, keys: Sequence[str]) -> Iterator[Settings]:
    """Make a deployment for states of those keys, yield its settings, and remove it at the block's end.

    Raises ConfigurationError where this user may not make one, Unavailable, and NotRemoved.
    """
    word, made = secrets.token_hex(4), False
    names = {
        "prefix": f"{settings.prefix[:_PREFIX_CHARACTERS]}-replay-{word}",
        "postgres_schema": f"{settings.postgres_schema[:_SCHEMA_CHARACTERS]}_replay_{word}",
    }
    own = settings.model_copy(update=names)
    try:
        asyncio.run(migrate(own))
        made = True
        yield own
    except StateCacheError as error:
        try:
            asyncio.run(_remove(own, keys))
        except NotRemoved as left:
            if made:
                before = str(error).rstrip(".")
                raise NotRemoved(left.reason, detail=f"{left.detail}; before that: {before}", hint=left.hint) from error
        raise
    except BaseException:  # an interrupt, say: it ends the replay whether or not there is something left to tell
        with suppress(NotRemoved):
            asyncio.run(_remove(own, keys))
        raise
    asyncio.run(_remove(own, keys))


async def _remove(own: Settings, keys: Sequence[str]) -> None:
    """Remove the deployment from both servers; raise NotRemoved with what is left and how to remove it by hand."""
    left: list[str] = []
    ways: list[str] = []
    try:
        await _drop_schema(own)
    except StateCacheError as error:
        left.append(str(error).rstrip("."))
        ways.append(f"DROP SCHEMA {own.postgres_schema} CASCADE in Postgres")
    try:
        await _unlink(own, keys)
    except StateCacheError as error:
        left.append(str(error).rstrip("."))
        ways.append(f"the keys {own.prefix}:* in Redis")
    if left:
        raise NotRemoved("removal", detail="; ".join(left), hint=f"Remove by hand: {', '.join(ways)}.")


async def _drop_schema(own: Settings) -> None:
    connection = await connect(own, "statecache replay")
    try:
        async with asyncio.timeout(REMOVE_S):
            await asked(connection, own.postgres_schema, "schema_drop", {}, seconds=None)
    except (psycopg.Error, TimeoutError) as error:
        detail = f"{masked(own.postgres_url)}: {brief(error)}"
        raise PostgresUnavailable("statement", detail=detail) from error
    finally:
        await connection.close()


async def _unlink(own: Settings, keys: Sequence[str]) -> None:
    space = KeySpace(own.prefix, own.shards)
    link = await RedisTier(own, space).link()
    try:
        names = list(space.names(keys))
        for first in range(0, len(names), _NAMES_AT_ONCE):
            some = [("UNLINK", name) for name in names[first : first + _NAMES_AT_ONCE]]
            for reply in await link.run(some, seconds=REMOVE_S):
                if isinstance(reply, ResponseError):
                    raise RedisUnavailable("command", detail=f"{masked(own.redis_url)}: {reply}")
    finally:
        await link.close()
