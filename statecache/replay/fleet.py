"""The agent and flusher processes of a replay: started, killed, started again, and their journals read as they grow."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from statecache.clock import monotonic
from statecache.errors import StateCacheError
from statecache.replay.agent import Job, job_path
from statecache.replay.journal import Fatal, Line, Started, Tail, journal_path
from statecache.replay.ledger import Flights, Ledger
from statecache.settings import process_environment
from statecache.testing.process import Process, spawn
from statecache.testing.workers import STOP_S

CRASHES_MAX = 5
LINE_CHARACTERS_MAX = 300
_READY = b'"ready"'


class ReplayFailed(StateCacheError):
    """The replay did not come to its end: {reason}."""

    reason: str

    def __init__(self, reason: str, *, kept: Path | None = None) -> None:
        super().__init__(reason=reason, hint="" if kept is None else f"Journals and logs: {kept}")


class AgentStopped(StateCacheError):
    """Agent {agent} gave up with {kind}: {error}"""

    agent: int
    kind: str
    error: str

    def __init__(self, agent: int, *, kind: str, error: str) -> None:
        super().__init__(agent=agent, kind=kind, error=error)


def _last_line(process: Process) -> str:
    line = process.tail().splitlines()[-1]
    return f"{line if len(line) <= LINE_CHARACTERS_MAX else line[: LINE_CHARACTERS_MAX - 1] + '…'} ({process.log})"


class Life:
    """One life of an agent: its process, its journal, its sendings in flight."""

    def __init__(self, agent: int, number: int, process: Process, tail: Tail) -> None:
        self.agent = agent
        self.number = number
        self.process = process
        self.flights = Flights()
        self._tail = tail
        self._fatal: Fatal | None = None
        self.is_at_work = False

    def read(self, ledger: Ledger) -> None:
        """Take in the lines that the journal got since the last call."""
        lines: list[Line] = list(self._tail.read())
        ledger.take(lines)
        self.flights.take(lines)
        self.is_at_work = self.is_at_work or any(not isinstance(line, Started) for line in lines)
        self._fatal = next((line for line in lines if isinstance(line, Fatal)), self._fatal)

    def ended(self, ledger: Ledger, *, at: float) -> None:
        """Take in the last lines of a process that has ended; raise AgentStopped where its agent gave up."""
        self.read(ledger)
        self.flights.over_at = at
        if self._fatal is not None:
            raise AgentStopped(self.agent, kind=self._fatal.kind, error=self._fatal.error)


class Agents:
    """All agents, one life of each at a time; one whose runs are complete is not started again."""

    def __init__(self, folder: Path, environment: Mapping[str, str], jobs: list[Job]) -> None:
        self._folder = folder
        self._environment = process_environment() | dict(environment)
        self.ledger = Ledger()
        self.lives: list[Life] = []
        self._current: dict[int, Life] = {}
        self._crashes = 0
        self.unfinished = set(range(len(jobs)))
        for agent, job in enumerate(jobs):
            job_path(folder, agent).write_bytes(msgspec.json.encode(job))

    def start(self, agent: int) -> None:
        """Start the agent's next life."""
        number = sum(1 for life in self.lives if life.agent == agent)
        name = f"agent-{agent}.{number}"
        process = spawn(
            [sys.executable, "-m", "statecache.replay.agent", self._folder, str(agent), str(number)],
            name=name,
            folder=self._folder,
            environment=self._environment | {"STATECACHE_WRITER": name},
        )
        life = Life(agent, number, process, Tail(journal_path(self._folder, agent, number)))
        self.lives.append(life)
        self._current[agent] = life

    def living(self) -> Iterator[Life]:
        """Return the lives whose process runs."""
        return (life for life in list(self._current.values()) if life.process.is_running())

    def is_at_work(self, agent: int) -> bool:
        """Return whether the agent's newest life has begun its work, or its runs are complete."""
        life = self._current.get(agent)
        return agent not in self.unfinished or (life is not None and life.is_at_work)

    def read(self) -> None:
        """Take in the new lines of every journal that may still grow."""
        for life in self._current.values():
            life.read(self.ledger)

    def reap(self) -> list[int]:
        """Drop processes that ended by themselves and return the agents to start again; too many raise ReplayFailed."""
        again = []
        for agent, life in list(self._current.items()):
            status = life.process.returncode
            if status is None:
                continue
            del self._current[agent]
            life.ended(self.ledger, at=monotonic())
            if status == 0:
                self.unfinished.discard(agent)
                continue
            self._crashes += 1
            if self._crashes > CRASHES_MAX:
                raise ReplayFailed(f"agents keep ending, the last with status {status}: {_last_line(life.process)}")
            again.append(agent)
        return again

    def kill(self, life: Life) -> None:
        """Kill a living agent, wait for its end, and take in the last lines of its journal."""
        life.process.kill()
        del self._current[life.agent]
        life.ended(self.ledger, at=monotonic())

    def kill_all(self) -> None:
        """Kill every agent that still runs."""
        for life in self.living():
            life.process.kill()


class Flushers:
    """All flusher processes of the replay."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = process_environment() | dict(environment)
        self._running: list[Process] = []
        self._started = 0
        self._crashes = 0

    def start(self) -> None:
        """Start one more flusher."""
        self._started += 1
        process = spawn(
            [sys.executable, "-m", "statecache", "worker"],
            name=f"worker-{self._started}",
            folder=self._folder,
            environment=self._environment,
        )
        self._running.append(process)

    def ready(self) -> list[Process]:
        """Return the flushers that have said that they are ready, oldest first."""
        return [process for process in self._running if process.is_running() and _READY in process.written()]

    def reap(self) -> int:
        """Drop flushers that ended by themselves and return how many; too many raise ReplayFailed."""
        ended = [process for process in self._running if not process.is_running()]
        for process in ended:
            self._running.remove(process)
            self._crashes += 1
            if self._crashes > CRASHES_MAX:
                raise ReplayFailed(f"flushers keep ending: {_last_line(process)}")
        return len(ended)

    def kill(self, process: Process) -> None:
        """Kill one flusher."""
        process.kill()
        self._running.remove(process)

    def drain(self) -> None:
        """End all flushers as a service manager would: they flush what is left, and give their shards back."""
        for process in self._running:
            process.send(signal.SIGTERM)
        end = monotonic() + STOP_S
        for process in self._running:
            if not process.wait(max(0.0, end - monotonic())):
                process.kill()
        self._running = []

    def kill_all(self) -> None:
        """Kill every flusher that still runs."""
        for process in self._running:
            process.kill()
