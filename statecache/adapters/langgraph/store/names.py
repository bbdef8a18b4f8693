"""The names of the states that items are kept in, and what of a listing belongs to a namespace prefix.

    ("users", "ada") and key "prefs"      users.ada/prefs

A label holds no period, as LangGraph has it, so periods part the labels, as they do in its store on Postgres. All items
of one namespace are one group. In byte order `.` comes right before `/`: what lies below `users.ada`, and no other, has
names between `users.ada.` and `users.ada0`. So a prefix is one range of names.

Labels and keys are spelled as the names of threads are. A namespace that is too long keeps the labels that have room,
and a digest stands for the rest: which labels have room depends on these and those before them alone, so a prefix that
has room itself is still one range. Of any other, what the range holds is compared with the prefix.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

from statecache.adapters.segments import refuse_nul, segment, spelled_out

if TYPE_CHECKING:
    from statecache import State

LABEL_BYTES_MAX = 100
NAMESPACE_BYTES_MAX = 200
KEY_BYTES_MAX = 150
"""How many UTF-8 bytes of each stand in a name, besides the digest of a namespace. A name has at most 512 in all."""
_DIGEST = 32
_NAMESPACES_KEPT = 1024
_SHORTENED = "%~"
_BEYOND = chr(ord("/") + 1)
_spelled = re.compile(r"(?:[^%]|%[0-9A-F]{2})+").fullmatch

Labels = tuple[str, ...]


def group(namespace: Labels) -> str:
    """Return the segment of a name that stands for a namespace."""
    labels, room = _with_room(namespace)
    if room == len(namespace):
        return ".".join(labels)
    text = "\0".join(namespace[room:])
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return ".".join([*labels[:room], _SHORTENED + digest])


def item_name(namespace: Labels, key: str) -> str:
    """Return the name of an item's state."""
    refuse_nul("key", key)
    return f"{group(namespace)}/{segment(key, KEY_BYTES_MAX)}"


def group_of(state: State[Any] | str) -> str:
    """Return the segment that stands for the namespace of an item, by its state or the name of that."""
    return state.rpartition("/")[0] if isinstance(state, str) else state.key.split("/")[1]


class Range(NamedTuple):
    """Names between bounds: all that a namespace prefix means; `exact` says that no others are among them."""

    prefix: str
    after: str | None
    before: str | None
    exact: bool

    def options(self) -> dict[str, str | None]:
        """Return the bounds as `list` takes them."""
        return {"after": self.after, "before": self.before}


def range_of(prefix: Labels) -> Range:
    """Return the names of all items whose namespaces begin with these labels."""
    labels, room = _with_room(prefix)
    if not prefix:
        return Range("", None, None, exact=True)
    if room == len(prefix):
        stem = ".".join(labels)
        return Range(stem, f"{stem}.", stem + _BEYOND, exact=True)
    return Range(".".join([*labels[:room], _SHORTENED]), None, None, exact=False)


def beyond_group(name: str) -> str:
    """Return what lies, in byte order, behind all names of the items of a namespace, given as its segment."""
    return name + _BEYOND


@lru_cache(maxsize=_NAMESPACES_KEPT)
def namespace_of(name: str) -> Labels | None:
    """Return the namespace that a segment stands for, or None where a part of it is a digest."""
    labels = name.split(".")
    if not all(map(_spelled, labels)):
        return None
    return tuple(unquote_to_bytes(label).decode("utf-8", "surrogatepass") for label in labels)


def key_of(name: str, said: str) -> str | None:
    """Return the key that the last segment of a name stands for.

    Where it ends in a digest, that is what the item says; None where that does not fit, as it was copied from another.
    """
    last = name.rpartition("/")[2]
    if segment(said, KEY_BYTES_MAX) == last:
        return said
    return spelled_out(last) if _spelled(last) else None


def _with_room(namespace: Labels) -> tuple[list[str], int]:
    """Return how labels are spelled, and how many of them, from the first on, have room in a name."""
    labels = [segment(label, LABEL_BYTES_MAX).replace(".", "%2E") for label in namespace]
    size = -1
    for at, label in enumerate(labels):
        size += 1 + len(label.encode())
        if size > NAMESPACE_BYTES_MAX:
            return labels, at
    return labels, len(labels)
