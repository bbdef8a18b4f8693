"""Large values that a checkpoint has not changed stay as they are stored, whatever its caller has made of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig

from statecache import AsyncStateCache, Settings
from statecache.adapters.langgraph import StateCacheSaver, recent
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.support.fault_proxy import FaultProxy
from tests.support.histories import Psql
from tests.support.langgraph_stories import METADATA, checkpoint, config, got, put


def large(number: int) -> str:
    """Return a value that gets a state of its own."""
    return f"{number} " * 4000


@pytest.fixture
async def turns(cache: AsyncStateCache, worker: Worker) -> list[RunnableConfig]:
    """Two checkpoints of a thread, each with another large value, in Postgres by now."""
    saver = StateCacheSaver(cache)
    first = await put(saver, "42", {"log": large(1), "n": 1})
    second = await put(saver, "42", {"log": large(2), "n": 2}, parent=first, version=2)
    await flush(worker)
    return [first, second]


@pytest.fixture
async def other(settings: Settings) -> AsyncIterator[AsyncStateCache]:
    """A client that knows nothing of what was put."""
    async with AsyncStateCache(settings=settings) as client:
        yield client


async def behind(saver: StateCacheSaver, turns: list[RunnableConfig], which: int, value: str, **more: Any) -> str:
    """Put a checkpoint behind one of them by who holds such a large value, and has not changed it; return its id."""
    one = checkpoint({"log": value, "n": 9}, **more)
    one["channel_versions"] = {"log": which + 1, "n": 3}
    await saver.aput(turns[which], one, METADATA, {"n": 3})
    return one["id"]


@pytest.mark.parametrize("how", ["linear", "forked", "put again", "late"])
@pytest.mark.parametrize("who", ["who has put it", "another client"])
async def test_they_stay_whatever_the_caller_holds(
    cache: AsyncStateCache, other: AsyncStateCache, turns: list[RunnableConfig], how: str, who: str
) -> None:
    """A process that lacks the agent's classes has read dictionaries in place of its objects, for instance."""
    saver = StateCacheSaver(cache if who == "who has put it" else other)
    which = 1 if how == "linear" else 0
    later: str = turns[1]["configurable"]["checkpoint_id"]
    more = {"id": later[:-1] + chr(ord(later[-1]) - 1)} if how == "late" else {}
    put_id = await behind(saver, turns, which, large(7), **more)
    if how == "put again":
        await behind(saver, turns, which, large(8), id=put_id)
    for reader in (saver, StateCacheSaver(other), StateCacheSaver(cache)):
        found = await got(reader, config("42", put_id))
        assert found.checkpoint["channel_values"] == {"log": large(which + 1), "n": 9}
        latest = await got(reader, config("42"))
        assert latest.checkpoint["channel_values"]["log"] == (large(2) if how == "late" else large(which + 1))


async def test_who_holds_the_same_bytes_forks_without_postgres(
    settings: Settings, turns: list[RunnableConfig], postgres_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "PIECES_BYTES_MAX", 0)
    async with AsyncStateCache(settings=through(settings, postgres=postgres_proxy)) as client:
        saver = StateCacheSaver(client)
        await got(saver, config("42"))
        await postgres_proxy.cut_off()
        await behind(saver, turns, 0, large(1))
        assert (await got(saver, config("42"))).checkpoint["channel_values"] == {"log": large(1), "n": 9}


async def test_what_is_stored_and_damaged_is_put_as_the_caller_holds_it(
    other: AsyncStateCache, turns: list[RunnableConfig], psql: Psql
) -> None:
    psql.execute("UPDATE change SET packed = 'x' WHERE key = 'langgraph/42/ch/-/log' AND version = 1")
    saver = StateCacheSaver(other)
    await behind(saver, turns, 0, large(7))
    assert (await got(saver, config("42"))).checkpoint["channel_values"] == {"log": large(7), "n": 9}
