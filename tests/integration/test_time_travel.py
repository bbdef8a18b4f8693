"""What keys held: every version, at any point, while what is newest is still unflushed, and what is told where not."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    Change,
    ChangeIdReused,
    HistoryDamaged,
    HistoryIncomplete,
    InvalidKey,
    Position,
    Settings,
    StateCache,
    UsageError,
    VersionNotFound,
)
from statecache.core.history.tail import Tails
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush

KEY = "runs/42"
Psql = psycopg.Connection[Any]


class Run(msgspec.Struct, frozen=True):
    """What an agent has come to, and what it has said so far."""

    step: int
    said: list[str]


def run(step: int) -> Run:
    return Run(step, [f"this is what was said in step {number}, and it is some words long" for number in range(step)])


async def _all(history: AsyncIterable[Change[Any]]) -> list[Change[Any]]:
    return [change async for change in history]


async def _written(cache: AsyncStateCache, first: int, last: int, key: str = KEY) -> None:
    for step in range(first, last + 1):
        await cache.set(key, run(step), actor="ada", reason=f"step {step}")


@pytest.fixture(params=["flushed", "half flushed", "unflushed"])
async def history(request: pytest.FixtureRequest, cache: AsyncStateCache, worker: Worker) -> str:
    """Twenty versions of a key, of which Postgres holds all, half, or none."""
    await _written(cache, 1, 10)
    if request.param != "unflushed":
        await flush(worker)
    await _written(cache, 11, 20)
    if request.param == "flushed":
        await flush(worker)
    return str(request.param)


async def test_every_version_is_given_back(cache: AsyncStateCache, history: str) -> None:
    for version in range(1, 21):
        state = await cache.get_at(KEY, version=version, type=Run)
        assert state is not None
        assert (state.value, state.version, state.key) == (run(version), version, KEY)
    assert history


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bounds", [(None, None), (5, 15), (12, None), (None, 3), (21, None)])
async def test_history_is_listed_with_and_without_values(
    cache: AsyncStateCache, history: str, reverse: bool, bounds: tuple[int | None, int | None]
) -> None:
    since, until = bounds
    versions = [*range(since or 1, min(until or 20, 20) + 1)][:: -1 if reverse else 1]
    plain = await _all(cache.history(KEY, since=since, until=until, reverse=reverse))
    assert [(one.version, one.value, one.actor, one.reason) for one in plain] == [
        (version, None, "ada", f"step {version}") for version in versions
    ]
    whole = await _all(cache.history(KEY, type=Run, since=since, until=until, reverse=reverse, values=True))
    assert [(one.version, one.value) for one in whole] == [(version, run(version)) for version in versions]
    assert all(one.kept and one.size == len(msgspec.json.encode(run(one.version))) and one.sha256 for one in whole)
    held = {"flushed": 20, "half flushed": 10, "unflushed": 0}[history]
    assert [one.durable for one in whole] == [version <= held for version in versions]
    assert [one.version for one in await _all(cache.history(KEY, reverse=reverse, limit=4))] == (
        [20, 19, 18, 17] if reverse else [1, 2, 3, 4]
    )
    durable = await _all(cache.history(KEY, reverse=reverse, unflushed=False))
    assert sorted(one.version for one in durable) == [*range(1, held + 1)]


async def test_pages_are_put_together(cache: AsyncStateCache, history: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statecache.core.history.reader.PAGE", 3)
    monkeypatch.setattr("statecache.core.history.reader.VALUES_BYTES_MAX", 400)
    monkeypatch.setattr("statecache.core.history.tail._PAGE", 2)
    for reverse in (False, True):
        found = await _all(cache.history(KEY, type=Run, values=True, reverse=reverse))
        assert [one.value for one in found] == [run(version) for version in range(1, 21)][:: -1 if reverse else 1]
    assert history


async def test_a_moment_and_a_position_mean_the_newest_change_until_then(cache: AsyncStateCache, history: str) -> None:
    changes = await _all(cache.history(KEY))
    for one in (changes[0], changes[9], changes[10], changes[19]):
        for at in ({"time": one.at}, {"position": one.position}):
            state = await cache.get_at(KEY, **at)
            assert state is not None
            assert state.version == one.version
    between = changes[10].at + (changes[11].at - changes[10].at) / 2
    assert [one.version for one in await _all(cache.history(KEY, since=between, until=changes[13].at))] == [12, 13, 14]
    assert await _all(cache.history(KEY, until=changes[0].at - timedelta(seconds=1))) == []
    now = await cache.get_at(KEY, time=datetime.now(UTC), type=Run)
    assert now is not None
    assert now.value == run(20)
    assert len(await _all(cache.history(KEY, until=datetime.now(UTC) + timedelta(days=1)))) == 20
    assert history


async def test_deleted_and_recreated_keys_keep_their_history(cache: AsyncStateCache, worker: Worker) -> None:
    await _written(cache, 1, 2)
    await cache.delete(KEY)
    await flush(worker)
    await cache.create(KEY, run(9))
    for _ in range(2):
        found = [(one.version, one.op, one.deleted) for one in await _all(cache.history(KEY))]
        assert found == [(1, "set", False), (2, "set", False), (3, "delete", True), (4, "set", False)]
        assert await cache.get_at(KEY, version=3) is None
        again = await cache.get_at(KEY, version=4, type=Run)
        assert again is not None
        assert again.value == run(9)
        await flush(worker)


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [
        ({"version": 0}, 1),
        ({"version": 21}, 20),
        ({"time": datetime(2020, 1, 1, tzinfo=UTC)}, 1),
        ({"position": Position(1, 0)}, 1),
        ({"version": -5}, 1),
    ],
)
async def test_what_never_was_is_told_with_what_is_nearest(
    cache: AsyncStateCache, worker: Worker, wanted: dict[str, Any], nearest: int
) -> None:
    await _written(cache, 1, 20)
    await flush(worker)
    with pytest.raises(VersionNotFound) as caught:
        await cache.get_at(KEY, **wanted)
    assert (caught.value.key, caught.value.nearest) == (KEY, nearest)
    with pytest.raises(VersionNotFound) as caught:
        await cache.get_at("runs/nobody", **wanted)
    assert caught.value.nearest is None
    assert await _all(cache.history("runs/nobody")) == []


async def test_a_version_that_is_no_longer_kept_is_told(cache: AsyncStateCache, worker: Worker, psql: Psql) -> None:
    await _written(cache, 1, 6)
    await flush(worker)
    psql.execute("UPDATE change SET value = NULL, packed = NULL, keyframe = NULL WHERE version <= 2")
    with pytest.raises(VersionNotFound, match="no longer kept") as caught:
        await cache.get_at(KEY, version=2)
    assert caught.value.nearest == 3
    for values in (True, False):
        kept = [(one.version, one.kept) for one in await _all(cache.history(KEY, until=2, values=values))]
        assert kept == [(1, False), (2, False)]


async def test_damage_is_told_and_never_given(cache: AsyncStateCache, worker: Worker, psql: Psql) -> None:
    await _written(cache, 1, 12)
    await flush(worker)
    psql.execute(
        "UPDATE change SET packed = set_byte(packed, length(packed) - 3, get_byte(packed, length(packed) - 3) # 255)"
        " WHERE version = 9"
    )
    with pytest.raises(HistoryDamaged) as caught:
        await cache.get_at(KEY, version=9)
    assert (caught.value.key, caught.value.version) == (KEY, 9)
    psql.execute("DELETE FROM change WHERE version = 9")
    with pytest.raises(HistoryDamaged, match="version 9, which it is a delta to, is missing"):
        await cache.get_at(KEY, version=11)
    before = await cache.get_at(KEY, version=8, type=Run)
    assert before is not None
    assert before.value == run(8)
    with pytest.raises(VersionNotFound):
        await cache.get_at(KEY, version=9)


async def test_a_group_is_given_as_it_was_at_one_position(cache: AsyncStateCache, worker: Worker) -> None:
    moments: list[tuple[Position, dict[str, Any]]] = []
    now: dict[str, Any] = {}
    for step in range(12):
        async with cache.transaction(KEY, f"{KEY}/plan", f"{KEY}/note") as tx:
            for name in (KEY, f"{KEY}/plan"):
                tx.set(name, step)
                now[name] = step
            if step % 3 == 2:
                tx.delete(f"{KEY}/note")
                now.pop(f"{KEY}/note", None)
            elif step % 3 == 0:
                tx.set(f"{KEY}/note", step)
                now[f"{KEY}/note"] = step
        state = await cache.get(KEY)
        assert state is not None
        assert state.position is not None
        moments.append((state.position, dict(now)))
        if step == 5:
            await flush(worker)
    await cache.set("runs/421", "another group")
    for _ in range(2):
        for position, held in moments:
            found = await cache.get_group_at(KEY, position=position)
            assert {key: state.value for key, state in found.items()} == held
        await flush(worker)
    at = (await _all(cache.history(KEY)))[4].at
    assert {key: one.value for key, one in (await cache.get_group_at(KEY, time=at)).items()} == moments[4][1]


async def test_what_is_not_known_is_told_as_incomplete(
    cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _written(cache, 1, 4)
    await flush(worker)
    await _written(cache, 5, 8)
    monkeypatch.setattr("statecache.core.history.tail.ENTRIES_MAX", 2)
    monkeypatch.setattr("statecache.core.history.tail._PAGE", 2)
    found: list[int] = []

    async def gathered() -> None:
        async for one in cache.history(KEY):
            found.append(one.version)  # noqa: PERF401

    with pytest.raises(HistoryIncomplete, match="more than 2 entries"):
        await gathered()
    assert found == [1, 2, 3, 4]
    with pytest.raises(HistoryIncomplete):
        await _all(cache.history(KEY, reverse=True))
    with pytest.raises(HistoryIncomplete):
        await cache.get_at(KEY, version=8)
    with pytest.raises(HistoryIncomplete):
        await cache.get_group_at(KEY, time=datetime.now(UTC))
    old = await cache.get_at(KEY, version=3, type=Run)
    assert old is not None
    assert old.value == run(3)


async def test_what_was_trimmed_while_it_was_read_is_read_from_postgres(
    cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _written(cache, 1, 6)
    behind = Tails.behind
    met: list[int] = []

    async def flushed_and_trimmed(self: Tails, mark: Any, shard: int, *rest: Any, **more: Any) -> Any:
        if not met:
            met.append(mark.flushed)
            await flush(worker)
            await cache._runtime.redis.read([("XTRIM", cache._runtime.keys.changes(shard), "MAXLEN", 0)], seconds=5)
        return await behind(self, mark, shard, *rest, **more)

    monkeypatch.setattr(Tails, "behind", flushed_and_trimmed)
    assert [one.version for one in await _all(cache.history(KEY))] == [1, 2, 3, 4, 5, 6]
    assert met == [0]


async def test_what_postgres_has_not_seen_cannot_be_had_without_redis(
    make_client: Callable[..., AsyncStateCache], cache: AsyncStateCache, worker: Worker, settings: Settings
) -> None:
    await _written(cache, 1, 4)
    await flush(worker)
    alone = make_client(settings.model_copy(update={"redis_url": "redis://127.0.0.1:1", "timeout_s": 3.0}))
    state = await alone.get_at(KEY, version=2, type=Run)
    assert state is not None
    assert state.value == run(2)
    assert [one.version for one in await _all(alone.history(KEY, unflushed=False))] == [1, 2, 3, 4]
    with pytest.raises(HistoryIncomplete, match="Redis") as told:
        await _all(alone.history(KEY, timeout=1.0))
    assert ".." not in str(told.value)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"version": 1, "time": datetime.now(UTC)}, {"version": "7"}, {"version": True}, {"position": "1-1"},
     {"time": datetime(2026, 1, 1)}, {"time": "yesterday"}],  # noqa: DTZ001
)  # fmt: skip
async def test_a_point_that_is_none_is_refused(client: AsyncStateCache, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        await client.get_at(KEY, **wrong)


async def test_a_name_that_is_no_group_is_refused(client: AsyncStateCache) -> None:
    with pytest.raises(InvalidKey, match="no group"):
        await client.get_group_at("runs/42/plan", time=datetime.now(UTC))
    for wrong in ({"limit": -1}, {"limit": "3"}, {"since": datetime(2026, 1, 1)}):  # noqa: DTZ001
        with pytest.raises(UsageError):
            await _all(client.history(KEY, **wrong))


async def test_a_typed_namespace_and_threads_read_alike(
    cache: AsyncStateCache, worker: Worker, settings: Settings
) -> None:
    await _written(cache, 1, 5)
    await flush(worker)
    with StateCache(settings=settings) as blocking:
        runs = blocking.namespace("runs", type=Run)
        state = runs.get_at("42", version=3)
        assert state is not None
        assert state.value == run(3)
        assert [one.value for one in runs.history("42", values=True)] == [run(step) for step in range(1, 6)]
        (only,) = runs.get_group_at("42", position=state.position).values()
        assert only.value == run(3)


async def test_both_clients_tell_what_differs(client: AsyncStateCache, worker: Worker) -> None:
    for value in ({"a": 1, "said": ["x"]}, {"b": 2, "said": ["x", "y"]}):
        await client.set(KEY, value)
    found = [(one.op, one.place) for one in await client.diff(KEY, 1, 2)]
    assert found == [("removed", "a"), ("added", "said[1]"), ("added", "b")]
    await flush(worker)
    before = await client.get_at(KEY, version=1)
    assert before is not None
    assert [(one.op, one.place) for one in await client.diff(KEY, before)] == found
    assert await client.diff(KEY, 2) == ()
    await client.delete(KEY)
    assert [(one.op, one.place) for one in await client.diff(KEY, 2, 3)] == [("removed", "$")]
    with pytest.raises(UsageError, match="a state of"):
        await client.diff("runs/43", before)


@pytest.mark.parametrize("batch", [40, 1 << 20], ids=["few bytes", "few rows"])
async def test_the_feed_gives_whole_values(
    cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Also where a reader begins in the middle of a chain, and where what it remembered has made room."""
    for name, value in (("ROWS", 260), ("ROWS_MIN", 260), ("BYTES", batch)):
        monkeypatch.setattr(f"statecache.core.feed.feed.{name}", value)
    monkeypatch.setattr("statecache.core.history.values.REMEMBERED_BYTES_MAX", 3_000)
    for step in range(1, 31):
        for key in (KEY, "runs/43"):
            await cache.set(key, run(step))
        if step % 7 == 0:
            await flush(worker)
    await flush(worker)
    kept = psql.execute("SELECT kept, count(*) FROM change_view GROUP BY kept").fetchall()
    assert {how for how, _ in kept} == {"plain", "whole", "delta"} or dict(kept)["delta"] > 40
    feed = cache.changes("runs/", type=Run, follow=False)
    given: list[tuple[str, int]] = []
    cursors: list[str] = []
    async for change in feed:
        assert change.value == run(change.version)
        given.append((change.key, change.version))
        cursors.append(feed.cursor)
    assert sorted(given) == sorted((key, step) for key in (KEY, "runs/43") for step in range(1, 31))
    behind = [one async for one in cache.changes("runs/", type=Run, since=cursors[32], follow=False)]
    assert sorted((one.key, one.version) for one in behind) == sorted(given[33:])
    assert all(one.value == run(one.version) for one in behind)
    newest = [one async for one in cache.list("runs/", type=Run)]
    assert [one.value for one in newest] == [run(30), run(30)]


async def test_a_repeat_finds_its_change_however_it_is_kept(cache: AsyncStateCache, worker: Worker) -> None:
    for step in range(1, 12):
        await cache.set(KEY, run(step), change_id=f"change{step:02d}")
        await flush(worker)
    again = await cache.set(KEY, run(3), change_id="change03")
    assert again.version == 3
    with pytest.raises(ChangeIdReused):
        await cache.set(KEY, run(4), change_id="change03")
    assert [one.version async for one in cache.history(KEY)] == [*range(1, 12)]
