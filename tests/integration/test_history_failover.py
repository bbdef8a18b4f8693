"""What is pinned and gone back to survives its Redis, and an agent that is killed in the middle of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from statecache import AsyncStateCache, Checkpoint, OutcomeUnknown, Position, Set, Settings, StateCache, VersionNotFound
from statecache.settings import process_environment, variable_of
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, rows
from tests.support.gate_world import World
from tests.support.polling import pause_thread

KEY, TWIN = "runs/42", "runs/42/twin"
KILLS = 12


def test_a_checkpoint_survives_the_redis_that_took_it(shard: World) -> None:
    """The replica that is promoted knows neither the checkpoint nor what was changed around it: Postgres does."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a)
    shard.in_step(a)
    shard.promote(b)
    agent = shard.client(a)
    agent.set(KEY, 1)
    made: list[Checkpoint] = []
    threads = [
        threading.Thread(target=lambda: made.append(agent.checkpoint(KEY, "of the key", timeout=30))),
        threading.Thread(target=lambda: made.append(agent.checkpoint(KEY, "of the group", group=True, timeout=30))),
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        shard.flush(a)
        threads[0].join(0.05)
    agent.set(KEY, 2)
    shard.flush(a)
    agent.set(KEY, "lost")
    a.kill()

    other = shard.client(b)
    assert sorted(one.label for one in other.checkpoints(KEY)) == ["of the group", "of the key"]
    assert {one.label: one.position for one in other.checkpoints(KEY)} == {one.label: one.position for one in made}
    back = other.rollback(KEY, "of the key")
    assert (back.value, back.version) == (1, 3)
    other.set(KEY, 3)
    assert {key: state.value for key, state in other.rollback(KEY, "of the group", group=True).items()} == {KEY: 1}
    assert other.undo(KEY).value == 3
    shard.check(b)
    shard.flush(b)
    shard.check(b)


def test_a_checkpoint_that_was_lost_with_its_redis_is_not_there(shard: World) -> None:
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.in_step(a)
    shard.promote(b)
    agent = shard.client(a)
    agent.checkpoint(KEY, "mark", durability="memory")
    a.kill()
    other = shard.client(b)
    assert other.checkpoints(KEY) == []
    assert other.checkpoint(KEY, "mark", durability="memory").version == 1


def test_a_position_that_was_lost_with_its_redis_is_not_taken_for_what_was_committed_there_later(shard: World) -> None:
    """Its number was given again, to other changes: only the epoch tells that it is not theirs."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a)
    kept = shard.put(a, KEY, "kept")
    shard.in_step(a)
    shard.flush(a)
    shard.promote(b)
    agent = shard.client(a)
    gone = agent.set(KEY, "gone")
    mark = agent.checkpoint(KEY, "of the group", group=True, durability="memory")
    of_key = agent.checkpoint(KEY, "of the key", durability="memory")
    a.kill()
    other = shard.client(b)
    for number in range(4):
        last = other.set(KEY, number)
    assert kept.position is not None
    assert gone.position is not None
    assert last.position is not None
    assert (last.epoch, last.position.n) > (gone.epoch, mark.position.n)
    never, another = Position(last.epoch + 1, 1), Position(last.epoch, kept.position.n)
    going: tuple[Callable[[Position], Any], ...] = (
        lambda at: other.get_at(KEY, position=at), lambda at: other.get_group_at(KEY, position=at),
        lambda at: other.diff(KEY, at), lambda at: other.rollback(KEY, at),
        lambda at: other.rollback(KEY, at, group=True), lambda at: other.branch(KEY, "runs/43", at=at),
        lambda at: other.branch(KEY, "runs/43", at=at, group=True),
    )  # fmt: skip
    for _ in range(2):
        for there, why in (
            (gone.position, "that was lost, for a later epoch began behind n 1"),
            (mark.position, "that was lost, for a later epoch began behind n 1"),
            (never, f"no epoch {never.epoch}"), (another, f"is of epoch {kept.epoch}"),
        ):  # fmt: skip
            for call in going:
                with pytest.raises(VersionNotFound, match=why):
                    call(there)
        with pytest.raises(VersionNotFound, match="that was lost"):
            other.rollback(KEY, mark, group=True)
        with pytest.raises(VersionNotFound, match="that was lost"):
            other.rollback(KEY, mark)
        with pytest.raises(VersionNotFound, match="that was lost"):
            other.branch(KEY, "runs/43", at=mark, group=True)
        with pytest.raises(VersionNotFound, match="as the checkpoint names it"):
            other.rollback(KEY, of_key)
        with pytest.raises(VersionNotFound, match="version 2 as it was read"):
            other.diff(KEY, gone)
        assert [one.op for one in other.diff(KEY, kept, last)] == ["changed"]
        for there, value in ((kept.position, "kept"), (last.position, 3)):
            found = other.get_at(KEY, position=there)
            assert found is not None
            assert found.value == value
            assert other.get_group_at(KEY, position=there)[KEY].value == value
        shard.flush(b)
    now = other.get(KEY)
    assert now is not None
    assert (now.version, other.get("runs/43")) == (last.version, None)


AGENT = """
import sys
from statecache import StateCache

cache = StateCache()
cache.rollback("runs/42", "one", group=True) if cache.get("runs/42/third") else None
cache.rollback("runs/42", "other", group=True)
print("ready", flush=True)
while True:
    for label in ("one", "other"):
        cache.rollback("runs/42", label, group=True)
"""


def _killed_after(pauses: int, environment: dict[str, str]) -> None:
    """Let an agent go back and forth, and kill it."""
    with subprocess.Popen([sys.executable, "-c", AGENT], env=environment, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"ready\n"
        for _ in range(pauses):
            pause_thread()
        os.kill(agent.pid, signal.SIGKILL)


def test_an_agent_that_is_killed_in_the_middle_of_a_rollback_leaves_it_done_or_not(
    settings: Settings, psql: psycopg.Connection[object]
) -> None:
    """Two keys and a third that is there or not: whenever the agent dies, they are of one checkpoint or the other."""
    names = ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards")
    environment = process_environment() | {variable_of(name): str(getattr(settings, name)) for name in names}
    with StateCache(settings=settings) as cache:
        cache.commit([Set(KEY, "one"), Set(TWIN, "one")])
        cache.checkpoint(KEY, "one", group=True, durability="memory")
        cache.commit([Set(KEY, "other"), Set(TWIN, "other"), Set("runs/42/third", "other")])
        cache.checkpoint(KEY, "other", group=True, durability="memory")
        for number in range(KILLS):
            _killed_after(number, environment)
            whole = {state.key: state.value for state in cache.list("runs/42") if "/checkpoints/" not in state.key}
            assert whole in (
                {KEY: "one", TWIN: "one"}, {KEY: "other", TWIN: "other", "runs/42/third": "other"},
            )  # fmt: skip
    asyncio.run(_flushed(settings))
    changes = rows(psql, "SELECT n, key, op, value_json FROM change_view WHERE key NOT LIKE '%%/checkpoints/%%'")
    found: dict[str, object] = {}
    places = sorted({one[0] for one in changes})
    for n in places:
        found |= {key: value if op == "set" else None for at, key, op, value in changes if at == n}
        assert found[KEY] == found[TWIN]
        assert (found.get("runs/42/third") is not None) == (found[KEY] == "other")
    assert len(places) > KILLS


async def _flushed(settings: Settings) -> None:
    worker = Worker(settings)
    try:
        await flush(worker)
    finally:
        await worker.close()


async def test_a_repeat_whose_change_is_gone_once_it_was_found_is_not_told_that_it_was_another_one(
    client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover takes it with its Redis, and another change has its version."""
    for value in ("first", "second"):
        await client.set(KEY, value)
    back = await client.rollback(KEY, 1, change_id="a" * 24)
    history = client._runtime.history
    version_at = history.version_at

    async def another(*given: Any, **more: Any) -> Any:
        return replace(await version_at(*given, **more), change_id="f" * 24)

    with monkeypatch.context() as failed_over:
        failed_over.setattr(history, "version_at", another)
        with pytest.raises(OutcomeUnknown, match="it was found at version 3, which is another change by now"):
            await client.rollback(KEY, 1, change_id="a" * 24)
    assert await client.rollback(KEY, 1, change_id="a" * 24) == back
