"""The report of a replay: numbers, and what the audit found."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from statecache.keys import KeySpace
from statecache.model import Position
from statecache.replay.audit import Verdict
from statecache.replay.ledger import Ledger, flush_lags, percentile
from statecache.replay.nemesis import KILLS_EACH
from statecache.replay.runs import key_of


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay found, in the order in which it is shown.

    `resumed` counts how often a later life of an agent took a run up again. A commit's time is from its first sending
    to its acknowledgement, repeats and outages included; how the flush lag is taken stands in `watermarks`. `journals`
    is the folder of journals and logs, where it was kept.
    """

    runs: int
    messages: int
    commits_acked: int
    lost: int
    duplicated: int
    forked: int
    quarantined: int
    resumed: int
    kills: dict[str, int]
    commits_per_s: float
    commit_p50_ms: float
    commit_p99_ms: float
    flush_lag_p99_ms: float
    audit_ok: bool
    findings: list[str]
    durability: str
    seed: int
    journals: str = ""

    @property
    def kills_reached(self) -> bool:
        """Whether every kind that was to be killed was, often enough, with commits in flight."""
        return all(count >= KILLS_EACH for count in self.kills.values())


def report(
    ledger: Ledger,
    verdict: Verdict,
    *,
    runs: int,
    messages: int,
    keys: KeySpace,
    seen: dict[int, list[tuple[int, float]]],
    kills: Mapping[str, int],
    durability: str,
    seed: int,
) -> Report:
    """Return the report: what ledger, verdict and watermarks add up to."""
    acknowledged = [(sent, sent.ok) for sent in ledger.sent.values() if sent.ok is not None]
    took_ms = [(ok.at - sent.first_at) * 1000 for sent, ok in acknowledged]
    first_at = min((sent.first_at for sent, _ in acknowledged), default=0.0)
    lasted_s = max((ok.at for _, ok in acknowledged), default=0.0) - first_at
    places = [
        (keys.shard(key_of(sent.run)), position.n, ok.at)
        for sent, ok in acknowledged
        if (position := Position.parse(ok.position)) is not None
    ]
    return Report(
        runs=runs,
        messages=messages,
        commits_acked=len(acknowledged),
        lost=verdict.lost,
        duplicated=verdict.duplicated,
        forked=verdict.forked,
        quarantined=verdict.quarantined,
        resumed=len(ledger.resumed),
        kills=dict(kills),
        commits_per_s=round(len(acknowledged) / lasted_s, 1) if lasted_s > 0 else 0.0,
        commit_p50_ms=round(percentile(took_ms, 0.50), 2),
        commit_p99_ms=round(percentile(took_ms, 0.99), 2),
        flush_lag_p99_ms=round(percentile([lag * 1000 for lag in flush_lags(places, seen)], 0.99), 1),
        audit_ok=verdict.ok,
        findings=verdict.findings,
        durability=durability,
        seed=seed,
    )
