"""What the library keeps of its own beside what adapters keep: no listing takes it for theirs, and no delete takes it."""

from __future__ import annotations

from statecache import AsyncStateCache
from statecache.adapters.llama_index import StateCacheKVStore
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.own_records import marked


async def test_a_collection_with_named_points_is_read_like_any_other(cache: AsyncStateCache, worker: Worker) -> None:
    store, values = StateCacheKVStore(cache), {key: {"key": key} for key in ("a", "b/c", "", "checkpoints", "steps")}
    await store.aput_all([*values.items()])
    async with flushing(worker):
        kept = await marked(cache, store.group_of())
        await cache.set(f"{store.group_of()}/kv/a/notes", "somebody else's")
        assert await store.aget_all() == values
        for key, value in values.items():
            assert await store.aget(key) == value
            assert await store.adelete(key)
            assert not await store.adelete(key)
        assert await store.aget_all() == {}
        assert kept <= {state.key async for state in cache.list(values=False)}
        await cache.rollback(store.group_of(), "all-one", group=True)
    assert await store.aget_all() == values
