"""One commit under way, from its birth to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from statecache.backoff import Backoff
from statecache.errors import OutcomeUnknown, StateCacheError
from statecache.leases import Locks
from statecache.model import ABSENT, BLIND, PRESENT, Write

if TYPE_CHECKING:
    from statecache._async.update.batons import AsyncBaton
    from statecache.settings import Settings


class Commit(msgspec.Struct, kw_only=True):
    """This is one commit under way: what it writes, its identity, and what is known of its outcome.

    Moments are on the monotonic clock: `end` is when the caller wants to hear, `latest` is when the attempt that was
    sent last is refused for coming too late, `lingers` the same of those attempts that were never answered. `pinned`
    are writes that ask for the change which was there when they were looked up, and what they asked for at first.
    `hindrance` is what the last pause was for, to be told where no time is left for another attempt. `locks` is what
    it has to show of leases, `baton` what is passed on with it.
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
    backoff: Backoff = msgspec.field(default_factory=lambda: Backoff(0.005, 0.25))
    pinned: dict[int, str] = {}
    nonce: bytes = b""
    latest: float = 0.0
    lingers: float = 0.0
    hindrance: StateCacheError | None = None
    locks: Locks | None = None
    baton: AsyncBaton | None = None

    @property
    def passes(self) -> bool:
        """This says whether a baton is passed on with it."""
        return self.baton is not None and self.baton.held

    def written(self) -> list[Write]:
        """These are the writes that change a state."""
        return [write for write in self.writes if write.op != "check"]

    def arguments(self, settings: Settings, limits: Sequence[str], *, replicas: int = 0) -> list[Any]:
        """This spells the script's ARGV, but for the times at its end; so many replicas must be connected."""
        fence = f"{settings.fence} {replicas}" if replicas else settings.fence
        arguments: list[Any] = [
            self.nonce, self.change_id, fence, "1" if self.repeat else "0", settings.writer,
            self.actor, self.reason, *limits,
        ]  # fmt: skip
        for write in self.writes:
            arguments += (
                write.key, write.op, write.expected, write.value, write.encoding, write.schema,
                "" if write.ttl_ms is None else write.ttl_ms, write.novelty,
            )  # fmt: skip
        return arguments

    def pin(self, current: Sequence[Sequence[bytes | None]]) -> None:
        """This ties what was not applied to what is there now (change_id, op of each state), and is no repeat then.

        What was evicted in this moment is to be looked up again once it is back.
        """
        for at, (write, (change_id, op)) in enumerate(zip(self.writes, current, strict=True)):
            holds = {BLIND: True, ABSENT: op != b"set", PRESENT: op == b"set"}.get(write.expected, False)
            if write.op != "check" and holds and change_id is not None:
                self.pinned[at] = write.expected
                self.writes[at] = msgspec.structs.replace(write, expected=change_id.decode())
        self.repeat = any(change_id is None for change_id, _ in current)

    def unpin(self) -> None:
        """This asks for what was asked for at first: what it was tied to is no longer there."""
        for at, expected in self.pinned.items():
            self.writes[at] = msgspec.structs.replace(self.writes[at], expected=expected)
        self.pinned, self.repeat = {}, True

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
