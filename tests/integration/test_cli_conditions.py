"""Each condition that needs a person: brought about on real servers, seen by `status`, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from urllib.parse import quote

import psycopg
import pytest

from statecache import AsyncStateCache, Backpressure, RedisUnavailable, Settings
from statecache.errors import Unavailable
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush
from tests.fixtures.servers import MakeSettings
from tests.support.command_line import CommandLine
from tests.support.unwritable_redis import configured, disk_full, replicas_away

Psql = psycopg.Connection[Any]


class World(NamedTuple):
    """A deployment whose worker is turned by hand."""

    settings: Settings
    agents: Agents
    worker: Worker
    psql: Psql
    raw: Any
    keys: KeySpace
    patch: pytest.MonkeyPatch
    ending: ExitStack


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of leases that stand for as long as a test takes to look at them."""
    return make_settings(lease_s=600.0)


@pytest.fixture
def shown(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on the test's deployment."""
    return CommandLine(settings, monkeypatch, capsys)


@pytest.fixture
def world(
    settings: Settings, agents: Agents, worker: Worker, psql: Psql, redis_raw: Any, keys: KeySpace,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:  # fmt: skip
    """The deployment; what a condition has changed on shared servers is undone at the end."""
    with ExitStack() as ending:
        yield World(settings, agents, worker, psql, redis_raw, keys, monkeypatch, ending)


async def _positions_gone_after_a_restore(world: World) -> None:
    key = world.agents.key_on(0)
    for number in range(3):
        world.agents.commit((key, str(number)))
    world.agents.commit((f"{key}/other", "x"))
    await flush(world.worker)
    world.raw.xtrim(world.keys.changes(0), maxlen=0)
    world.raw.delete(world.keys.state(f"{key}/other"))
    world.raw.zrem(world.keys.unflushed(0), f"{key}/other")
    world.psql.execute("DELETE FROM change; DELETE FROM state")
    world.psql.execute("UPDATE shard SET flushed = 0, entries = 0, bytes = 0 WHERE shard = 0")
    world.worker.refresh()
    await flush(world.worker)


async def _redis_full(world: World) -> None:
    full = {"maxmemory-policy": "noeviction", "maxmemory": "1"}
    world.ending.enter_context(configured(world.raw, **full))
    async with AsyncStateCache(settings=world.settings.model_copy(update={"timeout_s": 5.0})) as cache:
        with pytest.raises(Backpressure, match="Redis is out of memory") as caught:
            await cache.set("runs/1", 1)
        assert "Postgres" not in str(caught.value)


async def _redis_disk_full(world: World) -> None:
    world.ending.enter_context(disk_full(world.raw))
    async with AsyncStateCache(settings=world.settings.model_copy(update={"timeout_s": 1.0})) as cache:
        with pytest.raises(RedisUnavailable, match="MISCONF") as caught:
            await cache.set("runs/1", 1)
        assert "Postgres" not in str(caught.value)


async def _replicas_away(world: World) -> None:
    world.ending.enter_context(replicas_away(world.raw))
    async with AsyncStateCache(settings=world.settings.model_copy(update={"timeout_s": 1.0})) as cache:
        with pytest.raises(RedisUnavailable, match="NOREPLICAS: Not enough good replicas to write"):
            await cache.set("runs/1", 1)
        with pytest.raises(RedisUnavailable, match="NOREPLICAS: Not enough good replicas to write"):
            await cache.lock("runs/1").__aenter__()


async def _gate_closed(world: World) -> None:
    world.raw.hset(world.keys.meta(1), "replid", "f" * 40)


async def _shard_bricked(world: World) -> None:
    world.raw.xadd(world.keys.changes(2), {"not": "ours"})
    assert world.agents.ask(world.agents.key_on(2))[1] == b"FOREIGN"


async def _shard_bricked_by_a_deleted_entry(world: World) -> None:
    stray = world.raw.xadd(world.keys.changes(2), {"not": "ours"})
    world.raw.xdel(world.keys.changes(2), stray)
    assert world.agents.ask(world.agents.key_on(2))[1] == b"FOREIGN"


async def _worker_hindered(world: World) -> None:
    async def refused(*_: Any) -> Any:
        raise RedisUnavailable("refused", detail="NOPERM this user may not run evalsha")

    world.agents.commit(world.agents.key_on(0))
    with world.patch.context() as patched:
        patched.setattr(world.worker.flusher.acknowledgement, "tell", refused)
        for _ in range(2):  # the second turn begins with a heartbeat that tells what ended the first
            with pytest.raises(Unavailable):
                await flush(world.worker)


async def _postgres_refuses(world: World, body: str = "RAISE EXCEPTION 'no room' USING ERRCODE = '53100';") -> None:
    function = f"CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$"
    world.psql.execute(function.encode())
    world.psql.execute(b"CREATE TRIGGER fault BEFORE INSERT ON change FOR EACH ROW EXECUTE FUNCTION fault()")
    world.agents.commit(world.agents.key_on(0))
    for _ in range(2):
        with pytest.raises(Unavailable):
            await flush(world.worker)


async def _batch_too_large(world: World) -> None:
    await _postgres_refuses(world, "RAISE EXCEPTION 'canceling statement' USING ERRCODE = '57014';")


async def _worker_elsewhere(world: World) -> None:
    columns, told = "id, host, pid, beat_until, avoids, trouble", "32 shards are closed: only on an operator's word"
    row = f"INSERT INTO worker ({columns}) VALUES ('old', 'h', 1, now() + interval '1 hour', 4, %s)"
    world.psql.execute(row.encode(), (told,))


async def _row_held(world: World) -> None:
    world.psql.execute("UPDATE shard SET lease_until = now() - interval '1 second'")
    stranger = psycopg.connect(world.settings.postgres_url, application_name="psql")
    world.ending.callback(stranger.close)
    row = f'SELECT FROM "{world.settings.postgres_schema}".shard WHERE shard = 3 FOR UPDATE'
    stranger.execute(row.encode())
    stranger.execute(b"SELECT pg_sleep(1.1)")


async def _quarantine(world: World) -> None:
    world.agents.commit("runs/1", reason="a\0b")
    await flush(world.worker)


async def _conflict(world: World) -> None:
    world.agents.commit("runs/1")
    await flush(world.worker)
    world.raw.delete(world.keys.state("runs/1"))
    world.agents.commit("runs/1")
    await flush(world.worker)


async def _no_worker(world: World) -> None:
    await world.worker.leave()


async def _read_only(world: World) -> None:
    options = quote("-c default_transaction_read_only=on")
    world.patch.setenv("STATECACHE_POSTGRES_URL", f"{world.settings.postgres_url}?options={options}")


async def _restored_in_part(world: World) -> None:
    world.psql.execute("ALTER TABLE state DROP CONSTRAINT state_pkey; DELETE FROM shard WHERE shard > 1")


CONDITIONS: dict[str, tuple[Callable[[World], Any], tuple[str, ...]]] = {
    "positions are gone after a restore": (
        _positions_gone_after_a_restore, ("3 positions of shard 0 were lost within 24 hours", "`statecache lost`"),
    ),
    "Redis is full": (_redis_full, ("Redis is full of what may not be evicted", "raise maxmemory")),
    "Redis' disk is full": (_redis_disk_full, ("Redis could not write", "look at its disk")),
    "Redis lacks replicas": (_replicas_away, ("refuses every commit and every lock (NOREPLICAS)", "CONFIG SET")),
    "a gate is closed": (_gate_closed, ("the gate of shard 1 is closed", "`statecache epoch adopt all`, which says")),
    "a shard takes no commits": (_shard_bricked, ("shard 2 takes no commits", "which no commit has written")),
    "a shard takes no commits, and nothing shows why": (
        _shard_bricked_by_a_deleted_entry, ("shard 2 takes no commits", "which no commit has written"),
    ),
    "a worker cannot flush": (_worker_hindered, ("cannot serve: Redis is unavailable", "NOPERM", "remove the cause")),
    "Postgres has no room": (_postgres_refuses, ("cannot serve: Postgres is unavailable (53100)", "remove the cause")),
    "a batch takes too long": (_batch_too_large, ("cannot serve: Postgres is unavailable (57014)", "remove the cause")),
    "a worker is on another server": (_worker_elsewhere, ("worker old cannot serve, and leaves 4 shards", "stop it")),
    "a row is held by a stranger": (_row_held, ("shard 3", "held by pid", "psql", "SELECT pg_terminate_backend(")),
    "something is in quarantine": (_quarantine, ("1 entry is in quarantine", "`statecache quarantine list`")),
    "there are conflicts": (_conflict, ("1 change was set aside in `conflict`", "write it anew")),
    "there is no worker": (_no_worker, ("4 of 4 shards have no worker", "`statecache worker`")),
    "Postgres is there in part": (
        _restored_in_part, ("it lacks primary key state_pkey, the rows of 2 shards", "restore the backup again"),
    ),
    "Postgres is read only": (_read_only, ("read only by default", "default_transaction_read_only = off")),
}  # fmt: skip


_OWN = pytest.mark.own_servers("it changes settings of the server")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_OWN if name.startswith("Redis") else ()) for name in CONDITIONS]
)
async def test_status_tells_of_it_and_what_to_do(world: World, shown: CommandLine, name: str) -> None:
    bring_about, said = CONDITIONS[name]
    await flush(world.worker)
    assert (await shown.beside("status")).status == 0, "all is well before"
    await bring_about(world)
    found = await shown.beside("status", "--json")
    assert found.status == 1, found
    attention = "\n".join(found.json["attention"])
    assert all(words in attention for words in said), attention


async def test_a_worker_that_has_died_has_no_trouble_any_more(world: World, shown: CommandLine) -> None:
    await flush(world.worker)
    await _worker_elsewhere(world)
    assert "worker old cannot serve" in (await shown.beside("status")).out
    world.psql.execute("UPDATE worker SET beat_until = now() - interval '1 second' WHERE id = 'old'")
    found = await shown.beside("status", "--json")
    assert (found.status, found.json["attention"]) == (0, [])
    assert {one["id"]: one["trouble"] for one in found.json["workers"]}["old"] == ""


async def test_what_an_old_primary_has_brought_back_is_lost_no_longer(world: World, shown: CommandLine) -> None:
    await flush(world.worker)
    world.psql.execute(
        "INSERT INTO lost (shard, epoch, first_n, last_n, cause, positions, keys, reported_by) "
        "VALUES (0, 9, 5, 6, 'tail', 2, '{}', 'w'), (1, 9, 5, 5, 'tail', 1, '{}', 'w')"
    )
    kept = (
        "INSERT INTO conflict SELECT %s, 'runs/1', 0, 8, %s, 'set', 1, '', '1', 'json', '', 'w', '', '', now(), 'tail'"
    )
    world.psql.execute(kept, ("c5", 5))
    world.psql.execute(kept, ("c7", 7))
    attention = "\n".join((await shown.beside("status", "--json")).json["attention"])
    assert "2 positions of shards 0, 1 were lost" in attention, attention
    world.psql.execute(kept, ("c6", 6))
    found = (await shown.beside("status", "--json")).json
    assert (found["lost"], found["new_lost"]) == (1, 1)
    assert "1 position of shard 1 was lost" in "\n".join(found["attention"])
