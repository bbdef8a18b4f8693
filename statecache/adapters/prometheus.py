"""Metrics of a client for Prometheus: an observer that counts what verbs do and how long they take.

    from statecache.adapters.prometheus import PrometheusObserver

    observer = PrometheusObserver()                   # once in a process, on the default registry
    cache = AsyncStateCache(observer=observer)        # any number of clients may share it

    observer.watches(cache)                           # its near cache too: hits, misses, what is kept, trust

How the registry gets to Prometheus is the program's affair: `prometheus_client.start_http_server`, or whatever it
serves already. Labels are the verb and the outcome, never a key. docs/metrics.md explains each name. It needs the extra
`statecache[metrics]`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import ref

from statecache import AsyncStateCache, ConfigurationError, StateCache, UsageError
from statecache._process import begins_anew_after_fork, mutex

try:
    from prometheus_client import REGISTRY, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        "metrics for Prometheus need the package prometheus-client",
        hint="pip install 'statecache[metrics]' ('.[metrics]' in a checkout)",
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from statecache import NearStatistics, Operation

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""The bounds of the histogram: a commit takes some hundred microseconds, a wait for Postgres some ten milliseconds."""
COUNTED = {
    "hits": "Local reads that were answered in the process.",
    "misses": "Local reads that were not.",
    "invalidations": "States that somebody wrote while they were kept.",
    "evictions": "States that went for room.",
}
"""What near caches count."""


class _NearCaches(Collector):
    """The near caches of the watched clients, summed up when the registry is read; their reads pay nothing for it.

    A client is watched until nobody holds it or a namespace of it. Its near cache is held here until what it counted is
    added to the past: a counter never goes down. Whoever collects garbage only notes who is gone, for that may happen
    anywhere.
    """

    def __init__(self) -> None:
        self._watched: dict[ref[Any], Any] = {}
        self._gone: deque[ref[Any]] = deque()
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget what a parent's clients counted, as their near caches do."""
        self._mutex = mutex
        self._past = dict.fromkeys(COUNTED, 0)

    def watch(self, runtime: Any) -> None:
        """Count a client's near cache too; once, however often it is given."""
        with self._mutex:
            self._part()
            self._watched.setdefault(ref(runtime, self._gone.append), runtime.near)

    def _part(self) -> None:
        """Add what those counted that are gone to the past."""
        while self._gone:
            stand = self._watched.pop(self._gone.popleft()).statistics(0.0)  # the moment matters to trust alone
            for name in COUNTED:
                self._past[name] += getattr(stand, name)

    def describe(self) -> Iterator[Metric]:
        """Yield the same metrics as `collect`: the registry takes their names from here."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics: counters of all that were ever watched, gauges of those that are still there."""
        with self._mutex:
            self._part()
            past = dict(self._past)
            stand: list[NearStatistics] = [near.statistics(0.0) for near in self._watched.values()]
            runtimes = [runtime for one in self._watched if (runtime := one()) is not None]
        for name, told in COUNTED.items():
            value = past[name] + sum(getattr(one, name) for one in stand)
            yield CounterMetricFamily(f"statecache_client_near_{name}", told, value=value)
        for name, told in (("entries", "States kept in the process."), ("bytes", "About the memory that they take.")):
            yield GaugeMetricFamily(
                f"statecache_client_near_{name}", told, value=sum(getattr(one, name) for one in stand)
            )
        untrusted = sum(runtime.near_statistics().untracked for runtime in runtimes)
        told = "Clients that read everything from the primary at the moment, for want of a tracked connection."
        yield GaugeMetricFamily("statecache_client_near_untrusted", told, value=untrusted)


class PrometheusObserver:
    """An observer that counts calls of verbs in a registry, which takes the names of its metrics only once."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        try:
            self._operations = Counter(
                "statecache_client_operations", "Calls of verbs that have ended, by outcome.", ["verb", "outcome"],
                registry=registry,
            )  # fmt: skip
            self._seconds = Histogram(
                "statecache_client_operation_seconds", "How long calls of verbs took.", ["verb"], buckets=SECONDS,
                registry=registry,
            )  # fmt: skip
            self._retries = Counter(
                "statecache_client_retries", "What had to be tried again inside of verbs.", ["verb"], registry=registry
            )
            self._conflicts = Counter(
                "statecache_client_conflicts", "How often someone else was quicker.", ["verb"], registry=registry
            )
            self._hydrations = Counter(
                "statecache_client_hydrations", "States looked for in Postgres because Redis had none.", ["verb"],
                registry=registry,
            )  # fmt: skip
            self._near = _NearCaches()
            registry.register(self._near)
        except ValueError as error:
            raise ConfigurationError(
                f"the registry has such metrics already: {error}", hint="Make one observer and give it to every client."
            ) from error

        self._by_verb: dict[str, tuple[Histogram, Counter, Counter, Counter]] = {}
        self._by_outcome: dict[tuple[str, str], Counter] = {}

    def watches(self, client: StateCache | AsyncStateCache) -> None:
        """Count the client's near cache too, for as long as the client or a namespace of it is held."""
        if not isinstance(client, (StateCache, AsyncStateCache)):
            raise UsageError(
                f"watches takes a StateCache or an AsyncStateCache, not a {type(client).__name__}",
                hint="The near cache is the client's, and all of its namespaces share it.",
            )
        self._near.watch(client._runtime)

    def ended(self, operation: Operation) -> None:
        """Count one call of a verb, and what was tried again inside of it."""
        verb, outcome = operation.verb, operation.outcome
        known = self._by_verb.get(verb) or self._known(verb)
        ended = self._by_outcome.get((verb, outcome))
        if ended is None:
            ended = self._by_outcome[verb, outcome] = self._operations.labels(verb, outcome)
        ended.inc()
        seconds, retries, conflicts, hydrations = known
        seconds.observe(operation.seconds)
        for counter, times in (
            (retries, operation.attempts - 1), (conflicts, operation.conflicts), (hydrations, operation.hydrations),
        ):  # fmt: skip
            if times:
                counter.inc(times)

    def _known(self, verb: str) -> tuple[Histogram, Counter, Counter, Counter]:
        """Return a verb's series; the first call creates them, at zero."""
        found = self._by_verb[verb] = (
            self._seconds.labels(verb),
            self._retries.labels(verb),
            self._conflicts.labels(verb),
            self._hydrations.labels(verb),
        )
        return found
