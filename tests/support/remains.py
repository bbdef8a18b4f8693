"""What is left of a text: in which tables of Postgres, packed values included, and in which Redis keys."""

from __future__ import annotations

import re
from typing import Any

from statecache.history import Damage, is_delta, needs_parent, unpacked
from statecache.keys import KeySpace
from tests.fixtures.flusher import rows
from tests.support.histories import Psql

SECRET = "ada-of-turing-street"
_TEXTS = """SELECT format('SELECT %L, t::text FROM %I.%I t', relname, nspname, relname)
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = current_schema() AND relkind = 'r'"""
_VALUES = """SELECT c.key, c.version, c.value, c.packed, b.origin, b.origin_version FROM change c
    LEFT JOIN branch b ON b.key = c.key AND b.version = c.version"""


def in_postgres(psql: Psql, text: str = SECRET) -> set[str]:
    """Return the tables in which a text stands: as it is, in hexadecimal, or in a packed value."""
    found = set[str]()
    for (query,) in rows(psql, _TEXTS):
        for table, row in rows(psql, query):
            if text in row or text.encode().hex() in row:
                found.add(table)
    if any(value is None or text.encode() in value for value in _values(psql)):
        found.add("change")
    return found


def _values(psql: Psql) -> list[bytes | None]:
    """Return every value that is kept, unpacked; None for one that cannot be read."""
    kept = {(key, version): more for key, version, *more in rows(psql, _VALUES)}

    def value_of(place: tuple[str, int]) -> bytes | None:
        value, packed, *origin = kept[place]
        assert value is None or isinstance(value, bytes)
        if packed is None:
            return value
        before = (place[0], place[1] - 1) if is_delta(packed) else (str(origin[0]), int(origin[1] or 0))
        try:
            return unpacked(packed, value_of(before) if needs_parent(packed) else None)
        except Damage:
            return None

    return [value_of(place) for place, (value, packed, *_) in kept.items() if value is not None or packed is not None]


def in_redis(raw: Any, keys: KeySpace, text: str = SECRET) -> set[str]:
    """Return the Redis keys in which a text stands."""
    found = set[str]()
    for name in raw.scan_iter(f"{keys.prefix}:*"):
        kind = raw.type(name)
        held = {
            b"hash": lambda name=name: raw.hgetall(name), b"stream": lambda name=name: raw.xrange(name),
            b"zset": lambda name=name: raw.zrange(name, 0, -1), b"list": lambda name=name: raw.lrange(name, 0, -1),
            b"string": lambda name=name: raw.get(name),
        }[kind]()  # fmt: skip
        if text in str(held):
            found.add(re.sub(r"\{\d+\}", "{}", name.decode()).removeprefix(f"{keys.prefix}:"))
    return found
