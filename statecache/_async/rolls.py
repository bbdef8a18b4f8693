"""Which steps of a key are known to be new, so that Postgres need not be asked for each of them.

A step's record that is not in Redis may be in Postgres, evicted from Redis long ago. So before a client runs the first
step of a key it asks Postgres, once, which records the key has: its roll. A step that is not on the roll is taken for
new, and its first commit vouches for that (`assume_new`). Where that is wrong after all, for another agent has run the
step since and Redis has lost its record meanwhile, the flusher finds out and refuses the commit: that is known before
the step's function is called, for its intent is awaited in Postgres. Many keys that are begun at one moment are asked
for in one statement.

A roll is believed for `ROLL_S`, and one with more than `ROLL_NAMES_MAX` records is not kept: each of that key's steps
is then read like any other state.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from statecache._bridge import AsyncSeat, AsyncTrips
from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.errors import PostgresUnavailable

if TYPE_CHECKING:
    from statecache._async.postgres import PostgresTier

ROLL_S = 600.0
ROLLS_MAX = 10_000
ROLL_NAMES_MAX = 1000


class _Roll(msgspec.Struct):
    """These are the records that a key has, as far as this client knows; `until` on the monotonic clock."""

    records: set[str]
    until: float


class Rolls:
    """This knows for each key the records of steps that it had when this client looked, and those met since."""

    def __init__(self, postgres: PostgresTier) -> None:
        self._postgres = postgres
        self._trips: AsyncTrips[str, set[str]] = AsyncTrips(self._looked_up)
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """This forgets the rolls."""
        self._mutex = mutex
        self._rolls: dict[str, _Roll] = {}

    async def is_new(self, key: str, record_key: str, *, end: float) -> bool:
        """This says whether a step may be taken for new; where Postgres cannot be asked, it may not."""
        with self._mutex:
            roll = self._rolls.get(key)
            if roll is not None and roll.until > monotonic():
                return len(roll.records) <= ROLL_NAMES_MAX and record_key not in roll.records
        asked = monotonic()
        try:
            records = await self._trips.ask(key, weight=len(key), seconds=max(end - asked, 0.001))
        except PostgresUnavailable:
            return False
        with self._mutex:
            self._rolls.pop(key, None)
            while len(self._rolls) >= ROLLS_MAX:
                del self._rolls[next(iter(self._rolls))]
            self._rolls[key] = _Roll(set(records), asked + ROLL_S)
        return len(records) <= ROLL_NAMES_MAX and record_key not in records

    async def _looked_up(self, seats: Sequence[AsyncSeat[str, set[str]]], seconds: float) -> list[set[str]]:
        """This gives the records of each of the keys."""
        prefixes = [f"{seat.question}/steps/" for seat in seats]
        beyond = [prefix + "\U0010ffff" for prefix in prefixes]
        parameters = {"prefixes": prefixes, "beyond": beyond, "limit": ROLL_NAMES_MAX + 1}
        records: dict[str, set[str]] = {prefix: set() for prefix in prefixes}
        for prefix, record in await self._postgres.fetch("keys_under", parameters, seconds=seconds):
            records[prefix].add(record)
        return [records[prefix] for prefix in prefixes]

    def add(self, key: str, record_key: str) -> None:
        """This notes that the step has a record."""
        with self._mutex:
            roll = self._rolls.get(key)
            if roll is not None and len(roll.records) <= ROLL_NAMES_MAX:
                roll.records.add(record_key)
