"""States that end, on servers: on every tier, under every hand, and deleted by a worker once they have."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from statecache import AlreadyCurrent, AsyncStateCache, CodecError, NotFound, RedisUnavailable, Settings
from statecache.clock import monotonic
from statecache.core.commit.endings import delete_ended
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Log, flush
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis
from tests.support.command_line import CommandLine
from tests.support.dirtiness import evict
from tests.support.local_reads import LIMIT_S, kept, until
from tests.support.polling import pause
from tests.support.workers import at_work

KEY = "runs/1"
HOUR = timedelta(hours=1)
READS: list[Any] = ["local", "primary", "fenced"]


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of clients that read locally."""
    return make_settings(read="local")


async def _gone(client: AsyncStateCache, key: str = KEY, read: Any = "primary") -> None:
    async with asyncio.timeout(LIMIT_S):
        while await client.get(key, read=read) is not None:
            await pause()


def _history(psql: psycopg.Connection[Any], key: str = KEY) -> list[tuple[Any, ...]]:
    asked = "SELECT version, op, reason, expires_at FROM change_view WHERE key = %s ORDER BY version"
    return psql.execute(asked, [key]).fetchall()


@pytest.mark.counts_seconds
@every_redis
async def test_from_its_end_on_no_read_finds_a_state_and_a_worker_deletes_it(
    client: AsyncStateCache, settings: Settings, psql: psycopg.Connection[Any], redis_raw: Any, keys: KeySpace
) -> None:
    async with at_work(settings):
        state = await client.set(KEY, {"a": 1}, ttl=1.5, durability="postgres")
        assert redis_raw.hget(keys.state(KEY), "encoding").startswith(b"json until ")
        found = await client.get_many([KEY])
        assert found[KEY] == state
        for read in READS:
            assert await client.get(KEY, read=read) == state
        assert [one async for one in client.list("runs/")] == [state]
        for read in READS:
            await _gone(client, read=read)
            assert await client.get_many([KEY], read=read) == {KEY: None}
        assert [one async for one in client.list("runs/")] == []
        await until(lambda: len(_history(psql)) == 2)
        assert _history(psql) == [(1, "set", "", state.expires_at), (2, "delete", "expired", None)]
        assert (await client.create(KEY, 1)).version == 3
    assert psql.execute("SELECT op, expires_at FROM state_view WHERE key = %s", [KEY]).fetchall() == [("set", None)]


@pytest.mark.counts_seconds
async def test_what_is_kept_in_this_process_ends_too(one: AsyncStateCache, other: AsyncStateCache) -> None:
    await other.set("runs/2", 1)
    await kept(one, "runs/2")  # from here on the connection is there that keeps what is read
    await other.set(KEY, 1, ttl=1.0)
    await kept(one)
    await _gone(one, read="local")
    assert await one.get(KEY, read="primary") is None
    await other.set(KEY, 2, ttl=HOUR)
    await kept(one)
    touched = await other.touch(KEY, ttl=2 * HOUR)
    async with asyncio.timeout(LIMIT_S):
        while await one.get(KEY) != touched:
            await pause()


async def test_a_state_is_found_until_its_end_wherever_it_comes_from(
    client: AsyncStateCache, worker: Worker, redis_raw: Any, keys: KeySpace
) -> None:
    state = await client.set(KEY, 1, ttl=HOUR)
    await flush(worker)
    assert evict(redis_raw, keys, KEY)
    assert await client.get(KEY, read="primary") == replace(state)
    touched = await client.touch(KEY, ttl=2 * HOUR)
    assert await client.get(KEY, read="primary") == touched
    await client.set(KEY, 2, ttl=0.001)
    await _gone(client)
    await flush(worker)
    assert evict(redis_raw, keys, KEY)
    assert await client.get(KEY, read="primary") is None
    assert [one async for one in client.list("runs/")] == []
    with pytest.raises(NotFound):
        await client.update(KEY, lambda value: value)


async def _read_all(client: AsyncStateCache, how: str) -> list[Any]:
    if how == "list":
        return [one async for one in client.list("runs/")]
    if how == "fenced":
        return [await client.get(KEY, read="fenced")]
    found = await client.get_many([KEY, "runs/1/cold"], read="fenced" if how == "many, fenced" else "primary")
    return [found[KEY]]


@pytest.mark.counts_seconds
@pytest.mark.parametrize("how", ["many", "many, fenced", "fenced", "list"])
async def test_a_state_whose_end_is_put_off_is_found_however_long_a_read_takes(
    client: AsyncStateCache, other: AsyncStateCache, worker: Worker, settings: Settings, redis_raw: Any,
    keys: KeySpace, psql: psycopg.Connection[Any], how: str,
) -> None:  # fmt: skip
    await other.set("runs/1/cold", 1)
    await other.set(KEY, 1, ttl=HOUR)
    await flush(worker)
    assert evict(redis_raw, keys, "runs/1/cold")
    await other.touch(KEY, ttl=0.6)
    with psql.transaction():
        for table in ("shard", "state"):
            psql.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        reading = asyncio.create_task(_read_all(client, how))
        until = monotonic() + 1.2
        while monotonic() < until:
            await other.touch(KEY, ttl=0.6)
            await pause()
        assert not reading.done()
        await other.touch(KEY, ttl=HOUR)
    assert [state and state.value for state in await reading][:1] == [1]


async def test_a_listing_finds_what_is_put_off_while_its_reader_takes_his_time(
    cache: AsyncStateCache, settings: Settings, worker: Worker
) -> None:
    """What has ended since the listing began is looked at again; what is still there then is given as it is."""
    async with AsyncStateCache(settings=settings) as other:
        for number in range(4):
            await other.set(f"runs/1/{number}", 0, ttl=2)
        await flush(worker)
        found = []
        async for state in cache.list("runs/1/"):
            found.append(state.key)
            if len(found) == 1:
                await other.touch("runs/1/1", ttl=HOUR)
                await other.set("runs/1/2", 1)
                await _gone(other, "runs/1/3")
    assert found == ["runs/1/0", "runs/1/1", "runs/1/2"]


async def test_only_what_has_ended_and_was_not_written_again_is_deleted(
    cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any], redis_raw: Any, keys: KeySpace
) -> None:
    """Postgres may be behind: what it takes for ended may have been prolonged, replaced, deleted or evicted since."""
    names = ["runs/ended", "runs/evicted", "runs/prolonged", "runs/replaced", "runs/deleted"]
    for name in names:
        await cache.set(name, 1, ttl=0.2 if name == "runs/prolonged" else 0.001)
    prolonged = await cache.touch("runs/prolonged", ttl=HOUR)
    await cache.set("runs/lasting", 1, ttl=HOUR)
    for name in names[:2]:
        await _gone(cache, name)
    await flush(worker)
    await worker.expiry.stop()
    psql.execute("UPDATE state SET encoding = 'json until 1000000000000' WHERE key = 'runs/prolonged'")
    assert evict(redis_raw, keys, "runs/evicted")
    replaced = await cache.set("runs/replaced", 2)
    await cache.set("runs/deleted", 2)
    await cache.delete("runs/deleted")
    shards, deleted = range(keys.shards), await delete_ended(cache._runtime, range(keys.shards), seconds=5.0)
    assert deleted + worker.expiry.deleted == 2
    assert await cache.get("runs/prolonged", read="primary") == prolonged
    assert await cache.get("runs/replaced", read="primary") == replaced
    await flush(worker)
    assert await delete_ended(cache._runtime, shards, seconds=5.0) == 0
    for name in names[:2]:
        assert [(version, op, reason) for version, op, reason, _ in _history(psql, name)] == [
            (1, "set", ""), (2, "delete", "expired"),
        ]  # fmt: skip
    assert [one[1:3] for one in _history(psql, "runs/deleted")][-1] == ("delete", "")


async def test_many_ended_states_are_deleted_page_by_page_by_two_at_once(
    cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any], keys: KeySpace
) -> None:
    names = [f"runs/{number:04d}" for number in range(700)]
    await cache.set_many(dict.fromkeys(names, 1), ttl=0.001)
    await cache.set_many(dict.fromkeys(["jobs/1", "jobs/2"], 1), ttl=HOUR)
    await _gone(cache, names[-1])
    await flush(worker)
    shards = range(keys.shards)
    both = [delete_ended(cache._runtime, shards, seconds=10.0) for _ in range(2)]
    assert sum(await asyncio.gather(*both)) + worker.expiry.deleted == len(names)
    await flush(worker)
    twice = psql.execute("SELECT key FROM change WHERE op = 'delete' GROUP BY key HAVING count(*) > 1").fetchall()
    assert twice == []
    assert psql.execute("SELECT count(*) FROM state WHERE op = 'set'").fetchone() == (2,)


async def test_no_lock_is_in_the_way_of_a_delete_that_nobody_sees(
    cache: AsyncStateCache, worker: Worker, psql: psycopg.Connection[Any], keys: KeySpace
) -> None:
    runs = cache.namespace("runs", locking="enforced")
    async with runs.lock("1") as lease:
        await lease.set("1", 1, ttl=0.001)
        await _gone(cache)
        await flush(worker)
        for _ in range(3):  # the first attempt may meet the policy that it did not know
            if worker.expiry.deleted or await delete_ended(cache._runtime, range(keys.shards), seconds=5.0):
                break
        await lease.set("1", 2)
    await flush(worker)
    assert [one[:3] for one in _history(psql)] == [(1, "set", ""), (2, "delete", "expired"), (3, "set", "")]


async def test_after_a_lost_answer_the_end_is_that_of_the_commit(
    cache: AsyncStateCache, settings: Settings, make_client: MakeClient
) -> None:
    first = await cache.set(KEY, 1, ttl=HOUR, change_id="0123456789abcdef")
    again = await make_client(settings).set(KEY, 1, ttl=HOUR, change_id="0123456789abcdef")
    assert again == replace(first, writer=again.writer)
    await cache.set(KEY, 2, ttl=0.001)
    await _gone(cache)
    repeated = await cache.set(KEY, 3, change_id="fedcba9876543210")  # a repeat, as far as the server can know
    assert (repeated.value, repeated.version) == (3, 3)
    assert (await cache.create("runs/2", 1, ttl=0.001)).version == 1
    await _gone(cache, "runs/2")
    assert (await cache.create("runs/2", 2, change_id="aaaabbbbccccdddd")).version == 2
    await cache.set("runs/3", 1, ttl=0.001)
    await _gone(cache, "runs/3")
    assert await cache.delete("runs/3", change_id="0000111122223333") is None


async def test_an_older_release_refuses_what_ends_and_overwrites_it_whole(
    cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows no such encoding; here that release's reader stands for it."""
    await cache.set(KEY, 1, ttl=HOUR)
    monkeypatch.setattr("statecache.codec.form_of", lambda encoding: encoding)
    with pytest.raises(CodecError, match="is not known"):
        await cache.get(KEY, read="primary")
    with pytest.raises(CodecError, match="is not known"):
        await cache.update(KEY, lambda value: value + 1)
    assert (await cache.set(KEY, 2)).expires_at is None
    monkeypatch.undo()
    found = await cache.get(KEY, read="primary")
    assert found is not None
    assert (found.value, found.expires_at) == (2, None)


async def test_a_worker_that_cannot_delete_says_so_and_tries_again_later(
    cache: AsyncStateCache, worker: Worker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    await flush(worker)
    expiry, errors = worker.expiry, [RedisUnavailable("refused"), RuntimeError("out of the blue")]
    raised: list[Exception] = []

    async def refused(*_: Any, **__: Any) -> int:
        raised.append(errors[len(raised)])
        raise raised[-1]

    monkeypatch.setattr("statecache_workers.expiry.delete_ended", refused)
    for count in (1, 2):
        monkeypatch.setattr(expiry, "_next", 0.0)
        await until(lambda: expiry._task is None or expiry._task.done())
        expiry.ask([0])
        await until(lambda: expiry._task.done() and len(raised) == count)  # type: ignore[union-attr]  # noqa: B023
        assert len(log.of("not_expired")) == count
        expiry.ask([0])
        assert expiry._task.done()  # type: ignore[union-attr]
    monkeypatch.undo()
    monkeypatch.setattr(expiry, "_next", 0.0)
    await cache.set(KEY, 1, ttl=0.001)
    await _gone(cache)
    await flush(worker)
    await until(lambda: expiry._task.done())  # type: ignore[union-attr]
    if not expiry.deleted:  # it looked before Postgres had it
        monkeypatch.setattr(expiry, "_next", 0.0)
        expiry.ask(range(worker.settings.shards))
        await until(lambda: expiry.deleted == 1)


async def test_exports_and_imports_keep_the_end(cache: AsyncStateCache, cli: CommandLine, tmp_path: Any) -> None:
    state = await cache.set(KEY, {"a": 1}, ttl=HOUR)
    await cache.set("runs/2", 2)
    await cache.set("runs/3", 3, ttl=0.001)
    await _gone(cache, "runs/3")
    file = tmp_path / "runs.jsonl"
    assert (await cli.beside("export", "runs/", "-o", str(file))).status == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["key"], one["encoding"], "expires_at" in one) for one in lines] == [
        (KEY, "json", True), ("runs/2", "json", False),
    ]  # fmt: skip
    await cache.delete_many(prefix="runs/")
    past = json.dumps(lines[0] | {"key": "runs/4", "expires_at": "2020-01-01T00:00:00Z"})
    file.write_text(file.read_text() + past + "\n")
    done = (await cli.beside("import", str(file), "--json")).json
    assert (done["written"], done["ended"]) == (2, 1)
    found = await cache.get(KEY, read="primary")
    assert found is not None
    assert (found.value, found.expires_at) == ({"a": 1}, state.expires_at)


async def test_by_hand(cache: AsyncStateCache, cli: CommandLine) -> None:
    told = (await cli.beside("set", KEY, "1", "--ttl", "3600", "--json")).json
    state = await cache.get(KEY, read="primary")
    assert state is not None
    assert state.expires_at is not None
    assert told["expires_at"].startswith(state.expires_at.strftime("%Y-%m-%dT%H:%M:%S"))
    shown = (await cli.beside("get", KEY, "--json")).json
    assert (shown["encoding"], shown["expires_at"], shown["exists"]) == ("json", told["expires_at"], True)
    assert "expires_at" in (await cli.beside("get", KEY, "--meta")).err
    listed = (await cli.beside("ls", "runs/", "--json")).json["states"]
    assert [(one["encoding"], one["expires_at"]) for one in listed] == [("json", told["expires_at"])]
    await cache.set(KEY, 1, ttl=0.001)
    await _gone(cache)
    absent = await cli.beside("get", KEY)
    assert (absent.status, "version 2 ended at" in absent.err) == (1, True)
    for wrong, why in (
        ("0", "ttl=0.0 is not a time above 0"),
        ("5x", "'5x' is no span of time"),
        ("1e400", "'1e400' is no"),
        ("nan", "ttl=nan"),
    ):
        refused = await cli.beside("set", KEY, "1", "--ttl", wrong)
        assert (refused.status, why in refused.err) == (2, True)
        assert "Say 90s, 20min, 2h or 30d; `statecache rm` deletes at once." in refused.err
    told = (await cli.beside("set", KEY, "1", "--ttl", "20min", "--json")).json
    state = await cache.get(KEY, read="primary")
    assert state is not None
    assert abs((state.expires_at or state.updated_at) - state.updated_at - timedelta(minutes=20)).total_seconds() < 0.01


async def test_from_its_end_on_no_moment_has_a_state(cache: AsyncStateCache, worker: Worker, cli: CommandLine) -> None:
    """Also before a worker has deleted it; a version and a position give what was committed there, with its end."""
    first = await cache.set(KEY, "first", ttl=0.3)
    ends = first.expires_at
    assert ends is not None
    before, behind = ends - timedelta(milliseconds=1), ends
    await cache.set(f"{KEY}/other", "stays")
    await _gone(cache)
    told = await cli.beside("show", f"{KEY}@{behind.isoformat()}")
    assert (told.status, told.err) == (1, f"statecache: {KEY}: what version 1 wrote had ended by then\n")
    for flushed in (False, True):
        for asked in ({"time": before}, {"version": 1}, {"position": first.position}):
            then = await cache.get_at(KEY, **asked)
            assert then is not None
            assert (then.value, then.expires_at) == ("first", ends)
        for moment in (behind, datetime.now(UTC)):
            assert await cache.get_at(KEY, time=moment) is None
            assert [*await cache.get_group_at(KEY, time=moment)] == [f"{KEY}/other"]
            assert [one.op for one in await cache.diff(KEY, before, moment)] == ["removed"]
        assert [*await cache.get_group_at(KEY, time=before)] == [KEY, f"{KEY}/other"]
        with pytest.raises(AlreadyCurrent):
            await cache.rollback(KEY, at=behind)
        if not flushed:
            await flush(worker)
    await cache.set(KEY, "again")
    back = await cache.rollback(KEY, at=behind)
    assert back.value is None
    assert await cache.get(KEY) is None
    assert (await cache.undo(KEY)).value == "again"
