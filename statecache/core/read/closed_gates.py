"""Which gates this process has found closed. One is left a moment to open, from when it was first found closed."""

from __future__ import annotations

from collections.abc import Iterable

from statecache.clock import monotonic

GATE_S = 0.5
"""How long a gate that was found closed is waited for at most, in seconds; and what is not met for so long is new."""


class ClosedGates:
    """Since when the gates of shards are closed, as far as this process has met them."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[float, float]] = {}  # first and last, by shard

    def __contains__(self, shard: int) -> bool:
        return shard in self._met

    def met(self, shard: int) -> None:
        """Note that a gate is closed."""
        now = monotonic()
        since, last = self._met.get(shard, (now, now))
        self._met[shard] = (since if now - last < GATE_S else now, now)

    def opened(self, shard: int) -> None:
        """Note that a gate is open."""
        self._met.pop(shard, None)

    def patient_until(self, shards: Iterable[int]) -> float:
        """Return until when some gates that are closed are left to open."""
        now = monotonic()
        return max((self._met.get(shard, (now, now))[0] for shard in shards), default=now) + GATE_S
