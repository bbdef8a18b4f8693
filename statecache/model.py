"""The words of the product as values: positions, states, changes, change-sets, policies.

Everything here is frozen, and nothing here performs I/O. Bytes are what is stored; a typed value exists only at the
edge where a user hands one in or takes one out.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from types import EllipsisType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

T = TypeVar("T")

Durability = Literal["memory", "replica", "disk", "postgres"]
Encoding = Literal["json", "msgpack"]
ReadMode = Literal["local", "primary", "fenced"]
Locking = Literal["advisory", "enforced"]
Op = Literal["set", "delete", "absent"]

DURABILITIES: tuple[Durability, ...] = ("memory", "replica", "disk", "postgres")
READ_MODES: tuple[ReadMode, ...] = ("local", "primary", "fenced")
LOCKINGS: tuple[Locking, ...] = ("advisory", "enforced")
STATES_PER_COMMIT_MAX = 256
COMMIT_BYTES_MAX = 16 * 1024 * 1024
VALUE_BYTES_MAX = 8 * 1024 * 1024
STATE_OVERHEAD_BYTES = 200
"""What a state weighs in the backlog beside its key and value, in bytes."""

BLIND = "*"
"""Expected parent of a write that takes whatever is there."""
ABSENT = "!"
"""Expected parent of a write that asks for there being nothing."""
PRESENT = "?"
"""Expected parent of a write that asks for there being something."""


class Position(NamedTuple):
    """This places a commit in its shard's change stream; n is contiguous per shard and never restarts."""

    epoch: int
    n: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.n}"

    @classmethod
    def parse(cls, text: str | bytes) -> Position | None:
        """This reads `<epoch>-<n>`, or gives None for an empty text."""
        if not text:
            return None
        epoch, _, n = text.partition(b"-") if isinstance(text, bytes) else text.partition("-")
        return cls(int(epoch), int(n))


class Token(NamedTuple):
    """This is a fencing token: greater than every one that the same lock gave before, over failovers too."""

    epoch: int
    count: int  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.epoch}-{self.count}"

    @classmethod
    def parse(cls, text: str) -> Token | None:
        """This reads `<epoch>-<count>`, or gives None for another text."""
        epoch, _, count = text.partition("-")
        if not (epoch.isascii() and epoch.isdigit() and count.isascii() and count.isdigit()):
            return None
        return cls(int(epoch), int(count))


class State(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """This is one key's value as of one commit.

    `version` counts the key's commits, over delete and recreate too; `(epoch, version)` never goes down for a reader.
    `position` is None for a state whose place in the stream is no longer known. `updated_at` is the Redis server's
    clock at the commit: shown, never compared. `schema` is what the value's type was when it was written: name, version
    and a fingerprint of its fields, empty for plain data.
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


Expected = State[Any] | str | EllipsisType | None
"""What a write asks for: a State or its change_id, None for an absence; ... is the default, for whatever is there."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """This is a state as it is stored: bytes, not a value; a tombstone or a known absence is a record too."""

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
        """This says whether a reader finds a value here."""
        return self.op == "set"


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """This asks for one state's part of a commit: `expected` is a change_id, BLIND, ABSENT or PRESENT.

    `op` is `set`, `delete`, or `check`, which compares and writes nothing. `assume_new` vouches that Postgres knows
    nothing of the key; where `new_in` names an epoch, in that epoch only.
    """

    key: str
    op: Literal["set", "delete", "check"]
    expected: str
    value: bytes = b""
    encoding: str = "json"
    schema: str = ""
    ttl_ms: int | None = None
    assume_new: bool = False
    new_in: int | None = None

    @property
    def novelty(self) -> str:
        """How the commit script is told whether the key may be taken for new: always, in an epoch, or not."""
        if not self.assume_new:
            return "0"
        return "1" if self.new_in is None else f"e{self.new_in}"

    @property
    def weight(self) -> int:
        """This is what the write adds to a commit's size and to the backlog, in bytes."""
        return 0 if self.op == "check" else len(self.value) + len(self.key.encode()) + STATE_OVERHEAD_BYTES


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """This is the immutable record of one state's write; its identity is (change_id, key)."""

    change_id: str
    key: str
    op: str
    version: int
    parent_change_id: str
    value: bytes
    encoding: str
    schema: str


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """These are the changes of one commit: one stream entry, one position; applied, forked or quarantined as a whole.

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
    changes: tuple[Change, ...]
    tokens: tuple[tuple[str, Token], ...] = ()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """This is what a namespace asks for; None takes the client's setting.

    `read` is where `get` reads when a call names nothing. `redis_ttl` marks when a clean state may leave Redis (not an
    age limit); `value_bytes_max` in bytes, at most 8 MiB. Where `locking` is `enforced`, nobody but its holder commits
    to a key that is locked, itself or above in its group: that is the namespace's, recorded once and kept by all.
    """

    type: Any = None
    encoding: Encoding = "json"
    durability: Durability | None = None
    read: ReadMode | None = None
    redis_ttl: timedelta | None = None
    value_bytes_max: int | None = None
    locking: Locking | None = None


class NearStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """This is what a client's near cache has done since the client was made, and what it holds.

    `hits` and `misses` are local reads that were answered here, and that were not; `invalidations` keys that somebody
    wrote while they were here or on their way; `evictions` what went for room. `bytes` is an estimate. `trusted` says
    whether local reads are answered here at the moment; `hindrance` why they can not be, where that is known.
    """

    hits: int
    misses: int
    invalidations: int
    evictions: int
    entries: int
    bytes: int
    trusted: bool
    hindrance: str = ""


class Unsettled(msgspec.Struct, frozen=True, kw_only=True):
    """This is a commit whose caller never learnt its outcome: cancelled, interrupted, or out of time.

    It may have been applied, once, or not at all; `outcome(change_id, key)` with any of its keys finds out which.
    `since` is this machine's clock when the call ended.
    """

    change_id: str
    keys: tuple[str, ...]
    since: datetime


class LostCommit(msgspec.Struct, frozen=True, kw_only=True):
    """This is a commit that this client was acknowledged, and that went with the Redis that acknowledged it.

    `key` is the first that it wrote. The epoch `ended_by` of its shard began without `position`; what has been written
    there since may have the same versions. `kept` says that it stands in `conflict` or in quarantine, for a worker
    still reached that Redis, or it has come back.
    """

    change_id: str
    key: str
    position: Position
    ended_by: int
    kept: bool = False


Verdict = Literal["applied", "not applied", "forked", "quarantined", "lost", "unknown"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """This is what became of a change, as far as it can be told now.

        applied       at that version and position; `durable` says whether Postgres is known to hold it
        not applied   and it never will be, unless somebody repeats the write
        forked        applied, and set aside as a conflict
        quarantined   applied, and refused by Postgres for its data
        lost          applied at that position, and gone with the Redis that acknowledged it: no tier holds it
        unknown       for the given reason; it may be asked again

    Where it is unknown, the same write with the same change_id is safe: it is applied at most once.
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
        """This says whether the answer is final: all but `unknown` are."""
        return self.verdict != "unknown"


class DrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """This is what was left when a client was closed with a deadline; it is true where something was.

    `shards` hold acknowledged commits of this client that are not known to be in Postgres; `commits` of them stand in
    Redis, where workers will find them, and `keys` names their first 100 keys. Where that is less than you know of,
    Redis could not be asked, or has lost them in a failover. `under_way` calls were cut off, their commits unsettled;
    `leases` could not be given back and end by themselves. `lost` are commits, of the last thousand that this client
    was acknowledged, that went with the Redis that acknowledged them.
    """

    commits: int = 0
    keys: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    under_way: int = 0
    leases: tuple[str, ...] = ()
    lost: tuple[LostCommit, ...] = ()

    @property
    def nothing(self) -> bool:
        """This says whether all is in Postgres, ended and given back."""
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
            parts.append(f"{len(self.lost)} acknowledged commits were lost in a failover")
        return ", ".join(parts)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """This is one call of a verb, as it ended: what an `Observer` is told. It names no key and holds no value.

    `outcome` is `ok`, the name of the error, as in `VersionConflict`, `cancelled`, or `raised` for an error that is not
    of statecache: the caller's own function raised it. `seconds` is the time inside the verb, a function given to
    `update` and `transact` and the block of a `transaction` included, between the states of a `list` not. `attempts` is
    1 and one more for whatever was tried again, a hydration apart; `conflicts` counts the times that someone else was
    quicker, also where the verb then went on; `hydrations` the states that were looked for in Postgres.
    """

    verb: str
    outcome: str
    seconds: float
    attempts: int = 1
    conflicts: int = 0
    hydrations: int = 0


class Observer(Protocol):
    """This is told of every verb of a client as it ends, in the task or thread that called it: be quick.

    What it raises is logged and goes no further, for the verb has done its work by then.
    """

    def ended(self, operation: Operation) -> None:
        """This is called once for each call of a verb."""
