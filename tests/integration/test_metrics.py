"""What docs/metrics.md explains, what the dashboard asks for and what is exported are the same names.

Exported by a worker process and a client's observer that have seen a little real traffic, not by a list of names.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from statecache import AsyncStateCache, Settings
from statecache.adapters.prometheus import PrometheusObserver
from statecache.errors import PostgresUnavailable
from statecache_workers.database import Database
from statecache_workers.health import Pulse
from statecache_workers.metrics import Exposition
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, Log, MakeWorker, flush, flush_through
from tests.fixtures.servers import MakeClient
from tests.support.local_reads import kept
from tests.support.probing import ask, names, samples
from tests.support.workers import WorkerProcess

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config"
DASHBOARD = json.loads((CONFIG / "grafana/dashboards/statecache.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
_TOKEN = re.compile(
    r'(?P<space>\s+)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<range>\[(?:\$__rate_interval|\d+[smh])\])|(?P<number>\d+(?:\.\d+)?)'
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_:]*)|(?P<sign>=~|!=|!~|[-+*/=(){},])"
)
_WORDS = {
    "sum", "max", "min", "avg", "count", "topk", "by", "rate", "increase", "histogram_quantile",
}  # fmt: skip
"""The functions and words of PromQL that the dashboard uses."""


class Query(NamedTuple):
    """What a query asks for: metrics, and the labels by which it selects or sums."""

    metrics: set[str]
    labels: set[str]


def parsed(query: str) -> Query:
    """Return the metrics and labels of a query; raise ValueError for PromQL that the dashboard does not use."""
    found, at, opened = Query(set(), set()), 0, ""
    selecting = listing = False
    pairs = {")": "(", "}": "{"}
    before = ""
    while at < len(query):
        match = _TOKEN.match(query, at)
        if match is None:
            raise ValueError(f"{query[at:]!r} in {query!r}")
        at, kind, text = match.end(), match.lastgroup, match[0]
        if kind == "space":
            continue
        if text in "({" and kind == "sign":
            opened += text
            selecting, listing = selecting or text == "{", listing or before == "by"
        elif text in ")}" and kind == "sign":
            if opened[-1:] != pairs[text]:
                raise ValueError(f"{text!r} closes nothing in {query!r}")
            opened, selecting, listing = opened[:-1], False, False
        elif kind == "name" and (selecting or listing):
            found.labels.add(text)
        elif kind == "name" and text not in _WORDS:
            found.metrics.add(text)
        before = text
    if opened:
        raise ValueError(f"{opened!r} is not closed in {query!r}")
    return found


def _queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def _documented() -> dict[str, tuple[str, set[str]]]:
    """Return the tables of the page: type and labels by name."""
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| `statecache_")]
    return {
        name.strip().strip("`"): (kind.strip(), set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _, _ in rows
    }


class Exported(NamedTuple):
    """The pages of a worker and of a client."""

    worker: str
    client: str

    def series(self) -> dict[str, set[str]]:
        """Return the labels of every series, by its full name."""
        found: dict[str, set[str]] = {}
        for line in (self.worker + self.client).splitlines():
            if match := re.match(r"(statecache_\w+)(?:\{(.*)\})? ", line):
                labels = set(re.findall(r'(\w+)="', match[2] or ""))
                found.setdefault(match[1], set()).update(labels)
        return found


@pytest.fixture
async def exported(settings: Settings) -> Exported:
    """What a worker process and a client export after a little traffic."""
    registry = CollectorRegistry()
    async with WorkerProcess(settings, health_port=0) as process:
        port = (await process.until("listening"))["port"]
        await process.until("ready")
        async with AsyncStateCache(settings=settings, observer=PrometheusObserver(registry)) as client:
            for i in range(20):
                await client.set(f"runs/{i}", {"step": i})
            await client.update("runs/1", lambda value: {**value, "more": 1}, durability="postgres")
            assert await client.get("runs/1") is not None
        page = await asyncio.to_thread(ask, port, "/metrics")
        assert page.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return Exported(page.body, generate_latest(registry).decode())


async def test_documented_and_exported_names_are_the_same(exported: Exported) -> None:
    shown = names(exported.worker) | names(exported.client)
    assert {name for name in shown if not name.startswith("statecache_")} == set()
    assert shown == set(_documented())


async def test_types_and_labels_are_as_documented(exported: Exported) -> None:
    documented, series = _documented(), exported.series()
    types = dict(re.findall(r"^# TYPE (statecache_\w+) (\w+)$", exported.worker + exported.client, re.MULTILINE))
    for name, (kind, labels) in documented.items():
        assert types[name] == kind, name
        shown = series[f"{name}_bucket"] - {"le"} if kind == "histogram" else series[name]
        assert shown == labels, name


async def test_every_query_of_the_dashboard_finds_its_metrics_and_labels(exported: Exported) -> None:
    series = exported.series()
    for title, query in _queries():
        asked = parsed(query)
        assert asked.metrics, title
        for metric in asked.metrics:
            assert metric in series, f"{title}: {metric}"
            assert asked.labels - series[metric] <= {"job", "instance"}, f"{title}: {query}"


def test_the_dashboard_shows_every_documented_metric() -> None:
    asked = {metric for _, query in _queries() for metric in parsed(query).metrics}
    shown = {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in asked}
    assert set(_documented()) - shown == set()


@pytest.mark.parametrize("query", ["sum(rate(a[5m])", "sum(a))", "a{b='c'}", "sum(a} )", "a[soon]"])
def test_a_query_that_is_none_is_found(query: str) -> None:
    with pytest.raises(ValueError):
        parsed(query)


def test_a_query_is_taken_apart() -> None:
    query = 'topk(10, max by (shard) (rate(a_total{job=~"$job",kind!="x"}[$__rate_interval]))) / sum(b)'
    assert parsed(query) == Query({"a_total", "b"}, {"shard", "job", "kind"})


def test_panels_do_not_overlap_and_each_has_its_number() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_the_provisioning_files_fit_together() -> None:
    def read(path: str) -> Any:
        return yaml.safe_load((CONFIG / path).read_text(encoding="utf-8"))

    (source,) = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    (provider,) = read("grafana/provisioning/dashboards/statecache.yml")["providers"]
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["current"]["value"] == source["uid"]
    assert provider["type"] == "file"
    sources = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())}
    assert sources == {"${datasource}"}
    jobs = read("prometheus.yml")["scrape_configs"]
    assert {one["job_name"] for one in jobs} == {"statecache-workers", "statecache-clients"}


def _scraped(worker: Worker) -> dict[str, float]:
    """Scrape a worker of this process."""
    return samples(Exposition(worker, Pulse(timeout_s=10, lease_s=5)).page().body.decode())


async def test_a_transaction_that_is_repeated_counts_once(
    agents: Agents, worker: Worker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    await flush(worker)
    commit, failures = Database.commit, 3

    async def fail(database: Database, statements: Any = ()) -> None:
        nonlocal failures
        if failures:
            await database.exchange(list(statements))
            failures -= 1
            await database.close()
            raise PostgresUnavailable("connection", detail="it went away at COMMIT")
        await commit(database, statements)

    for i in range(10):
        agents.commit((f"runs/{i}", "x"), (f"runs/{i}/more", "y"), **({"reason": "a\0b"} if i == 3 else {}))
    monkeypatch.setattr(Database, "commit", fail)
    await flush_through(worker)
    assert failures == 0
    assert len(log.of("quarantined")) > 1
    found = _scraped(worker)
    assert found["statecache_flushed_entries_total"] == 10
    assert found["statecache_quarantined_total"] == 1
    assert found["statecache_flush_batch_entries_sum"] == 10
    assert found["statecache_flush_lag_seconds_count"] >= 1


async def test_bytes_streams_and_what_left_them_are_counted(
    agents: Agents, make_worker: MakeWorker, settings: Settings, redis_raw: Any
) -> None:
    worker = make_worker(settings.model_copy(update={"health_port": 0}))
    for i in range(6):
        agents.commit((f"runs/{i}", "x" * 10))
    await flush(worker)
    size = 6 * (len("runs/0") + 10 + 200)
    found = _scraped(worker)
    assert (found["statecache_stream_entries"], found["statecache_stream_bytes"]) == (6, size)
    assert found["statecache_flushed_bytes_total"] == size
    assert await worker.leave()
    tidy = make_worker(settings.model_copy(update={"health_port": 0, "retention_s": 0.0}))
    while _scraped(tidy)["statecache_trimmed_entries_total"] < 6:
        if not await tidy.turn():
            await tidy.rest()
    assert _scraped(tidy)["statecache_states_marked_evictable_total"] == 6
    assert sum(redis_raw.xlen(agents.keys.changes(shard)) for shard in range(4)) == 0


async def test_a_client_that_wants_no_tracked_connection_is_not_counted_as_lacking_one(
    make_client: MakeClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)

    def untrusted() -> float:
        return samples(generate_latest(registry).decode())["statecache_client_near_untrusted"]

    one = make_client(settings.model_copy(update={"read": "local", "near_window_s": 30.0}))
    keeps_nothing = make_client(settings.model_copy(update={"read": "local", "near_bytes_max": 0}))
    for client in (one, keeps_nothing):
        observer.watches(getattr(client, "_client", client))
    assert untrusted() == 0
    await one.set("runs/1", 1)
    assert await keeps_nothing.get("runs/1") is not None
    assert untrusted() == 0
    await kept(one, "runs/1")
    assert untrusted() == 0
    monkeypatch.setattr(one._runtime.near, "trusted", lambda now: False)
    assert untrusted() == 1
    await one.close()
    assert untrusted() == 0


@pytest.mark.parametrize("limit", [{"backlog_entries_max": 4}, {"backlog_bytes_max": 4 * (len("runs/1") + 3 + 200)}])
async def test_a_backlog_is_as_full_as_the_limit_that_is_nearer(
    agents: Agents, make_worker: MakeWorker, settings: Settings, limit: dict[str, int]
) -> None:
    worker = make_worker(settings.model_copy(update=limit))
    await flush(worker)
    shard = agents.keys.shard("runs/1")
    for _ in range(3):
        agents.commit(("runs/1", "xyz"))
    await worker.look()
    found = _scraped(worker)
    assert found[f"statecache_shard_backlog_used_ratio{{{shard}}}"] == 0.75
    await flush(worker)
    assert _scraped(worker)[f"statecache_shard_backlog_used_ratio{{{shard}}}"] == 0


async def test_what_is_left_to_a_worker_is_measured_before_its_lag_is_told(
    agents: Agents, make_worker: MakeWorker, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first flush may take long, and the age would be that of its first look meanwhile."""
    agents.commit("runs/1")
    worker = make_worker(settings.model_copy(update={"health_port": 0}))
    cycle, seen = worker.flusher.cycle, list[tuple[float, float]]()

    async def scrape(*given: Any, **more: Any) -> Any:
        found = _scraped(worker)
        seen.append((found["statecache_lag_entries"], found["statecache_stream_entries"]))
        return await cycle(*given, **more)

    monkeypatch.setattr(worker.flusher, "cycle", scrape)
    await flush(worker)
    assert seen[0] == (1, 1)


async def test_without_a_port_streams_are_not_measured(agents: Agents, worker: Worker) -> None:
    agents.commit("runs/1")
    await flush(worker)
    assert worker.stocks == {}
