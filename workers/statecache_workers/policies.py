"""Policies of namespaces that Postgres has forgotten: recorded again from the copies that Redis has.

Shards that a worker begins to flush may have been flushed into a Postgres that went back since. Whatever was recorded
after that moment stands in the shards' metas alone, under a revision that Postgres would give out once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statecache.errors import PostgresUnavailable
from statecache.leases import forgotten
from statecache.lua import script
from statecache_workers.database import Call, Database
from statecache_workers.logs import alarm, warn

if TYPE_CHECKING:
    from statecache._async.redis.connection import AsyncLink
    from statecache.keys import KeySpace


async def restore_policies(link: AsyncLink, database: Database, keys: KeySpace, *, by: str, seconds: float) -> None:
    """Record again what Postgres has forgotten, and tell every shard; a role that may not do it goes on flushing."""
    metas = [keys.meta(shard) for shard in range(keys.shards)]
    copies = await link.run([("HGET", meta, "enforced") for meta in metas], seconds=seconds)
    try:
        async with database.transaction() as transaction:
            ((recorded,),) = (await transaction.run(Call("enforced_locks", {})))[0]
            seen, names = forgotten(recorded, copies)
            if not names:
                return
            asked = {"locking": "enforced", "by": by, "seen": seen}
            *_, ((recorded,),) = await transaction.run(*(Call("set_locking", asked | {"name": name}) for name in names))
            await transaction.commit()
    except PostgresUnavailable as error:
        warn("policies_not_restored", reason=error.reason, detail=error.detail)
        if not database.alive:
            raise
        return
    alarm("policies_went_back", namespaces=names)
    await link.run([("EVAL", script("set_policy").text, 1, meta, recorded) for meta in metas], seconds=seconds)
