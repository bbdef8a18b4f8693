"""Whether the chains of changes are whole, decided from what Postgres keeps of them, a row after the other.

A key's changes are walked from the first on. Of each row is asked:

    missing    its version follows on the one before, or it says that there is a gap
    gap        where it says so, versions are missing, and something is recorded as lost or parked where they were
    parent     the change before it is the one that it names as its parent
    value      what is kept of its value gives one, of that size, with that digest; it is gone only where a policy may
               have let it go (`rules.retention`)
    keyframe   reading it begins where its newest keyframe is
    hash       its hash is over the hash of the change before it, what it says of itself, and its digest
    at         all changes of its commit say that they were made at the same time
    shard      it is in the shard of its key
    branch     it is recorded as made from what its reason says, and from nothing else (`rules.links`)
    pinned     its value is kept where a checkpoint names it
    state      the last of them is what the key's state is, in all that it says

A value that a checkpoint names stays from then on. Where values may go by a policy, a checkpoint counts that was made
while the value was the current one: one that was made, renamed or brought back later may have come too late for it.
No hash is over `at`, `gap` and `size`: an `at` is compared with those of the same commit, the last one with the state,
that of what was made from another key with the record of that; a `size` with the value while there is one; a `gap` with
what is there and what is recorded. The rest of them is believed.

A hash may begin anew: with a key's first change, behind a gap, and behind what was erased. It is due up to the n to
which all hashes of the shard were reckoned. Values may be gone (pruned, or never kept); what was erased is gone with
all that it said but for its change_id. Rows may be gone where their shard says that changes up to an n were deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Literal, NamedTuple

import msgspec

from statecache.history import Damage, is_delta, link, unpacked
from statecache.model import ChangeRecord, ChangeSet
from statecache.rules.links import Due, Linked, wrong_link
from statecache.rules.pins import Pin, is_pinned
from statecache.rules.retention import RecordedPolicy

What = Literal["missing", "gap", "parent", "value", "keyframe", "hash", "at", "shard", "branch", "pinned", "state"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one row: the change of that version, or the state of the key.

    Where rows are missing, `version` is the first of them, and `last` the last.
    """

    key: str
    version: int
    what: What
    detail: str
    last: int | None = None


class MadePin(NamedTuple):
    """What a checkpoint pins, and the n at which it was made; None where that does not matter."""

    pin: Pin
    made: int | None


class ChainRow(NamedTuple):
    """One change as it stands in its chain, and what its shard says: up to which n there are hashes, or no rows.

    `origin` is the value that it is a delta to where it is one to another key's; `erased` says that it may be blank.
    `link` is what is recorded of what it was made from, `due` what is to be. `pins` are those of its key, and `policy`
    is that of its namespace, where values of that are gone. `gap_known` says of a gap whether anything is recorded as
    lost or parked where its versions were, `same_at` whether its whole commit says the same time. `newest` is the
    newest version of its key, as the state has it.
    """

    change_set: ChangeSet
    change: ChangeRecord
    """What the change says; its value is empty."""
    value: bytes | None
    packed: bytes | None
    keyframe: int | None
    size: int | None
    digest: bytes | None
    hash: bytes | None
    gap: bool
    erased: bool
    hashed: int
    kept_after: int
    origin: bytes | None = None
    shard: int = 0
    key_shard: int = 0
    """The shard that the key is in."""
    link: Linked | None = None
    due: Due | None = None
    pins: Sequence[MadePin] = ()
    policy: RecordedPolicy | None = None
    gap_known: bool = True
    same_at: bool = True
    newest: int | None = None

    @property
    def is_gone(self) -> bool:
        """Whether its value is not kept with it."""
        return self.change.op == "set" and not self.erased and (self.value, self.packed) == (None, None)


class StateRow(NamedTuple):
    """What the state of a key says that the walk has come to the end of; the value where it is of its last change."""

    version: int
    change_id: str
    op: str
    value: bytes | None
    shard: int
    epoch: int
    n: int
    parent_change_id: str
    encoding: str
    schema: str
    writer: str
    updated_at: datetime


class Counts(msgspec.Struct, kw_only=True):
    """How much was walked, and what of it there is."""

    keys: int = 0
    changes: int = 0
    values: int = 0
    """Changes whose value was made again from what is kept."""
    not_kept: int = 0
    unhashed: int = 0
    """Changes of an earlier release whose hash is not reckoned yet, and those behind them."""
    erased: int = 0


class Walk:
    """The walk along chains: rows are given in the order of keys and versions."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._before: ChainRow | None = None
        self._value: bytes | None = None
        self._base = 0
        self._torn = False

    def begin(self) -> None:
        """Begin with another key."""
        self._before, self._value, self._base = None, None, 0
        self.counts.keys += 1

    def take(self, row: ChainRow) -> Iterator[Fault]:
        """Yield what is wrong with the next row of the key."""
        self.counts.changes += 1
        yield from self._gone(row)
        yield from self._follows(row)
        yield from self._stands(row)
        if row.erased:
            self.counts.erased += 1
            blank = (row.value, row.packed, row.digest, row.hash, row.size or None)
            if blank != (None,) * 5 or row.change_set.writer:
                yield _fault(row, "value", "it was erased, and something of it is there")
            self._value, self._base = None, 0
        else:
            yield from self._reads(row)
            yield from self._links(row)
        self._before = row

    def end(self, state: StateRow | None, key: str) -> Iterator[Fault]:
        """Yield what is wrong with the key's state, now that its last change was walked."""
        last = self._before
        stands = last is not None and state is not None and state.version == last.change.version
        yield from self._gone(None, stands=stands)
        if last is None or (state is not None and state.op == "quarantined" and state.version > last.change.version):
            return
        change = last.change
        if state is None:
            yield Fault(key=key, version=change.version, what="state", detail="the key has no state")
        elif state.version != change.version:
            gone = "the change of the state's version is missing" if state.version > change.version else "it is behind"
            detail = f"{gone}: the state is version {state.version}, the last change {change.version}"
            yield Fault(key=key, version=state.version, what="state", detail=detail)
        elif (state.change_id, state.op) != (change.change_id, change.op):
            detail = f"it is {state.op} by change {state.change_id}, the last change is {change.op} {change.change_id}"
            yield Fault(key=key, version=state.version, what="state", detail=detail)
        elif not last.erased:
            if others := _other_than(state, last):
                detail = f"it has not the {', '.join(others)} of its last change"
                yield Fault(key=key, version=state.version, what="state", detail=detail)
            if state.op == "set" and (detail := self._differs(state.value or b"", last)):
                yield Fault(key=key, version=state.version, what="state", detail=detail)

    def _differs(self, value: bytes, last: ChainRow) -> str:
        if last.digest is None:
            return "" if self._value in (None, value) else "its value is not that of its last change"
        if sha256(value).digest() != last.digest:
            return "its value is not what the digest of its change says"
        said = last.size if last.is_gone else None
        return "" if said in (None, len(value)) else f"its value has {len(value)} bytes, its last change says {said}"

    def _follows(self, row: ChainRow) -> Iterator[Fault]:
        """Yield what is wrong with the row's place: rows missing before it, another parent than it names."""
        before, change = self._before, row.change
        expected = 1 if before is None else before.change.version + 1
        missing = change.version > expected
        deleted = missing and row.kept_after > (0 if before is None else before.change_set.position.n)
        excused = deleted or (row.gap and missing)
        self._torn = missing and not row.gap
        if row.gap and not missing:
            yield _fault(row, "gap", "it says that versions before it are missing, and none is")
        elif row.gap and not deleted and not row.gap_known:
            detail = "it says that versions before it are missing, and nothing is recorded as lost or parked there"
            yield _fault(row, "gap", detail)
        if excused:
            return
        if missing:
            last = change.version - 1
            which = f"version {last} is" if last == expected else f"versions {expected} to {last} are"
            yield Fault(key=change.key, version=expected, what="missing", detail=f"{which} not there", last=last)
        elif change.parent_change_id != ("" if before is None else before.change.change_id):
            is_before = "it is the first" if before is None else f"before it is change {before.change.change_id}"
            yield _fault(row, "parent", f"it names {change.parent_change_id or 'none'} as its parent, and {is_before}")

    def _stands(self, row: ChainRow) -> Iterator[Fault]:
        """Yield what is wrong with the row's shard and time, and with what is recorded of what it was made from."""
        if row.shard != row.key_shard:
            yield _fault(row, "shard", f"it is in shard {row.shard}, its key in {row.key_shard}")
        if not row.same_at:
            yield _fault(row, "at", "another change of its commit says another time")
        if detail := wrong_link(row.link, row.due, row.change_set.at, recorded=row.hash is not None):
            yield _fault(row, "branch", detail)

    def _gone(self, following: ChainRow | None, *, stands: bool = False) -> Iterator[Fault]:
        """Yield that the last row's value is gone and may not be, given what follows and whether the state has it."""
        row = self._before
        if row is None or not row.is_gone:
            return
        n, next_n = row.change_set.position.n, None if following is None else following.change_set.position.n
        counts = [pin for pin, made in row.pins if made is None or (n <= made and (next_n is None or made < next_n))]
        if not stands and is_pinned(counts, row.change.key, row.change.version, n, next_n):
            yield _fault(row, "pinned", "its value is gone, and a checkpoint names it")
        elif row.policy is None or not row.policy.may_have_let_go(
            row.change_set.at, None if following is None else following.change_set.at,
            newer=None if row.newest is None else row.newest - row.change.version,
        ):  # fmt: skip
            yield _fault(row, "value", "its value is gone, and no policy may have let it go")

    def _reads(self, row: ChainRow) -> Iterator[Fault]:
        """Yield what is wrong with the row's value, and take note of it for the next."""
        version = row.change.version
        follows = self._before is not None and self._before.change.version == version - 1
        parent, base = (self._value, self._base) if follows else (None, 0)
        own, self._value, self._base = True, None, version
        if row.value is not None:
            self._value = row.value
        elif row.packed is None:
            self.counts.not_kept += row.change.op == "set"
            return
        else:
            own = not is_delta(row.packed)
            self._base = version if own else base
            try:
                self._value = unpacked(row.packed, row.origin if own else parent)
            except Damage as error:
                yield _fault(row, "value", str(error))
                return
        yield from self._is_right(row, self._value)
        if row.keyframe not in ((None, version) if own else (base,)):
            begins = f"reading it begins at version {row.keyframe}"
            yield _fault(row, "keyframe", f"{begins}, its keyframe is {version if own else base}")

    def _is_right(self, row: ChainRow, value: bytes) -> Iterator[Fault]:
        self.counts.values += row.change.op == "set"
        if row.digest is None:
            if row.packed is not None or row.hash is not None:
                yield _fault(row, "value", "its digest is missing")
        elif sha256(value).digest() != row.digest:
            yield _fault(row, "value", "the value is not what its digest says")
        if row.size is None and row.packed is not None:
            yield _fault(row, "value", "its size is missing")
        elif row.size not in (None, len(value)):
            yield _fault(row, "value", f"the value has {len(value)} bytes, and {row.size} are said")

    def _links(self, row: ChainRow) -> Iterator[Fault]:
        """Yield what is wrong with the row's hash."""
        if row.hash is None:
            self.counts.unhashed += 1
            if row.change_set.position.n <= row.hashed:
                yield _fault(row, "hash", "its hash is missing")
            return
        if row.digest is None or self._torn:
            return
        before, accepted = self._before, [b""]
        if before is not None and before.hash is not None and _is_parent(before.change, row.change):
            accepted.append(before.hash)
        if all(link(one, row.change, row.change_set, row.digest) != row.hash for one in accepted):
            yield _fault(row, "hash", "its hash does not fit what it says, or the hash before it")


def _other_than(state: StateRow, last: ChainRow) -> list[str]:
    """Return the names of what the state says otherwise than its change."""
    change, commit = last.change, last.change_set
    says = {
        "shard": last.shard, "epoch": commit.position.epoch, "n": commit.position.n, "encoding": change.encoding,
        "parent_change_id": change.parent_change_id, "schema": change.schema, "writer": commit.writer,
        "updated_at": commit.at,
    }  # fmt: skip
    return [name for name, value in says.items() if getattr(state, name) != value]


def _is_parent(before: ChangeRecord, change: ChangeRecord) -> bool:
    return (before.version, before.change_id) == (change.version - 1, change.parent_change_id)


def _fault(row: ChainRow, what: What, detail: str) -> Fault:
    return Fault(key=row.change.key, version=row.change.version, what=what, detail=detail)
