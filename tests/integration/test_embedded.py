"""The embedded servers: real, durable as asked, private, and gone afterwards, whatever happened.

These tests need no migration and no workers; what runs against migrated servers is tested elsewhere.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from statecache.errors import PostgresUnavailable, RedisUnavailable, UsageError
from statecache.testing import ports, server, servers
from statecache.testing.embedded import Servers
from statecache.testing.process import descendants, identity, wait_for_end

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30.0
NOBODY = 65534
ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def shared() -> Iterator[Servers]:
    with servers(workers=0, migrate=False) as started:
        yield started


@contextmanager
def _redis(s: Servers, name: str = "redis", *, timeout_s: float = WAIT_S) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(s.url(name), retry=Retry(NoBackoff(), 0), socket_timeout=timeout_s)
    try:
        yield client
    finally:
        client.close()


def _sql(s: Servers, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(s.postgres_url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def _write(s: Servers, word: str) -> None:
    with _redis(s) as client:
        client.set("word", word)
    _sql(s, "create table if not exists word (word text)")
    _sql(s, f"insert into word values ('{word}')")


def _read(s: Servers) -> tuple[str, list[object]]:
    with _redis(s) as client:
        word = client.get("word")
    assert isinstance(word, bytes)
    return word.decode(), [row[0] for row in _sql(s, "select word from word")]


def test_they_are_durable_and_listen_on_loopback_alone(shared: Servers) -> None:
    with _redis(shared) as client:
        config = client.config_get("appendonly", "appendfsync", "bind", "save")
    assert config == {"appendonly": "yes", "appendfsync": "everysec", "bind": "127.0.0.1", "save": ""}
    assert _sql(shared, "show listen_addresses") == [("127.0.0.1",)]
    assert _sql(shared, "show fsync") == [("on",)]
    assert _sql(shared, "select current_setting('server_version_num')::int / 10000") == [(18,)]


def test_other_users_of_the_machine_are_kept_out(shared: Servers) -> None:
    port = int(shared.redis_url.rpartition(":")[2].partition("/")[0])
    anonymous = redis.Redis(port=port, retry=Retry(NoBackoff(), 0))
    with pytest.raises(redis.AuthenticationError):
        anonymous.ping()
    anonymous.close()
    host = shared.postgres_url.partition("@")[2]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://postgres:wrong@{host}")
    assert shared.folder.stat().st_mode & 0o066 == 0
    assert [path for path in shared.folder.glob("*.conf") if path.stat().st_mode & 0o077] == []


def test_child_processes_get_the_urls_and_the_settings() -> None:
    with servers(workers=0, migrate=False, fsync=False, settings={"shards": "8", "STATECACHE_PREFIX": "t"}) as s:
        assert s.environment() == {
            "STATECACHE_REDIS_URL": s.redis_url,
            "STATECACHE_POSTGRES_URL": s.postgres_url,
            "STATECACHE_SHARDS": "8",
            "STATECACHE_PREFIX": "t",
        }
        assert _sql(s, "show fsync") == [("off",)]


def test_the_servers_own_configuration_can_be_extended() -> None:
    redis_config, postgres_config = {"maxmemory": "100mb"}, {"max_connections": "17"}
    with servers(
        workers=0, migrate=False, appendfsync="always", redis_config=redis_config, postgres_config=postgres_config
    ) as s:
        assert _sql(s, "show max_connections") == [("17",)]
        with _redis(s) as client:
            assert client.config_get("maxmemory", "appendfsync") == {"maxmemory": "104857600", "appendfsync": "always"}


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_an_ended_server_comes_back_on_its_port_with_its_data(shared: Servers, end: str) -> None:
    urls = (shared.redis_url, shared.postgres_url)
    _write(shared, end)
    before = (shared.pid("redis"), shared.pid("postgres"))
    for name in ("redis", "postgres"):
        getattr(shared, end)(name)
        assert shared.pid(name) is None
        shared.restart(name)
    assert (shared.redis_url, shared.postgres_url) == urls
    assert None not in (shared.pid("redis"), shared.pid("postgres"))
    assert not set(before) & {shared.pid("redis"), shared.pid("postgres")}
    word, words = _read(shared)
    assert word == end
    assert words[-1] == end


def test_stop_is_orderly_and_kill_is_not(shared: Servers) -> None:
    shared.stop("redis")
    shared.stop("postgres")
    assert "User requested shutdown" in shared.log("redis")
    assert "database system is shut down" in shared.log("postgres").splitlines()[-1]
    shared.restart("redis")
    shared.restart("postgres")
    shared.kill("postgres")
    shared.restart("postgres")
    assert "automatic recovery in progress" in shared.log("postgres")


def test_killing_postgres_leaves_none_of_its_processes(shared: Servers) -> None:
    postmaster = shared.pid("postgres")
    assert postmaster is not None
    with psycopg.connect(shared.postgres_url):
        below = descendants(postmaster)
        assert len(below) > 3
        shared.kill("postgres")
    assert [pid for pid in below if identity(pid) is not None] == []
    shared.restart("postgres")


def test_a_postmaster_killed_by_somebody_else_comes_back_too(shared: Servers) -> None:
    postmaster = shared.pid("postgres")
    assert postmaster is not None
    os.kill(postmaster, signal.SIGKILL)
    assert wait_for_end([postmaster], WAIT_S)
    assert shared.pid("postgres") is None
    shared.restart("postgres")
    assert _sql(shared, "select 1") == [(1,)]


def test_the_pid_file_of_a_crash_that_names_a_living_process_is_no_obstacle(shared: Servers) -> None:
    """After a reboot the pid in it may be anybody's, and Postgres would not start."""
    shared.kill("postgres")
    file = next(shared.folder.glob("postgres/data/postmaster.pid"))
    lines = file.read_text().splitlines()
    file.write_text("\n".join([str(os.getppid()), *lines[1:]]))
    shared.restart("postgres")


def test_a_paused_server_is_silent_until_resumed(shared: Servers) -> None:
    with _redis(shared, timeout_s=0.1) as hasty, _redis(shared) as patient:
        shared.pause("redis")
        with pytest.raises(redis.TimeoutError):
            hasty.ping()
        shared.resume("redis")
        assert patient.ping()
    with psycopg.connect(shared.postgres_url, autocommit=True) as connection:
        shared.pause("postgres")
        postmaster = shared.pid("postgres") or 0
        assert {_state(pid) for pid in (postmaster, *descendants(postmaster))} == {"T"}
        shared.resume("postgres")
        assert connection.execute("select 1").fetchall() == [(1,)]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_killing_and_restarting_work_on_a_paused_server(shared: Servers) -> None:
    for name in ("redis", "postgres"):
        shared.pause(name)
        shared.kill(name)
        shared.restart(name)
        shared.pause(name)
        shared.restart(name)
    assert _sql(shared, "select 1") == [(1,)]


def test_a_replica_follows_and_can_be_killed_by_name(shared: Servers) -> None:
    name = shared.start_replica()
    with _redis(shared) as primary, _redis(shared, name) as replica:
        assert replica.info("replication")["role"] == "slave"
        primary.set("copied", "yes")
        assert primary.wait(1, 20_000) == 1
        assert replica.get("copied") == b"yes"
    shared.kill(name)
    assert shared.pid(name) is None


def test_an_unknown_name_is_refused(shared: Servers) -> None:
    with pytest.raises(UsageError, match=r"no server 'valkey'.*redis, postgres"):
        shared.kill("valkey")


def test_a_port_that_is_taken_is_exchanged_at_the_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        taken = [first.getsockname()[1], second.getsockname()[1]]
        real, offered = ports.free_port, list(taken)
        monkeypatch.setattr(server, "free_port", lambda: offered.pop() if offered else real())
        with servers(workers=0, migrate=False) as s:
            assert offered == []
            _write(s, "here")
            assert not [port for port in taken if f":{port}/" in s.redis_url + s.postgres_url]


def test_a_restart_whose_port_was_taken_meanwhile_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "START_ATTEMPTS_MAX", 2)
    monkeypatch.setattr(server, "RETRY_S", 0.0)
    with servers(workers=0, migrate=False) as s:
        for name, error in (("redis", RedisUnavailable), ("postgres", PostgresUnavailable)):
            s.kill(name)
            port = int(s.url(name).rpartition(":")[2].partition("/")[0])
            with socket.create_server(("127.0.0.1", port)), pytest.raises(error, match="Address already in use"):
                s.restart(name)
            s.restart(name)


def test_a_server_that_cannot_start_shows_the_end_of_its_log() -> None:
    with (
        pytest.raises(RedisUnavailable, match="Bad directive"),
        servers(workers=0, migrate=False, redis_config={"no-such-option": "1"}),
    ):
        pass


def test_two_sets_do_not_meet() -> None:
    with servers(workers=0, migrate=False) as one, servers(workers=0, migrate=False) as other:
        _write(one, "one")
        _write(other, "other")
        one.kill("redis")
        one.kill("postgres")
        assert _read(other) == ("other", ["other"])


def test_nothing_is_left_after_the_block() -> None:
    with servers(workers=0, migrate=False) as s:
        folder = s.folder
        pids = [s.pid("redis"), s.pid("postgres"), *descendants(s.pid("postgres") or 0)]
        segment = _segment(folder)
        assert segment in _segments()
    assert not folder.exists()
    assert not folder.with_suffix(".lock").exists()
    assert [pid for pid in pids if pid is None or identity(pid) is not None] == []
    assert segment not in _segments()


def test_a_killed_postgres_leaves_no_shared_memory_after_the_block() -> None:
    with servers(workers=0, migrate=False) as s:
        segment = _segment(s.folder)
        s.kill("postgres")
        assert segment in _segments()
    assert segment not in _segments()


def _segment(folder: Path) -> str:
    return (folder / "postgres/data/postmaster.pid").read_text().splitlines()[6].split()[1]


def _segments() -> list[str]:
    return [line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]


def test_a_redis_server_from_the_machine_can_be_used_instead() -> None:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine")
    with servers(workers=0, migrate=False, redis_server=Path(binary)) as s:
        _write(s, "other")
        s.kill("redis")
        s.restart("redis")
        assert _read(s)[0] == "other"
        with _redis(s) as client:
            assert client.info("server").get("server_name") != "valkey"


def test_the_fixtures_work_in_a_users_tests(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import pytest, redis, psycopg\n"
        "@pytest.fixture(scope='session')\n"
        "def statecache_server_options(): return {'workers': 0, 'migrate': False}\n"
        "def test_it(statecache_redis_url, statecache_postgres_url, statecache_servers):\n"
        "    redis.Redis.from_url(statecache_redis_url).ping()\n"
        "    psycopg.connect(statecache_postgres_url).close()\n"
        "    assert statecache_servers.worker_pids == ()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout
