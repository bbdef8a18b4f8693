"""How far a worker is behind: what its rows, heads and streams say, put together when somebody asks.

A shard is behind by what Redis holds beyond the row's watermark. After an outage the row may be an old one while
another worker has gone on; Redis' copy of the watermark shows that, and such a shard is not counted as ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from statecache_workers.owned_shards import Head, Heads, Holding
from statecache_workers.streams import Stock


class Lag(msgspec.Struct, kw_only=True):
    """How far behind a worker's shards are: in all, and in entries and bytes by shard.

    `bytes` is what only Redis holds. `age_s` is the age of the oldest change among it, in seconds.
    """

    entries: int = 0
    bytes: int = 0
    age_s: float = 0.0
    of: dict[int, int] = {}
    bytes_of: dict[int, int] = {}


def lag_of(holdings: Iterable[Holding], heads: Heads | None, stocks: Mapping[int, Stock], *, now: float) -> Lag:
    """Return the lag of a worker's shards; `now` is on the clock of `heads.seen`."""
    lag = Lag(of={}, bytes_of={})
    for one in holdings:
        head, row = heads.of.get(one.shard) if heads is not None else None, one.row
        if heads is None or not isinstance(head, Head):
            continue
        if head.flushed > row.flushed and one.phase != "open":
            continue
        behind = lag.of[one.shard] = max(0, head.n - row.flushed)
        size = lag.bytes_of[one.shard] = max(0, head.bytes - row.bytes) if behind else 0
        lag.entries += behind
        lag.bytes += size
        if behind:
            lag.age_s = max(lag.age_s, now - heads.seen, _age_s(stocks.get(one.shard), row.flushed, now))
    return lag


def _age_s(stock: Stock | None, flushed: int, now: float) -> float:
    """Return the seconds that the oldest change has waited: until now, or until measured if some were flushed since."""
    if stock is None or stock.waiting is None:
        return 0.0
    return (now if stock.flushed == flushed else stock.seen) - stock.waiting
