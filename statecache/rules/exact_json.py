"""JSON that somebody has written by hand, taken as it is meant or not at all.

Decoders keep the last of two members of one name, and of a number with a fraction or an exponent what a double holds of
it: the 23rd digit is lost without a word. Here both are refused. Whole numbers are kept, up to 4,300 digits.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec

from statecache.errors import UsageError

_DIGITS_SHOWN = 40


def decoded(text: bytes | str, what: str, *, hint: str = "") -> Any:
    """Return the value; raise UsageError for what is no JSON, with that hint, and for what a value does not hold."""
    try:
        value = msgspec.json.decode(text)
        spelled = text if isinstance(text, str) else text.decode()
        json.loads(spelled, object_pairs_hook=_members, parse_float=_number, parse_int=len)
    except _Lost as error:
        raise UsageError(f"{what} would not be kept as it is given: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not JSON: {error}", hint=hint) from None
    return value


class _Lost(Exception):
    """A value would not hold what the text says."""


def _members(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        twice = next(name for name, _ in pairs if [known for known, _ in pairs].count(name) > 1)
        raise _Lost(f"an object has the member {twice!r} twice")


def _number(text: str) -> None:
    number = float(text)
    if Decimal(text) not in (Decimal(repr(number)), Decimal(number)):
        shown = text if len(text) <= _DIGITS_SHOWN else f"{text[:_DIGITS_SHOWN]}…"
        raise _Lost(f"the number {shown} would become {number!r}; give it as text")
