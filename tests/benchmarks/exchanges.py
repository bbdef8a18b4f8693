"""One exchange with Redis at a time, by the synchronous client and by bare redis-py as it comes.

Bare redis-py writes and reads the same bytes: the value alone, or the fields that statecache keeps of a state and of
its change, without any of the checks. It is one state throughout, as when an agent commits its run step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from typing import Any

from statecache import StateCache
from statecache.keys import KeySpace
from tests.benchmarks.measuring import Row, in_turns
from tests.benchmarks.values import Value, encoded

CALLS = 400
KEY = "bench/1"
BY_HAND = "by-hand"


class Exchanges:
    """The rows of single exchanges; each starts from a state that exists."""

    def __init__(self, cache: StateCache, bare: Any, values: Sequence[Value]) -> None:
        self._cache = cache
        self._bare = bare
        self._space = KeySpace(cache.settings.prefix, cache.settings.shards)
        self._values = values
        for value in values:
            cache.set(KEY, value)

    def rows(self, rounds: int, sections: Iterable[str]) -> Iterator[Row]:
        """Measure the rows that are asked for, one after the other."""
        known = {"commit": self._commit, "transaction": self._transaction, "get": self._read}
        for section in sections:
            yield known[section](rounds)
        for name in self._bare.scan_iter(f"{BY_HAND}:*"):
            self._bare.delete(name)

    def _commit(self, rounds: int) -> Row:
        cache, bare = self._cache, self._bare
        ours, theirs = cycle(self._values), cycle([encoded(value) for value in self._values])
        return in_turns(
            ("commit of 1 KB, synchronous client", lambda: cache.set(KEY, next(ours))),
            ("bare SET of the same bytes", lambda: bare.set(f"{BY_HAND}:value", next(theirs))),
            bound=1.6, rounds=rounds, calls=CALLS,
        )  # fmt: skip

    def _transaction(self, rounds: int) -> Row:
        cache, bare, values = self._cache, self._bare, cycle(self._values)
        state, change = self._fields()
        name = f"{BY_HAND}:hash"

        def transaction() -> None:
            with cache.transaction(KEY) as tx:
                tx.get(KEY)
                tx.set(KEY, next(values))

        def bare_transaction() -> None:
            with bare.pipeline() as pipe:
                pipe.watch(name)
                pipe.hgetall(name)
                pipe.multi()
                pipe.hset(name, mapping=state)
                pipe.xadd(f"{BY_HAND}:stream", change)
                pipe.execute()

        return in_turns(
            ("transaction: get and set of 1 KB", transaction),
            ("bare WATCH, HGETALL, MULTI, HSET, XADD, EXEC", bare_transaction),
            bound=1.3, rounds=rounds, calls=CALLS,
        )  # fmt: skip

    def _read(self, rounds: int) -> Row:
        cache, bare, name = self._cache, self._bare, self._space.state(KEY)
        return in_turns(
            ("get from the primary", lambda: cache.get(KEY, read="primary")),
            ("bare HGETALL of the same hash", lambda: bare.hgetall(name)),
            bound=1.3, rounds=rounds, calls=CALLS,
        )  # fmt: skip

    def _fields(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Return the fields of a state and of its change as statecache wrote them."""
        shard, name = self._space.place(KEY)
        state: Any = self._bare.hgetall(name)
        entries: Any = self._bare.xrevrange(self._space.changes(shard), count=1)
        return state, entries[0][1]
