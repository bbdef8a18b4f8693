"""Texts of any kind as segments of keys: what another framework calls a thread or a session, however it is spelled.

Such a text may be empty, hold slashes, or be longer than a key. As a segment it stays as it is where it can; `%2F` and
its like stand for what cannot, and a digest for the rest of what is too long. No two texts have one segment.
"""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import quote, unquote_to_bytes

from statecache import UsageError

_EMPTY = "-"
_escaped = re.compile("[\x01-\x20/%\x7f-\x9f\ud800-\udfff]")
_DIGEST = 32


def segment(text: str, bytes_max: int, *, also: str = "") -> str:
    """Return the segment of a name that stands for a text, with at most that many bytes.

    Characters of `also` are spelled as `%3A` and its like too, so that they can stand between several texts.
    """
    if text in ("", _EMPTY):
        return "%2D" if text else _EMPTY
    spelled = _escaped.sub(lambda found: quote(found[0].encode("utf-8", "surrogatepass"), safe=""), text)
    for character in also:
        spelled = spelled.replace(character, quote(character, safe=""))
    data = spelled.encode()
    if len(data) <= bytes_max:
        return spelled
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{data[: bytes_max - _DIGEST - 2].decode('utf-8', 'ignore')}%~{digest}"


def spelled_out(name: str) -> str:
    """Return the text that a segment stands for; of one that ends in a digest, what is left of it."""
    return "" if name == _EMPTY else unquote_to_bytes(name).decode("utf-8", "surrogatepass")


def refuse_nul(what: str, text: str) -> None:
    """Raise UsageError for a text that Postgres cannot hold."""
    if "\0" in text:
        raise UsageError(f"{what} {text!r} holds a NUL", hint="Postgres has no place for it: leave it out.")


def refuse_half_pair(what: str, text: str) -> None:
    """Raise UsageError for a text that no bytes stand for, as it holds half of a surrogate pair."""
    if half := re.search("[\ud800-\udfff]", text):
        hint = f"It is no Unicode: leave character {half.start()} out."
        raise UsageError(f"{what} {text!r} holds half of a surrogate pair", hint=hint)


def refuse_parted(namespace: str, what: str) -> None:
    """Raise UsageError for a namespace of several segments: a group is of the first two, and `what` needs its own."""
    if "/" in namespace:
        raise UsageError(f"namespace={namespace!r} is of more than one segment: {what} would have no group")
