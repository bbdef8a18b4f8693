"""Which shards a worker leaves to others, because it could not serve them.

A shard is served when a whole turn has passed with it open. One that was not for `GIVE_UP_LEASES` leases, while there
is another worker that serves all of its own, is given up: the reason may be this worker's own, such as a Redis that is
not the primary any more, or rights that it lacks. It is avoided for a while, each time for longer, and then only taken
again if this worker's Redis agrees with the shard's row. One that nobody else has taken for a lease's length is taken
all the same, so nothing is left alone for good; but not where only a newer release can serve it. Alone, a worker keeps
trying, and dials the address again now and then (`redial`).
"""

from __future__ import annotations

from collections.abc import Collection

GIVE_UP_LEASES = 3
"""For how many leases a shard may go without being served."""
AVOID_S = 30.0
AVOID_S_MAX = 600.0


class Avoidance:
    """What one worker has served and what it avoids; moments are on its monotonic clock."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._held = float("-inf")
        self._served: dict[int, float] = {}
        self._until: dict[int, float] = {}
        self._times: dict[int, int] = {}
        self._too_new: set[int] = set()

    @property
    def shards(self) -> list[int]:
        """The shards that are avoided."""
        return sorted(self._until)

    @property
    def strictly(self) -> list[int]:
        """The shards that are avoided even where nobody else takes them: only a newer release can serve them."""
        return sorted(self._too_new & self._until.keys())

    def hold(self, shards: Collection[int], now: float) -> None:
        """Note which shards are held: the time in which one must be served begins when it is taken.

        It begins anew where the leases may have lapsed meanwhile, as in an outage.
        """
        known = self._served if now - self._held <= self._lease_s else {}
        self._held = now
        self._served = {shard: known.get(shard, now) for shard in shards}
        for shard in shards:
            self._until.pop(shard, None)

    def serve(self, shards: Collection[int], now: float) -> None:
        """Note that these were served."""
        for shard in shards:
            self._served[shard] = now
            self._times.pop(shard, None)

    def hopeless(self, now: float) -> list[int]:
        """Return the shards that were held for too long without being served."""
        patience_s = GIVE_UP_LEASES * self._lease_s
        return sorted(shard for shard, served in self._served.items() if now - served > patience_s)

    def give_up(self, shards: Collection[int], now: float, *, too_new: bool = False) -> None:
        """Avoid these from now on."""
        (self._too_new.update if too_new else self._too_new.difference_update)(shards)
        for shard in shards:
            times = self._times[shard] = self._times.get(shard, 0) + 1
            self._until[shard] = now + min(AVOID_S * 2.0 ** (times - 1), AVOID_S_MAX)
            self._served.pop(shard, None)

    def ripe(self, now: float) -> list[int]:
        """Return the shards whose time is up: they may be taken again where there is hope."""
        return sorted(shard for shard, until in self._until.items() if until <= now)

    def end(self, shards: Collection[int]) -> None:
        """Avoid these no longer."""
        for shard in shards:
            self._until.pop(shard, None)

    def go_on(self, shards: Collection[int], now: float) -> None:
        """Avoid these for a while longer."""
        for shard in shards:
            self._until[shard] = now + AVOID_S
