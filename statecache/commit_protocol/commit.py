"""One commit under way, from its birth to its end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import msgspec

from statecache.backoff import LATE_S, Backoff
from statecache.errors import OutcomeUnknown, StateCacheError
from statecache.model import ABSENT, AGED, BLIND, PRESENT, Position, Write
from statecache.rules.leases import Locks
from statecache.settings import Settings, writer_of

if TYPE_CHECKING:
    from statecache.commit_protocol.install import Install


class Passable(Protocol):
    """A turn that may be passed on with a commit, in the same exchange."""

    @property
    def held(self) -> bool:
        """Whether it is held."""

    def passing(self, link: Any, change_id: str) -> Any:
        """Return the command that passes it on."""

    def passed(self, link: Any, reply: Any) -> None:
        """Note that command's reply."""


class Commit(msgspec.Struct, kw_only=True, eq=False, weakref=True):
    """One commit under way: what it writes, its identity, and what is known of its outcome.

    Moments are on the monotonic clock: `end` is when the caller wants an answer, `latest` when the attempt sent last is
    refused for arriving too late, `lingers` the same for attempts that were never answered. `numbered` says that all of
    these are this sender's, so that it can have them refused by their numbers. `pinned` maps writes that now expect the
    change found at the lookup to what they expected at first; `met` maps the others to the change found there: only as
    long as that stands is a conflict with it no conflict with what came of an earlier attempt since. `last_error` is
    the reason for the last pause, to be raised where no time is left for another attempt. `lost_answer` is why an
    attempt was never answered: the outcome is unknown from then on. `applied_at` is where this client was told that it
    is applied: it must not be again, while that position stands. `named` says that its caller has given the change_id,
    so that it may be another commit's. `locks` are the leases it has to show, `turn` is passed on with it. `waited_s`
    is how long it has waited for connections, which others of this process have; once it was `loaded` for, it waits
    ahead of them. `install` is what was loaded and is not known to be installed: the next attempt takes it along.
    `spent` is for what its time was spent between two attempts, in seconds.
    """

    change_id: str
    shard: int
    writes: list[Write]
    durability: str
    actor: str
    reason: str
    end: float
    redis_keys: list[str]
    lost_answer: StateCacheError | None = None
    repeat: bool = False
    named: bool = False
    applied_at: Position | None = None
    backoff: Backoff = msgspec.field(default_factory=lambda: Backoff(0.005, 0.25))
    pinned: dict[int, str] = {}
    met: dict[int, str] = {}
    nonce: bytes = b""
    latest: float = 0.0
    lingers: float = 0.0
    numbered: bool = True
    last_error: StateCacheError | None = None
    locks: Locks | None = None
    turn: Passable | None = None
    waited_s: float = 0.0
    loaded: bool = False
    install: Install | None = None
    spent: dict[str, float] = {}

    @property
    def passes(self) -> bool:
        """Whether a turn is passed on with the commit."""
        return self.turn is not None and self.turn.held

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that the commit writes."""
        return tuple([write.key for write in self.writes if write.op != "check"])

    def written(self) -> list[Write]:
        """Return the writes that change a state."""
        return [write for write in self.writes if write.op != "check"]

    @property
    def modifies(self) -> bool:
        """Whether any of its writes makes its value of what is there."""
        return any(write.modifier is not None for write in self.writes)

    def arguments(self, settings: Settings, limits: Sequence[str], *, replicas: int = 0, epoch: int = 0) -> list[Any]:
        """Return the script's ARGV, but for the times at its end.

        So many `replicas` must be connected, and the shard be open in that `epoch` or in a later one.
        """
        fence = f"{settings.fence} {replicas} {epoch}" if replicas or epoch else settings.fence
        arguments: list[Any] = [
            self.nonce, self.change_id, fence, str(self.applied_at or 1) if self.repeat else "0", writer_of(settings),
            self.actor, self.reason, *limits,
        ]  # fmt: skip
        for write in self.writes:
            arguments += (
                write.key, write.op if write.modifier is None else write.modifier.spelled, write.expected, write.value,
                write.encoding, write.schema,
                "" if write.ttl_ms is None else write.ttl_ms, write.novelty,
            )  # fmt: skip
        return arguments

    def pin(self, current: Sequence[Sequence[bytes | None]]) -> None:
        """Make a commit that was not applied expect what is there now: change_id and op of each state, in order.

        The op of one whose end has come is `expired`.

        It is no repeat then; where a state was evicted just now it stays one, to be looked up again once the state is
        back.
        """
        for at, (write, (change_id, op)) in enumerate(zip(self.writes, current, strict=True)):
            holds = {BLIND: True, ABSENT: op != b"set", PRESENT: op == b"set"}.get(write.expected, False)
            if write.op != "check" and holds and change_id is not None:
                self.pinned[at] = write.expected
                aged = "" if write.expected == PRESENT else AGED  # whoever expects a state expects one that stands
                self.writes[at] = msgspec.structs.replace(write, expected=change_id.decode() + aged)
            elif change_id is not None:
                self.met[at] = change_id.decode()
        self.repeat = any(change_id is None for change_id, _ in current)

    def found_absent(self, keys: Collection[str], epoch: int, flushed: int) -> None:
        """Have the script take these keys for new, if nothing was flushed since Postgres, at that place, knew none."""
        for at, write in enumerate(self.writes):
            if write.key in keys:
                self.writes[at] = msgspec.structs.replace(write, absent_at=(epoch, flushed))

    def unpin(self) -> None:
        """Expect what was expected at first, where the pinned changes have gone; the commit is a repeat again."""
        for at, expected in self.pinned.items():
            self.writes[at] = msgspec.structs.replace(self.writes[at], expected=expected)
        self.pinned, self.met, self.repeat = {}, {}, True

    def looks_again(self, at: int, found: str) -> bool:
        """Return whether a conflict of a write with a change says only that there is another one than at the lookup."""
        return at in self.pinned or self.met.get(at, found) != found

    def hindered(self, error: StateCacheError, *, now: float) -> StateCacheError:
        """Note why an attempt failed, and return what to raise where no time is left for another one.

        An attempt that the end cut off says nothing of what hindered the one before it.
        """
        if self.last_error is None or now + LATE_S < self.end:
            self.last_error = error
        return self.last_error

    def spend(self, what: str, seconds: float) -> None:
        """Note what that many seconds were spent on."""
        self.spent[what] = self.spent.get(what, 0.0) + seconds

    def unanswered(self, error: StateCacheError) -> None:
        """Note that the attempt may have been executed, or may yet be."""
        self.lost_answer, self.repeat, self.lingers = error, True, max(self.lingers, self.latest)

    def fail(self, error: StateCacheError, cause: Exception | None = None) -> NoReturn:
        """Raise the error when no more can be tried: OutcomeUnknown where any attempt may have been applied."""
        if self.lost_answer is not None:
            keys = tuple(write.key for write in self.written())
            raise OutcomeUnknown(self.change_id, keys=keys, reason=str(error)) from error
        if cause is None:
            raise error
        raise error from cause
