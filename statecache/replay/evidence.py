"""What the audit reads from the servers: plain rows of Postgres, raw hashes of Redis, a few runs at a time.

Before that everything has to be flushed, and a state that Redis does not hold (it is a cache; an opened epoch drops
what may be stale) is asked for once through the client, which loads it: what it then holds must be what Postgres has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from statecache import AsyncStateCache
from statecache.clock import monotonic
from statecache.concurrency import TASKS
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.errors import Unavailable
from statecache.history import Stored, values_of
from statecache.keys import KeySpace
from statecache.replay.audit import AuditRow, Evidence, Starts, Tip
from statecache.replay.ledger import Ledger, Sent
from statecache.replay.runs import AgentRun, RunState, key_of
from statecache.settings import Settings

RUNS_AT_ONCE = 20
_LOOK_S = 0.05
_FIELDS = ("op", "version", "epoch", "change_id", "value")


class Sources:
    """A reader of evidence from one Redis and one Postgres."""

    def __init__(self, settings: Settings, *, patience_s: float = 60.0) -> None:
        self._settings = settings
        self._patience_s = patience_s
        self._keys = KeySpace(settings.prefix, settings.shards)
        self._redis = RedisTier(settings, self._keys)
        self._postgres = PostgresTier(settings, self._keys)

    async def __aenter__(self) -> Sources:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._redis.pool.close()
        await self._postgres.pool.close()

    async def settle(self, *, end: float, meanwhile: Callable[[], None]) -> list[int]:
        """Wait until every shard's watermark has reached its head, and return the shards where it has not by `end`."""
        shards = range(self._keys.shards)
        while True:
            try:
                flushed = dict(await self._rows("audit_watermarks"))
                commands = [("HGET", self._keys.meta(shard), "n") for shard in shards]
                heads = await self._redis.read(commands, seconds=self._patience_s)
                behind = [shard for shard, head in zip(shards, heads, strict=True) if flushed[shard] < int(head or 0)]
            except Unavailable:
                behind = list(shards)
            if not behind or monotonic() > end:
                return behind
            meanwhile()
            await TASKS.sleep(_LOOK_S)

    async def starts(self) -> Starts:
        """Return the epochs of every shard, with the n after which each began."""
        starts: dict[int, list[tuple[int, int]]] = {}
        for shard, epoch, start_n in await self._rows("audit_epochs"):
            starts.setdefault(shard, []).append((epoch, start_n))
        return starts

    async def evidence(self, runs: Sequence[AgentRun], ledger: Ledger) -> AsyncIterator[Evidence]:
        """Yield the evidence about one run after the other."""
        sent: dict[str, list[Sent]] = {}
        for each in ledger.sent.values():
            sent.setdefault(each.run, []).append(each)
        for first in range(0, len(runs), RUNS_AT_ONCE):
            async for one in self._some(runs[first : first + RUNS_AT_ONCE], sent):
                yield one

    async def _some(self, runs: Sequence[AgentRun], sent: dict[str, list[Sent]]) -> AsyncIterator[Evidence]:
        keys = [key_of(run.id) for run in runs]
        chains: dict[str, list[AuditRow]] = {key: [] for key in keys}
        found = await self._rows("audit_changes", keys=keys)
        for key, chain in groupby(found, itemgetter(0)):
            rows = [*chain]
            values = values_of(Stored(row[1], row[9], *row[11:14]) for row in rows)
            for (_, *row), value in zip(rows, values, strict=True):
                facts = (*row[:8], value or b"", row[9])
                chains[key].append(AuditRow(**dict(zip(AuditRow.__struct_fields__, facts, strict=True))))
        tips = {key: _tip(row) for key, *row in await self._rows("audit_states", keys=keys)}
        aside = {(key, kind): count for key, kind, count in await self._rows("audit_set_aside", keys=keys)}
        live = await self._live(keys)
        for run, key in zip(runs, keys, strict=True):
            yield Evidence(
                run=run,
                sent=sent.get(run.id, []),
                rows=chains[key],
                conflicts=aside.get((key, "conflict"), 0),
                quarantined=aside.get((key, "quarantine"), 0),
                postgres=tips.get(key),
                redis=live.get(key),
            )

    async def _live(self, keys: Sequence[str]) -> dict[str, Tip]:
        live = await self._hashes(keys)
        missing = [key for key in keys if key not in live]
        if missing:
            async with AsyncStateCache(settings=self._settings) as cache:
                for key in missing:
                    await cache.get(key, type=RunState)
            live |= await self._hashes(missing)
        return live

    async def _hashes(self, keys: Sequence[str]) -> dict[str, Tip]:
        commands = [("HMGET", self._keys.state(key), *_FIELDS) for key in keys]
        replies = await self._redis.read(commands, seconds=self._patience_s)
        found = {}
        for key, reply in zip(keys, replies, strict=True):
            if isinstance(reply, list) and None not in reply:
                op, version, epoch, change_id, value = reply
                found[key] = _tip((op.decode(), int(version), int(epoch), change_id.decode(), value))
        return found

    async def _rows(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return await self._postgres.fetch(name, parameters, seconds=self._patience_s)


def _tip(row: Sequence[Any]) -> Tip:
    op, version, epoch, change_id, value = row
    return Tip(op=op, version=version, epoch=epoch, change_id=change_id, value=bytes(value))
