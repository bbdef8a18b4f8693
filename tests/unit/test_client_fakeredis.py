from __future__ import annotations
from typing import Any
from statecache import AsyncStateCache
from tests.fix_redis import FakeDeployment

async def test_a(fake_cache: AsyncStateCache, fake: FakeDeployment) -> None:
    state = await fake_cache.set("runs/1", {"a": 1})
    assert state.version == 1
    assert await fake_cache.get("runs/1") == state
    async with fake_cache.transaction("runs/1", "runs/1/x") as tx:
        tx.set("runs/1/x", 1)
    print(fake.state("runs/1"))
    assert await fake_cache.get("runs/9") is None
