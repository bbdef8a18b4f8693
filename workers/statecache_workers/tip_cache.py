"""The tips that the flusher remembers, so that it need not ask Postgres for every key of every batch.

A remembered tip is true for as long as the shard's watermark in Postgres is where this worker left it, which every
flush compares under the row's lock. Whoever finds it elsewhere drops the shard. The memory is bounded: when the young
half is full it becomes the old half, and what was old is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statecache.rules.reconcile import Tip

_Kept = tuple[int, int, "Tip"]


class TipCache:
    """The remembered tips of at most `tips_max` keys."""

    def __init__(self, tips_max: int) -> None:
        self._half = max(1, tips_max // 2)
        self._young: dict[str, _Kept] = {}
        self._old: dict[str, _Kept] = {}
        self._generations: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, shard: int, key: str) -> Tip | None:
        """Return the tip of a shard's key, if it is remembered and still to be believed.

        A broken one never is: an operator may have taken the change out of quarantine since, watermark or not.
        """
        kept = self._young.get(key) or self._old.get(key)
        if kept is None or kept[:2] != (shard, self._generations.get(shard, 0)) or kept[2].broken:
            return None
        return kept[2]

    def put(self, shard: int, tips: Mapping[str, Tip]) -> None:
        """Remember tips of a shard's keys."""
        generation = self._generations.get(shard, 0)
        for key, tip in tips.items():
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
            self._young[key] = (shard, generation, tip)

    def drop(self, shard: int) -> None:
        """Forget a shard's keys."""
        self._generations[shard] = self._generations.get(shard, 0) + 1

    def clear(self) -> None:
        """Forget everything."""
        self._young.clear()
        self._old.clear()
