"""How long a connection to Redis waits until Postgres is known to belong to it."""

from __future__ import annotations

from typing import Any

from statecache.core.redis.tier import RedisTier
from tests.fixtures.redis import FakeDeployment


class _Waits:
    """Comparisons that end at once, and how long each might have taken, in seconds."""

    asks = False

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def compare(self, _: str, seconds: float) -> None:
        self.seconds.append(seconds)


async def test_a_connection_outlasts_another_ones_comparison_with_a_silent_postgres(fake: FakeDeployment) -> None:
    """It is served by Redis then; with the same time it would fail as the other one's ends, whichever is first."""
    fake.redis.hset(fake.keys.meta(0), "cluster", "c1")
    waits: Any = _Waits()
    tier = RedisTier(fake.settings, fake.keys, dial=fake.dial, pairing=waits)
    link = await tier.link()
    await link.close()
    assert [seconds > fake.settings.connect_timeout_s for seconds in waits.seconds] == [True]


async def test_who_says_how_long_is_bound_by_it(fake: FakeDeployment) -> None:
    fake.redis.hset(fake.keys.meta(0), "cluster", "c1")
    waits: Any = _Waits()
    tier = RedisTier(fake.settings, fake.keys, dial=fake.dial, pairing=waits)
    link = await tier.link(0.5)
    await link.close()
    assert [seconds <= 0.5 for seconds in waits.seconds] == [True]
