"""When to kill what: drawn from a seed before anything runs, in terms of progress rather than time.

The kinds take turns, each turn in an order of its own, so that the kills of one kind lie apart; within its turn a kill
has a random place. All of it lies between 5 and 75 percent of the messages, which leaves room to repeat a kill that
met nothing in flight. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

KINDS = ("agent", "flusher", "redis", "postgres")
KILLS_EACH = 3
_FIRST, _LAST = 0.05, 0.75
_DOWN_S = (0.05, 0.5)


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """One intended kill: due from `progress` (0 to 1) on, down for `down_s`; `pick` (0 to 1) chooses the victim."""

    kind: str
    progress: float
    down_s: float
    pick: float


def schedule(kinds: Sequence[str], *, seed: int, each: int = KILLS_EACH) -> list[Kill]:
    """Return the kills in their order, `each` of every kind."""
    rng = Random(seed)  # noqa: S311 - repeatable on purpose
    turns = [kind for _ in range(each) for kind in rng.sample(list(kinds), len(kinds))]
    room = (_LAST - _FIRST) / max(1, len(turns))
    return [
        Kill(
            kind=kind,
            progress=_FIRST + room * (place + rng.random()),
            down_s=rng.uniform(*_DOWN_S),
            pick=rng.random(),
        )
        for place, kind in enumerate(turns)
    ]
