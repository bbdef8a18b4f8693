"""When states end: the moment stands behind the encoding of a value, so nothing can ever part the two.

    json                        a value that lasts
    json until 1795489200123    one that ends at that moment, in ms since 1970 of the Redis server's clock
    json in 5000                how a commit asks for it: so many ms from then on; the script stores the moment

From that moment on no read finds the state and every write takes it for deleted; a worker deletes it soon afterwards,
by a commit like any other. Wherever a change goes (the stream, Postgres, a conflict, a returning branch) its end goes
with it, and the next value begins without one. A release that does not know of ends knows no such encoding either: it
refuses the value, and overwrites it whole.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf

from statecache.errors import UsageError
from statecache.model import Ttl

PLAIN_MAX = len("msgpack")
"""The length of the longest encoding of a value that lasts."""
TTL_S_MAX = 100 * 366 * 86_400
"""The longest life that ends: a hundred years, in seconds."""
_UNTIL = " until "
_IN = " in "


def checked_ttl_ms(ttl: Ttl | None) -> float | None:
    """Return a time to live in whole ms, at least 1, `inf` for ever, None for none given; else raise UsageError."""
    if ttl is None:
        return None
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool):
        if seconds == inf:
            return inf
        if 0 < seconds <= TTL_S_MAX:
            return max(1, round(seconds * 1000))
    raise UsageError(
        f"ttl={ttl!r} is not a time above 0, of at most 100 years",
        hint="Say ttl=timedelta(minutes=30) or seconds; ttl=math.inf lasts for ever, delete() ends at once.",
    )


def lasting(encoding: str, ttl_ms: float) -> str:
    """Return the encoding as a commit asks for it of a value that lasts so long."""
    return encoding if ttl_ms == inf else f"{encoding}{_IN}{ttl_ms}"


def stored(encoding: str, updated_at: datetime) -> str:
    """Return the encoding as a commit of that moment has stored it."""
    if len(encoding) <= PLAIN_MAX or _IN not in encoding:
        return encoding
    form, _, ttl_ms = encoding.partition(_IN)
    return f"{form}{_UNTIL}{_ms(updated_at) + int(ttl_ms)}"


def form_of(encoding: str) -> str:
    """Return how the bytes of a value are to be read: its encoding without its end."""
    return encoding if len(encoding) <= PLAIN_MAX else encoding.partition(" ")[0]


def until_of(encoding: str) -> int | None:
    """Return the moment at which a stored value ends, in ms since 1970; None where it lasts."""
    if len(encoding) <= PLAIN_MAX:
        return None
    until = encoding.partition(_UNTIL)[2]
    return int(until) if until.isascii() and until.isdigit() else None


def expires_at(encoding: str) -> datetime | None:
    """Return the moment at which a stored value ends, aware and in UTC; None where it lasts."""
    until = until_of(encoding)
    return None if until is None else _EPOCH + timedelta(milliseconds=until)


def ending(encoding: str, at: datetime | None) -> str:
    """Return the encoding of a value that ends at that moment; the inverse of `form_of` and `expires_at`."""
    return encoding if at is None else f"{encoding}{_UNTIL}{_ms(at)}"


_EPOCH = datetime.fromtimestamp(0, UTC)


def _ms(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(milliseconds=1)
