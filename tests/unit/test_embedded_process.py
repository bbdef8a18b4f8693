"""Programs that we start end with us, whole, and are told apart from whoever gets their pid later."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from statecache.errors import Unavailable
from statecache.testing import workers
from statecache.testing.leftovers import clear, kill_recorded
from statecache.testing.process import Process, descendants, identity, spawn, until, wait_for_end

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "127.0.0.1:1"
WAIT_S = 20.0
FAMILY = """
import os, subprocess, sys
code = "import sys; sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
print("child", child.pid, flush=True)
child.wait()
"""


def _python(code: str, folder: Path, name: str = "program") -> Process:
    return spawn([sys.executable, "-c", code], name=name, folder=folder, environment={"LC_ALL": "C"})


def _family(folder: Path) -> tuple[Process, int]:
    parent = _python(FAMILY, folder)
    assert until(lambda: parent.written().endswith(b"\n"), parent, timeout_s=WAIT_S)
    return parent, int(parent.written().split()[1])


def test_killing_takes_the_children_in_other_sessions_too(tmp_path: Path) -> None:
    parent, child = _family(tmp_path)
    assert child in descendants(parent.pid)
    parent.kill()
    assert parent.returncode == -signal.SIGKILL
    assert identity(child) is None


def test_a_paused_family_stands_still_and_goes_on(tmp_path: Path) -> None:
    parent, child = _family(tmp_path)
    parent.pause()
    assert _states(parent.pid, child) == "TT"
    parent.resume()
    assert "T" not in _states(parent.pid, child)
    parent.kill()


def _states(*pids: int) -> str:
    return "".join(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids)


def test_a_paused_program_can_be_stopped(tmp_path: Path) -> None:
    parent, child = _family(tmp_path)
    parent.pause()
    assert parent.stop(signal.SIGTERM, timeout_s=WAIT_S)
    assert parent.returncode == -signal.SIGTERM
    assert wait_for_end([child], WAIT_S)  # by itself: it goes on too, and its input has ended with its parent


def test_a_program_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); signal.pause()"
    stubborn = _python(code, tmp_path)
    assert until(lambda: b"on" in stubborn.written(), stubborn, timeout_s=WAIT_S)
    assert not stubborn.stop(signal.SIGTERM, timeout_s=0.05)
    assert stubborn.returncode == -signal.SIGKILL


def test_a_program_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    """The kernel ties a death signal to the thread that forked."""
    started: list[Process] = []
    thread = threading.Thread(target=lambda: started.append(_python("import signal; signal.pause()", tmp_path)))
    thread.start()
    native = thread.native_id
    thread.join()
    assert until(lambda: not Path(f"/proc/self/task/{native}").exists(), started[0], timeout_s=WAIT_S)
    assert not started[0].wait(0.0)
    started[0].kill()


def test_a_program_ends_when_we_are_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, signal\n"
        "from statecache.testing.process import spawn\n"
        "p = spawn(['/bin/sleep', '1000'], name='a', folder=pathlib.Path(sys.argv[1]), environment={})\n"
        "sys.stdout.write(f'{p.pid}\\n'); sys.stdout.flush(); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    assert wait_for_end([pid], WAIT_S)


def test_a_program_that_cannot_be_run_says_so_in_its_log(tmp_path: Path) -> None:
    missing = spawn([tmp_path / "nothing"], name="missing", folder=tmp_path, environment={})
    assert missing.wait(WAIT_S)
    assert missing.returncode == 126
    assert "No such file" in missing.tail()


def test_logs_are_private_and_shown_from_the_last_start_on(tmp_path: Path) -> None:
    _python("print('first')", tmp_path).wait(WAIT_S)
    second = _python("print('second')", tmp_path)
    second.wait(WAIT_S)
    assert second.tail() == "second"
    assert (tmp_path / "program.log").stat().st_mode & 0o777 == 0o600


def test_an_interrupt_while_a_program_is_noted_leaves_nothing_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, _: str) -> None:
        path.touch()
        raise KeyboardInterrupt

    with subprocess.Popen([sys.executable, "-c", "pass"]) as popen, monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Process(popen, name="program", folder=tmp_path, log_start=0)
    assert [*tmp_path.glob("*.pid")] == []


def test_what_an_earlier_run_left_is_killed_but_nobody_else_with_its_pid(tmp_path: Path) -> None:
    left = _python("import signal; signal.pause()", tmp_path, "left")
    other = _python("import signal; signal.pause()", tmp_path, "other")
    (tmp_path / "other.pid").write_text(f"{other.pid} another-start\n")
    (tmp_path / "torn.pid").write_text("12")
    kill_recorded(tmp_path)
    assert [*tmp_path.glob("*.pid")] == []
    assert left.wait(WAIT_S)
    assert other.is_running()
    assert not [*tmp_path.glob("*.pid")]
    other.kill()
    assert clear(tmp_path)


WORKER = """
import json, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
if os.environ.get("STATECACHE_BROKEN") or os.environ.get("STATECACHE_REDIS_CA_FILE"):
    sys.exit("no way to Postgres")
print(json.dumps({"event": "ready", "url": os.environ["STATECACHE_REDIS_URL"]}), file=sys.stderr, flush=True)
signal.sigwait([signal.SIGTERM])
print('{"event":"drained"}', file=sys.stderr)
"""


@pytest.fixture
def fake_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STATECACHE", (sys.executable, "-c", WORKER))


@pytest.mark.usefixtures("fake_command")
def test_workers_are_ready_stopped_and_killed_one_by_one(tmp_path: Path) -> None:
    several = workers.Workers(tmp_path, lambda: {"STATECACHE_REDIS_URL": "redis://here"})
    several.start(3)
    first, second, third = several.pids
    assert json.loads((tmp_path / "worker-1.log").read_text()) == {"event": "ready", "url": "redis://here"}
    assert several.kill(1) == second
    assert several.pids == (first, third)
    several.pause()
    assert several.stop() == [0, 0]
    assert not several.pids
    assert "drained" in (tmp_path / "worker-3.log").read_text()


@pytest.mark.usefixtures("fake_command")
def test_files_for_tls_in_the_environment_are_not_meant_for_servers_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATECACHE_REDIS_CA_FILE", "/ca.pem")
    one = workers.Workers(tmp_path, lambda: {"STATECACHE_REDIS_URL": "redis://here"})
    one.start(1)
    assert one.stop() == [0]


@pytest.mark.usefixtures("fake_command")
def test_a_worker_that_dies_at_its_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    broken = workers.Workers(tmp_path, lambda: {"STATECACHE_BROKEN": "1"})
    with pytest.raises(Unavailable, match="worker-1 ended with status 1; it wrote: no way to Postgres"):
        broken.start(1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"STATECACHE_POSTGRES_URL": f"postgresql://{NOBODY}/x"}, f"Postgres is unavailable.*{NOBODY}"),
        ({"STATECACHE_SHARDS": "none"}, "shards: must be a whole number"),
        ({"STATECACHE_SHARD": "8"}, "shard: there is no such setting"),
    ],
)
def test_a_failed_migration_says_why(wrong: dict[str, str], said: str) -> None:
    nowhere = {"STATECACHE_REDIS_URL": f"redis://{NOBODY}/0", "STATECACHE_TIMEOUT_S": "5"}
    with pytest.raises(Unavailable, match=said):
        workers.migrate(nowhere | wrong)
