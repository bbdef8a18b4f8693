"""`statecache dev` keeps its servers' data, stops when told to, and says what is in its way.

The worker is a stand-in, but for the test that runs the command itself and tries out what it prints.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
import redis

from statecache.testing.dev_servers import Remembered
from statecache.testing.ports import free_port
from statecache.testing.process import descendants, identity, wait_for_end
from tests.fixtures.surroundings import short_folder
from tests.support.polling import pause_thread

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0
LAST_LINE = "Ctrl-C stops them."
STAND_IN = """
import os, signal, sys
assert os.environ["STATECACHE_REDIS_URL"] and os.environ["STATECACHE_POSTGRES_URL"]
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
if sys.argv[1] == "worker":
    print('{"event":"ready"}', file=sys.stderr, flush=True)
    signal.sigwait([signal.SIGTERM])
    print('{"event":"drained"}', file=sys.stderr)
"""
DEV = f"""
import pathlib, sys
from statecache.testing import dev_servers, workers
def migrate(environment):
    assert environment["STATECACHE_REDIS_URL"] and environment["STATECACHE_POSTGRES_URL"]
workers.STATECACHE = (sys.executable, "-c", {STAND_IN!r})
dev_servers.migrate = migrate
dev_servers.SYSTEM_DATA = pathlib.Path(sys.argv[3])
from statecache.dev import run_dev
from statecache.errors import StateCacheError
try:
    sys.exit(run_dev(folder=pathlib.Path(sys.argv[1]) if sys.argv[1] else None, redis_port=int(sys.argv[2]) or None))
except StateCacheError as error:
    sys.exit(str(error))
"""


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def none_is_left_behind() -> Iterator[None]:
    """A failed test's servers end too."""
    yield
    for process in _started:
        process.kill()
        process.communicate()
    _started.clear()


class Dev:
    """One run of `statecache dev`, whose printed has been read."""

    def __init__(
        self,
        folder: Path | None,
        *,
        redis_port: int = 0,
        environment: dict[str, str] | None = None,
        system_data: Path = Path("/nowhere"),
        command: list[str] | None = None,
        last: str = LAST_LINE,
    ) -> None:
        self.process = subprocess.Popen(
            command or [sys.executable, "-c", DEV, str(folder or ""), str(redis_port), str(system_data)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            cwd=ROOT,
            env=dict(os.environ) | (environment or {}),
        )
        _started.append(self.process)
        self.printed = self.until(last)
        self.urls = dict(re.findall(r"export (\w+)=(\S+)", self.printed))
        self.redis_url = self.urls.get("STATECACHE_REDIS_URL", "")
        self.postgres_url = self.urls.get("STATECACHE_POSTGRES_URL", "")

    def until(self, words: str) -> str:
        """Read on until a line with these words, or to the end."""
        assert self.process.stdout is not None
        lines: list[str] = []
        while not (lines and words in lines[-1]) and (line := self.process.stdout.readline()):
            lines.append(str(line))
        return "".join(lines)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=WAIT_S)
        return int(self.process.returncode), str(errors)

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.redis_url)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the user who runs Postgres for root can pass into, with ports of its own: others may run too."""
    with tempfile.TemporaryDirectory(prefix="sct", dir=short_folder()) as name:
        Path(name).chmod(0o711)
        path = Path(name) / "dev"
        path.mkdir(mode=0o711)
        (path / "kept.json").write_bytes(msgspec.json.encode(Remembered(free_port(), free_port())))
        yield path


def _write(dev: Dev, word: str) -> None:
    with dev.redis() as client:
        client.set("word", word)
    with psycopg.connect(dev.postgres_url, autocommit=True) as connection:
        connection.execute("create table if not exists word (word text)")
        connection.execute("insert into word values (%s)", [word])


def _words(dev: Dev) -> set[str]:
    with dev.redis() as client, psycopg.connect(dev.postgres_url) as connection:
        word = client.get("word")
        assert isinstance(word, bytes)
        return {word.decode()} | {row[0] for row in connection.execute("select word from word")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_stops_cleanly_and_the_next_run_finds_data_and_urls_again(folder: Path, number: signal.Signals) -> None:
    first = Dev(folder)
    _write(first, "kept")
    below = descendants(first.process.pid)
    assert first.end(number) == (0, "")
    assert [pid for pid in below if identity(pid) is not None] == []
    assert "drained" in (folder / "worker-1.log").read_text()
    assert "database system is shut down" in (folder / "postgres.log").read_text()
    second = Dev(folder)
    assert second.urls == first.urls
    assert _words(second) == {"kept"}
    assert second.end() == (0, "")


def test_a_killed_run_is_no_obstacle_and_its_data_are_there(folder: Path) -> None:
    first = Dev(folder)
    _write(first, "kept")
    below = descendants(first.process.pid)
    first.process.kill()
    first.process.communicate()
    assert wait_for_end(below, WAIT_S)
    second = Dev(folder)
    assert second.urls == first.urls
    assert _words(second) == {"kept"}
    assert second.end() == (0, "")


def test_a_second_one_in_the_same_folder_is_refused(folder: Path) -> None:
    first = Dev(folder)
    second = Dev(folder)
    _, errors = second.process.communicate(timeout=WAIT_S)
    assert second.process.returncode == 1
    assert f"already running in {folder} (process {first.process.pid})" in errors
    _write(first, "undisturbed")
    assert first.end() == (0, "")


def test_what_the_command_prints_can_be_tried(folder: Path) -> None:
    dev = Dev(None, command=[sys.executable, "-m", "statecache", "dev", "--folder", str(folder)])
    assert f"in {folder}\n" in dev.printed
    tried = [line.strip() for line in dev.printed.splitlines() if line.startswith("  ")]
    exports, lines = tried[:2], tried[2:]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for line, expected in zip(lines, ["", '{"step":1}', '{"step": 1}', "runs/42"], strict=True):
        if line.startswith("redis-cli") and shutil.which("redis-cli") is None:
            continue  # not everybody has it; psql comes with the wheel
        script = "\n".join(["set -e", *exports, line])
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, cwd=ROOT, check=False, env=dict(os.environ, PATH=path)
        )
        assert done.returncode == 0, (line, done.stderr)
        assert expected in done.stdout
    assert dev.end(signal.SIGINT) == (0, "")


def test_a_program_reads_one_object_a_line_for_all_that_happens(folder: Path) -> None:
    command = [sys.executable, "-m", "statecache", "dev", "--json", "--folder", str(folder)]
    dev = Dev(None, command=command, last="}")
    running = msgspec.json.decode(dev.printed)
    assert [*running] == ["event", "folder", "postgres_folder", "redis_url", "postgres_url"]
    assert (running["event"], running["folder"]) == ("running", str(folder))
    assert running["postgres_folder"] == str(folder / "postgres")
    dev.redis_url, dev.postgres_url = running["redis_url"], running["postgres_url"]
    _write(dev, "kept")
    os.kill(int((folder / "redis.pid").read_text().split()[0]), signal.SIGKILL)
    assert msgspec.json.decode(dev.until("}")) == {"event": "restarted", "server": "redis"}
    dev.process.send_signal(signal.SIGINT)
    rest, errors = dev.process.communicate(timeout=WAIT_S)
    assert (msgspec.json.decode(rest), errors, dev.process.returncode) == ({"event": "stopping"}, "", 0)


@pytest.mark.parametrize("name", ["redis", "postgres", "worker"])
def test_what_was_killed_is_started_again(folder: Path, name: str) -> None:
    dev = Dev(folder)
    _write(dev, "kept")
    file = folder / ("worker-1.pid" if name == "worker" else f"{name}.pid")
    os.kill(int(file.read_text().split()[0]), signal.SIGKILL)
    assert f"The {name} ended; it was started again." in dev.until("started again")
    assert _words(dev) == {"kept"}
    assert dev.end() == (0, "")


def test_a_remembered_port_that_is_taken_is_exchanged_but_a_given_one_is_insisted_on(folder: Path) -> None:
    first = Dev(folder)
    port = int(first.redis_url.rpartition(":")[2].partition("/")[0])
    assert first.end() == (0, "")
    with socket.create_server(("127.0.0.1", port)):
        second = Dev(folder)
        assert second.redis_url != first.redis_url
        with second.redis() as client:
            assert client.ping()
        assert second.end() == (0, "")
        third = Dev(folder, redis_port=port)
        _, errors = third.process.communicate(timeout=WAIT_S)
        assert errors == (
            f"The configuration does not fit: nothing can be started on port {port} of 127.0.0.1: Address already in "
            "use. Give another one, or none to have one chosen.\n"
        )


def test_a_folder_that_cannot_be_made_is_told_in_one_line_and_is_a_matter_of_configuration(folder: Path) -> None:
    in_the_way = folder.parent / "file"
    in_the_way.touch()
    for wrong in (in_the_way / "data", in_the_way):
        done = subprocess.run(
            [sys.executable, "-m", "statecache", "dev", "--folder", str(wrong)],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
        assert f"the data cannot be kept in {wrong}: " in done.stderr


def test_told_to_stop_in_the_middle_of_its_start_it_leaves_nothing(folder: Path) -> None:
    command = [sys.executable, "-c", DEV, str(folder), "0", "/nowhere"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while not (folder / "redis.pid").exists():
        assert process.poll() is None
        pause_thread()
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0
    assert list(folder.glob("*.pid")) == []


def test_data_of_another_version_are_not_touched(folder: Path) -> None:
    assert Dev(folder).end() == (0, "")
    version = folder / "postgres/data/PG_VERSION"
    version.write_text("15\n")
    later = Dev(folder)
    _, errors = later.process.communicate(timeout=WAIT_S)
    assert "was made by Postgres 15" in errors


@pytest.fixture
def closed(tmp_path: Path, folder: Path) -> tuple[Path, Path]:
    """A closed home of root's, as it is nearly everywhere, and what stands for /var/lib/statecache."""
    if os.geteuid() != 0:
        pytest.skip("only root runs Postgres as another user")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home, folder.parent / "system"


def test_below_a_closed_home_of_root_the_data_of_postgres_go_where_it_can_reach_them(closed: tuple[Path, Path]) -> None:
    home, system_data = closed
    environment = {"HOME": str(home), "XDG_DATA_HOME": ""}
    dev = Dev(None, environment=environment, system_data=system_data)
    _write(dev, "kept")
    assert f"in {home}/" in dev.printed
    (data,) = system_data.glob("*/data")
    assert data.stat().st_uid != 0
    assert f"Postgres has its data in {data.parent}, " in dev.printed
    assert "Deleting that folder deletes none of them." in dev.printed
    assert "Nothing leads" not in dev.printed
    assert dev.end() == (0, "")
    assert home.stat().st_mode & 0o777 == 0o700
    again = Dev(None, environment=environment, system_data=system_data)
    assert _words(again) == {"kept"}
    assert again.end() == (0, "")


def test_a_folder_that_was_removed_and_made_anew_does_not_find_the_data_of_the_old_one(
    closed: tuple[Path, Path],
) -> None:
    home, system_data = closed
    folder = home / "dev"
    for word in ("old", "new"):
        dev = Dev(folder, system_data=system_data)
        _write(dev, word)
        assert _words(dev) == {word}
        told = re.findall(rf"Nothing leads to (\S+) from {folder} any more\. .*:\n\n  rm -r \1\n", dev.printed)
        assert [Path(left) for left in told] == ([(home / "old/postgres").readlink()] if word == "new" else [])
        assert dev.end() == (0, "")
        folder.rename(home / word)
    moved = Dev(home / "old", system_data=system_data)
    assert _words(moved) == {"old"}
    assert moved.end() == (0, "")


def test_a_copy_of_a_folder_gets_no_postgres_of_another(closed: tuple[Path, Path]) -> None:
    """Not even where nobody runs there: both would go on from what the other one left."""
    home, system_data = closed
    first = Dev(home / "dev", system_data=system_data)
    _write(first, "undisturbed")
    assert first.end() == (0, "")
    shutil.copytree(home / "dev", home / "copy", symlinks=True)
    copy = Dev(home / "copy", system_data=system_data)
    _, errors = copy.process.communicate(timeout=WAIT_S)
    assert f"{home}/copy is a copy of {home}/dev, and leads to the same Postgres" in errors
    (home / "copy/postgres").unlink()
    copy = Dev(home / "copy", system_data=system_data)
    with pytest.raises(psycopg.errors.UndefinedTable):
        _words(copy)
    assert copy.end() == (0, "")
    again = Dev(home / "dev", system_data=system_data)
    assert _words(again) == {"undisturbed"}
    assert again.end() == (0, "")


def test_where_the_data_of_postgres_are_gone_it_begins_anew_in_the_same_place(closed: tuple[Path, Path]) -> None:
    home, system_data = closed
    first = Dev(home / "dev", system_data=system_data)
    _write(first, "old")
    assert first.end() == (0, "")
    place = (home / "dev/postgres").readlink()
    shutil.rmtree(system_data)
    dev = Dev(home / "dev", system_data=system_data)
    with pytest.raises(psycopg.errors.UndefinedTable):
        _words(dev)
    assert dev.end() == (0, "")
    assert (home / "dev/postgres").readlink() == place


def test_a_link_that_leads_elsewhere_is_not_followed_for_root(closed: tuple[Path, Path]) -> None:
    home, system_data = closed
    (home / "dev").mkdir()
    (home / "dev/postgres").symlink_to(home)
    dev = Dev(home / "dev", system_data=system_data)
    _, errors = dev.process.communicate(timeout=WAIT_S)
    assert f"leads to {home}, not into {system_data}" in errors
    assert [path.name for path in home.iterdir()] == ["dev"]


_STORM = """
import os, signal, time
from statecache.dev import _Signals
from statecache.testing.process import _spawner
parent, end = os.getpid(), time.monotonic() + 3
_spawner()  # the other thread that a signal may come to
for _ in range(2):
    if os.fork() == 0:
        while time.monotonic() < end and os.getppid() == parent:
            os.kill(parent, signal.SIGCHLD)
        os._exit(0)
while time.monotonic() < end + 0.2:
    with _Signals():
        pass
"""


def test_a_child_that_ends_while_signals_are_given_back_is_passed_over_in_silence() -> None:
    done = subprocess.run([sys.executable, "-c", _STORM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
