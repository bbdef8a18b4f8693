"""Programs that we start: they never outlive us, and they can be stopped, killed whole, paused and waited for.

* A program gets a session of its own, so that Ctrl-C in a terminal reaches only us; `launch.py` ties it to our life.
  That tie is to the *thread* that forked, so one thread, which lives as long as this process, starts all of them.
* Beside its log lies a file with its pid and the moment it started, by which a later run recognises what an earlier
  one left behind, however often pids are used again.
* Killing means the program and all below it: Postgres's children each lead a group of their own, and a restart is
  refused while one of them lives. The root is stopped first, so that it cannot fork while we look.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import msgspec

from statecache.clock import monotonic, sleep

POLL_S = 0.005
KILL_S = 10.0
FREEZE_S = 1.0
LOG_TAIL_BYTES_MAX = 4096

_LAUNCH = Path(__file__).with_name("launch.py")
_PROC = Path("/proc")


class RunAs(msgspec.Struct, frozen=True):
    """The ordinary user that a program runs as."""

    uid: int
    gid: int


class Process:
    """One running program, with its log `<folder>/<name>.log` and its pid file `<folder>/<name>.pid`."""

    def __init__(self, popen: subprocess.Popen[bytes], *, name: str, folder: Path, log_start: int) -> None:
        self.name = name
        self.pid = popen.pid
        self.log = folder / f"{name}.log"
        self._log_start = log_start
        self._pid_file = folder / f"{name}.pid"
        self._popen = popen
        fresh = self._pid_file.with_suffix(".pid.new")
        fresh.write_text(f"{self.pid} {identity(self.pid) or '?'}\n")
        fresh.replace(self._pid_file)  # whole or not at all, for an interrupt may come in between

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal, None while the program runs."""
        status = self._popen.poll()
        if status is not None:
            self._pid_file.unlink(missing_ok=True)
        return status

    def is_running(self) -> bool:
        """Return whether the program has not ended yet."""
        return self.returncode is None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the program's end, and return whether it came."""
        if self.is_running() and not wait_for_end([self.pid], timeout_s):
            return False
        self._popen.wait()
        return not self.is_running()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program alone."""
        self._popen.send_signal(number)

    def stop(self, number: signal.Signals, *, timeout_s: float) -> bool:
        """Ask the program to end, kill it where it does not, and return whether it ended by itself."""
        self.resume()
        self.send(number)
        ended = self.wait(timeout_s)
        if not ended:
            self.kill()
        return ended

    def kill(self) -> None:
        """Kill the program and all below it at once, with SIGKILL, and wait for its end."""
        if self.is_running():
            kill_tree(self.pid)
            self.wait(KILL_S)

    def pause(self) -> None:
        """Freeze the program and all below it, with SIGSTOP."""
        if self.is_running():
            for pid in _frozen_tree(self.pid)[1:]:
                _freeze(pid)

    def resume(self) -> None:
        """Let a paused program go on."""
        if self.is_running():
            for pid in (*descendants(self.pid), self.pid):
                _signal(pid, signal.SIGCONT)

    def written(self) -> bytes:
        """Return what the program has written to its log since it was started."""
        with self.log.open("rb") as stream:
            stream.seek(self._log_start)
            return stream.read()

    def tail(self) -> str:
        """Return the end of what the program wrote, for error messages."""
        return self.written()[-LOG_TAIL_BYTES_MAX:].decode("utf-8", "replace").strip() or "it wrote nothing"


def spawn(
    command: Sequence[str | Path],
    *,
    name: str,
    folder: Path,
    environment: Mapping[str, str],
    death_signal: signal.Signals = signal.SIGKILL,
    run_as: RunAs | None = None,
    cwd: Path | None = None,
) -> Process:
    """Start a program that logs to `folder` and gets `death_signal` when this process ends, in whatever way."""
    user = run_as or RunAs(uid=-1, gid=-1)
    tied = [sys.executable, "-I", "-S", _LAUNCH, int(death_signal), os.getpid(), user.uid, user.gid, *command]

    def start(log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(part) for part in tied],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            umask=0o077,
            start_new_session=True,
        )

    with open(folder / f"{name}.log", "ab", opener=_private) as log:
        log_start = log.tell()
        popen = _spawner().run(lambda: start(log))
    return Process(popen, name=name, folder=folder, log_start=log_start)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def until(ready: Callable[[], bool], process: Process, *, timeout_s: float) -> bool:
    """Wait until `ready()` and return True; return False where the program ended first or the time is over."""
    deadline = monotonic() + timeout_s
    while process.is_running() and monotonic() < deadline:
        if ready():
            return True
        sleep(POLL_S)
    return False


class _Spawner:
    """The thread that starts every program. It is a daemon, so it goes last, together with the process.

    It leaves signals to the threads that there were: where these hold one back, it is held back. `launch.py` takes all.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._jobs: SimpleQueue[tuple[Future[subprocess.Popen[bytes]], Callable[[], subprocess.Popen[bytes]]]]
        self._jobs = SimpleQueue()
        threading.Thread(target=self._work, name="statecache-spawner", daemon=True).start()

    def run(self, job: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        future: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((future, job))
        return future.result()

    def _work(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            future, job = self._jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:  # it belongs to whoever waits for the result
                future.set_exception(error)


_the_spawner: _Spawner | None = None
_the_spawner_lock = threading.Lock()


def _spawner() -> _Spawner:
    global _the_spawner
    with _the_spawner_lock:
        if _the_spawner is None or _the_spawner.pid != os.getpid():  # a forked child has no copy of the thread
            _the_spawner = _Spawner()
        return _the_spawner


def identity(pid: int) -> str | None:
    """Return a word that no other process with this pid will ever have; None where the process has ended."""
    if not (_PROC / "self").exists():
        command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
        words = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        return None if not words or words[0].startswith("Z") else "-".join(words[1:])
    fields = _proc_stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    boot = ""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{fields[19]}"


def _proc_stat(pid: int) -> list[str] | None:
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below this one, parents before children."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in children.get(parent, ())]
        found += level
    return found


def _parents() -> Iterable[tuple[int, int]]:
    if not (_PROC / "self").exists():
        shown = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        for line in shown.stdout.splitlines():
            child, parent = line.split()
            yield int(child), int(parent)
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _proc_stat(int(entry.name))) is not None:
            yield int(entry.name), int(fields[1])


def kill_tree(pid: int) -> None:
    """Kill a process and all below it, and return when they are gone."""
    family = _frozen_tree(pid)
    for member in family:
        _signal(member, signal.SIGKILL)
    wait_for_end(family, KILL_S)


def _frozen_tree(pid: int) -> list[int]:
    _freeze(pid)
    return [pid, *descendants(pid)]


def _freeze(pid: int) -> None:
    """Stop a process and wait until it stands still: SIGSTOP takes effect only after a moment."""
    _signal(pid, signal.SIGSTOP)
    deadline = monotonic() + FREEZE_S
    while (fields := _proc_stat(pid)) is not None and fields[0] not in "TtZX" and monotonic() < deadline:
        sleep(POLL_S / 5)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_for_end(pids: Iterable[int], timeout_s: float) -> bool:
    """Wait until none of these processes runs any more, ours or not, and return whether that came true."""
    deadline = monotonic() + timeout_s
    return all(_wait_for_one(pid, deadline) for pid in pids)


def _wait_for_one(pid: int, deadline: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):
        return _poll_for_one(pid, deadline)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(max(0.0, deadline - monotonic()) * 1000))
    finally:
        os.close(descriptor)


def _poll_for_one(pid: int, deadline: float) -> bool:
    first = identity(pid)
    while first is not None and identity(pid) == first:
        if monotonic() >= deadline:
            return False
        sleep(POLL_S * 4)
    return True
