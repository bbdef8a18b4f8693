"""The policies of namespaces: what one of the two tiers lacks is told to it.

Shards that a worker begins to flush may have been flushed into a Postgres that went back since. Whatever was recorded
after that moment stands in the shards' metas alone, under a revision that Postgres would give out once more. And
whoever recorded a policy in Postgres may have died before every shard had its copy: a worker looks now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from statecache.errors import PostgresUnavailable
from statecache.lua import script
from statecache.rules.leases import forgotten, revision_of, taken_back
from statecache_workers.database import Call, Database
from statecache_workers.logs import alarm, warn

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache.settings import Settings
    from statecache_workers.kept_histories import KeptHistories


POLICIES_S = 30.0
"""How often a worker looks, in seconds."""


class Policies:
    """A worker's look at the policies, now and then and wherever shards are taken; `histories` are told of theirs."""

    def __init__(
        self, settings: Settings, keys: KeySpace, histories: KeptHistories, *, by: str, monotonic: Callable[[], float]
    ) -> None:
        self._histories = histories
        self._seconds = settings.timeout_s
        self._metas = [keys.meta(shard) for shard in range(keys.shards)]
        self._by = by
        self._monotonic = monotonic
        self._next = monotonic()

    async def look(self, link: Link, database: Database, *, now: bool = False) -> None:
        """Record again what Postgres has forgotten, and tell the shards what they lack.

        A role that may not do it goes on flushing.
        """
        if self._monotonic() < self._next and not now:
            return
        self._next = self._monotonic() + POLICIES_S
        copies = await link.run([("HGET", meta, "enforced") for meta in self._metas], seconds=self._seconds)
        try:
            before, recorded, names = await self._restored(database, copies)
        except PostgresUnavailable as error:
            warn("policies_not_restored", reason=error.reason, detail=error.detail)
            if not database.alive:
                raise
            return
        if names:
            alarm("policies_went_back", namespaces=names, taken_back=taken_back(before, copies))
        lacking = [
            meta for meta, copy in zip(self._metas, copies, strict=True) if revision_of(copy) < revision_of(recorded)
        ]
        if names or lacking:
            told = self._metas if names else lacking
            text = script("set_policy").text
            await link.run([("EVAL", text, 1, meta, recorded) for meta in told], seconds=self._seconds)

    async def _restored(self, database: Database, copies: Sequence[Any]) -> tuple[str, str, list[str]]:
        """Return the policies that Postgres had and has now, and the names that were recorded again."""
        async with database.transaction() as transaction:
            ((recorded,),), histories = await transaction.run(Call("enforced_locks", {}), Call("history_policies", {}))
            self._histories.take(histories)
            before = recorded
            seen, names = forgotten(recorded, copies)
            if names:
                asked = {"locking": "enforced", "by": self._by, "seen": seen}
                *_, ((recorded,),) = await transaction.run(
                    *(Call("set_locking", asked | {"name": name}) for name in names)
                )
                await transaction.commit()
        return before, recorded, names
