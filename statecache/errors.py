"""Errors are facts with attributes, one tree under `StateCacheError`.

The class docstring is the message, filled with the attributes; `hint` says what to do. Foreign errors (redis-py's,
psycopg's, msgspec's) are translated once, at the edge where they appear, with `from`.

What a writer may conclude:

* `OutcomeUnknown` is the only error after which a commit may or may not have been applied.
* `DurabilityNotMet` says that the commit **is** applied, at less than the asked durability.
* `Forked` and `Quarantined` say that the commit was applied in Redis, and that Postgres set it aside.
* `Lost` says that a commit was applied, and is gone: with its Redis, or, in whole or in part, with its stream's entry.
* `LeaseLost` says that a lease is over; commits under it that were acknowledged before are applied.
* `ChangeIdReused` says that the change_id was applied as another change, and that this one was not.
* every other error says that nothing was applied; `BulkError` has one of each, `StepUnknown` is of another effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from statecache.error_facts import BulkError as BulkError
from statecache.error_facts import CursorEnded as CursorEnded
from statecache.error_facts import StateCacheError as StateCacheError
from statecache.error_facts import unended

if TYPE_CHECKING:
    from statecache.model import Position


class VersionConflict(StateCacheError):
    """{key!r} was changed by someone else: expected {wanted}, found {actual!r}."""

    hint = "Read it again and decide anew, or use update(), which does."
    key: str
    expected: str | None
    actual: str | None

    def __init__(self, key: str, expected: str | None, actual: str | None = None) -> None:
        super().__init__(key=key, expected=expected, actual=actual)

    @property
    def problem(self) -> str:
        """The message, with what was expected: a change, or that there is nothing."""
        return self._filled(wanted="no state" if self.expected is None else f"change {self.expected!r}")


class AlreadyExists(StateCacheError):
    """{key!r} exists already."""

    hint = "Use set() to overwrite it or update() to change it."
    key: str

    def __init__(self, key: str, *, hint: str = "") -> None:
        super().__init__(key=key, hint=hint or type(self).hint)


class ChangeIdReused(StateCacheError):
    """Change {change_id} of {key!r} is applied already, at version {version}, and was another one."""

    hint = "Nothing was written. A change_id repeats one write, with the same value; leave it out for a new one."
    key: str
    change_id: str
    version: int

    def __init__(self, key: str, change_id: str, *, version: int) -> None:
        super().__init__(key=key, change_id=change_id, version=version)


class NotFound(StateCacheError):
    """{key!r} does not exist."""

    hint = "Give default= or create() it first."
    key: str

    def __init__(self, key: str, *, hint: str = "") -> None:
        super().__init__(key=key, hint=hint)


class NotChanged(StateCacheError, TimeoutError):
    """{key!r} did not change within {seconds:.3g} s."""

    hint = "Wait longer with timeout=, or go on without it."
    key: str
    seconds: float

    def __init__(self, key: str, *, seconds: float) -> None:
        super().__init__(key=key, seconds=seconds)


class StepMismatch(StateCacheError):
    """The step {name!r} of {key!r} was begun with other arguments."""

    hint = "A name stands for one call: give another name to another one, or the same arguments."
    key: str
    name: str
    expected: str
    actual: str

    def __init__(self, key: str, name: str, *, expected: str, actual: str) -> None:
        super().__init__(key=key, name=name, expected=expected, actual=actual)


class StepUnknown(StateCacheError):
    """Whether the step {name!r} of {key!r} took effect is not known: {reason}."""

    key: str
    name: str
    idempotency_key: str
    reason: str

    def __init__(self, key: str, name: str, *, idempotency_key: str, reason: str) -> None:
        super().__init__(key=key, name=name, idempotency_key=idempotency_key, reason=reason)

    @property
    def problem(self) -> str:
        """The message, with the reason why it is not known."""
        return self._filled(reason=unended(self.reason))

    @property
    def remedy(self) -> str:
        """How to find out, and how to go on."""
        return (
            f"Look where the effect would be, by the idempotency key {self.idempotency_key}; then call "
            f"resolve_step({self.key!r}, {self.name!r}, result=…) or (…, not_done=True). "
            "A step with check= or idempotent=True goes on by itself."
        )


class OutcomeUnknown(StateCacheError):
    """The outcome of change {change_id}{where} is not known: {reason}."""

    awaited = "it is applied in Redis, and not yet known to be in Postgres"  # the reason where it was to be there
    hint = "Ask outcome(), or repeat the same call with change_id=, where it takes one: it is applied at most once."
    change_id: str
    keys: tuple[str, ...]
    reason: str

    def __init__(self, change_id: str, *, keys: tuple[str, ...] = (), reason: str = "the reply was lost") -> None:
        super().__init__(change_id=change_id, keys=keys, reason=reason)

    @property
    def problem(self) -> str:
        """The message, with the keys and the reason why the outcome is not known."""
        shown = ", ".join(map(repr, self.keys[:3])) + (f" and {len(self.keys) - 3} more" if self.keys[3:] else "")
        return self._filled(where=f" of {shown}" if shown else "", reason=unended(self.reason))

    @property
    def remedy(self) -> str:
        """How to find the outcome out, and who brings changes into Postgres where that is awaited."""
        workers = " Workers bring changes into Postgres: does one run?" if self.awaited in self.reason else ""
        return self.hint + workers


class DurabilityNotMet(StateCacheError):
    """Change {change_id} is applied, but {reached} of {wanted} copies acknowledged it at level {level!r}{why}."""

    hint = "The change is not lost; it may not survive a fault of the primary yet."
    change_id: str
    level: str
    reached: int
    wanted: int
    applied: bool
    reason: str

    def __init__(
        self, change_id: str, *, level: str, reached: int, wanted: int, applied: bool = True, reason: str = ""
    ) -> None:
        super().__init__(
            change_id=change_id, level=level, reached=reached, wanted=wanted, applied=applied, reason=reason
        )

    @property
    def problem(self) -> str:
        """The message, with the reason where the server refused to count copies."""
        return self._filled(why=f": {unended(self.reason)}" if self.reason else "")


class DurabilityRefused(StateCacheError):
    """Durability {level!r} cannot be given: {reason}."""

    level: str
    reason: str

    def __init__(self, level: str, *, reason: str, hint: str = "") -> None:
        super().__init__(level=level, reason=reason, hint=hint)


class Forked(StateCacheError):
    """Change {change_id} of {key!r} did not continue the current lineage and was set aside as a conflict."""

    hint = "Both sides are kept: see the table conflict. Read the state again and redo the change."
    key: str
    change_id: str

    def __init__(self, key: str, change_id: str) -> None:
        super().__init__(key=key, change_id=change_id)


class Lost(StateCacheError):
    """Change {change_id} of {key!r} is lost: {how}."""

    hint = "Read the state again, and write anew what should count."
    key: str
    change_id: str
    position: Position | None
    epoch: int

    def __init__(self, key: str, change_id: str, *, position: Position | None, epoch: int) -> None:
        how = f"epoch {epoch} began without its position {position}, it went with the Redis that acknowledged it"
        if position is None or position.epoch >= epoch:
            how = f"Postgres went past its position {position}, without all of it: its entry was not in the stream"
        super().__init__(key=key, change_id=change_id, position=position, epoch=epoch, how=how)


class Quarantined(StateCacheError):
    """Change {change_id} of {key!r} was refused by Postgres for its data and is parked in quarantine."""

    hint = "See the table quarantine for the reason."
    key: str
    change_id: str

    def __init__(self, key: str, change_id: str) -> None:
        super().__init__(key=key, change_id=change_id)


class Backpressure(StateCacheError):
    """Shard {shard} takes no changes now: {reason}."""

    hint = "Nothing was applied. Wait and try again; `statecache status` says what is in the way."
    shard: int
    reason: str

    def __init__(self, shard: int, *, reason: str) -> None:
        super().__init__(shard=shard, reason=reason)


class LimitExceeded(StateCacheError):
    """{what} is {actual:,}{unit}, more than the limit of {limit:,}{unit}{where}."""

    what: str
    actual: int
    limit: int
    key: str | None

    def __init__(self, what: str, *, actual: int, limit: int, key: str | None = None, hint: str = "") -> None:
        where = f" (key {key!r})" if key is not None else ""
        unit = "" if "bytes" in what or "number" in what else " bytes"
        super().__init__(what=what, actual=actual, limit=limit, key=key, where=where, unit=unit, hint=hint)


class InvalidKey(StateCacheError, ValueError):
    """The key {key!r} cannot be used: {reason}."""

    hint = "Keys look like namespace/name[/more], at most 512 UTF-8 bytes."
    key: object
    reason: str

    def __init__(self, key: object, *, reason: str) -> None:
        super().__init__(key=key, reason=reason)


class CodecError(StateCacheError, ValueError):
    """The value{where} cannot be {verb} at {path}: {reason}."""

    key: str | None
    path: str
    reason: str
    verb: str

    def __init__(self, *, reason: str, path: str = "$", verb: str = "encoded", key: str | None = None) -> None:
        where = f" of {key!r}" if key is not None else ""
        how = "Read it as what it was written, or give a new field a default, a renamed one its old name."
        hint = how if verb == "decoded" else ""
        super().__init__(reason=reason, path=path, verb=verb, key=key, where=where, hint=hint)


class SchemaNewer(StateCacheError):
    """{key!r} was written as {stored}, {why}."""

    hint = (
        "Write it where the newer release runs. Where leaving that out is meant, raise __schema_version__ of the type."
    )
    key: str
    stored: str
    ours: str
    path: str

    def __init__(self, key: str, *, stored: str, ours: str, path: str = "") -> None:
        loses = f"and {ours} here does not know {path}, which would be lost"
        why = loses if path else f"which is newer than {ours} here"
        super().__init__(key=key, stored=stored or "plain data", ours=ours, path=path, why=why)


class LockTimeout(StateCacheError):
    """The lock of {key!r} could not be had within {seconds:g} s: {reason}."""

    hint = "`statecache locks` shows who holds it and who waits."
    key: str
    seconds: float
    holder: str
    reason: str

    def __init__(self, key: str, *, seconds: float, holder: str = "", reason: str = "") -> None:
        reason = reason or (f"{holder} holds it" if holder else "others came first")
        super().__init__(key=key, seconds=seconds, holder=holder, reason=reason)


class LeaseLost(StateCacheError):
    """The lease of {key!r} (token {token}) was lost: {reason}."""

    hint = "Others may hold the lock by now. Lock it again and read again what was decided upon."
    key: str
    token: str
    reason: str

    def __init__(self, key: str, *, token: str, reason: str, hint: str = "") -> None:
        super().__init__(key=key, token=token, reason=reason, hint=hint or type(self).hint)


class StaleToken(StateCacheError):
    """The commit was refused: it was made under the lease {token} of {key!r}, which {now}."""

    hint = "Nothing was applied. Lock it again and read again what was decided upon."
    key: str
    token: str
    holder: str

    def __init__(self, key: str, *, token: str, holder: str = "") -> None:
        super().__init__(key=key, token=token, holder=holder, now=f"{holder} holds now" if holder else "is over")


class LockHeld(StateCacheError):
    """The commit was refused: {holder} holds the lock of {key!r}, whose namespace takes its holder's commits only."""

    hint = "Nothing was applied. Lock it, and write by the lease."
    key: str
    holder: str

    def __init__(self, key: str, *, holder: str) -> None:
        super().__init__(key=key, holder=holder)


class ForeignData(StateCacheError):
    """The Redis key {redis_key!r} does not hold what statecache wrote there: {reason}."""

    hint = "Another program writes under this prefix, or the key was edited by hand; remove or rename it."
    redis_key: str
    reason: str

    def __init__(self, redis_key: str, *, reason: str) -> None:
        super().__init__(redis_key=redis_key, reason=reason)


class ConfigurationError(StateCacheError):
    """The configuration does not fit: {reason}."""

    reason: str

    def __init__(self, reason: str, *, hint: str = "") -> None:
        super().__init__(reason=reason, hint=hint)


class UsageError(StateCacheError, RuntimeError):
    """The client was used wrongly: {reason}."""

    reason: str

    def __init__(self, reason: str, *, hint: str = "") -> None:
        super().__init__(reason=reason, hint=hint)


class Unavailable(StateCacheError):
    """The service is unavailable ({reason}): {detail}."""

    service: ClassVar[str] = "The service"
    reason: str
    detail: str

    def __init__(self, reason: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(reason=reason, detail=detail or "no details", hint=hint)

    @property
    def problem(self) -> str:
        """The message: what is unavailable and why; or, where the server refuses the user, that it does."""
        detail = unended(self.detail)
        if self.reason == "authentication":
            return f"{self.service} refuses this user: {detail}."
        return self._filled(detail=detail)


class RedisUnavailable(Unavailable):
    """Redis is unavailable ({reason}): {detail}."""

    service = "Redis"


class PostgresUnavailable(Unavailable):
    """Postgres is unavailable ({reason}): {detail}."""

    service = "Postgres"
