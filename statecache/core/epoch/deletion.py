"""What an opening deletes of a data set while its reservation stands: stale states, forks, and those of no lineage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statecache.core.epoch.requests import Calls
    from statecache.keys import KeySpace

ANY = ""
"""Stands for any change_id, where a state is deleted whichever it has."""
FORKS_PER_PAGE = 10_000
KEYS_PER_CALL = 500


class Deletion:
    """The deletions of an opening, counted by shard in states; -1 for a shard whose reservation was lost."""

    def __init__(self, calls: Calls, keys: KeySpace, shards: Iterable[int], *, token: str, reserve_ms: int) -> None:
        self._calls = calls
        self._keys = keys
        self._token = token
        self._reserve_ms = reserve_ms
        self.counts = dict.fromkeys(shards, 0)

    async def delete(self, what: Sequence[tuple[int, Iterable[tuple[str, str]], Sequence[bytes]]]) -> None:
        """Delete of each shard these states, if they still have the change_id given with them, and stream entries."""
        calls: list[tuple[list[str], list[Any]]] = []
        order: list[int] = []
        keys = self._keys
        for shard, found, entries in what:
            fixed = [keys.meta(shard), keys.unflushed(shard), keys.changes(shard)]
            states = [one for one in found if keys.shard(one[0]) == shard]  # a damaged entry may name any
            for start in range(0, max(len(states), len(entries)), KEYS_PER_CALL):
                some = states[start : start + KEYS_PER_CALL]
                ids = entries[start : start + KEYS_PER_CALL]
                redis_keys = [*fixed, *(keys.state(key) for key, _ in some)]
                named = [*(key for key, _ in some), *(change_id for _, change_id in some)]
                calls.append((redis_keys, [self._token, self._reserve_ms, len(some), *named, *ids]))
                order.append(shard)
        for shard, reply in zip(order, await self._calls.scripts("gate_drop", calls), strict=True):
            self.counts[shard] = -1 if reply < 0 or self.counts[shard] < 0 else self.counts[shard] + reply

    async def delete_forks(self, shard: int, known: int, excepted: int, *, upto: int) -> None:
        """Delete the states of forks that Postgres has set aside, and of which the data set does not know yet."""
        while excepted > known:
            between = {"shard": shard, "after": known, "last": upto, "most": FORKS_PER_PAGE}
            rows = await self._calls.fetch("forks_between", between)
            await self.delete([(shard, [(key, change_id) for key, change_id, _ in rows], [])])
            if len(rows) < FORKS_PER_PAGE:
                return
            known = rows[-1][2] - 1  # a change-set may have been cut
