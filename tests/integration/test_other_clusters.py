"""A Redis that belongs to another Postgres' cluster: adopted by an empty database, refused by one that holds data."""

from __future__ import annotations

import psycopg
import pytest

from statecache import Unavailable
from statecache.keys import KeySpace
from statecache.testing.valkey import Valkey
from tests.fixtures.servers import MakeSettings, plain_client
from tests.support.command_line import CommandLine
from tests.support.gate_world import World, once

KEY, OTHERS = "runs/1", "00000000-0000-0000-0000-000000000000"


def read(shard: World, server: Valkey, key: str = KEY) -> object:
    """Return the value of a key that is there."""
    state = shard.client(server).get(key)
    assert state is not None
    return state.value


def served(shard: World, name: str, value: str) -> Valkey:
    """Start a Redis and have it serve two states, of which Postgres gets the first."""
    server = shard.start(name)
    shard.open(server)
    shard.put(server, KEY, value)
    shard.flush(server)
    shard.put(server, "runs/2", value)
    return server


def made_anew(shard: World) -> None:
    """Make the database another cluster's, which holds nothing."""
    for table in ("state", "change", "epoch"):
        shard.sql(f"DELETE FROM {table}")
    shard.sql("UPDATE shard SET epoch = 0, replid = '', flushed = 0, entries = 0, bytes = 0")
    shard.sql("UPDATE cluster SET id = gen_random_uuid()")


def dump(shard: World, server: Valkey) -> dict[str, bytes]:
    """Return all that a Redis holds."""
    with plain_client(server.url) as raw:
        return {name: raw.dump(name) for name in raw.scan_iter("*")}


def adopt(shard: World, server: Valkey) -> None:
    shard.open(server, "operator")


def test_a_postgres_with_data_of_its_own_takes_no_state_of_it(shard: World) -> None:
    """Both logs count from epoch 1 and position 1, and have nothing in common."""
    others = served(shard, "others", "theirs")
    made_anew(shard)
    ours = served(shard, "ours", "ours")
    held, row, epochs = dump(shard, others), shard.row(), shard.epochs()
    with pytest.raises(Unavailable, match="this Postgres, which has had epochs of its own") as refused:
        adopt(shard, others)
    assert "epoch adopt" not in refused.value.detail
    with pytest.raises(Unavailable, match="this Postgres, which has had epochs of its own"):
        shard.open(others, "worker")
    assert (dump(shard, others), shard.row(), shard.epochs()) == (held, row, epochs)
    assert shard.conflicts() == set()
    shard.check(ours)


def test_it_is_adopted_once_it_was_emptied(shard: World) -> None:
    others = served(shard, "others", "theirs")
    made_anew(shard)
    served(shard, "ours", "ours").kill()
    shard.raw(others).flushdb()
    adopt(shard, others)
    assert read(shard, others) == "ours"
    shard.check(others)


def test_an_empty_database_takes_all_of_it(shard: World) -> None:
    others = served(shard, "others", "theirs")
    made_anew(shard)
    adopt(shard, others)
    assert [read(shard, others, key) for key in (KEY, "runs/2")] == ["theirs", "theirs"]
    assert (shard.conflicts(), shard.row().flushed) == (set(), 0)


@pytest.mark.parametrize(
    "moment", ["before gate_reserve", "after gate_reserve", "after begin_epoch", "before gate_open"]
)
def test_an_adoption_that_was_interrupted_goes_on(shard: World, moment: str) -> None:
    others = served(shard, "others", "theirs")
    made_anew(shard)

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shard.open(others, "operator", tap=once(moment, die))
    others.restart()
    adopt(shard, others)
    assert [read(shard, others, key) for key in (KEY, "runs/2")] == ["theirs", "theirs"]
    assert shard.conflicts() == set()


def test_no_shard_of_it_is_adopted_where_another_may_not_be(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings()
    keys, cli = KeySpace(settings.prefix, settings.shards), CommandLine(settings, monkeypatch, capsys)
    schema = settings.postgres_schema
    with plain_client(settings.redis_url) as raw, psycopg.connect(settings.postgres_url, autocommit=True) as psql:
        for each in range(settings.shards):
            raw.hset(keys.meta(each), "cluster", OTHERS)
        psql.execute(f"UPDATE {schema}.shard SET epoch = 0, replid = '' WHERE shard > 0".encode())
        rows = psql.execute(f"SELECT * FROM {schema}.shard ORDER BY shard".encode()).fetchall()
        (replid,) = psql.execute(f"SELECT replid FROM {schema}.shard WHERE shard = 0".encode()).fetchone() or ("",)
        for options in ([], ["--from", replid]):
            ended = cli("epoch", "adopt", "all", *options)
            assert (ended.status, ended.out, "epoch adopt" in ended.err) == (4, "", False)
            assert "which has had epochs of its own" in ended.err
        assert "4 shards are, 0 first, closed" in ended.err
        assert psql.execute(f"SELECT * FROM {schema}.shard ORDER BY shard".encode()).fetchall() == rows
        assert {raw.hget(keys.meta(each), "cluster") for each in range(settings.shards)} == {OTHERS.encode()}
