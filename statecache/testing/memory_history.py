"""The history of clients in memory: every change is kept whole, and each statement about it is a method with its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from statecache.rules.provenance import provenance_of

if TYPE_CHECKING:
    from statecache.testing.memory_postgres import Stored

EPOCH = 1
"""The one epoch that a Redis in memory ever has."""
Row = tuple[Any, ...]


class HistoryTables:
    """What Postgres answers about history, from chains of changes."""

    _chains: dict[str, list[Stored]]
    _flushed: dict[int, int]

    def _history_values(self, keys: Sequence[str], versions: Sequence[int]) -> Iterator[Row]:
        for at, (key, version) in enumerate(zip(keys, versions, strict=True), 1):
            for one in self._between(key, version, version):
                yield at, key, version, one.value, None, None, sha256(one.value).digest(), None, None

    def _history_range(self, key: str, first: int, last: int) -> Iterator[Row]:
        for one in self._between(key, first, last):
            yield one.version, one.value, None, None, sha256(one.value).digest(), None, None

    def _history_versions(
        self, key: str, shard: int, first: int, last: int, down: bool, limit: int
    ) -> Iterator[Row]:  # fmt: skip
        yield self._mark(shard)[:17]
        found = self._between(key, first, last)
        yield from [one.as_version() for one in (found[::-1] if down else found)[:limit]]

    def _history_at(
        self, key: str, shard: int, whole: bool, beyond: str, version: int, n: int, time: datetime | str
    ) -> Iterator[Row]:  # fmt: skip
        yield self._mark(shard)
        for name in sorted(self._chains):
            if name == key or (whole and key + "/" < name < beyond):
                chain = self._chains[name]
                reached = [
                    one for one in chain
                    if one.version <= version and one.n <= n and (isinstance(time, str) or one.at <= time)
                ]  # fmt: skip
                nothing = (*(None,) * 16, name)
                yield *(reached[-1].as_version() if reached else nothing), chain[-1].version

    def _history_nearest(self, key: str, version: int) -> Iterator[Row]:
        kept = [one.version for one in self._chains.get(key, ()) if one.op == "set"]
        yield from [(one,) for one in kept if one <= version][-1:]
        yield from [(one,) for one in kept if one > version][:1]

    def _ancestry(self, keys: Sequence[str], limit: int) -> list[Row]:
        links, found, todo = self._links(), dict[tuple[str, int], Row](), [*keys]
        seen = set(todo)
        while todo:
            key = todo.pop()
            for row in links:
                if row[0] == key:
                    found[row[0], row[1]] = row
                    todo += [row[3]] if row[3] not in seen else []
                    seen.add(row[3])
        return sorted(found.values(), key=lambda row: (row[6], row[1]), reverse=True)[:limit]

    def _branches(self, key: str, whole: bool, beyond: str, limit: int) -> list[Row]:
        found = [row for row in self._links() if row[3] == key or (whole and key + "/" < row[3] < beyond)]
        return sorted(found, key=lambda row: (row[3], row[4], row[6], row[0]))[:limit]

    def _links(self) -> list[Row]:
        """Return what changes were made from, as their reasons say."""
        rows: list[Row] = []
        for one in [one for chain in self._chains.values() for one in chain]:
            said = provenance_of(one.reason)
            if said is None or said.kind not in ("branch", "merge"):
                continue
            origin = said.origin_of(one.key)
            n = None if said.position is None else said.position.n
            reached = [
                each for each in self._chains.get(origin, ())
                if (each.version == said.version if n is None else each.n <= n)
            ]  # fmt: skip
            if reached:
                made_from = reached[-1]
                rows.append((
                    one.key, one.version, one.change_id, origin, made_from.version, made_from.change_id, one.at,
                    one.writer, one.actor, one.reason,
                ))  # fmt: skip
        return rows

    def _between(self, key: str, first: int, last: int) -> list[Stored]:
        return [one for one in self._chains.get(key, ()) if first <= one.version <= last]

    def _mark(self, shard: int) -> Row:
        """Return the row with how far a shard is."""
        return EPOCH, self._flushed[shard], *(None,) * 16
