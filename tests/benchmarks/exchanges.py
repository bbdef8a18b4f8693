"""One exchange with Redis at a time, by the synchronous client and by bare redis-py as it comes.

Bare redis-py writes and reads the same bytes: the value alone, or the fields that statecache keeps of a state and of
its change, without any of the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

from statecache import StateCache
from statecache.keys import KeySpace
from tests.benchmarks.measuring import Row, in_turns
from tests.benchmarks.values import Value, encoded

CALLS = 400
KEYS = [f"bench/{number}" for number in range(16)]
BY_HAND = "by-hand"


class Exchanges:
    """These are the rows of single exchanges; each starts from states that exist."""

    def __init__(self, cache: StateCache, bare: Any, values: Sequence[Value]) -> None:
        self._cache = cache
        self._bare = bare
        self._space = KeySpace(cache.settings.prefix, cache.settings.shards)
        self._values = values
        for key, value in zip(KEYS, cycle(values), strict=False):
            cache.set(key, value)

    def rows(self, rounds: int) -> Iterator[Row]:
        """This measures one row after the other."""
        yield self._commit(rounds)
        yield self._transaction(rounds)
        yield self._read(rounds)
        for name in self._bare.scan_iter(f"{BY_HAND}:*"):
            self._bare.delete(name)

    def _turns(self) -> Callable[[], tuple[str, int]]:
        """This gives what names the next key, and the number of the next value."""
        keys, numbers = cycle(KEYS), cycle(range(len(self._values)))
        return lambda: (next(keys), next(numbers))

    def _commit(self, rounds: int) -> Row:
        cache, bare, values = self._cache, self._bare, self._values
        bytes_of = [encoded(value) for value in values]
        ours, theirs = self._turns(), self._turns()

        def commit() -> None:
            key, number = ours()
            cache.set(key, values[number])

        def bare_set() -> None:
            key, number = theirs()
            bare.set(f"{BY_HAND}:{key}", bytes_of[number])

        return in_turns(
            ("commit of 1 KB, synchronous client", commit),
            ("bare SET of the same bytes", bare_set),
            bound=1.6, rounds=rounds, calls=CALLS,
        )  # fmt: skip

    def _transaction(self, rounds: int) -> Row:
        cache, bare, values = self._cache, self._bare, self._values
        state, change = self._fields()
        ours, theirs = self._turns(), self._turns()

        def transaction() -> None:
            key, number = ours()
            with cache.transaction(key) as tx:
                tx.get(key)
                tx.set(key, values[number])

        def bare_transaction() -> None:
            key, _ = theirs()
            name = f"{BY_HAND}:hash:{key}"
            with bare.pipeline() as pipe:
                pipe.watch(name)
                pipe.hgetall(name)
                pipe.multi()
                pipe.hset(name, mapping=state)
                pipe.xadd(f"{BY_HAND}:stream", change)
                pipe.execute()

        return in_turns(
            ("transaction: get and set of 1 KB", transaction),
            ("bare WATCH, HGETALL / MULTI, HSET, XADD, EXEC", bare_transaction),
            bound=1.3, rounds=rounds, calls=CALLS,
        )  # fmt: skip

    def _read(self, rounds: int) -> Row:
        cache, bare = self._cache, self._bare
        ours, theirs = cycle(KEYS), cycle([self._space.state(key) for key in KEYS])
        return in_turns(
            ("get from the primary", lambda: cache.get(next(ours))),
            ("bare HGETALL of the same hash", lambda: bare.hgetall(next(theirs))),
            bound=1.3, rounds=rounds, calls=CALLS,
        )  # fmt: skip

    def _fields(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """These are the fields of a state and of its change as statecache wrote them."""
        shard, name = self._space.place(KEYS[0])
        state: Any = self._bare.hgetall(name)
        entries: Any = self._bare.xrevrange(self._space.changes(shard), count=1)
        return state, entries[0][1]
