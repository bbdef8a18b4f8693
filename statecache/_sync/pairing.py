# Generated from statecache/_async/pairing.py by tests/unasync.py. Do not edit.

"""Do a client's Redis and its Postgres belong to one installation? Compared before what Redis says is believed.

The two URLs may name two installations whose keys, prefix and schema are the same; only the identities differ that both
tiers hold. Postgres is asked once, on the first connection to Redis, and again where a new connection leads to a Redis
of another identity. Redis serves without Postgres: where that cannot be reached, and was not before, nothing is
compared until it is; every connection to Postgres compares too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statecache import _process
from statecache._bridge import Slots
from statecache.clock import monotonic
from statecache.errors import PostgresUnavailable, RedisUnavailable

if TYPE_CHECKING:
    from statecache._sync.postgres import PostgresTier

_PATIENCE = 0.5
"""The part of a caller's time that a silent Postgres may take: the rest is for Redis."""


class Pairing:
    """This compares a client's two tiers; of its tasks one asks Postgres and the others wait for the answer."""

    def __init__(self, postgres: PostgresTier) -> None:
        self._postgres = postgres
        self._reset()

    def _reset(self) -> None:
        self._turn = Slots(1)
        self._unreached = False
        self._pid = _process.pid

    def compare(self, cluster: str, seconds: float) -> None:
        """Return when the Redis of that identity may be used; ConfigurationError where Postgres has another one."""
        if cluster == self._postgres.cluster:
            return
        if self._pid != _process.pid:
            self._reset()
        end = monotonic() + seconds
        turn = self._turn.acquire(seconds)
        if turn is None:
            raise RedisUnavailable("timeout", detail="Postgres has not said yet whether it belongs to this Redis")
        try:
            known = self._postgres.cluster
            if cluster != known and (known or not self._unreached):
                self._ask(max(end - monotonic(), 0.001) * _PATIENCE)
        finally:
            turn.release()

    def _ask(self, seconds: float) -> None:
        try:
            session = self._postgres.session(seconds)  # which compares
        except PostgresUnavailable:
            if self._postgres.cluster:
                raise
            self._unreached = True
        else:
            session.close()
