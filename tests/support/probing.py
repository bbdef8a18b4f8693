"""What a probe and a scrape see of a worker's port."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

PROBE_S = 20.0


class Answer(NamedTuple):
    """An answer of the port."""

    status: int
    body: str
    headers: Mapping[str, str]


def ask(port: int, path: str, *, method: str = "GET", host: str = "127.0.0.1", timeout_s: float = PROBE_S) -> Answer:
    """Send a request as a probe does and return the answer."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return Answer(reply.status, reply.read().decode(), dict(reply.getheaders()))
    finally:
        connection.close()


def samples(text: str) -> dict[str, float]:
    """Return the samples of a page of metrics, by `name` or `name{label}` with the label's value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def names(text: str) -> set[str]:
    """Return the names of a page of metrics as docs name them: a histogram by its own name."""
    found = set()
    for family in text_string_to_metric_families(text):
        found |= {family.name} if family.type == "histogram" else {sample.name for sample in family.samples}
    return {name for name in found if not name.endswith("_created")}
