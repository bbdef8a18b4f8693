"""The supervisor: starts everything, reads the journals as they grow, kills on schedule, starts again, then audits.

One loop, one thread; only the start of a killed server, which takes its time, runs beside it. A kill that is due waits
until a commit is in flight. Whether one really was at the moment of the kill shows only afterwards, when the journals
have told all about that moment; where none was, the kill does not count and is due again.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from statecache.clock import monotonic, sleep
from statecache.errors import ConfigurationError, Unavailable, UsageError
from statecache.keys import KeySpace
from statecache.model import Durability
from statecache.replay.agent import Job
from statecache.replay.audit import Verdict, judge, judge_journals
from statecache.replay.evidence import Sources
from statecache.replay.fleet import Agents, AgentStopped, Flushers, ReplayFailed
from statecache.replay.ledger import Flights, Ledger
from statecache.replay.nemesis import KINDS, Kill, schedule
from statecache.replay.pace import Pace, think_s_for
from statecache.replay.progress import Casualties, ReplayProgress, Show
from statecache.replay.report import Report, report
from statecache.replay.runs import AgentRun, key_of
from statecache.replay.stage import SERVERS, Killable, Stage, stage, urls_are_given
from statecache.replay.story import Story, richer, story
from statecache.replay.watermarks import Watermarks
from statecache.settings import Settings

RUNS_AT_ONCE = 4
"""Runs that one agent process plays at a time, so that commits are always in flight."""
PATIENCE_S = 120.0
_TURN_S, _WATCHFUL_S = 0.01, 0.001
_SURE_S = 0.05
_BRAKE, _BRAKED_MAX_S = 8.0, 3.0
_SETTLE_S = 120.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay is asked for.

    `think_s` None means: as slow as the kills need it; `throwaway`: on servers of its own, whatever the settings name.
    """

    runs: list[AgentRun]
    seed: int
    agents: int = 4
    flushers: int = 2
    kills: tuple[str, ...] = ()
    durability: Durability | None = None
    think_s: float | None = None
    timeout_s: float = 900.0
    journals: Path | None = None
    throwaway: bool = False

    @property
    def messages(self) -> int:
        """The number of messages in all runs."""
        return sum(len(run.messages) for run in self.runs)


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """A replay that came to its end, with the number of changes that the audit read and one run's story."""

    report: Report
    changes: int
    story: Story | None
    stage: Stage


def replay(options: Options, settings: Settings, *, show: Show) -> Report:
    """Replay, kill, audit and return the report; raise what keeps the replay from coming to its end."""
    with replayed(options, settings, show=show) as played:
        return played.report


@contextmanager
def replayed(options: Options, settings: Settings, *, show: Show) -> Iterator[Played]:
    """Do as `replay` does, and keep what the replay made, servers of its own too, until the block ends."""
    refuse_unfit(options, settings)
    with ExitStack() as ending:
        folder = ending.enter_context(_folder(options.journals))
        show(ReplayProgress(doing="starting servers"))
        keys = [key_of(run.id) for run in options.runs]
        on = ending.enter_context(stage(settings, keys, throwaway=options.throwaway))
        try:
            played = Supervisor(options, on, folder, show).run()
        except AgentStopped as error:
            raise _translated(error) from error
        if options.journals is None and played.report.audit_ok:
            _remove(folder)
            yield played
        else:
            report = msgspec.structs.replace(played.report, journals=str(folder))
            yield msgspec.structs.replace(played, report=report)


def refuse_unfit(options: Options, settings: Settings) -> None:
    """Raise UsageError for a kill that is not possible, before anything is started."""
    unknown = [kind for kind in options.kills if kind not in KINDS]
    if unknown:
        raise UsageError(f"{unknown[0]!r} cannot be killed", hint=f"There are: {', '.join(KINDS)}.")
    if not options.throwaway and urls_are_given(settings):
        theirs = [kind for kind in options.kills if kind in SERVERS]
        if theirs:
            raise UsageError(
                f"{theirs[0]} is not this replay's own and will not be killed",
                hint="Leave the URLs out and it runs on throwaway servers.",
            )


def _translated(error: AgentStopped) -> Exception:
    if error.kind in ("ConfigurationError", "DurabilityRefused"):
        return ConfigurationError(str(error).rstrip("."))
    if error.kind in ("Unavailable", "RedisUnavailable", "PostgresUnavailable"):
        return Unavailable("agent", detail=str(error))
    return ReplayFailed(str(error).rstrip("."))


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    """Open the folder for journals and logs; a temporary one goes if another error than ReplayFailed ends the block."""
    if wanted is None:
        folder = Path(tempfile.mkdtemp(prefix="statecache-replay-"))
        try:
            yield folder
        except ReplayFailed as error:
            raise ReplayFailed(error.reason, kept=folder) from error
        except BaseException:  # nothing to tell: servers away, settings that do not fit, Ctrl-C
            _remove(folder)
            raise
        return
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        used = any(wanted.iterdir())
    except OSError as error:
        raise UsageError(f"{wanted} cannot be used for journals: {error.strerror}") from None
    if used:
        raise UsageError(f"{wanted} is not empty, and the journals of two replays must not mix")
    yield wanted.resolve()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


class _Struck(msgspec.Struct, frozen=True):
    """A kill that was carried out; it counts if one of `flights` had a commit in flight then.

    Of a killed agent they are its own alone: only its own commits tell whether it resumes as it should.
    """

    kill: Kill
    at: float
    flights: tuple[Flights, ...]


class Supervisor:
    """One replay, carried through from the first process to the audit."""

    def __init__(self, options: Options, on: Stage, folder: Path, show: Show) -> None:
        self._options = options
        self._on = on
        self._show = show
        jobs = _jobs(options)
        self._agents = Agents(folder, on.environment, jobs)
        self._flushers = Flushers(folder, on.environment)
        self._pace = Pace.shared(folder)
        self._due = schedule(options.kills, seed=options.seed)
        at_once = sum(min(job.concurrency, len(job.runs)) for job in jobs)
        planned = think_s_for(options.messages, len(self._due), at_once)
        self._think_s = planned if options.think_s is None else options.think_s
        self._braked_s = min(max(self._think_s, 0.05) * _BRAKE, _BRAKED_MAX_S)
        self._struck: list[_Struck] = []
        self._counted: list[_Struck] = []
        self._revivals: list[tuple[float, Callable[[], None]]] = []
        self._casualties = Casualties()
        self._down: set[str] = set()
        self._starting: dict[str, Future[None]] = {}
        self._executor = ThreadPoolExecutor(max_workers=len(SERVERS), thread_name_prefix="statecache-restart")
        self._end = monotonic() + options.timeout_s
        self._watermarks = Watermarks(on.settings)
        self._changes = 0
        self._story: Story | None = None

    def run(self) -> Played:
        """Play the runs, wait until all is flushed, and audit."""
        with self._pace, self._watermarks:
            try:
                self._play()
                verdict = asyncio.run(self._audit())
            finally:
                self._agents.kill_all()
                self._flushers.kill_all()
                self._executor.shutdown()
        found = report(
            self._agents.ledger,
            verdict,
            runs=len(self._options.runs),
            messages=self._options.messages,
            keys=KeySpace(self._on.settings.prefix, self._on.settings.shards),
            seen=self._watermarks.seen,
            kills=self._kills(),
            durability=self._options.durability or ("postgres" if self._agents.ledger.levels else "disk"),
            seed=self._options.seed,
        )
        return Played(report=found, changes=self._changes, story=self._story, stage=self._on)

    def _play(self) -> None:
        self._pace.set_think_s(self._think_s)
        for _ in range(self._options.flushers):
            self._flushers.start()
        while len(self._flushers.ready()) < self._options.flushers:
            self._look_after_flushers()
            self._tick("starting flushers", _TURN_S)
        for agent in sorted(self._agents.unfinished):
            self._agents.start(agent)
        while self._agents.unfinished or self._revivals or self._starting:
            self._turn()
        self._confirm(monotonic())

    def _turn(self) -> None:
        self._agents.read()
        self._look_after_flushers()
        for agent in self._agents.reap():
            self._agents.start(agent)
        now = monotonic()
        self._confirm(now - _SURE_S)
        self._revive(now)
        self._welcome_back(now)
        progress = self._agents.ledger.acknowledged / self._options.messages
        due = [kill for kill in self._due if kill.progress <= progress]
        possible = [kill for kill in due if self._has_victim(kill)]
        if possible:
            self._strike(possible[0])
        crowded = len(due) > 1 or len(possible) < len(due)
        self._pace.set_think_s(max(self._think_s, self._braked_s) if crowded else self._think_s)
        self._tick("replaying", _WATCHFUL_S if possible else _TURN_S)

    def _tick(self, doing: str, seconds: float) -> None:
        if monotonic() > self._end:
            done = f"{self._agents.ledger.acknowledged} of {self._options.messages} messages"
            raise ReplayFailed(f"{doing} took longer than {self._options.timeout_s:g} s ({done} acknowledged)")
        self._tell(doing)
        sleep(seconds)

    def _tell(self, doing: str) -> None:
        progress = ReplayProgress(
            doing=doing,
            acknowledged=self._agents.ledger.acknowledged,
            flushed=self._watermarks.flushed,
            kills=self._kills(),
            casualties=tuple(self._casualties),
        )
        self._show(progress)

    def _look_after_flushers(self) -> None:
        for _ in range(self._flushers.reap()):
            self._flushers.start()

    # Kills.

    def _has_victim(self, kill: Kill) -> bool:
        if kill.kind in SERVERS:
            return kill.kind not in self._down
        return kill.kind == "agent" or bool(self._flushers.ready())

    def _strike(self, kill: Kill) -> None:
        """Carry a kill out if a commit is in flight; else leave it due."""
        flying = [life for life in self._agents.living() if life.flights.any_open]
        ready = self._flushers.ready() if kill.kind == "flusher" else []
        if not flying or (kill.kind == "flusher" and not ready):
            return
        self._due.remove(kill)
        now = monotonic()
        if kill.kind == "agent":
            victim = flying[int(kill.pick * len(flying))]
            flying = [victim]
            self._casualties.add("agent", str(victim.agent), at=now)
            self._agents.kill(victim)
            self._later(kill, partial(self._agents.start, victim.agent))
        elif kill.kind == "flusher":
            flusher = ready[int(kill.pick * len(ready))]
            self._casualties.add("flusher", flusher.name, at=now)
            self._flushers.kill(flusher)
            self._later(kill, self._flushers.start)
        elif self._on.servers is not None:
            self._casualties.add(kill.kind, kill.kind, at=now)
            self._on.servers.kill(kill.kind)
            self._down.add(kill.kind)
            self._later(kill, partial(self._restart, self._on.servers, kill.kind))
        self._struck.append(_Struck(kill, now, tuple(life.flights for life in flying)))

    def _restart(self, servers: Killable, name: str) -> None:
        self._starting[name] = self._executor.submit(servers.restart, name)

    def _later(self, kill: Kill, revival: Callable[[], None]) -> None:
        self._revivals.append((monotonic() + kill.down_s, revival))

    def _revive(self, now: float) -> None:
        for when, revival in list(self._revivals):
            if when <= now:
                self._revivals.remove((when, revival))
                revival()
        for name, starting in list(self._starting.items()):
            if starting.done():
                starting.result()
                del self._starting[name]
                self._down.discard(name)

    def _welcome_back(self, now: float) -> None:
        """Record who is at work again; of several flushers it is unknown which, so the longest away counts as back."""
        back = [one for one in self._casualties.away("agent") if self._agents.is_at_work(int(one.name))]
        for name in SERVERS:
            back += [] if name in self._down else self._casualties.away(name)
        if flushers := self._casualties.away("flusher"):
            missing = self._options.flushers - len(self._flushers.ready())
            back += flushers[: max(0, len(flushers) - missing)]
        for one in back:
            self._casualties.back(one, at=now)

    def _confirm(self, until: float) -> None:
        """Count the kills of which the journals tell by now; one that met nothing in flight is due again."""
        for struck in [one for one in self._struck if one.at <= until]:
            self._struck.remove(struck)
            if any(flights.in_flight_at(struck.at) for flights in struck.flights):
                self._counted.append(struck)
            else:
                self._due.insert(0, struck.kill)

    def _kills(self) -> dict[str, int]:
        return {kind: sum(one.kill.kind == kind for one in self._counted) for kind in self._options.kills}

    # The end.

    async def _audit(self) -> Verdict:
        verdict = Verdict()
        ledger: Ledger = self._agents.ledger
        judge_journals(ledger.contradictions, verdict)
        async with Sources(self._on.settings) as sources:
            behind = await sources.settle(
                end=min(self._end, monotonic() + _SETTLE_S), meanwhile=partial(self._tell, "waiting for the flush")
            )
            if behind:
                verdict.note(f"not everything was flushed in time: {len(behind)} shards, {behind[0]} first")
            self._tell("draining flushers")
            self._flushers.drain()
            starts = await sources.starts()
            self._tell("auditing")
            async for one in sources.evidence(self._options.runs, ledger):
                judge(one, starts, verdict)
                self._changes += len(one.rows)
                self._story = richer(self._story, story(one))
        return verdict


def _jobs(options: Options) -> list[Job]:
    """Deal the runs out to the agents; where there are more agents than runs, the rest get no job."""
    agents = min(options.agents, len(options.runs))
    return [
        Job(
            durability=options.durability,
            concurrency=RUNS_AT_ONCE,
            patience_s=min(PATIENCE_S, options.timeout_s),
            seed=options.seed * 1000 + agent,
            runs=options.runs[agent::agents],
        )
        for agent in range(agents)
    ]
