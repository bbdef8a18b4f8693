"""Values of channels and writes, and what stands for them in states that are stored as JSON.

    {"value": 3}                                      plain data, as it is, to be read in redis-cli and psql
    {"type": "msgpack", "data": "gaRuYW1l…"}          what the serializer made of anything else, in base64
    {"type": "msgpack", "versions": [7], "of": ID}    a large value: it stands in the channel's own state, at that
                                                      version, and was put with the checkpoint of that id; with a
                                                      `thread_id`, in that of the thread from which it was branched;
                                                      with `digests`, by which another version is known to be the same;
                                                      with `beside`, in the state beside the channel's own

Plain data is what comes back from JSON as exactly the same. With a serializer other than LangGraph's own, as one that
encrypts, nothing is plain: every value goes through it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import blake2b
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from statecache import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from langgraph.checkpoint.serde.base import SerializerProtocol

    from statecache.adapters.langgraph.decoded import Decoded

INLINE_BYTES_MAX = 4096
"""Values up to this size stand in the checkpoint's state itself."""
PIECE_BYTES_MAX = 5 * 1024 * 1024
"""How much of a serialized value one state holds: a third more in base64, and a state holds at most 8 MiB."""
VALUE_BYTES_MAX = 11 * 1024 * 1024
"""How large a serialized value is at most: its pieces are written in one commit, which holds 16 MiB."""
_DEPTH_MAX = 32
_LEAST, _MOST = -(2**63), 2**63 - 1

Form = dict[str, Any]
"""What stands for a value in a state."""


class Packed(NamedTuple):
    """A value as bytes: JSON where `type` is empty, else what the serializer made, under its name for it."""

    type: str
    data: bytes

    @property
    def is_large(self) -> bool:
        """Whether it gets a state of its own."""
        return len(self.data) > INLINE_BYTES_MAX

    @property
    def pieces_count(self) -> int:
        """Of how many pieces it is where it has states of its own."""
        return -(-len(self.data) // PIECE_BYTES_MAX) if self.type else 1

    def form(self) -> Form:
        """Return what stands for the value where it is not large."""
        if not self.type:
            return {"value": msgspec.json.decode(self.data)}
        return {"type": self.type, "data": b64encode(self.data).decode()}

    def pieces(self) -> list[Form]:
        """Return what stands for the value in states of its own, in pieces that these can hold."""
        if not self.type:
            return [self.form()]
        refuse_oversized(len(self.data))
        return [{"data": b64encode(piece).decode()} for piece in self.pieces_of_bytes()]

    def pieces_of_bytes(self) -> list[bytes]:
        """Return the value in as many pieces, as bytes."""
        if not self.type:
            return [self.data]
        return [self.data[at : at + PIECE_BYTES_MAX] for at in range(0, len(self.data), PIECE_BYTES_MAX)]


class Serde:
    """A saver's serializer, and what is plain under it."""

    __slots__ = ("_decoded", "_plain", "serializer")

    def __init__(self, serializer: SerializerProtocol, decoded: Decoded | None = None) -> None:
        self.serializer = serializer
        self._decoded = decoded
        self._plain = type(serializer) is JsonPlusSerializer

    def pack(self, value: Any) -> Packed:
        """Return a value as bytes; one that is packed already stays so."""
        if isinstance(value, Packed):
            return value
        if self._plain and is_plain(value):
            data = msgspec.json.encode(value)
            if len(data) <= PIECE_BYTES_MAX:
                return Packed("", data)
        return Packed(*self.serializer.dumps_typed(value))

    def load(self, packed: Packed) -> Any:
        """Return the value, which nobody else holds."""
        if not packed.type:
            return msgspec.json.decode(packed.data)
        if self._decoded is None or not self._plain or packed.type != "msgpack":
            return self.serializer.loads_typed((packed.type, packed.data))
        return self._decoded.load(self.serializer, packed.data)


def refuse_oversized(size: int) -> None:
    """Raise LimitExceeded for a serialized value that is too large for a commit."""
    if size > VALUE_BYTES_MAX:
        hint = "Keep it elsewhere, and its name in the graph's state."
        raise LimitExceeded("the serialized value", actual=size, limit=VALUE_BYTES_MAX, hint=hint)


def packed_of(form: Form) -> Packed:
    """Return the value that a form holds by itself."""
    if "value" in form:
        return Packed("", msgspec.json.encode(form["value"]))
    return Packed(form["type"], b64decode(form["data"]))


def piece_of(form: Form) -> bytes:
    """Return the bytes that the state of a channel, or of a piece of it, holds."""
    return packed_of(form).data if "value" in form else b64decode(form["data"])


def digest_of(piece: bytes) -> str:
    """Return by what the bytes of a piece are known, whichever version of a state holds them."""
    return blake2b(piece, digest_size=12).hexdigest()


def joined(form: Form, pieces: Iterable[bytes]) -> Packed:
    """Return the value that a form names, from the pieces of the channel's own states."""
    return Packed(form["type"], b"".join(pieces))


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether JSON, and `jsonb`, give back exactly this value."""
    kind = type(value)
    if kind is str:
        return "\0" not in value and _is_text(value)
    if kind is int:
        return bool(_LEAST <= value <= _MOST)
    if kind is float:
        return isfinite(value)
    if value is None or kind is bool:
        return True
    if depth == _DEPTH_MAX:
        return False
    if kind is list:
        return all(is_plain(part, depth + 1) for part in value)
    if kind is dict:
        return all(type(name) is str and is_plain(name) and is_plain(part, depth + 1) for name, part in value.items())
    return False


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def split(parts: dict[str, Any], serde: Serde) -> tuple[dict[str, Any], Form | None]:
    """Return what JSON can say of a dictionary, and a form for the rest, or None where there is none.

    Tuples within become lists, as they do in every saver that keeps them as JSON.
    """
    plain, rest = dict[str, Any](), dict[str, Any]()
    for name, value in parts.items():
        listed = _listed(value)
        if is_plain(name) and is_plain(listed):
            plain[name] = listed
        else:
            rest[name] = value
    return plain, serde.pack(rest).form() if rest else None


def _listed(value: Any) -> Any:
    """Return a value with lists in the place of tuples, sharing nothing that could be changed."""
    if isinstance(value, (list, tuple)):
        return [_listed(part) for part in value]
    if isinstance(value, dict):
        return {name: _listed(part) for name, part in value.items()}
    return value


def contains(value: Any, wanted: Any) -> bool:
    """Return whether a value holds what is wanted, as `jsonb @>` has it."""
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(
            name in value and contains(value[name], part) for name, part in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return isinstance(value, list) and all(any(contains(one, part) for one in value) for part in wanted)
    return bool(isinstance(value, bool) is isinstance(wanted, bool) and value == wanted)
