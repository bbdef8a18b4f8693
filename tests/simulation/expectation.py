"""What the cache ought to hold: every key's changes in order, as a plain dict of lists."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import psycopg

from statecache import State
from statecache.history import Stored, values_of


class Change(msgspec.Struct):
    """One change of a key; its change_id is '' as long as only its writer could know it.

    `state` is what its writer was given.
    """

    op: str
    value: Any
    change_id: str
    durable: bool = False
    state: State[Any] | None = None


class Expectation:
    """The model: a key's version is the number of its changes."""

    def __init__(self) -> None:
        self._chains: dict[str, list[Change]] = {}
        self._shortened: set[str] = set()

    def written(self) -> list[str]:
        """Return the keys that were ever written, lost ones too."""
        return list(self._chains)

    def chain(self, key: str) -> list[Change]:
        """Return the key's changes, oldest first."""
        return self._chains.setdefault(key, [])

    def exists(self, key: str) -> bool:
        """Return whether the last change left a value."""
        return bool(self.chain(key)) and self.chain(key)[-1].op == "set"

    def is_durable(self, key: str) -> bool:
        """Return whether Postgres holds everything that anybody may have seen of the key, lost changes included."""
        return key not in self._shortened and all(change.durable for change in self.chain(key))

    def value(self, key: str) -> Any:
        """Return the current value."""
        return self.chain(key)[-1].value if self.exists(key) else None

    def applied(self, key: str, change: Change) -> None:
        """Note a change of which its writer has not heard yet."""
        self.chain(key).append(change)

    def took(self, key: str, op: str, value: Any, state: State[Any]) -> None:
        """Note the answer of a verb: a new change, or one already applied whose reply had been lost."""
        chain = self.chain(key)
        at = state.version - 1
        if at >= len(chain) or chain[at].change_id or chain[at].value != value:
            chain.append(Change(op, value, state.change_id))
            at = len(chain) - 1
        chain[at].change_id, chain[at].state = state.change_id, state
        parent = chain[at - 1].change_id if at else ""
        assert (state.key, state.version, state.value) == (key, at + 1, value)
        assert not parent or state.parent_change_id == parent
        assert at or state.parent_change_id == ""

    def shows(self, key: str, state: State[Any] | None) -> None:
        """Assert that a reader was given the current state."""
        chain = self.chain(key)
        assert (state is not None) == self.exists(key)
        if state is not None:
            assert (state.key, state.value, state.version) == (key, chain[-1].value, len(chain))
            assert state.change_id == chain[-1].change_id

    def flushed(self) -> None:
        """Note that Postgres holds everything."""
        for chain in self._chains.values():
            for change in chain:
                change.durable = True

    def lost_what_was_not_flushed(self) -> list[State[Any]]:
        """Forget the changes that only Redis held, and return the acknowledged ones among them."""
        lost = []
        for key, chain in self._chains.items():
            if not self.is_durable(key):
                self._shortened.add(key)
            lost += [change.state for change in chain if change.state is not None and not change.durable]
            chain[:] = [change for change in chain if change.durable]
        return lost

    def in_redis(self, key: str, found: dict[bytes, bytes], *, dirty: bool, lasts: bool) -> None:
        """Compare a state's hash in Redis; it may be missing, or have a time to live, only while it is clean."""
        chain = self.chain(key)
        assert dirty or all(change.durable for change in chain), f"{key} has changes to flush and is not dirty"
        if not found:
            assert not dirty, f"{key} is dirty and gone"
            return
        assert lasts or not dirty, f"{key} is dirty and has a time to live"
        op, version, change_id = (found[name].decode() for name in (b"op", b"version", b"change_id"))
        if not chain:
            assert (op, version) == ("absent", "0")
            return
        value = msgspec.json.decode(found[b"value"]) if op == "set" else None
        assert (op, int(version), value) == (chain[-1].op, len(chain), chain[-1].value), key
        assert change_id == chain[-1].change_id, key

    def in_postgres(self, psql: psycopg.Connection[Any]) -> None:
        """Compare every chain, and every state with the end of its chain; assert that nothing is set aside."""
        found: dict[str, list[tuple[Any, ...]]] = {key: [] for key in self._chains}
        query = (
            "SELECT key, version, op, change_id, parent_change_id, gap, value, packed, keyframe, digest FROM change"
            " ORDER BY key, version"
        )
        for key, rows in groupby(psql.execute(query).fetchall(), itemgetter(0)):
            chain = [row[1:] for row in rows]
            values = values_of(Stored(row[0], *row[5:]) for row in chain)
            found[key] = [(*row[:2], value, *row[2:5]) for row, value in zip(chain, values, strict=True)]
        for key in self._chains.keys() | found.keys():
            assert found.get(key) == self._rows(self.chain(key)), f"{key}: {found.get(key)}"
        states = psql.execute("SELECT key, version, change_id, op FROM state").fetchall()
        assert {key: tuple(row) for key, *row in states} == {
            key: (len(chain), chain[-1].change_id, chain[-1].op) for key, chain in self._chains.items() if chain
        }
        assert psql.execute("SELECT key FROM conflict").fetchall() == []
        assert psql.execute("SELECT keys FROM quarantine").fetchall() == []

    def _rows(self, chain: list[Change]) -> list[tuple[Any, ...]]:
        rows, parent = [], ""
        for version, change in enumerate(chain, 1):
            value = msgspec.json.encode(change.value) if change.op == "set" else b""
            rows.append((version, change.op, value, change.change_id, parent, False))
            parent = change.change_id
        return rows
