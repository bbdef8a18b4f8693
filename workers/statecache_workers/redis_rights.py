"""Whether the Redis user may run all that a worker runs, beside what every connection's handshake asks for.

A command that is refused in the middle of a script is told as the script's failure, without its name. So a worker asks
before it begins, on each new connection, and names what it lacks. `statecache doctor --worker` asks for the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from statecache.errors import ConfigurationError
from statecache.lua import script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.settings import Settings


def needed(keys: KeySpace) -> list[str]:
    """Return the commands that a worker needs beside those of every connection's handshake."""
    meta, changes, unflushed, hydrating = keys.meta(0), keys.changes(0), keys.unflushed(0), keys.hydrating(0)
    return [
        f"XREAD COUNT 1 STREAMS {changes} 0", f"XTRIM {changes} MINID 1", f"XLEN {changes}", f"DEL {changes}~",
        f"XADD {changes}~ * a b", f"RENAME {changes}~ {changes}", f"HSCAN {hydrating} 0", "SCAN 0", f"TYPE {meta}",
        f"ZRANGEBYSCORE {unflushed} 0 1", f"SPUBLISH {keys.events(0)} x", f"HGETALL {keys.leases(0)}",
    ]  # fmt: skip


async def refused(link: Link, commands: Sequence[str], *, seconds: float) -> list[str]:
    """Return which of the commands this user may not run; none where the server does not tell, as before Redis 7."""
    try:
        reply = await link.script(script("rights"), [], commands, seconds=seconds)
    except ResponseError:
        return []
    return [part.decode("utf-8", "replace") for part in reply]


def named(commands: Sequence[str]) -> str:
    """Return refused commands in one line, each with its first argument."""
    return ", ".join(sorted({" ".join(one.split()[:2]) for one in commands}))


async def worker_link(redis: RedisTier, keys: KeySpace, settings: Settings) -> Link:
    """Open a connection on which all may be run that a worker runs; raise ConfigurationError with what may not."""
    link = await redis.link()
    try:
        if lacking := await refused(link, needed(keys), seconds=settings.connect_timeout_s):
            redis.lacks_rights = True
            what = f"the Redis user may not run {named(lacking)}"
            raise ConfigurationError(what, hint="Grant these commands on these keys, as config/users.acl has them.")
    except BaseException:  # a connection that was not asked is not used
        await link.close()
        raise
    return link
