"""Items as they are kept: plain data where that is exact, else the text that JSON has for them.

An item is what `json` can write, and comes back as what `json` reads then: a tuple as a list, a key that is a number
as text, and everything else as it was. Plain data of statecache is somewhat less: no lone surrogates, as a text has
that was cut in the middle of an emoji, nothing infinite and no NaN, nothing that is nested too deep. An item with one
of these is kept as `{"$json": "…"}`, and so is one that looks like that by itself.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import msgspec

from statecache import CodecError

TEXT = "$json"
NUL = "\\u0000"
NESTING_MAX = 150
"""How many levels of containers an item may have that is kept as plain data: a value has at most 200."""
_lone = re.compile("[\ud800-\udfff]")


class Kept(NamedTuple):
    """An item as it is kept, and how many bytes that has as JSON."""

    data: Any
    size: int


def kept(item: Any, at: int, *, nul: bool = True) -> Kept:
    """Return an item as it is kept; raise CodecError for one that is no JSON, with its place among those added.

    Without `nul`, one that holds a NUL is kept as a text too: Postgres compares no value that has one with anything.
    """
    try:
        text = json.dumps(item)
        plain = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(path=f"$[{at}]", reason=f"items are what json can write: {error}") from error
    if not (isinstance(plain, dict) and TEXT in plain) and (nul or NUL not in text):
        data = _exact(plain, text)
        if data is not None:
            return Kept(plain, len(data))
    # Letters stay as they are: escaped, each would take twice or three times the bytes.
    short = _lone.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(item, ensure_ascii=False))
    return Kept({TEXT: short}, len(msgspec.json.encode(short)) + len(TEXT) + 5)


def _exact(plain: Any, text: str) -> bytes | None:
    """Return plain data as bytes, or None where it would come back as something else."""
    if text.count("[") + text.count("{") > NESTING_MAX and _levels(plain) > NESTING_MAX:
        return None
    try:
        data = msgspec.json.encode(plain)
        back = msgspec.json.decode(data)
    except (ValueError, OverflowError, RecursionError):
        return None
    return data if json.dumps(back) == text else None


def _levels(plain: Any) -> int:
    """Return how many levels of containers there are."""
    levels, parts = 0, [plain]
    while containers := [one for one in parts if isinstance(one, (dict, list))]:
        levels, parts = levels + 1, [part for one in containers for part in _parts(one)]
    return levels


def _parts(container: dict[str, Any] | list[Any]) -> list[Any]:
    return [*container.values()] if isinstance(container, dict) else container


def given(data: Any) -> Any:
    """Return the item that was kept."""
    return json.loads(data[TEXT]) if isinstance(data, dict) and data.keys() == {TEXT} else data


def same(one: Any, other: Any) -> bool:
    """Return whether two items are the same as JSON, whatever the order of their keys.

    Python's `==` takes 0 for false, and 1 for true and for 1.0.
    """
    try:
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    except RecursionError:  # which nothing has that was kept
        return False
