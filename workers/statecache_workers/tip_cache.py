"""The tips that the flusher remembers, so that it need not ask Postgres for every key of every batch, and values.

A remembered tip is true for as long as the shard's watermark in Postgres is where this worker left it, which every
flush compares under the row's lock. Whoever finds it elsewhere drops the shard. Of keys that were written not long ago
the newest value is remembered too, for the next one may be kept as a delta to it, with the keyframe that it is read
from: whoever moves such keyframes counts that in the shard's row, and values that were remembered before are dropped.
Both memories are bounded: when the young half is full it becomes the old half, and what was old is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from statecache.history import Parent
    from statecache.rules.reconcile import Tip

T = TypeVar("T")


class _Halves(Generic[T]):
    """What is remembered of keys, in two halves, of which each holds at most half of what there is room for."""

    def __init__(self, room: int, size: Callable[[T], int]) -> None:
        self._half = max(1, room // 2)
        self._size = size
        self._taken = 0
        self._young: dict[str, T] = {}
        self._old: dict[str, T] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: str) -> T | None:
        return self._young.get(key) or self._old.get(key)

    def put(self, key: str, item: T) -> None:
        if self._taken >= self._half:
            self._old, self._young, self._taken = self._young, {}, 0
        before = self._young.get(key)
        self._taken += self._size(item) - (0 if before is None else self._size(before))
        self._young[key] = item

    def clear(self) -> None:
        self._young.clear()
        self._old.clear()
        self._taken = 0


class TipCache:
    """The remembered tips of at most `tips_max` keys, and values of at most `values_bytes_max` bytes."""

    def __init__(self, tips_max: int, values_bytes_max: int = 0) -> None:
        self._tips = _Halves[tuple[int, int, "Tip"]](tips_max, lambda _: 1)
        self._parents = _Halves[tuple[int, int, int, "Parent"]](values_bytes_max, lambda one: len(one[3].value))
        self._generations: dict[int, int] = {}
        self._moved: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._tips)

    def get(self, shard: int, key: str) -> Tip | None:
        """Return the tip of a shard's key, if it is remembered and still to be believed.

        A broken one never is: an operator may have taken the change out of quarantine since, watermark or not. Nor is
        one without a hash, which may have been reckoned since.
        """
        kept = self._tips.get(key)
        if kept is None or kept[:2] != (shard, self._generations.get(shard, 0)):
            return None
        return None if kept[2].broken or kept[2].hash is None else kept[2]

    def parent(self, shard: int, key: str) -> Parent | None:
        """Return the newest value of a shard's key, if it is remembered and still to be believed."""
        kept = self._parents.get(key)
        believed = shard, self._generations.get(shard, 0), self._moved.get(shard, 0)
        return None if kept is None or kept[:3] != believed else kept[3]

    def moved(self, shard: int, times: int) -> None:
        """Take note of how often keyframes of a shard's keys were moved; values from before are forgotten."""
        self._moved[shard] = times

    def put(self, shard: int, tips: Mapping[str, Tip], parents: Mapping[str, Parent] | None = None) -> None:
        """Remember tips of a shard's keys, and values."""
        generation = self._generations.get(shard, 0)
        for key, tip in tips.items():
            self._tips.put(key, (shard, generation, tip))
        for key, parent in (parents or {}).items():
            self._parents.put(key, (shard, generation, self._moved.get(shard, 0), parent))

    def drop(self, shard: int) -> None:
        """Forget a shard's keys."""
        self._generations[shard] = self._generations.get(shard, 0) + 1

    def clear(self) -> None:
        """Forget everything."""
        self._tips.clear()
        self._parents.clear()
