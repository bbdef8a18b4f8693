"""The near cache on real servers: what is read here, when it is not, and that nothing is read that must not be."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from statecache import AsyncStateCache, Settings
from statecache.errors import ConfigurationError, ForeignData, PostgresUnavailable, Unavailable, UsageError
from statecache.keys import KeySpace
from statecache.lua import script
from statecache.testing import servers
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush, rows
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis
from tests.support.denying import SAYS as DENIAL
from tests.support.denying import denying
from tests.support.fault_proxy import FaultProxy
from tests.support.local_reads import KEY, LIMIT_S, kept, reads, until
from tests.support.polling import pause

pytestmark = pytest.mark.counts_seconds


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of clients that read locally."""
    return make_settings(read="local")


@every_redis
async def test_what_was_read_once_is_read_here_until_somebody_writes_it(
    one: AsyncStateCache, other: AsyncStateCache
) -> None:
    await other.set(KEY, {"step": 1})
    await kept(one)
    before = one.near
    for _ in range(10):
        state = await one.get(KEY)
        assert state is not None
        assert state.value == {"step": 1}
    assert (one.near.hits, one.near.misses) == (before.hits + 10, before.misses)
    written = await other.set(KEY, {"step": 2})
    await reads(one, {"step": 2})
    assert (await one.get(KEY)) == written
    assert one.near.invalidations > before.invalidations


@every_redis
async def test_a_process_reads_its_own_writes_at_once(one: AsyncStateCache) -> None:
    await one.set(KEY, 0)
    await kept(one)
    for number in range(1, 60):
        state = await one.set(KEY, number)
        assert await one.get(KEY) == state
    async with one.transaction(KEY) as tx:
        tx.set(KEY, "in a transaction")
    state_now = await one.get(KEY)
    assert state_now is not None
    assert state_now.value == "in a transaction"
    await one.delete(KEY)
    assert await one.get(KEY) is None


async def test_a_time_that_is_none_is_refused_by_a_read_from_here_too(one: AsyncStateCache) -> None:
    await one.set(KEY, 1)
    await kept(one)
    timeouts: list[Any] = [0, -1, "5"]
    for timeout in timeouts:
        with pytest.raises(UsageError, match=f"timeout={timeout} is not a number of seconds"):
            await one.get(KEY, timeout=timeout)


async def test_absences_and_tombstones_are_kept_too(one: AsyncStateCache, other: AsyncStateCache) -> None:
    assert await one.get(KEY) is None
    await kept(one)
    await other.create(KEY, 1)
    await reads(one, 1)
    await kept(one)
    await other.delete(KEY)
    async with asyncio.timeout(LIMIT_S):
        while await one.get(KEY) is not None:
            await pause()
    await kept(one)


async def test_a_commit_to_another_key_of_the_shard_takes_nothing_away(
    one: AsyncStateCache, other: AsyncStateCache, settings: Settings
) -> None:
    space = KeySpace(settings.prefix, settings.shards)
    neighbour = next(f"runs/{i}" for i in range(2, 100) if space.shard(f"runs/{i}") == space.shard(KEY))
    await other.set(KEY, 1)
    await kept(one)
    before = one.near.invalidations
    for number in range(20):
        await other.set(neighbour, number)
    await one.get(neighbour)
    assert one.near.invalidations == before
    misses = one.near.misses
    await one.get(KEY)
    assert one.near.misses == misses


async def test_a_flush_in_the_background_takes_nothing_away(one: AsyncStateCache, worker: Worker, psql: Any) -> None:
    await one.set(KEY, 1)
    await kept(one)
    before = one.near
    await flush(worker)
    assert rows(psql, "SELECT count(*) FROM change") == [(1,)]
    assert one.near.invalidations == before.invalidations
    await one.get(KEY)
    assert one.near.misses == before.misses


async def test_after_the_connection_is_cut_nothing_old_is_read(
    make_client: MakeClient, other: AsyncStateCache, settings: Settings
) -> None:
    async with FaultProxy(*_address(settings)) as proxy:
        one = make_client(through(settings, redis=proxy))
        await other.set(KEY, 1)
        await kept(one)
        line: Any = one._runtime.tracked
        link = line._link
        proxy.refusing = True
        proxy.cut_all()
        await until(lambda: line._link is not link)
        assert (one.near.trusted, one.near.untracked) == (False, True)
        assert one.near.entries == 0
        await other.set(KEY, 2)
        proxy.refusing = False
        await reads(one, 2)
        await kept(one)
        assert (one.near.untrusted_reason, one.near.untracked) == ("", False)
        proxy.refusing = True
        proxy.cut_all()
        await until(lambda: one.near.untracked)
        await one.close()
        assert not one.near.untracked


async def test_a_connection_that_has_gone_silent_is_believed_for_the_window_only(
    make_client: MakeClient, other: AsyncStateCache, settings: Settings
) -> None:
    async with FaultProxy(*_address(settings)) as proxy:
        one = make_client(through(settings, redis=proxy).model_copy(update={"near_window_s": 0.4}))
        await other.set(KEY, 1)
        await kept(one)
        fault = proxy.arm("hold_reply", at=script("heartbeat").sha.encode())
        await fault.wait()  # from now on this side hears neither heartbeats nor pushes on that connection
        await other.set(KEY, 2)
        await until(lambda: not one.near.trusted)
        state = await one.get(KEY)
        assert state is not None
        assert state.value == 2
        await kept(one)  # on a new connection
        fault.release()


def _address(settings: Settings) -> tuple[str, int]:
    host, _, port = settings.redis_url.partition("://")[2].rpartition("@")[2].partition("/")[0].partition(":")
    return host, int(port)


async def test_another_server_behind_the_same_address_is_noticed_by_the_heartbeat(
    one: AsyncStateCache, other: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    await other.set(KEY, 1)
    await kept(one)
    line: Any = one._runtime.tracked
    heard = line._heartbeat
    drops: list[int] = []
    drop = line._near.drop

    def dropped() -> None:
        drops.append(1)
        drop()

    monkeypatch.setattr(line._near, "drop", dropped)
    monkeypatch.setattr(line, "_heartbeat", lambda link, sent, reply: heard(link, sent, reply.replace(b" ", b" 1", 1)))
    await until(lambda: drops)
    assert one.near.untrusted_reason == ""
    monkeypatch.setattr(line, "_heartbeat", lambda link, sent, reply: heard(link, sent, b"slave" + reply[6:]))
    await until(lambda: "no primary" in one.near.untrusted_reason)
    monkeypatch.undo()
    await kept(one)


@pytest.mark.own_servers("it makes the server forget its scripts")
@every_redis
async def test_heartbeats_survive_a_server_that_forgets_its_scripts(
    one: AsyncStateCache, other: AsyncStateCache, redis_raw: Any, settings: Settings
) -> None:
    await other.set(KEY, 1)
    await kept(one)
    redis_raw.script_flush()
    line: Any = one._runtime.tracked
    link = line._link
    sent = one._runtime.near._sent
    await until(lambda: one._runtime.near._sent > sent)
    assert line._link is link


async def test_a_server_that_tracks_nothing_is_told_of_once_and_every_read_is_the_primary_s(
    make_client: MakeClient, settings: Settings, redis_raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    redis_raw.execute_command(
        "ACL", "SETUSER", settings.prefix, "reset", "on", ">secret", "~*", "&*", "+@all", "-client|tracking"
    )
    host, port = _address(settings)
    url = f"redis://{settings.prefix}:secret@{host}:{port}/0"
    caplog.set_level(logging.WARNING, logger="statecache")
    one = make_client(settings.model_copy(update={"redis_url": url}))
    await one.set(KEY, 1)
    await one.get(KEY)
    await until(lambda: one.near.untrusted_reason)
    for _ in range(5):
        state = await one.get(KEY)
        assert state is not None
    assert one.near.hits == 0
    assert one.near.untracked
    assert "track" in one.near.untrusted_reason
    assert len([1 for found in caplog.records if "nothing is read locally" in found.message]) == 1


@every_redis
async def test_a_server_without_resp3_is_told_of_once_and_not_dialled_again_without_end(
    make_client: MakeClient, settings: Settings, redis_kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Some refuse HELLO as from one who gave no password, others repeat it, with the password, which is not told."""
    caplog.set_level(logging.WARNING, logger="statecache")
    named = {"prefix": settings.prefix, "postgres_schema": settings.postgres_schema, "shards": str(settings.shards)}
    without = {"rename-command": 'HELLO ""'}
    binary = Path(shutil.which("redis-server") or "") if redis_kind == "debian" else None
    with servers(workers=0, fsync=False, redis_server=binary, settings=named, redis_config=without) as own:
        urls = {"redis_url": own.redis_url, "postgres_url": own.postgres_url}
        one = make_client(settings.model_copy(update=urls))
        line: Any = one._runtime.tracked
        await one.set(KEY, 1)
        await one.get(KEY)
        await until(lambda: line._background is not None and not line._background.alive)
        for _ in range(5):
            assert (await one.get(KEY)).value == 1  # type: ignore[union-attr]
        assert not line._background.alive
        assert one.near.hits == 0
        assert "the server does not track what is read, for it refuses HELLO 3" in one.near.untrusted_reason
        assert len([1 for found in caplog.records if "nothing is read locally" in found.message]) == 1
        assert (urlsplit(own.redis_url).password or "") not in one.near.untrusted_reason + caplog.text
        line._not_before = 0.0  # a minute later
        await one.get(KEY)
        await until(lambda: line._not_before and not line._background.alive)
        assert len([1 for found in caplog.records if "nothing is read locally" in found.message]) == 1
        await one.close()


async def test_a_server_that_denies_everything_is_not_taken_for_one_without_resp3(
    make_client: MakeClient, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses connections in RESP2 too: that may pass at any moment, and is no reason to wait for a minute."""
    caplog.set_level(logging.WARNING, logger="statecache")
    with denying() as at:
        one = make_client(settings.model_copy(update={"redis_url": f"redis://{at}"}))
        line: Any = one._runtime.tracked
        line.is_up()
        await until(lambda: one.near.untrusted_reason)
        assert DENIAL in one.near.untrusted_reason
        assert line._background.alive
        assert "nothing is read locally" not in caplog.text
        await one.close()


# Read modes.


async def test_a_call_may_ask_for_less_staleness(one: AsyncStateCache, other: AsyncStateCache) -> None:
    await other.set(KEY, 1)
    await kept(one)
    before = one.near.hits
    await one.get(KEY, max_stale=0)
    assert one.near.hits == before
    await one.get(KEY, max_stale=1.9)
    assert one.near.hits == before + 1
    await one.get(KEY, read="primary")
    assert one.near.hits == before + 1


async def test_less_staleness_is_not_had_from_a_read_that_began_before(
    settings: Settings, other: AsyncStateCache
) -> None:
    await other.set(KEY, 1)
    async with (
        FaultProxy(*_address(settings)) as proxy,
        AsyncStateCache(settings=through(settings, redis=proxy)) as one,
    ):
        await kept(one, "runs/2")
        answered = proxy.arm("hold_reply", at=b"CACHING")
        early = asyncio.create_task(_get(one, KEY))
        await answered.wait()
        await other.set(KEY, 2)
        misses = one.near.misses
        late = asyncio.create_task(_get(one, KEY, max_stale=0))
        await until(lambda: one.near.misses > misses)
        answered.release()
        assert (await late).value == 2
        assert (await early).value in (1, 2)


async def _get(client: AsyncStateCache, key: str, **more: Any) -> Any:
    return await client.get(key, **more)


@pytest.mark.parametrize(
    "asked", [{"read": "somewhere"}, {"max_stale": -1}, {"read": "primary", "max_stale": 1}], ids=str
)
async def test_what_cannot_be_asked_for_is_refused(one: AsyncStateCache, asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        await one.get(KEY, **asked)


@pytest.mark.parametrize("read", ["local", "primary", "fenced"])
async def test_a_version_that_somebody_has_seen_is_waited_for(
    one: AsyncStateCache, other: AsyncStateCache, read: Any
) -> None:
    await other.set(KEY, 1)
    await kept(one)
    written = await other.set(KEY, 2)
    assert await one.get(KEY, min_version=written.version, read=read) == written
    with pytest.raises(Unavailable, match="has not reached version 9") as refused:
        await one.get(KEY, min_version=9, timeout=1.0, read=read)
    assert refused.value.reason == "version"


@every_redis
async def test_a_fenced_read_has_the_word_of_postgres(one: AsyncStateCache, settings: Settings, psql: Any) -> None:
    state = await one.set(KEY, 1)
    assert await one.get(KEY, read="fenced") == state
    shard = KeySpace(settings.prefix, settings.shards).shard(KEY)
    psql.execute("UPDATE shard SET epoch = epoch + 1, replid = 'another' WHERE shard = %s", [shard])
    with pytest.raises(Unavailable) as refused:
        await one.get(KEY, read="fenced", timeout=0.3)
    assert refused.value.reason == "epoch"
    assert await one.get(KEY, read="primary") == state


async def test_a_fenced_read_waits_until_a_shard_is_open_that_another_server_has_opened(
    one: AsyncStateCache, other: AsyncStateCache, settings: Settings, redis_raw: Any, psql: Any
) -> None:
    """Postgres and the data agree on who opened it, as after a failover, and this server is not the one."""
    state = await one.set(KEY, 1)
    space = KeySpace(settings.prefix, settings.shards)
    meta, shard = space.meta(space.shard(KEY)), space.shard(KEY)
    here = redis_raw.hget(meta, "replid")
    redis_raw.hset(meta, "replid", "a" * 40)
    psql.execute("UPDATE shard SET replid = %s WHERE shard = %s", ["a" * 40, shard])
    with pytest.raises(Unavailable) as refused:
        await one.get(KEY, read="fenced", timeout=0.3)
    assert refused.value.reason == "epoch"
    assert redis_raw.hget(meta, "replid") == b"a" * 40, "who reads has opened it"
    reading = asyncio.create_task(_fenced(one))
    written = await other.set(KEY, 2)
    assert await reading in (state, written)
    assert redis_raw.hget(meta, "replid") == here


async def _fenced(client: AsyncStateCache) -> Any:
    return await client.get(KEY, read="fenced")


async def test_a_fenced_read_needs_postgres_and_the_fence(make_client: MakeClient, settings: Settings) -> None:
    unfenced = make_client(settings.model_copy(update={"fence": "off"}))
    with pytest.raises(ConfigurationError, match="fence"):
        await unfenced.get(KEY, read="fenced")
    alone = make_client(settings.model_copy(update={"postgres_url": "postgresql://127.0.0.1:1/none"}))
    with pytest.raises(PostgresUnavailable):
        await alone.get(KEY, read="fenced", timeout=0.5)


async def test_data_of_another_program_is_named(one: AsyncStateCache, settings: Settings, redis_raw: Any) -> None:
    await one.set("runs/2", 1)
    await kept(one, "runs/2")
    redis_key = KeySpace(settings.prefix, settings.shards).state(KEY)
    redis_raw.set(redis_key, "theirs")
    with pytest.raises(ForeignData):
        await one.get(KEY)
    redis_raw.delete(redis_key)
    redis_raw.hset(redis_key, "version", "1")
    with pytest.raises(ForeignData):
        await one.get(KEY)
    await kept(one, "runs/2")
