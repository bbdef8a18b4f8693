"""Do a client's Redis and its Postgres belong to one installation? Compared before what Redis says is believed.

The two URLs may name two installations whose keys, prefix and schema are the same; only the identities differ that both
tiers hold. Postgres is asked once, on the first connection to Redis, and again where a new connection leads to a Redis
of another identity. Redis serves without Postgres: where that cannot be reached, or has been silent for
`connect_timeout_s`, and was not heard before, nothing is compared until it is reached; every connection to Postgres
compares too.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.errors import PostgresUnavailable

if TYPE_CHECKING:
    from statecache.core.postgres.tier import PostgresTier
    from statecache.settings import Settings


_LEAST = 0.05
"""Of which share of `connect_timeout_s` on it is worth while to ask a silent Postgres once more."""


class Pairing:
    """The comparison of a client's two tiers; one of its tasks asks Postgres, and the others wait for the answer."""

    def __init__(self, settings: Settings, postgres: PostgresTier) -> None:
        self._connect_timeout_s = settings.connect_timeout_s
        self._postgres = postgres
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, _: AbstractContextManager[Any]) -> None:
        """Forget who of a parent's tasks or threads asks Postgres."""
        self._turn = self._postgres.io.slots(1)
        self._patience_s = self._connect_timeout_s
        self.asks = False
        """Whether Postgres is being asked: who waits for Redis waits for that."""

    async def compare(self, cluster: str, seconds: float) -> None:
        """Return when a Redis of that cluster may be used; raise ConfigurationError where Postgres is of another."""
        if cluster == self._postgres.cluster:
            return
        end = monotonic() + seconds
        turn = await self._turn.acquire(seconds)
        if turn is None:
            raise PostgresUnavailable("timeout", detail="it has not said yet whether it belongs to this Redis")
        try:
            if cluster != self._postgres.cluster:
                self.asks = True
                await self._ask(end)
        finally:
            self.asks = False
            turn.release()

    def late(self, error: TimeoutError) -> PostgresUnavailable:
        """Return the error of who had no time to wait for Postgres."""
        return self._postgres.late(error)

    async def _ask(self, end: float) -> None:
        """Ask Postgres, unless it was waited for long enough; raise PostgresUnavailable where it may still answer."""
        known, began = self._postgres.cluster, monotonic()
        if not known and self._patience_s <= 0:
            return
        seconds = max(min(end - began, self._connect_timeout_s if known else self._patience_s), 0.001)
        try:
            session = await self._postgres.session(seconds)  # which compares
        except PostgresUnavailable:
            took = monotonic() - began
            silent = took > seconds * 0.9  # else it refused
            left = self._patience_s - took if silent else 0.0
            self._patience_s = left if left > self._connect_timeout_s * _LEAST else 0.0
            if known or self._patience_s:
                raise
        else:
            await session.close()
