"""The plain model of history: every version of every key, whole, in a list. Nothing is packed, nothing is shared.

It says what each read has to give, and what each verb that goes back, branches or merges has to write. What a policy
may let go is marked, row by row; whether it went is learnt from what is read, and what went never comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from itertools import count, pairwise
from typing import Any, NamedTuple

import msgspec

from statecache.keys import KeySpace, group_of
from statecache.rules.provenance import Provenance, provenance_of

PLAIN_BYTES_MAX = 96
"""Up to this many bytes a branch keeps a value of its own."""


class Mark(msgspec.Struct, frozen=True):
    """What a checkpoint names: a version of a key, or all keys of a group at n."""

    label: str
    scope: str
    key: str
    version: int | None
    n: int
    metadata: Any = None


class Row(msgspec.Struct):
    """One version of a key; a checkpoint's record has a `mark`."""

    key: str
    version: int
    op: str
    value: Any
    data: bytes
    form: str
    change_id: str
    parent: str
    n: int
    epoch: int
    at: datetime
    reason: str
    mark: Mark | None = None
    may_go: bool = False
    kept: bool = True
    erased: bool = False

    @property
    def digest(self) -> str:
        """The SHA-256 of the value, in hexadecimal."""
        return "" if self.erased else sha256(self.data).hexdigest()

    @property
    def content(self) -> tuple[bytes, str]:
        """What is stored, and how it is encoded."""
        return self.data, self.form

    @property
    def said(self) -> Provenance | None:
        """What the change was made from."""
        return provenance_of(self.reason)

    @property
    def lives(self) -> bool:
        """Whether there is a state behind it."""
        return self.op == "set"


class Origin(NamedTuple):
    """That a version of a key was made from one of another."""

    kind: str
    key: str
    version: int
    origin: str
    origin_version: int


class PlainHistory:
    """All that was committed, in order."""

    def __init__(self, keys: KeySpace) -> None:
        self._keys = keys
        self._numbers = count()
        self.chains: dict[str, list[Row]] = {}
        self.n: dict[int, int] = {}
        self.flushed: dict[int, int] = {}
        self.origins: list[Origin] = []
        self.order: dict[tuple[str, int], int] = {}
        self.erased_groups: set[str] = set()

    def shard(self, key: str) -> int:
        """Return a key's shard."""
        return self._keys.shard(key)

    def chain(self, key: str) -> list[Row]:
        """Return a key's versions."""
        return self.chains.get(key, [])

    def tip(self, key: str) -> Row | None:
        """Return a key's newest version."""
        chain = self.chain(key)
        return chain[-1] if chain else None

    def exists(self, key: str) -> bool:
        """Return whether there is a state."""
        tip = self.tip(key)
        return tip is not None and tip.lives

    def users(self) -> list[str]:
        """Return the keys of users, sorted."""
        return sorted(key for key in self.chains if "/checkpoints/" not in key)

    def group(self, group: str) -> list[str]:
        """Return all keys of a group, records of checkpoints included, sorted."""
        return sorted(key for key in self.chains if group_of(key) == group)

    def groups(self) -> list[str]:
        """Return the groups, sorted."""
        return sorted({group_of(key) for key in self.chains})

    # What was committed.

    def add(self, row: Row) -> None:
        """Add a version; those of one commit have one n."""
        self.chains.setdefault(row.key, []).append(row)
        self.order[row.key, row.version] = next(self._numbers)
        shard = self.shard(row.key)
        self.n[shard] = max(self.n.get(shard, 0), row.n)
        said = row.said
        if said is not None and said.kind in ("branch", "merge"):
            origin = said.origin_of(row.key)
            version = said.version
            if said.position is not None:
                version = next(one.version for one in reversed(self.chain(origin)) if one.n <= said.position.n)
            assert version is not None
            self.origins.append(Origin(said.kind, row.key, row.version, origin, version))

    def lose(self) -> int:
        """Forget what is not flushed, as when Redis is lost; return how many versions that were."""
        lost = 0
        for key, chain in self.chains.items():
            kept = [row for row in chain if self.is_flushed(row)]
            lost += len(chain) - len(kept)
            self.chains[key] = kept
        self.origins = [one for one in self.origins if len(self.chain(one.key)) >= one.version]
        self.chains = {key: chain for key, chain in self.chains.items() if chain}
        self.n = dict(self.flushed)
        return lost

    def blank(self, keys: Collection[str]) -> None:
        """Blank all versions of keys but their last, as an erasure does."""
        for key in keys:
            for row in self.chain(key)[:-1]:
                row.kept, row.erased, row.reason, row.data = not row.lives, True, "", b""
            last = len(self.chain(key)) - 1
            self.origins = [one for one in self.origins if one.key != key or one.version > last]
            self.erased_groups.add(group_of(key))

    def is_flushed(self, row: Row) -> bool:
        """Return whether Postgres holds a version."""
        return row.n <= self.flushed.get(self.shard(row.key), 0)

    # What was when.

    def at(self, key: str, *, n: int | None = None, time: datetime | None = None) -> Row | None:
        """Return a key's newest version that is no later."""
        for row in reversed(self.chain(key)):
            if (n is None or row.n <= n) and (time is None or row.at <= time):
                return row
        return None

    def group_at(self, group: str, *, n: int | None = None, time: datetime | None = None) -> dict[str, Row]:
        """Return the newest version of each key of a group that is no later, deletes included."""
        found = {key: self.at(key, n=n, time=time) for key in self.group(group)}
        return {key: row for key, row in found.items() if row is not None}

    def held(self, key: str) -> list[int]:
        """Return the versions whose values are kept."""
        return [row.version for row in self.chain(key) if row.lives and row.kept]

    def marks(self, *, flushed: bool = False) -> dict[str, Mark]:
        """Return the checkpoints that there are, by the key of their record; or those of which Postgres knows."""
        found: dict[str, Mark] = {}
        for key, chain in self.chains.items():
            known = [row for row in chain if not flushed or self.is_flushed(row)]
            if known and known[-1].lives and (mark := known[-1].mark) is not None:
                found[key] = mark
        return found

    def marks_of(self, key: str, *, whole: bool = False) -> list[Mark]:
        """Return the checkpoints of a key and its group, or of all keys of a group, in the order of their positions."""
        group = group_of(key)
        found = [
            mark for mark in self.marks().values()
            if (group_of(mark.key) == group if whole else mark.key == key or (mark.key, mark.scope) == (group, "group"))
        ]  # fmt: skip
        return sorted(found, key=lambda mark: (mark.n, mark.label))

    # What policies may let go.

    def pinned(self) -> set[tuple[str, int]]:
        """Return the versions that checkpoints name of which Postgres knows."""
        found: set[tuple[str, int]] = set()
        for mark in self.marks(flushed=True).values():
            if mark.version is not None:
                found.add((mark.key, mark.version))
                continue
            found |= {(key, row.version) for key, row in self.group_at(mark.key, n=mark.n).items()}
        return found

    def read_by_branches(self) -> set[tuple[str, int]]:
        """Return the versions that a branch may be kept as a delta to: as long as its own first value is kept."""
        found: set[tuple[str, int]] = set()
        for one in self.origins:
            row = self.chain(one.key)[one.version - 1]
            if one.kind == "branch" and row.kept and self.is_flushed(row) and len(row.data) > PLAIN_BYTES_MAX:
                found.add((one.origin, one.origin_version))
        return found

    def replaced(self, namespace: str, *, count: int | None, before: datetime | None) -> Iterator[Row]:
        """Yield the values that a policy does not keep, but for what is pinned: in Postgres, and replaced there."""
        pinned = self.pinned()
        for key, chain in self.chains.items():
            if not key.startswith(namespace + "/"):
                continue
            known = [row for row in chain if self.is_flushed(row)]
            for row, after in pairwise(known):
                if not row.lives or not row.kept or (row.key, row.version) in pinned:
                    continue
                if known[-1].version - row.version >= (count or 1) and (before is None or after.at < before):
                    yield row

    # Where undo and redo lead.

    def walk(self, key: str, kind: str) -> int | None:
        """Return the version to which an editor would go, past deletes where there is nothing to delete."""
        chain = self.chain(key)
        places = _walked([(row.version, row.said) for row in chain], kind, whole=False)
        return next((place for place in places if chain[-1].lives or chain[place - 1].lives), None)

    def walk_group(self, group: str, kind: str) -> int | None:
        """Return the n of the commit to which an editor of the whole group would go, past those that change nothing."""
        commits: dict[int, Provenance | None] = {}
        for key in self.group(group):
            for row in self.chain(key):
                if not self._is_own(row):
                    commits.setdefault(row.n, row.said)
        places = _walked(sorted(commits.items()), kind, whole=True)
        return next((place for place in places if self.back(group, place) != {}), None)

    def was_marked(self, key: str) -> bool:
        """Return whether a checkpoint was at a key that is gone."""
        return not self.exists(key) and any(row.mark is not None for row in self.chain(key))

    def _is_own(self, row: Row) -> bool:
        if row.lives or row.version == 1:
            return row.mark is not None
        return self.chain(row.key)[row.version - 2].mark is not None

    def back(self, group: str, n: int) -> dict[str, Row | None] | None:
        """Return what a group that goes back to n writes, None for a delete; None where nothing of it is that old."""
        now, then = self.group_at(group), self.group_at(group, n=n)
        pairs = {
            key: then.get(key) for key, row in now.items()
            if row.mark is None and (key not in then or then[key].mark is None)
        }  # fmt: skip
        if not any(pairs.values()):
            return None
        writes: dict[str, Row | None] = {}
        for key, row in pairs.items():
            here = now[key]
            if row is not None and row.lives:
                if not here.lives or not _is_same(here, row):
                    writes[key] = row
            elif here.lives:
                writes[key] = None
        return writes

    # What versions were made from.

    def _ancestors(self, place: tuple[str, int]) -> set[tuple[str, int]]:
        """Return all that a version builds on, itself included."""
        found: set[tuple[str, int]] = set()
        todo = [place]
        while todo:
            one = todo.pop()
            if one in found:
                continue
            found.add(one)
            key, version = one
            links = [link for link in self.origins if (link.key, link.version) == one]
            todo += [(link.origin, link.origin_version) for link in links]
            if version > 1 and not any(link.kind == "branch" for link in links):
                todo.append((key, version - 1))
        return found

    def ancestry(self, key: str) -> set[Origin]:
        """Return the flushed branches and merges that the newest flushed link of a key builds on."""
        known = self.flushed_origins()
        newest = max((one.version for one in known if one.key == key), default=0)
        if not newest:
            return set()
        reached = self._ancestors((key, newest))
        return {one for one in known if (one.key, one.version) in reached}

    def flushed_origins(self) -> list[Origin]:
        """Return the branches and merges of which Postgres knows."""
        return [one for one in self.origins if self.is_flushed(self.chain(one.key)[one.version - 1])]


def _is_same(one: Row, other: Row) -> bool:
    if one.version == other.version:
        return True
    return not one.erased and not other.erased and one.content == other.content


def _walked(places: Sequence[tuple[int, Provenance | None]], kind: str, *, whole: bool) -> Iterator[int]:
    """Follow an editor through its edits, undos and redos, and yield where the next one leads, and those behind it.

    An undo may have gone past edits that changed nothing, so what it came to is what it says.
    """
    shown: int | None = None
    before: dict[int, int | None] = {}
    redos: list[int] = []
    for place, said in places:
        if said is None or said.kind not in ("undo", "redo") or (said.position is not None) != whole:
            before[place], shown, redos = shown, place, []
            continue
        assert shown is not None
        if said.kind == "undo":
            redos.append(shown)
        else:
            redos.pop()
        shown = said.version if said.position is None else said.position.n
    if kind == "redo":
        yield from reversed(redos)
        return
    while shown is not None and (shown := before[shown]) is not None:
        yield shown


def nearest(held: Iterable[int], version: int) -> set[int]:
    """Return the versions that are next to one, on either side, at the same distance."""
    found = sorted(held, key=lambda one: abs(one - version))
    return {one for one in found if abs(one - version) == abs(found[0] - version)} if found else set()


def by_key(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return the rows that live."""
    return {key: row for key, row in rows.items() if row.lives}
