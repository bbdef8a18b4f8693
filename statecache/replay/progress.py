"""How a replay stands at a moment: what the supervisor tells whoever shows it.

Times are CLOCK_MONOTONIC. What was killed is away until it is at work again: a server when it answers, a flusher when
it says that it is ready, an agent when its next life has taken up its runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec


class Casualty(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was killed; `back_at` is None while it is away."""

    kind: str
    name: str
    killed_at: float
    back_at: float | None = None


class ReplayProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How a replay stands.

    `flushed` is the sum of the watermarks: on servers of the replay's own, the commits that Postgres holds. `kills` are
    those that count, for a commit was in flight; `casualties` are all, in the order in which they were killed.
    """

    doing: str
    acknowledged: int = 0
    flushed: int = 0
    kills: Mapping[str, int] = {}
    casualties: tuple[Casualty, ...] = ()


class Show(Protocol):
    """A display that is told, again and again, how the replay stands."""

    def __call__(self, progress: ReplayProgress, /) -> None:
        """Show how the replay stands, or pass over it."""


class Casualties:
    """All that was killed, and when it came back."""

    def __init__(self) -> None:
        self._all: list[Casualty] = []

    def __iter__(self) -> Iterator[Casualty]:
        return iter(self._all)

    def add(self, kind: str, name: str, *, at: float) -> None:
        """Record a kill."""
        self._all.append(Casualty(kind=kind, name=name, killed_at=at))

    def away(self, kind: str) -> list[Casualty]:
        """Return those of a kind that are away, the longest first."""
        return [one for one in self._all if one.kind == kind and one.back_at is None]

    def back(self, casualty: Casualty, *, at: float) -> None:
        """Record a return."""
        place = self._all.index(casualty)
        self._all[place] = msgspec.structs.replace(casualty, back_at=at)
