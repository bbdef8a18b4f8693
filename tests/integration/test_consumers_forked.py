"""A process that reads for a name forks: the child gives away nothing of its parent's, and is given nothing."""

from __future__ import annotations

from statecache import Settings, StateCache, UsageError
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.forking import in_a_child, status_of


async def _durable(cache: StateCache, worker: Worker, values: int) -> None:
    for number in range(values):
        cache.set("runs/1", number)
    await flush(worker)


async def test_a_child_neither_reads_nor_moves_what_its_parent_reads_for_a_name(
    sync_cache: StateCache, settings: Settings, worker: Worker
) -> None:
    await _durable(sync_cache, worker, 4)

    def child() -> None:
        try:
            next(feed)
        except UsageError as error:
            assert "belongs to the process that has forked" in str(error)  # noqa: PT017
        else:
            raise AssertionError("it was given what its parent is to be given")
        feed.close()

    with sync_cache.changes("runs/", consumer="reader") as feed:
        assert [next(feed).value for _ in range(2)] == [0, 1]
        assert status_of(in_a_child(child)) == 0
        assert [next(feed).value for _ in range(2)] == [2, 3]
    with StateCache(settings=settings) as later, later.changes("runs/", consumer="reader", follow=False) as rest:
        assert [*rest] == []
