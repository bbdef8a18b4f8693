"""Whether the Redis user may run all that a worker runs, beside what every connection's handshake asks for.

A command that is refused in the middle of a script is told as the script's failure, without its name. So a worker asks
before it begins, on each new connection, and names what it lacks. `statecache doctor --worker` asks for the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from statecache.core.redis.rights import commands, first_and_last, rights

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.settings import Settings

WORKER = (
    "XREAD COUNT 1 STREAMS {changes} 0", "XTRIM {changes} MINID 1", "XLEN {changes}", "DEL {changes}~",
    "XADD {changes}~ * a b", "XDEL {changes}~ 1-1", "RENAME {changes}~ {changes}~", "HSCAN {hydrating} 0", "SCAN 0",
    "TYPE {meta}", "HGETALL {state}", "ZRANGEBYSCORE {unflushed} 0 1", "SPUBLISH {events} x", "HGETALL {leases}",
    "HSCAN {leases} 0", "HDEL {leases} a", "HSCAN {waiters} 0", "HDEL {waiters} a",
    "XREAD COUNT 1 STREAMS {bell} 0", "XADD {bell} * a b",
)  # fmt: skip
"""What a worker needs beside what every connection's handshake asks for."""


async def worker_link(redis: RedisTier, keys: KeySpace, settings: Settings) -> Link:
    """Open a connection on which all may be run that a worker runs; raise ConfigurationError with what may not."""
    link, seconds = await redis.link(), settings.connect_timeout_s
    try:
        try:
            found = await rights(link, commands(keys, WORKER, first_and_last(keys)), seconds=seconds)
        except ResponseError:  # a server that does not tell
            return link
        if found.answer:
            raise await redis.hindered(link, found, WORKER, seconds=seconds)
    except BaseException:  # a connection that was not asked is not used
        await link.close()
        raise
    return link
