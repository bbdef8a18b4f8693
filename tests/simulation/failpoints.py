"""Every command boundary of client and worker, one after the other, meets every fault. Enumerated, not drawn.

    python -m tests.simulation.failpoints [--only TEXT] [--kind KIND] [--lanes N] [--first] [--slice N]

Some recordings of each situation say which boundaries there are: those that all of them passed by. Each lane has
servers of its own and makes one visit at a time, each under a prefix and a schema of its own. In the end there is a
table, boundary by kind, and one line of JSON: {"faults": …, "operations": …, "violations": …}.

What a busy machine brings about at other times than in the recordings is tried a few times, in other situations that
came by it too, and told where it was not reached. The exit status is 1 for violations, and where more than one in
fifty was not reached.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from statecache.clock import monotonic
from statecache.testing import servers
from tests.simulation.boundaries import KINDS
from tests.simulation.children import Child, Report
from tests.simulation.story import SITUATIONS
from tests.simulation.visit import Failpoint, Role, Visit, Visited

LANES = 3
TRIES = 4
TRIES_MAX = 12
ROLES: tuple[Role, ...] = ("client", "worker")
UNREACHED_PART = 0.02
SHOWN_MAX = 40

Say = Callable[[str], object]


class Job(NamedTuple):
    """A visit to be made; without a failpoint it only records."""

    role: Role
    situation: str
    failpoint: Failpoint | None = None


class Place(NamedTuple):
    """A boundary, the situation in which it is visited, and those in which it could be."""

    role: Role
    situation: str
    boundary: str
    elsewhere: tuple[str, ...] = ()


class Told(msgspec.Struct, kw_only=True):
    """The outcome of a run: its boundaries and its visits."""

    places: list[Place]
    visited: list[Visited]


def places(recorded: Sequence[tuple[Job, Visited]]) -> list[Place]:
    """Return the boundaries that every recording of their situation passed by.

    A worker's boundary is visited in the first situation that shows it; a client's situations are all different, but
    what only leads up to a statement, or follows it, is the same everywhere.
    """
    told: dict[tuple[Role, str], list[list[str]]] = {}
    for job, visited in recorded:
        told.setdefault((job.role, job.situation), []).append(visited.boundaries)
    found: dict[tuple[Role, str], Place] = {}
    for (role, situation), lists in told.items():
        for name in lists[0]:
            if all(name in other for other in lists[1:]):
                place = found.setdefault((role, _kept(role, name)), Place(role, situation, name))
                if place.boundary == name and place.situation != situation:
                    found[role, _kept(role, name)] = place._replace(elsewhere=(*place.elsewhere, situation))
    return sorted(found.values(), key=lambda place: ROLES.index(place.role))


_ALIKE = ("handshake", "watermarks state_keys lost_keys", "watermarks states lost_keys recent_changes")
"""Exchanges of a client that are visited once, wherever they are made."""


def _kept(role: Role, name: str) -> str:
    """Return the name under which a boundary is visited: boundaries of the same name are visited once."""
    exchange = name.rpartition(": ")[2]
    of = exchange.partition(" #")[0]
    if role == "worker":
        return of if of.startswith(("connect", "cluster")) or of.endswith(("limit", "BEGIN")) else name
    leads = of.startswith("connect") or of.endswith((" BEGIN", " limit", " COMMIT"))
    return of if leads or of in _ALIKE else name


def all_failpoints(found: Sequence[Place]) -> list[Failpoint]:
    """Return every boundary with every kind of fault."""
    return [Failpoint(*place, kind) for place in found for kind in KINDS]


def a_slice(found: Sequence[Place], count: int) -> list[Failpoint]:
    """Return `count` failpoints, the same ones each time: boundaries evenly spread, the kinds in turn."""
    step = max(1.0, len(found) / count)
    chosen = [found[int(at * step)] for at in range(min(count, len(found)))]
    return [Failpoint(*place, KINDS[at % len(KINDS)]) for at, place in enumerate(chosen)]


class Host:
    """A pair of servers that another process has started, so that this one keeps to one thread."""

    def __init__(self, folder: Path, number: int) -> None:
        self._their_end, self._our_end = os.pipe()
        self._child = Child(f"servers-{number}", self._live, folder / f"servers-{number}.log")
        os.close(self._their_end)
        told: list[str] = []
        while not told and self._child.status is None:
            select.select([self._child.fd], [], [])
            told = self._child.lines()
        if not told:
            raise AssertionError(f"{self._child.name} ended with {self._child.status}: {self._child.tail()}")
        self.urls: tuple[str, str] = msgspec.json.decode(told[0], type=tuple[str, str])

    def _live(self, report: Report) -> int:
        os.close(self._our_end)
        with servers(workers=0, migrate=False, fsync=False, appendfsync="always") as own:
            report(msgspec.json.encode((own.redis_url, own.postgres_url)).decode())
            os.read(self._their_end, 1)
        return 0

    def close(self) -> None:
        """End the servers, and wait until they are gone."""
        os.close(self._our_end)
        while self._child.status is None:
            select.select([self._child.fd], [], [])
            self._child.lines()
        self._child.end()


class Lanes:
    """Pairs of servers, each with a process that makes visits; `close` ends them all."""

    def __init__(self, count: int, folder: Path) -> None:
        self._ending = ExitStack()
        self._folder = folder
        self._urls: list[tuple[str, str]] = []
        self._visits = 0
        for number in range(count):
            host = Host(folder, number)
            self._ending.callback(host.close)
            self._urls.append(host.urls)

    def close(self) -> None:
        """End the servers."""
        self._ending.close()

    def record(self, *, times: int, first: bool = False) -> list[tuple[Job, Visited]]:
        """Play every situation without a fault, so that `places` can find the boundaries."""
        return self.run([Job(role, name) for role in ROLES for name in SITUATIONS for _ in range(times)], first=first)

    def visit(self, failpoints: Sequence[Failpoint], *, first: bool = False, say: Say | None = None) -> list[Visited]:
        """Visit all failpoints; with `first`, stop at the first violation."""
        jobs = [Job(one.role, one.situation, one) for one in failpoints]
        return [visited for _, visited in self.run(jobs, first=first, say=say)]

    def run(self, jobs: Sequence[Job], *, first: bool = False, say: Say | None = None) -> list[tuple[Job, Visited]]:
        """Share the jobs out to the lanes, and return those that were done, in order, with their results."""
        base, self._visits = self._visits, self._visits + len(jobs) * TRIES_MAX
        give, take = os.pipe2(0)[::-1]
        os.write(give, b"".join(struct.pack("I", at) for at in range(len(jobs))))
        os.close(give)
        lanes = [
            Child(f"lane-{at}", lambda report, urls=urls: self._lane(urls, take, jobs, base, report),  # type: ignore[misc]
                  self._folder / f"lane-{at}.log")
            for at, urls in enumerate(self._urls)
        ]  # fmt: skip
        os.close(take)
        done: dict[int, Visited] = {}
        try:
            _listen(lanes, done, first=first, say=say)
        finally:
            for lane in lanes:
                lane.end()
        return [(jobs[at], done[at]) for at in sorted(done)]

    def _lane(self, urls: tuple[str, str], jobs_left: int, jobs: Sequence[Job], base: int, report: Report) -> int:
        while job := os.read(jobs_left, 4):
            (at,) = struct.unpack("I", job)
            role, situation, failpoint = jobs[at]
            situations = [situation, *(failpoint.elsewhere if failpoint else ())]
            for again in range(min(TRIES * len(situations), TRIES_MAX)):
                name = f"v{base + at * TRIES_MAX + again}"
                told_in = situations[again % len(situations)]
                visited = Visit(
                    urls, self._folder / name, name, role=role, situation=told_in, failpoint=failpoint
                ).run()
                if visited.reached or visited.violations or failpoint is None:
                    break
            if not visited.violations:
                shutil.rmtree(self._folder / name)
            report(f"{at} {msgspec.json.encode(visited).decode()}")
        return 0


def _listen(lanes: Sequence[Child], done: dict[int, Visited], *, first: bool, say: Say | None) -> None:
    while running := {lane.fd: lane for lane in lanes if lane.status is None}:
        for fd in select.select(running, [], [])[0]:
            for line in running[fd].lines():
                at, _, told = line.partition(" ")
                one = done[int(at)] = msgspec.json.decode(told, type=Visited)
                if say is not None:
                    say(_told(one, len(done)))
                if first and one.violations:
                    return
    for lane in lanes:
        if lane.status != 0:
            raise AssertionError(f"{lane.name} ended with {lane.status}: {lane.tail()}")


def _told(one: Visited, number: int) -> str:
    where = (
        f"{_spelled(one.failpoint)} · {one.failpoint.kind}"
        if one.failpoint
        else f"{one.role}  {one.situation}, told without a fault"
    )
    lines = [f"{number:4d}  {'ok' if not one.violations else 'VIOLATED'}  {one.seconds:5.1f} s  {where}"]
    return "\n".join([*lines, *(f"        {line}" for line in one.violations[:SHOWN_MAX])])


def unreached(visited: Sequence[Visited]) -> list[Failpoint]:
    """Return the failpoints whose fault did not happen."""
    return [one.failpoint for one in visited if one.failpoint is not None and not (one.reached or one.violations)]


def table(visited: Sequence[Visited]) -> str:
    """Return a table of faults by boundary: a dot, the number of violations, or `-` for not reached."""
    rows: dict[str, dict[str, str]] = {}
    for one in visited:
        if one.failpoint is not None:
            place = _spelled(one.failpoint)
            cell = str(len(one.violations)) if one.violations else "·" if one.reached else "-"
            rows.setdefault(place, {})[one.failpoint.kind] = cell
    width = max(map(len, rows), default=0)
    lines = [" " * width + "".join(f"  {kind:>12}" for kind in KINDS)]
    for name, cells in rows.items():
        lines.append(name.ljust(width) + "".join(f"  {cells.get(kind, ''):>12}" for kind in KINDS))
    return "\n".join(lines)


def main() -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Let every command boundary meet every fault.")
    parser.add_argument("--lanes", type=int, default=LANES)
    parser.add_argument("--only", default="", help="a part of the boundaries' names")
    parser.add_argument("--kind", choices=KINDS, help="one kind of fault")
    parser.add_argument("--first", action="store_true", help="end at the first violation")
    parser.add_argument("--list", action="store_true", help="only tell the boundaries")
    parser.add_argument("--recordings", type=int, default=4, help="of each situation, without a fault")
    parser.add_argument("--slice", type=int, help="visit only so many, always the same ones")
    parser.add_argument("--report", type=Path, help="a file for all that is known in the end, as JSON")
    given = parser.parse_args()
    begun = monotonic()
    folder = Path(tempfile.mkdtemp(prefix="failpoints-"))
    folder.chmod(0o755)
    lanes = Lanes(given.lanes, folder)
    visited: list[Visited] = []
    found: list[Place] = []
    try:
        recorded = lanes.record(times=given.recordings, first=given.first)
        visited = [one for _, one in recorded if one.violations]
        found = places(recorded)
        every = all_failpoints(found) if given.slice is None else a_slice(found, given.slice)
        chosen = [one for one in every if given.only in _spelled(one) and given.kind in (None, one.kind)]
        _say(f"{len(found)} boundaries, {len(chosen)} visits, {monotonic() - begun:.0f} s")
        if given.list:
            _say("\n".join(dict.fromkeys(_spelled(one) for one in chosen)))
        elif not visited or not given.first:
            visited += lanes.visit(chosen, first=given.first, say=_say)
    finally:
        lanes.close()
    if given.report is not None:
        given.report.write_bytes(msgspec.json.encode(Told(places=found, visited=visited)))
    violations, missed = _conclude(visited, folder), len(unreached(visited))
    _say(f"{monotonic() - begun:.0f} s, {missed} of {len(visited)} not reached")
    return 1 if violations or missed > len(visited) * UNREACHED_PART else 0


def _conclude(visited: Sequence[Visited], folder: Path) -> int:
    """Print the table and the sums, keep journals and logs where there are violations, and return their number."""
    violations = sum(len(one.violations) for one in visited)
    _say("\n".join(_told(one, 0) for one in visited if one.failpoint is None))
    _say(table(visited))
    if violations:
        _say(f"journals and logs: {folder}")
    else:
        shutil.rmtree(folder)
    told = {
        "faults": sum(one.reached for one in visited),
        "operations": sum(one.operations for one in visited),
        "violations": violations,
    }
    _say(msgspec.json.encode(told).decode())
    return violations


def _spelled(one: Failpoint) -> str:
    """Return the name of the place; a client's boundary names its situation already, a worker's gets it appended."""
    return f"client  {one.boundary}" if one.role == "client" else f"worker  {one.boundary}  ({one.situation})"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
