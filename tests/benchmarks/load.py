"""How commits go when many clients commit at once, and how far durability is behind them.

`clients` lets 1 to 16 processes commit without a pause, while one worker flushes. What can be kept up is the rate at
which a round's commits became durable: all of them, from the first commit to the last watermark. Half of the best of
these rates is then offered by schedule for `lag`: for each change, the time from its commit until the worker has said
that Postgres has it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

from statecache.keys import KeySpace
from tests.benchmarks.agents import Agents, Commit
from tests.benchmarks.backlog import WAIT_S, Backlog
from tests.benchmarks.measuring import Row, measure, percentile

CLIENTS = (1, 2, 4, 8, 16)
CLOSED_S = 1.0
OPEN_S = 3.0
QUIET_S = 0.3
LAG_MS_MAX = 100.0


class Mark(NamedTuple):
    """A shard's watermark, and when it was announced."""

    n: int
    at: float


class Kept(NamedTuple):
    """A number of clients, and the rate of their commits that the worker keeps up with."""

    clients: int
    rate: float


class Lags(NamedTuple):
    """From when each commit was sent, and was due, until it was durable, in seconds; and at which rate they were."""

    from_commit: list[float]
    from_due: list[float]
    rate: float


class Load:
    """The rows of many clients and one worker."""

    def __init__(self, agents: Agents, bare: Any, space: KeySpace, backlog: Backlog) -> None:
        self._agents = agents
        self._bare = bare
        self._space = space
        self._backlog = backlog
        self._best: Kept | None = None

    def clients(self, rounds: int) -> list[Row]:
        """Measure one number of clients after the other, in every round, and find the best rate."""
        spent: dict[int, list[list[float]]] = defaultdict(list)
        rates: dict[int, list[float]] = defaultdict(list)
        kept: dict[int, list[float]] = defaultdict(list)
        self._backlog.until_flushed()
        for turn in range(rounds):
            for clients in CLIENTS[:: 1 if turn % 2 else -1]:
                order = self._agents.send(clients, seconds=CLOSED_S)
                done = self._agents.answers(clients)
                self._backlog.until_flushed()
                kept[clients].append(len(done) / (monotonic() - order.start))
                rates[clients].append(len(done) / (max(commit.answered for commit in done) - order.start))
                spent[clients].append([commit.answered - commit.sent for commit in done])
        self._best = best_of(kept)
        return [
            Row(
                subject=measure(_clients(clients), spent[clients], ops_s=rates[clients]),
                figures=[ours / one for ours, one in zip(rates[clients], rates[1], strict=True)],
            )
            for clients in CLIENTS
        ]

    def lag(self, rounds: int) -> Row:
        """Offer half of the best rate by schedule, and measure the time from each commit until it is durable."""
        if self._best is None:
            self.clients(1)
        assert self._best is not None
        clients, rate = self._best.clients, self._best.rate / 2
        self._backlog.until_flushed()
        found = [self.offer(clients, rate) for _ in range(rounds)]
        rates = [one.rate for one in found]
        offered = f"{rate:,.0f}/s by {_clients(clients).removeprefix('commits of ')}"
        return Row(
            subject=measure(f"flush lag at {offered}", [one.from_commit for one in found], ops_s=rates),
            against=measure("the same, from when the commit was due", [one.from_due for one in found], ops_s=rates),
            figures=[1e3 * percentile(one.from_commit, 99) for one in found],
            unit="ms",
            bound=LAG_MS_MAX,
        )

    def offer(self, clients: int, rate: float) -> Lags:
        """Offer commits by schedule for a while, and return how long after each it was durable."""
        order = self._agents.send(clients, seconds=OPEN_S, rate=rate)
        marks = self._marks(order.end)
        done = self._agents.answers(clients)
        durable = durable_at(done, marks)
        return Lags(
            [at - commit.sent for at, commit in zip(durable, done, strict=True)],
            [at - commit.due for at, commit in zip(durable, done, strict=True)],
            len(done) / (max(durable) - order.start),
        )

    def _marks(self, end: float) -> dict[int, list[Mark]]:
        """Collect the watermarks of each shard until commits have ended, all is flushed, and none moves for a while."""
        shards = range(self._space.shards)
        names = {self._space.events(shard).encode(): shard for shard in shards}
        marks: dict[int, list[Mark]] = {shard: [] for shard in shards}
        with self._bare.pubsub(ignore_subscribe_messages=True) as events:
            events.ssubscribe(*names)
            while True:
                message = events.get_message(timeout=max(QUIET_S, end - monotonic()))
                at = monotonic()
                if message is not None and message["type"] == "smessage":
                    marks[names[message["channel"]]].append(Mark(int(message["data"].split()[1]), at))
                elif message is None and at >= end and self._backlog.is_flushed():
                    return marks
                if at > end + WAIT_S:
                    raise TimeoutError(f"it was not all flushed within {WAIT_S:.0f} s")


def best_of(kept: Mapping[int, Sequence[float]]) -> Kept:
    """Return the number of clients whose median rate over the rounds is the highest, and that rate."""
    return max((Kept(clients, median(rates)) for clients, rates in kept.items()), key=lambda one: one.rate)


def durable_at(commits: Iterable[Commit], marks: Mapping[int, Sequence[Mark]]) -> list[float]:
    """Return when a watermark of its shard first covered each commit; raise ValueError where none did."""
    found = []
    for commit in commits:
        of_shard = marks[commit.shard]
        at = bisect_left(of_shard, commit.n, key=lambda mark: mark.n)
        if at == len(of_shard):
            raise ValueError(f"change {commit.n} of shard {commit.shard} was not flushed while anybody listened")
        found.append(of_shard[at].at)
    return found


def _clients(clients: int) -> str:
    return f"commits of {clients} client process{'es' if clients > 1 else ''}"
