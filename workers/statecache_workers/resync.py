"""How a shard that was just taken, or that did not fit, comes to be flushed.

Its row was read in a transaction that committed. If Redis agrees with it, the row's watermark is acknowledged first:
whoever owned the shard before may have died between COMMIT and acknowledgement, and on a shard that then goes idle
nobody else would ever tell the waiters. Forks that were committed meanwhile are acknowledged with it. Then the place in
the stream is found behind which to read. Where Redis knows a higher watermark than the row has, or ends below it,
Postgres went back, or Redis did, or the row is an old one: the shard needs a new epoch, or turns out to be open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from statecache_workers.database import Call, Database
from statecache_workers.owned_shards import Head, Heads, Holding, agree, set_apart

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace
    from statecache_workers.flusher import Flusher

FORKS_MAX = 10_000


class Resynced(msgspec.Struct, kw_only=True):
    """Which shards were opened, whose row must be read again first, and whose gate is closed."""

    opened: list[int] = []
    unsure: list[int] = []
    closed: list[int] = []


async def resync(
    link: Link, database: Database, flusher: Flusher, holdings: Sequence[Holding], *, heads: Heads, keys: KeySpace
) -> Resynced:
    """Open new holdings, as far as row and meta agree."""
    resynced = Resynced()
    fit: list[tuple[Holding, Head]] = []
    for holding in holdings:
        head = heads.of[holding.shard]
        if not holding.sure:
            resynced.unsure.append(holding.shard)
        elif isinstance(head, str):
            set_apart(holding, "foreign_data", f"{keys.meta(holding.shard)}: {head}")
        elif not (agree(holding.row, head, heads.server) and head.flushed <= holding.row.flushed <= head.n):
            resynced.closed.append(holding.shard)
        else:
            fit.append((holding, head))
    if fit:
        await _acknowledge_and_seek(link, database, flusher, fit, resynced, keys)
    return resynced


async def _acknowledge_and_seek(
    link: Link,
    database: Database,
    flusher: Flusher,
    fit: Sequence[tuple[Holding, Head]],
    resynced: Resynced,
    keys: KeySpace,
) -> None:
    forks = {holding.shard: await _forks(link, database, flusher, holding, head) for holding, head in fit}
    resynced.unsure += await flusher.acknowledgement.tell(link, [holding for holding, _ in fit], forks)
    agreed = [holding for holding, _ in fit if holding.phase == "new" and holding.sure]
    calls = [([keys.changes(one.shard)], [one.row.flushed, one.row.epoch]) for one in agreed]
    for holding, reply in zip(agreed, await flusher.streams.pipeline(link, "seek", calls), strict=True):
        if isinstance(reply, Exception):
            set_apart(holding, "foreign_data", f"{keys.changes(holding.shard)}: {reply}")
            continue
        holding.after, holding.phase, holding.reason = reply, "open", ""
        flusher.opened(holding)
        resynced.opened.append(holding.shard)


async def _forks(
    link: Link, database: Database, flusher: Flusher, holding: Holding, head: Head
) -> list[tuple[str, str]]:
    """Return the forks that Postgres has committed and Redis was not told of; of very many, the last ones.

    Those before them are removed on the way, and the watermark stays: it moves only with the last ones.
    """
    after, last = head.excepted, holding.row.flushed
    while holding.row.excepted > after:
        between = {"shard": holding.shard, "after": after, "last": last, "most": FORKS_MAX}
        async with database.transaction() as transaction:
            (rows,) = await transaction.run(Call("forks_between", between))
        forks = [(key, change_id) for key, change_id, _ in rows]
        if len(rows) < FORKS_MAX:
            return forks
        await flusher.acknowledgement.remove(link, holding, forks)
        after = rows[-1][2] - 1  # a change-set may have been cut
    return []
