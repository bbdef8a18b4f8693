"""The words of the product as values: positions, states, changes, change-sets, policies.

Everything here is frozen, and nothing performs I/O. Bytes are what is stored; typed values exist at the user's edge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from statecache.retention import History

T = TypeVar("T")

Durability = Literal["memory", "replica", "disk", "postgres"]
Encoding = Literal["json", "msgpack", "raw"]
ReadMode = Literal["local", "primary", "fenced"]
Locking = Literal["advisory", "enforced"]
Upgrade = Mapping[int, Callable[[Any], Any]]
"""For a version, what makes of its plain data that of the next version; 0 is what was written without a type."""
Ttl = float | timedelta
"""How long a state lasts, in seconds or as a timedelta; `inf` is for ever."""
Op = Literal["set", "delete", "absent"]
DURABILITIES: tuple[Durability, ...] = ("memory", "replica", "disk", "postgres")
READ_MODES: tuple[ReadMode, ...] = ("local", "primary", "fenced")
LOCKINGS: tuple[Locking, ...] = ("advisory", "enforced")
STATES_PER_COMMIT_MAX = 256
COMMIT_BYTES_MAX = 16 * 1024 * 1024
VALUE_BYTES_MAX = 8 * 1024 * 1024
STATE_OVERHEAD_BYTES = 200
"""What a state counts in the backlog beside its key and value, in bytes."""

BLIND = "*"
"""The expected parent of a write that takes whatever is there."""
ABSENT = "!"
"""The expected parent of a write that demands that there is nothing."""
PRESENT = "?"
"""The expected parent of a write that demands that there is something."""
EXPIRED = "%"
"""The expected parent of a write that demands a state whose end has come."""
AGED = "~"
"""Behind a change_id that a write expects: be its state's end come or not."""


class Position(NamedTuple):
    """A commit's place in its shard's change stream; `n` counts without gaps per shard and never restarts."""

    epoch: int
    n: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.n}"

    @classmethod
    def parse(cls, text: str | bytes) -> Position | None:
        """Read `<epoch>-<n>`; return None for an empty text."""
        if not text:
            return None
        epoch, _, n = text.partition(b"-") if isinstance(text, bytes) else text.partition("-")
        return cls(int(epoch), int(n))


class Token(NamedTuple):
    """A fencing token: greater than every one that the same lock issued before, over failovers too."""

    epoch: int
    count: int  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.epoch}-{self.count}"

    @classmethod
    def parse(cls, text: str) -> Token | None:
        """Read `<epoch>-<count>`; return None for another text."""
        epoch, _, count = text.partition("-")
        if not (epoch.isascii() and epoch.isdigit() and count.isascii() and count.isdigit()):
            return None
        return cls(int(epoch), int(count))


class State(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One key's value as of one commit.

    `version` counts the key's commits, over delete and recreate too; `(epoch, version)` never goes down for a reader.
    `position` is None for a state whose place in the stream is no longer known. `updated_at` is the Redis server's
    clock at the commit: shown, never compared. `schema` is what the value's type was when it was written: name, version
    and a fingerprint of its fields, empty for plain data. From `expires_at` on, by the same clock, no read finds it.
    """

    key: str
    value: T
    epoch: int
    version: int
    change_id: str
    parent_change_id: str
    position: Position | None
    updated_at: datetime
    writer: str
    schema: str = ""
    expires_at: datetime | None = None


Expected = State[Any] | str | EllipsisType | None
"""What a write expects: a State or its change_id, None for absence; ..., the default, for whatever is there."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A state as it is stored: bytes, not a value; a tombstone or a known absence is a record too."""

    key: str
    op: str
    value: bytes
    version: int
    epoch: int
    change_id: str
    parent_change_id: str
    position: str
    encoding: str
    schema: str
    updated_at: str
    writer: str

    @property
    def exists(self) -> bool:
        """Whether a reader finds a value here."""
        return self.op == "set"

    @property
    def tip(self) -> str:
        """What a write has to expect that continues this record as it was read."""
        return self.change_id if self.op != "expired" else self.change_id + AGED


class Modifier(msgspec.Struct, frozen=True):
    """How a write makes its value of what is there, in Redis, and what that may come to.

    `verb` is `increment`, `append`, `add` or `remove`; `digest` tells it, with its argument, from others under the same
    change_id, but not from one that asks for another end. The value has at most `bytes_max` bytes, and with `keeps_end`
    it ends when what is there was to end.
    """

    verb: str
    digest: str
    bytes_max: int
    keeps_end: bool

    @property
    def spelled(self) -> str:
        """The modifier as the commit script is told of it, longer than any other operation."""
        return f"{self.verb} {self.digest} {self.bytes_max} {'keep' if self.keeps_end else 'end'}"


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One state's part in a commit, as asked for: `expected` is a change_id, BLIND, ABSENT, PRESENT or EXPIRED.

    `seen` is the value as readers get it. `op` is `set`, `delete`, or `check`, which compares and writes nothing.
    With `modifier`, `value` is its argument, and what is written is known from the answer alone. `assume_new` vouches
    that Postgres knows nothing of the key; where `new_in` names an epoch, in that epoch only. `absent_at` is the epoch
    and the watermark at which Postgres was found to know nothing of it: whether that still holds, the script tells.
    """

    key: str
    op: Literal["set", "delete", "check"]
    expected: str
    value: bytes = b""
    seen: Any = None
    encoding: str = "json"
    schema: str = ""
    ttl_ms: int | None = None
    assume_new: bool = False
    new_in: int | None = None
    absent_at: tuple[int, int] | None = None
    modifier: Modifier | None = None

    @property
    def novelty(self) -> str:
        """How the commit script is told whether the key may be taken for new: on proof, always, in one epoch, or no."""
        if self.absent_at is not None:
            epoch, flushed = self.absent_at
            return f"w{epoch}-{flushed}"
        if not self.assume_new:
            return "0"
        return "1" if self.new_in is None else f"e{self.new_in}"

    @property
    def weight(self) -> int:
        """What the write adds to a commit's size and to the backlog, in bytes."""
        return 0 if self.op == "check" else len(self.value) + len(self.key.encode()) + STATE_OVERHEAD_BYTES


class ChangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The immutable record of one state's write as it is stored: bytes; its identity is (change_id, key)."""

    change_id: str
    key: str
    op: str
    version: int
    parent_change_id: str
    value: bytes
    encoding: str
    schema: str


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one commit: one stream entry, one position; applied, forked or quarantined as a whole.

    `entries` and `bytes` are the shard's running totals up to and including this one. `tokens` are the leases that it
    was made under: the locked key and the fencing token of each.
    """

    position: Position
    change_id: str
    at: datetime
    writer: str
    actor: str
    reason: str
    entries: int
    bytes: int
    changes: tuple[ChangeRecord, ...]
    tokens: tuple[tuple[str, Token], ...] = ()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a namespace; None takes the client's setting.

    `read` is how `get` reads when a call names no mode. `redis_ttl` is the time after which a state that is in Postgres
    may leave Redis; reads still find it. `ttl` is the time, in seconds or a timedelta, after which a state is deleted,
    counted from its last write. `value_bytes_max` is in bytes, at most 8 MiB. Where `locking` is `enforced`, only the
    holder of a lock commits to the locked key and to keys below it. `history`, `retention` and `retention_count` say
    which values of changes are kept. These four are recorded once for the namespace, and bind all clients. `upgrade`
    are functions by version, for values that an earlier version of `type` wrote, `merge` decides what base, ours and
    theirs become, `checkpoint`, a CheckpointPolicy, when checkpoints are made unasked.
    """

    type: Any = None
    encoding: Encoding = "json"
    durability: Durability | None = None
    read: ReadMode | None = None
    redis_ttl: timedelta | None = None
    ttl: Ttl | None = None
    value_bytes_max: int | None = None
    locking: Locking | None = None
    history: History | None = None
    retention: timedelta | None = None
    retention_count: int | None = None
    upgrade: Upgrade | None = None
    merge: Callable[[Any, Any, Any], Any] | None = None
    checkpoint: Any = None


class NearStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a client's near cache since the client was made, and its contents.

    `hits` and `misses` are local reads that were answered here or not; `invalidations` keys that somebody wrote while
    they were here or on their way; `evictions` what went for lack of room. `bytes` is an estimate. `trusted`: local
    reads are answered here now; `untracked`: they lack a tracked connection; `untrusted_reason`: why, if known.
    """

    hits: int
    misses: int
    invalidations: int
    evictions: int
    entries: int
    bytes: int
    trusted: bool
    untrusted_reason: str = ""
    untracked: bool = False


class UnknownCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit whose caller never learnt its outcome: it was cancelled, interrupted, or ran out of time.

    It may have been applied, once, or not at all; `outcome(change_id, key)` with any of its keys finds out which.
    `since` is the time at which the call ended, by this machine's clock.
    """

    change_id: str
    keys: tuple[str, ...]
    since: datetime


class LostCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that was acknowledged to this client and lost, with its Redis or with its entry in the stream.

    `key` is the first one that it wrote. The epoch `ended_by` of its shard began without `position`; later writes may
    have reused its versions. Where that is the position's own epoch, Postgres went past it without all of the commit:
    its entry was not in the stream. `kept` says that the commit is not gone altogether: it stands in `conflict` or in
    quarantine, because a worker still reached that Redis, or it has come back.
    """

    change_id: str
    key: str
    position: Position
    ended_by: int
    kept: bool = False


Verdict = Literal["applied", "not applied", "forked", "quarantined", "lost", "unknown"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a change, as far as is known now.

        applied       at that version and position; `durable` says whether Postgres is known to hold it
        not applied   and it never will be, unless somebody repeats the write
        forked        applied, and set aside as a conflict
        quarantined   applied, and refused by Postgres for its data
        lost          applied at that position, and gone with the Redis that acknowledged it, or, in whole or in part,
                      with its entry in the stream: it will not come back, and is not repeated
        unknown       for the given reason; it may be asked again

    Where it is unknown, it is safe to repeat the same write with the same change_id: it is applied at most once.
    """

    change_id: str
    key: str
    verdict: Verdict
    version: int | None = None
    position: Position | None = None
    durable: bool = False
    reason: str = ""

    @property
    def settled(self) -> bool:
        """Whether the verdict is final: all but `unknown` are."""
        return self.verdict != "unknown"


class DrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was left undone when a client was closed with a deadline; true where anything was.

    `shards` hold acknowledged commits of this client that are not known to be in Postgres. `commits` counts those that
    stand in Redis, where workers will find them, and `keys` names the first 100 of their keys; these may be fewer than
    the client made, where Redis could not be asked or has lost some in a failover. `under_way` counts calls that were
    cut off, whose outcomes are unknown; `leases` could not be given back and end by themselves. `lost` names those of
    the last thousand commits acknowledged to this client that were lost, with their Redis or with their entry there.
    """

    commits: int = 0
    keys: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    under_way: int = 0
    leases: tuple[str, ...] = ()
    lost: tuple[LostCommit, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether nothing was left: all is in Postgres, ended and given back."""
        return not (self.shards or self.under_way or self.leases or self.lost)

    def __bool__(self) -> bool:
        return not self.nothing

    def __str__(self) -> str:
        if self.nothing:
            return "nothing is left"
        parts = []
        if self.shards:
            named = ", ".join(map(repr, self.keys[:3])) + (", …" if self.keys[3:] else "")
            what = f"{self.commits} commits ({named})" if self.commits else "commits"
            parts.append(f"{what} of {len(self.shards)} shards are not known to be in Postgres")
        if self.under_way:
            parts.append(f"{self.under_way} calls were cut off")
        if self.leases:
            parts.append(f"{len(self.leases)} leases were not given back")
        if self.lost:
            parts.append(f"{len(self.lost)} acknowledged commits were lost")
        return ", ".join(parts)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a verb that has ended, as an `Observer` is told of it. It names no key and holds no value.

    `outcome` is `ok`, the name of the error, as in `VersionConflict`, `cancelled`, or `raised` for an error of the
    caller's own function. `seconds` is the time inside the verb: with the functions given to `update` and `transact`
    and the block of a `transaction`, without the time between the states of a `list`. `attempts` is 1, and one more for
    each repetition; hydrations do not count. `conflicts` counts the times that somebody else wrote first, also where
    the verb then succeeded; `hydrations` the states that were looked for in Postgres.
    """

    verb: str
    outcome: str
    seconds: float
    attempts: int = 1
    conflicts: int = 0
    hydrations: int = 0


class Observer(Protocol):
    """An object that is told of every verb of a client as it ends, in the task or thread that called it: be quick.

    What it raises is logged and not passed on, for the verb has done its work by then.
    """

    def ended(self, operation: Operation) -> None:
        """Take note of one call that has ended; called once for each call of a verb."""
