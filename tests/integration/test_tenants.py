"""Two tenants on one pair of servers never meet: prefix and schema are theirs, and no third may mix the two."""

from __future__ import annotations

import pytest

from statecache import AsyncStateCache, ConfigurationError, Settings, StateCache
from statecache.concurrency import run
from tests.fixtures.servers import MakeSettings


async def test_the_same_key_is_two_states(make_settings: MakeSettings) -> None:
    one, other = make_settings(), make_settings()
    async with AsyncStateCache(settings=one) as a, AsyncStateCache(settings=other) as b:
        await a.set("runs/42", {"of": "one"})
        assert await b.get("runs/42") is None
        await b.set("runs/42", {"of": "other"})
        await b.delete("runs/42")
        state = await a.get("runs/42")
        assert state is not None
        assert state.value == {"of": "one"}
        assert [state.key async for state in b.list("runs/")] == []
        assert [state.key async for state in a.list("runs/")] == ["runs/42"]


@pytest.mark.parametrize("mixed", ["prefix", "postgres_schema"])
async def test_one_tenants_prefix_with_the_others_schema_is_refused(make_settings: MakeSettings, mixed: str) -> None:
    one, other = make_settings(), make_settings()
    settings = Settings(**{**one.model_dump(), mixed: getattr(other, mixed)})
    async with AsyncStateCache(settings=settings) as cache:
        with pytest.raises(ConfigurationError, match="pinned"):
            await cache.get("runs/42")


def test_another_deployments_redis_is_refused(make_settings: MakeSettings) -> None:
    """The names are the same on both sides; only the cluster's identity tells that the tiers do not belong together."""
    one = make_settings()
    with StateCache(settings=one) as cache:
        redis = cache._runtime.redis
        meta = [cache._runtime.keys.meta(shard) for shard in range(one.shards)]
        strange = "00000000-0000-0000-0000-000000000000"
        run(redis.exchange([("HSET", key, "cluster", strange) for key in meta], seconds=1.0))
    with StateCache(settings=one) as cache, pytest.raises(ConfigurationError, match="belongs to cluster"):
        cache.get("runs/unseen")


def test_a_shard_count_that_differs_is_refused(make_settings: MakeSettings) -> None:
    settings = make_settings()
    more = Settings(**{**settings.model_dump(), "shards": settings.shards + 1})
    with StateCache(settings=more) as cache, pytest.raises(ConfigurationError, match="shard"):
        cache.set("runs/42", 1)
