"""One commit under way, from its birth to its end."""

from __future__ import annotations

from typing import NoReturn

import msgspec

from statecache.errors import OutcomeUnknown, StateCacheError
from statecache.model import Write


class Commit(msgspec.Struct, kw_only=True):
    """This is one commit under way: what it writes, its identity, and what is known of its outcome.

    Moments are on the monotonic clock: `end` is when the caller wants to hear, `latest` is when the attempt that was
    sent last is refused for coming too late, `lingers` the same of those attempts that were never answered.
    """

    change_id: str
    shard: int
    writes: list[Write]
    durability: str
    actor: str
    reason: str
    end: float
    redis_keys: list[str]
    doubt: StateCacheError | None = None
    repeat: bool = False
    pause: float = 0.005
    blind: frozenset[int] = frozenset()
    nonce: str = ""
    latest: float = 0.0
    lingers: float = 0.0

    def written(self) -> list[Write]:
        """These are the writes that change a state."""
        return [write for write in self.writes if write.op != "check"]

    def unanswered(self, error: StateCacheError) -> None:
        """This notes that the attempt may have been executed, or may yet be."""
        self.doubt, self.repeat, self.lingers = error, True, max(self.lingers, self.latest)

    def fail(self, error: StateCacheError, cause: Exception | None = None) -> NoReturn:
        """This raises what is to be said when no more can be tried: unknown where any attempt may have been applied."""
        if self.doubt is not None:
            keys = tuple(write.key for write in self.written())
            raise OutcomeUnknown(self.change_id, keys=keys, reason=str(error)) from error
        if cause is None:
            raise error
        raise error from cause
