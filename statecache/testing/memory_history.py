"""What Postgres keeps of every change, answered from the chains that a deployment in memory has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from statecache.rules.provenance import provenance_of

if TYPE_CHECKING:
    from statecache.keys import KeySpace

Row = tuple[Any, ...]


class HistoryTables:
    """The statements that read history."""

    def __init__(self, keys: KeySpace, epoch: int) -> None:
        self._keys = keys
        self._epoch = epoch
        self._chains: dict[str, list[Any]] = {}
        self._flushed = dict.fromkeys(range(keys.shards), 0)

    def _mark(self, shard: int, columns: int) -> Row:
        return (self._epoch, self._flushed[shard], *(None,) * (columns - 2))

    def _header(self, one: Any) -> Row:
        return (
            self._epoch, None, one.version, one.op, one.change_id, one.parent_change_id, one.n, one.at, one.writer,
            one.actor, one.reason, one.encoding, one.schema, len(one.value), _digest(one), False, one.kept, one.key,
        )  # fmt: skip

    def _history_versions(self, shard: int, key: str, first: int, last: int, down: bool, limit: int) -> Iterator[Row]:
        yield self._mark(shard, 20)
        found = [one for one in self._chains.get(key, []) if first <= one.version <= last]
        yield from ((*self._header(one), None, None) for one in found[:: -1 if down else 1][:limit])

    def _history_at(
        self, shard: int, key: str, whole: bool, beyond: str, version: int, n: int, time: datetime | str, **_: Any
    ) -> Iterator[Row]:
        yield self._mark(shard, 22)
        below = sorted(one for one in self._chains if key + "/" < one < beyond) if whole else []
        for name in (key, *below):
            chain = self._chains.get(name, [])
            then = [
                one
                for one in chain
                if one.version <= version and one.n <= n and (isinstance(time, str) or one.at <= time)
            ]
            following = next((one.version for one in chain if not then or one.version > then[-1].version), None)
            if then:
                yield *self._header(then[-1]), chain[-1].version, following, None, None
            elif chain:
                yield *(None,) * 17, name, chain[-1].version, following, None, None

    def _history_gaps(self, **_: Any) -> list[Row]:
        return []  # chains in memory are whole

    def _history_missing(self, **_: Any) -> list[Row]:
        return []

    def _history_nearest(self, key: str, version: int) -> list[Row]:
        sets = [one.version for one in self._chains.get(key, []) if one.op == "set"]
        return [(one,) for one in (*[one for one in sets if one <= version][-1:],
                                   *[one for one in sets if one > version][:1])]  # fmt: skip

    def _history_values(self, keys: Sequence[str], versions: Sequence[int], **_: Any) -> Iterator[Row]:
        for at, (key, version) in enumerate(zip(keys, versions, strict=True), 1):
            for one in self._chains.get(key, []):
                if one.version == version:
                    yield at, key, version, one.value if one.kept else None, None, None, _digest(one), None, None

    def _history_range(self, key: str, first: int, last: int) -> Iterator[Row]:
        for one in self._chains.get(key, []):
            if first <= one.version <= last:
                yield one.version, one.value if one.kept else None, None, None, _digest(one), None, None

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

    def _restores(self, keys: Sequence[str], firsts: Sequence[int], limit: int) -> list[Row]:
        said = [
            (key, one.version, one.reason)
            for key, first in zip(keys, firsts, strict=True)
            for one in self._chains.get(key, [])
            if one.version > first and one.reason.startswith(("undo to ", "redo to ", "rollback to "))
        ]
        return said[:limit]

    def _origins_now(self, keys: Sequence[str], ns: Sequence[int]) -> Iterator[Row]:
        for at, (key, n) in enumerate(zip(keys, ns, strict=True), 1):
            if then := [one for one in self._chains.get(key, []) if one.n <= n]:
                yield at, then[-1].version, then[-1].change_id

    def _links(self) -> list[Row]:
        """Return what changes were made from, as their reasons say."""
        rows: list[Row] = []
        for one in [one for chain in self._chains.values() for one in chain]:
            said = provenance_of(one.reason)
            if said is None or said.kind not in ("branch", "merge"):
                continue
            origin, before = said.origin_of(one.key), said.position
            chain = self._chains.get(origin, [])
            then = [each for each in chain if (each.version == said.version if before is None else each.n <= before.n)]
            if then:
                made_from = (origin, then[-1].version, then[-1].change_id)
                said_by = (one.at, one.writer, one.actor, one.reason)
                rows.append((one.key, one.version, one.change_id, *made_from, *said_by, False))
        return rows


def _digest(one: Any) -> bytes | None:
    return sha256(one.value).digest() if one.kept else None
