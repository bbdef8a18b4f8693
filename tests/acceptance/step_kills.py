"""Agents are killed in the middle of a step, or hindered, others take it up, and a journal of the effects is the judge.

    python -m tests.acceptance.step_kills [--times N] [--only TEXT] [--seed S]

Every case is a boundary at which the first agent dies by SIGKILL, and a way in which the second goes on:

    claim    at any moment while the intent is written      plain       nothing but the step
    intent   the intent is written, nothing has happened    check       `check=` reads the journal
    effect   the effect has happened, inside the function   idempotent  `idempotent=True`
    apply    the function has returned
    result   at any moment while the result is committed

or nobody dies, three agents want one step at once, and whoever has it

    race     does it
    slow     takes longer than a claim stands
    block    does so and blocks its event loop
    outage   does so while Redis is stopped for longer than a claim stands
    paused   is stopped for longer than that in the middle of it, taken for dead, and goes on

The effect is a line appended to a file. Then the lines are counted: with `plain` there is one, and the second agent has
the result, or at most one, and it was told StepUnknown; with `check` there is exactly one; with `idempotent` all have
the same idempotency key. Where nobody dies there is one effect, and all are given its result; only with `paused` others
are told StepUnknown, or do it again, as if the agent had died. The last line is JSON: {"cases": …, "unknown": …,
"violations": [...]}; exit status 1 for any.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import select
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from statecache import AgentRun, AsyncStateCache, Done, NotDone, Settings, StateCache, Step, StepUnknown
from statecache.clock import monotonic
from statecache.testing import servers
from tests.simulation.children import Child, Report, thaw

DEADLY = ("claim", "intent", "effect", "apply", "result")
LIVELY = ("race", "slow", "block", "outage", "paused")
BOUNDARIES = (*DEADLY, *LIVELY)
WAYS = ("plain", "check", "idempotent")
AT_ONCE = 8
RACERS = 3
CLAIM_S = 0.5
LIVELY_CLAIM_S = 1.5
"""Who lives must be seen to live on a machine that is busy, too."""
LASTS_S, AWAY_S = 4 * LIVELY_CLAIM_S, 2 * LIVELY_CLAIM_S
"""How long a function takes that takes long, and for how long a server or an agent is stopped meanwhile."""
LATEST_S = 0.008
"""Within this time of its beginning an agent dies that dies at any moment."""
PATIENCE_S = 60.0
KILLED = -signal.SIGKILL


class Case(NamedTuple):
    """One step of one run: where its first agent dies, and how the second goes on."""

    boundary: str
    way: str
    number: int

    @property
    def key(self) -> str:
        """The run's key."""
        return f"runs/{self.boundary}-{self.way}-{self.number}"


class Ended(NamedTuple):
    """How a case ended: the last words of each agent, its status, and the idempotency keys in the journal."""

    case: Case
    told: list[str]
    statuses: list[int | None]
    effects: list[str]
    completed: bool


def fault_of(ended: Ended) -> str:
    """Return what is wrong with how a case ended, or ''."""
    case, effects, last = ended.case, ended.effects, ended.told[-1:]
    if case.boundary == "paused":
        return _fault_of_paused(ended)
    if not last or not last[0].startswith(("result ", "unknown")):
        return f"the last agent told {ended.told}, statuses {ended.statuses}"
    knows = last[0].startswith("result ")
    if knows and last[0] != f"result {effects[0] if effects else ''}":
        return f"{last[0]} is not what the effect gave: {effects}"
    if knows != ended.completed:
        return "result and state are not one commit"
    if len(set(effects)) > 1:
        return f"several idempotency keys: {effects}"
    if case.way != "idempotent" and len(effects) > 1:
        return f"{len(effects)} effects"
    if case.boundary in LIVELY and (len(effects) != 1 or len(set(ended.told)) != 1):
        return f"the racers told {ended.told}, {len(effects)} effects"
    if case.way != "plain" and not knows:
        return "it is still unknown"
    if knows and not effects:
        return "a result without an effect"
    return ""


def _fault_of_paused(ended: Ended) -> str:
    """Return what is wrong where an agent was taken for dead and woke, or ''."""
    case, effects = ended.case, ended.effects
    if len(set(effects)) != 1 or (len(effects) > 1 and case.way != "idempotent"):
        return f"effects {effects}"
    others = {*ended.told} - {f"result {effects[0]}"} - (set() if case.way == "check" else {"unknown"})
    if others or len(ended.told) != RACERS or not ended.completed:
        return f"the agents told {ended.told}, completed: {ended.completed}"
    return ""


class Agent:
    """An agent whose step appends to the journal, and which dies where it is told to."""

    def __init__(self, case: Case, settings: Settings, journal: Path, *, dies: bool, rng: Random) -> None:
        self._case = case
        self._settings = settings
        self._journal = journal
        self._dies_at = case.boundary if dies else ""
        self._rng = rng

    def work(self, report: Report) -> int:
        """Run the step with one of the two clients, report its outcome, and return the exit status."""
        self._report = report
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        try:
            result = self._with_tasks() if self._case.number % 2 else self._with_threads()
        except StepUnknown:
            report("unknown")
        else:
            report(f"result {result}")
        return 0

    def _with_threads(self) -> Any:
        with StateCache(settings=self._settings) as cache:
            cache.update(self._case.key, lambda run: run, type=AgentRun, default=self._run)
            self._begins()
            return cache.step(self._case.key, "charge", self._charge, self._case.number, **self._terms())

    def _with_tasks(self) -> Any:
        async def work() -> Any:
            async with AsyncStateCache(settings=self._settings) as cache:
                await cache.update(self._case.key, lambda run: run, type=AgentRun, default=self._run)
                self._begins()
                charge = self._charge_slowly if self._case.boundary == "slow" else self._charge
                return await cache.step(self._case.key, "charge", charge, self._case.number, **self._terms())

        return asyncio.run(work())

    def _run(self) -> AgentRun:
        return AgentRun(goal="charge", plan=("charge",))

    def _terms(self) -> dict[str, Any]:
        terms: dict[str, Any] = {"apply": self._applied, "state_type": AgentRun}
        if self._case.way == "check":
            terms["check"] = self._look
        return terms | {"idempotent": self._case.way == "idempotent"}

    def _begins(self) -> None:
        if self._dies_at == "claim":
            self._die_soon()

    def _die_soon(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(0.0001, LATEST_S))

    def _die_if(self, boundary: str) -> None:
        if self._dies_at == boundary:
            os.kill(os.getpid(), signal.SIGKILL)

    def _charge(self, step: Step, number: int) -> str:
        self._die_if("intent")
        journal = os.open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(journal, f"{step.idempotency_key}\n".encode())
        os.close(journal)
        self._die_if("effect")
        if self._dies_at == "result":
            self._die_soon()
        if self._case.boundary in ("outage", "paused"):
            self._report(f"{self._case.boundary} {step.attempt}")
        if self._case.boundary in LIVELY[1:]:
            select.select([], [], [], LASTS_S)
        return step.idempotency_key

    async def _charge_slowly(self, step: Step, number: int) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LASTS_S):
                await asyncio.Event().wait()
        return await asyncio.to_thread(self._charge, step, number)

    def _applied(self, run: AgentRun, result: str) -> AgentRun:
        self._die_if("apply")
        return run.with_step("charge", result)

    def _look(self, step: Step) -> Done[str] | NotDone:
        return Done(step.idempotency_key) if step.idempotency_key in lines_of(self._journal) else NotDone()


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file that may not exist."""
    return path.read_text().split() if path.exists() else []


class Life(NamedTuple):
    """An agent's life: what it reported, and the status with which it ended."""

    told: list[str]
    status: int | None


class Stops:
    """Processes that are stopped for a while."""

    def __init__(self, redis_pid: int) -> None:
        self._redis_pid = redis_pid
        self._until: dict[int, float] = {}

    @property
    def next_at(self) -> float:
        """When the next of them is to be continued, on the monotonic clock."""
        return min(self._until.values(), default=inf)

    def heard(self, pid: int, line: str) -> bool:
        """Stop the process that an agent's line asks to be stopped, once each; return whether it asked for that."""
        what, _, attempt = line.partition(" ")
        if what not in ("outage", "paused"):
            return False
        stopped = self._redis_pid if what == "outage" else pid
        if attempt == "1" and stopped not in self._until:
            self._until[stopped] = monotonic() + AWAY_S
            os.kill(stopped, signal.SIGSTOP)
        return True

    def go_on(self, now: float = inf) -> None:
        """Continue those whose time has come."""
        thaw([pid for pid, until in self._until.items() if until <= now])
        self._until = {pid: until for pid, until in self._until.items() if until > now}


def lives(works: Sequence[Callable[[Report], int]], folder: Path, stops: Stops) -> list[Life]:
    """Run all processes at once to their ends."""
    children = [Child(str(at), work, folder / f"log-{at}") for at, work in enumerate(works)]
    told: dict[int, list[str]] = {child.pid: [] for child in children}
    until = monotonic() + PATIENCE_S
    try:
        while (living := [child for child in children if child.status is None]) and (now := monotonic()) < until:
            select.select([child.fd for child in living], [], [], max(min(until, stops.next_at) - now, 0))
            stops.go_on(monotonic())
            for child in living:
                told[child.pid] += [line for line in child.lines() if not stops.heard(child.pid, line)]
    finally:
        stops.go_on()
    for child in children:
        child.end()
    return [Life(told[child.pid], child.status) for child in children]


class Trial:
    """A maker of cases, several at a time."""

    def __init__(self, settings: Settings, folder: Path, seed: int, stops: Stops) -> None:
        self._settings = settings
        self._stops = stops
        self._folder = folder
        self._seed = seed

    def made(self, cases: Sequence[Case]) -> list[Ended]:
        """Let the first agents of some cases die and the second ones go on; return how each case ended."""
        first = [self._agents(case, dies=True) for case in cases]
        one = self._lived([agent for agents in first for agent in agents])
        killed = [case for case in cases if case.boundary in DEADLY]
        two = self._lived([agent for case in killed for agent in self._agents(case, dies=False)])
        with StateCache(settings=self._settings) as cache:
            found = {case: cache.get(case.key, type=AgentRun) for case in cases}
        ended = []
        for case in cases:
            lived = one[case] + two.get(case, [])
            told = [line for life in lived for line in life.told]
            state = found[case]
            completed = state is not None and state.value.completed == ("charge",)
            effects = lines_of(self._journal(case))
            ended.append(Ended(case, told, [life.status for life in lived], effects, completed))
        return ended

    def _agents(self, case: Case, *, dies: bool) -> list[tuple[Case, Agent]]:
        lively, rng = case.boundary in LIVELY, Random(f"{self._seed} {case} {dies}")
        settings = self._settings.model_copy(update={"step_claim_s": LIVELY_CLAIM_S}) if lively else self._settings
        agent = Agent(case, settings, self._journal(case), dies=dies, rng=rng)
        return [(case, agent)] * (RACERS if lively else 1)

    def _lived(self, agents: Sequence[tuple[Case, Agent]]) -> dict[Case, list[Life]]:
        lived: dict[Case, list[Life]] = {}
        lived_through = lives([agent.work for _, agent in agents], self._folder, self._stops)
        for (case, _), life in zip(agents, lived_through, strict=True):
            lived.setdefault(case, []).append(life)
        return lived

    def _journal(self, case: Case) -> Path:
        return self._folder / case.key.partition("/")[2]


def main(arguments: Sequence[str]) -> int:
    """Make every case as often as asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.step_kills")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args(arguments)
    every = [
        Case(boundary, way, number)
        for boundaries in (DEADLY, ("race", "slow", "block"), ("outage", "paused"))
        for number in range(given.times)
        for boundary in boundaries
        for way in WAYS
    ]
    cases = [case for case in every if given.only in case.key]
    counts, faults = Counter[str](), list[str]()
    for ended in _made(cases, given.seed):
        counts[f"{ended.case.boundary} {ended.case.way}"] += 1
        counts["killed"] += ended.statuses.count(KILLED)
        counts["unknown"] += ended.told[-1:] == ["unknown"]
        if fault := fault_of(ended):
            faults.append(f"{ended.case.key}: {fault}")
            sys.stderr.write(f"violation: {faults[-1]}\n")
    for boundary in BOUNDARIES:
        sys.stderr.write(f"{boundary:8}" + "".join(f"{way:>12} {counts[f'{boundary} {way}']}" for way in WAYS) + "\n")
    told = {"cases": len(cases), "killed": counts["killed"], "unknown": counts["unknown"], "violations": faults}
    sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    return 1 if faults else 0


def _made(cases: Sequence[Case], seed: int) -> Iterator[Ended]:
    with tempfile.TemporaryDirectory() as name, servers(workers=1, fsync=False) as site:
        urls = {"redis_url": site.redis_url, "postgres_url": site.postgres_url}
        settings = Settings(**urls, step_claim_s=CLAIM_S, timeout_s=30.0)
        trial = Trial(settings, Path(name), seed, Stops(site.pid("redis") or 0))
        for at in range(0, len(cases), AT_ONCE):
            yield from trial.made(cases[at : at + AT_ONCE])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
