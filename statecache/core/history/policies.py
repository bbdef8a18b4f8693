"""What is kept of namespaces' histories, as clients declare it: recorded once, for all who write there.

The truth is a row in Postgres, which workers act on. A view that says what is to be kept declares it with its first
commit, beside it: no commit waits, and Postgres may be away. Where something else is recorded already, that stands, and
the client says so once: only an operator changes it (`statecache policy`). Where the role may not record anything, that
is said too.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from statecache._process import begins_anew_after_fork, mutex
from statecache.errors import ConfigurationError, PostgresUnavailable
from statecache.rules.retention import retention_of
from statecache.settings import Settings, writer_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    from statecache.concurrency import Background
    from statecache.core.postgres.tier import PostgresTier
    from statecache.retention import Retention

_PAUSE_S = 5.0
_TRIES = 12
"""How often Postgres is asked while it is away; the next commit begins again."""
_CLOSE_S = 1.0
"""How long a client that is closed waits for what it has declared to be recorded, in seconds."""
_logger = logging.getLogger("statecache")


class HistoryPolicies:
    """The declarations of one client."""

    def __init__(self, settings: Settings, postgres: PostgresTier) -> None:
        self._settings = settings
        self._seconds = settings.timeout_s
        self._postgres = postgres
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget what was declared: another process did."""
        self._mutex = mutex
        self._settled: frozenset[tuple[str, Retention]] = frozenset()
        self._declared: dict[tuple[str, Retention], None] = {}
        self._background: Background | None = None
        self._end = self._postgres.io.signal()
        self._done = self._postgres.io.signal()

    def declare(self, namespace: str, retention: Retention) -> None:
        """See to it that it is recorded, soon and beside the caller, unless something is."""
        if (namespace, retention) in self._settled:
            return
        with self._mutex:
            self._declared[namespace, retention] = None
            if self._background is not None and self._background.alive:
                return
            self._done = self._postgres.io.signal()
            self._background = self._postgres.io.background(self._record, name="statecache-history-policies")
            self._background.start()

    def _next(self) -> tuple[str, Retention] | None:
        """Return what is declared and not recorded; None ends the recording."""
        with self._mutex:
            found = next((one for one in self._declared if one not in self._settled), None)
            if found is None:
                self._background = None
                self._done.set()
            return found

    async def _record(self, background: Background) -> None:
        tries = 0
        while self._background is background and (declared := self._next()) is not None:
            try:
                await self._settle(*declared)
            except PostgresUnavailable:
                tries += 1
                if tries == _TRIES or await self._end.wait(_PAUSE_S):
                    return
            except ConfigurationError as error:
                name = declared[0]
                _logger.warning("what is kept of the history of %r is not recorded: %s", name, error)
                self._settle_as(*declared)

    async def _settle(self, name: str, retention: Retention) -> None:
        asked = {
            "name": name, "history": retention.history, "age": retention.max_age, "count": retention.max_count,
            "by": writer_of(self._settings),
        }  # fmt: skip
        ((*policy, by),) = await self._postgres.fetch("declare_history", asked, seconds=self._seconds)
        recorded = retention_of(*policy)
        if recorded != retention:
            _logger.warning(
                "of the history of %r %s stay, as %s recorded, not %s; `statecache policy` changes it",
                name, recorded, by, retention,
            )  # fmt: skip
        self._settle_as(name, retention)

    def _settle_as(self, name: str, retention: Retention) -> None:
        with self._mutex:
            self._settled |= {(name, retention)}
            self._declared.pop((name, retention), None)

    async def close(self) -> None:
        """Wait a moment for what was declared to be recorded, and end."""
        background = self._background
        if background is not None and background.alive:
            await self._done.wait(_CLOSE_S)
        self._end.set()
        if background is not None:
            await background.stop(_CLOSE_S)
