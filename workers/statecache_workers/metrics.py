"""A worker's metrics in Prometheus' text format, put together when they are asked for. docs/metrics.md explains each.

Nothing here runs while nobody asks, and nothing is told to a metrics library on the way: the worker keeps plain
numbers, and what it knows of its shards it knows anyhow. Reading happens in the port's thread, so every container is
copied in one step before it is looked at.

Labels are few and fixed; only the lag in entries and the backlog's used part have one series a shard, of the shards
that this worker holds, so all workers together have at most as many of each as there are shards. Prometheus itself
tells workers apart by `instance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from statecache import __version__
from statecache.clock import monotonic
from statecache.rules.backlog import backlog_used
from statecache_workers.health import SERVERS, Page
from statecache_workers.lag import lag_of

if TYPE_CHECKING:
    from statecache_workers.counters import Buckets
    from statecache_workers.health import Pulse
    from statecache_workers.worker import Worker

KIND = "text/plain; version=0.0.4; charset=utf-8"


class Exposition(Collector):
    """One worker's metrics, put together when they are asked for."""

    def __init__(self, worker: Worker, pulse: Pulse) -> None:
        self._worker = worker
        self._pulse = pulse

    def page(self) -> Page:
        """Return the page of the metrics as they are now."""
        return Page(200, generate_latest(self), KIND)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; which there are does not depend on what has happened."""
        yield InfoMetricFamily("statecache_build", "The release that runs.", value={"version": __version__})
        yield from self._standing()
        yield from self._lag()
        yield from self._flushed()
        yield from self._set_aside()
        yield from self._streams()

    def _standing(self) -> Iterator[Metric]:
        worker, pulse = self._worker, self._pulse
        holdings = list(worker.holdings.values())
        share, gatekeeper, troubles = worker.share, worker.gatekeeper, pulse.troubles
        closed = sum(one.phase == "new" and gatekeeper.tried(one.shard) for one in holdings)
        yield _gauge("ready", "Whether it is ready, as /readyz says.", not pulse.unready())
        yield _gauges("outage", "Whether a server could not be reached at the last attempt.", "server",
                      {server: server in troubles for server in SERVERS if server != "other"})  # fmt: skip
        yield _counters("errors", "What ended a turn, or kept a gate closed, by kind.", "kind",
                        dict(pulse.errors) | {"gate": gatekeeper.failures})  # fmt: skip
        yield _histogram("turn_seconds", "How long a turn took.", worker.turn_s)
        yield _gauge("turn_age_seconds", "How long ago the last turn ended.", pulse.turn_age_s())
        yield _gauge("shards", "How many shards the cluster has.", worker.settings.shards)
        yield _gauge("shards_owned", "How many shards are its own, by leases that stand.", worker.owned)
        yield _gauge("shards_closed", "How many of its shards have a gate that it could not open.", closed)
        yield _gauge("shards_apart", "How many of its shards are set apart, for what it found there.",
                     len(worker.apart))  # fmt: skip
        yield _gauge("shards_avoided", "How many shards it leaves to others, for it could not serve them.",
                     len(worker.avoidance.shards))  # fmt: skip
        yield _gauge("redis_full", "Whether Redis is nearly full of what may not be evicted.", worker.room.full)
        yield _gauge("shards_unowned", "How many shards nobody owned when it last looked.", share.unowned)
        yield _gauge("workers_live", "How many workers lived when it last looked.", share.live)
        yield _gauge(
            "epoch", "The highest epoch among its shards.", max((one.row.epoch for one in holdings), default=0)
        )
        yield _counter("epochs_opened", "How many epochs it has opened, one a shard.", gatekeeper.epochs_opened)

    def _lag(self) -> Iterator[Metric]:
        worker = self._worker
        lag = lag_of(list(worker.holdings.values()), worker.heads, worker.stocks, now=monotonic())
        yield _gauge("lag_entries", "How many change-sets of its shards Postgres does not hold yet.", lag.entries)
        yield _gauge("lag_bytes", "How many bytes of its shards only Redis holds: what is at risk.", lag.bytes)
        yield _gauge("oldest_unflushed_age_seconds", "The age of the oldest of them.", lag.age_s)
        yield _gauges("shard_lag_entries", "The same in entries, by shard.", "shard",
                      {str(shard): entries for shard, entries in sorted(lag.of.items())})  # fmt: skip
        limits = {"entries_max": worker.settings.backlog_entries_max, "bytes_max": worker.settings.backlog_bytes_max}
        yield _gauges("shard_backlog_used_ratio", "What part of a shard's backlog limit is used, by shard.", "shard",
                      {str(shard): backlog_used(entries, lag.bytes_of[shard], **limits)
                       for shard, entries in sorted(lag.of.items())})  # fmt: skip
        yield _histogram("flush_lag_seconds", "From the commit of a batch's oldest change until Postgres held it.",
                         worker.flusher.counters.lag_s)  # fmt: skip

    def _flushed(self) -> Iterator[Metric]:
        counters = self._worker.flusher.counters
        yield _counter("flushed_entries", "How many change-sets it has flushed.", counters.entries)
        yield _counter("flushed_changes", "How many changes it has flushed.", counters.changes)
        yield _counter("flushed_bytes", "How many bytes of changes it has flushed.", counters.bytes)
        yield _histogram(
            "flush_batch_entries", "How many change-sets went into one transaction.", counters.batch_entries
        )
        yield _histogram("flush_transaction_seconds", "How long one transaction took.", counters.transaction_s)

    def _set_aside(self) -> Iterator[Metric]:
        worker = self._worker
        counters, conflicts = worker.flusher.counters, dict(worker.flusher.counters.conflicts)
        conflicts["branch"] = conflicts.get("branch", 0) + worker.gatekeeper.conflicts + worker.primary.rescued
        yield _counter("quarantined", "How many stream entries it has parked in quarantine.", counters.quarantined)
        yield _counters("conflicts", "How many changes it has set aside as conflicts, by cause.", "cause", conflicts)
        yield _counter("gaps", "How many gaps in a stream it has come across.", counters.gaps)
        yield _counter("gap_entries_repaired", "How many lost entries it has rebuilt from states.", counters.repaired)
        yield _counter("gap_entries_lost", "How many lost entries could not be rebuilt, or in part.", counters.lost)

    def _streams(self) -> Iterator[Metric]:
        worker, stocks = self._worker, list(self._worker.stocks.values())
        yield _gauge("stream_entries", "How many entries the streams of its shards hold.",
                     sum(one.entries for one in stocks))  # fmt: skip
        yield _gauge("stream_bytes", "How many bytes of changes they hold.", sum(one.bytes for one in stocks))
        yield _counter("expired_states", "How many states it has deleted because their end had come.",
                       worker.expiry.deleted)  # fmt: skip
        janitor = worker.janitor
        yield _counter(
            "packed_changes", "How many changes of an earlier release it has packed.", janitor.packing.packed
        )
        yield _counter("pruned_values", "How many values it has let go, as policies say.", janitor.prunes.pruned.values)
        yield _counter("pruned_bytes", "How many bytes of them were kept.", janitor.prunes.pruned.freed)
        yield _counter(
            "indexed_states", "Of how many states it has taken the vectors into an index.", janitor.vectors.indexed
        )
        yield _counter("trimmed_entries", "How many flushed entries it has let go.", worker.janitor.trimmed)
        yield _counter("states_marked_evictable", "How many clean states it has given a time to live.",
                       worker.janitor.marked)  # fmt: skip


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"statecache_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"statecache_{name}", text, value=float(value))


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _labelled(GaugeMetricFamily(f"statecache_{name}", text, labels=[label]), values.items())


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _labelled(CounterMetricFamily(f"statecache_{name}", text, labels=[label]), values.items())


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[str, float]]
) -> GaugeMetricFamily | CounterMetricFamily:
    for label, value in values:
        family.add_metric([label], float(value))
    return family


def _histogram(name: str, text: str, buckets: Buckets) -> Metric:
    cumulated, total = buckets.cumulated()
    return HistogramMetricFamily(f"statecache_{name}", text, buckets=cumulated, sum_value=total)
