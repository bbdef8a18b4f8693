"""What a history is judged by, and what is found: the chains that Postgres holds, losses, violations. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from tests.simulation.history import Operation


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One change as Postgres holds it; `tag` is its `reason`, and `by` the tag of what made its value.

    `follows` is the tag of the write whose value this one's value was computed from, where the value tells. With a
    `gap` what it continues is not in Postgres, and Postgres says so. A state ends at `until`, which is `ends` on the
    monotonic clock; `at` and `until` are in ms of the server's clock. `value` is what merges have made of it.
    """

    key: str
    change_id: str
    parent: str
    epoch: int
    version: int
    op: str = "set"
    n: int = 0
    tag: str = ""
    digest: str = ""
    follows: str | None = None
    by: str = ""
    value: Any = None
    gap: bool = False
    at: float = 0.0
    until: float = inf
    ends: float = inf

    def exists(self, at: float) -> bool:
        """Return whether the server finds a value at that moment of its clock, where this is the newest change."""
        return self.op == "set" and at < self.until


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What Postgres holds: each key's chain by version, and what was set aside as (change_id, key)."""

    chains: Mapping[str, Sequence[Row]]
    conflicts: Collection[tuple[str, str]] = ()
    quarantined: Collection[tuple[str, str]] = ()


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that these levels do not survive; what was acknowledged from `since` to `until` may be gone."""

    since: float
    until: float
    levels: frozenset[str] = frozenset({"memory", "replica", "disk"})


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One broken promise: its kind, its key, the operations concerned, and a sentence."""

    kind: str
    key: str
    operations: tuple[Operation, ...]
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.key}: {self.sentence}"


class Verdict(msgspec.Struct, kw_only=True):
    """The violations found; `lost` holds the tags of acknowledged writes that a `Loss` took.

    `expired` counts the states that workers deleted because they had ended.
    """

    violations: list[Violation] = []
    lost: list[str] = []
    expired: int = 0
