"""Values as LangGraph's serializer has stored them, to be taken in without the classes that they are of.

Where a class cannot be imported, or is not allowed, that serializer gives the plain data of an object in its place and
says so in the log alone. So what an import reads is not decoded:

    plain data              is given as it is: there is nothing in its bytes that stands for an object
    anything else           stays the serializer's bytes, `Packed`, and is stored so, or encrypted first
    another serializer      gets it decoded, for it has a form of its own: refused where that is not all that it was

What is stored is compared by its bytes too. The parts of a set stand there in the order that a process had them in.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from ormsgpack import OPT_NON_STR_KEYS, packb, unpackb

from statecache import UsageError
from statecache.adapters.langgraph.values import Packed, is_plain

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

_THEIRS = JsonPlusSerializer()
_TYPES = ("null", "bytes", "bytearray", "json", "msgpack")
"""The serializer's words for what it makes of values."""
_SETS = (["builtins", "set"], ["builtins", "frozenset"])


class AsStored:
    """What stands for LangGraph's serializer in another saver that is read: it gives values as they are stored."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return plain data, or what else there is as its bytes; raise what the serializer raises for other types."""
        return stored(Packed(*data)) if data[0] in _TYPES else _THEIRS.loads_typed(data)

    def dumps_typed(self, values: list[Any]) -> tuple[str, bytes]:
        """Return a list of such values as one: early releases keep what was sent to nodes one by one."""
        array = packb([None] * len(values))
        return "msgpack", array[: len(array) - len(values)] + b"".join(map(_in_msgpack, values))


def stored(packed: Packed) -> Any:
    """Return the plain data that LangGraph's serializer has packed; what is not plain stays as it is."""
    value: Any = packed
    if packed.type in ("", "null"):
        value = msgspec.json.decode(packed.data or b"null")
    elif packed.type == "json":
        value = json.loads(packed.data, object_hook=lambda parts: packed if "lc" in parts else parts)
    elif packed.type == "msgpack":
        value = unpackb(packed.data, ext_hook=lambda *_: packed, option=OPT_NON_STR_KEYS)
    return value if is_plain(value) else packed


def repacked(packed: Packed, serializer: SerializerProtocol) -> Packed:
    """Return what LangGraph's serializer has packed as another one has it.

    Raises UsageError where that has to be decoded, and this process does not get all of it back.
    """
    if type(serializer) is JsonPlusSerializer:
        return packed
    if type(serializer) is EncryptedSerializer and type(serializer.serde) is JsonPlusSerializer:
        name, data = serializer.cipher.encrypt(packed.data)
        return Packed(f"{packed.type}+{name}", data)
    value = _THEIRS.loads_typed(packed)
    if comparable(Packed(*_THEIRS.dumps_typed(value))) != comparable(packed):
        raise UsageError(
            "values would not be what they were: their classes cannot be imported here, or have changed, or are not "
            "allowed",
            hint="Have the agent's modules on PYTHONPATH, and its types allowed.",
        )
    return Packed(*serializer.dumps_typed(value))


def unpacked(packed: Packed, serializer: SerializerProtocol) -> Any:
    """Return what a state holds as an import reads it: as plain data, or packed by LangGraph's serializer."""
    if isinstance(serializer, EncryptedSerializer):
        kind, _, cipher = packed.type.partition("+")
        data = serializer.cipher.decrypt(cipher, packed.data) if cipher else packed.data
        return unpacked(Packed(kind, data), serializer.serde)
    if not packed.type or type(serializer) is JsonPlusSerializer:
        return stored(packed)
    return serializer.loads_typed(packed)


def comparable(packed: Packed) -> tuple[str, str | bytes]:
    """Return what is equal for values that are, in whatever order the parts of their sets stand."""
    if packed.type != "msgpack":
        return packed
    return packed.type, repr(unpackb(packed.data, ext_hook=_told_apart, option=OPT_NON_STR_KEYS))


def _told_apart(code: int, data: bytes) -> str:
    """Return a text that tells an object from others, its parts too."""
    parts = unpackb(data, ext_hook=_told_apart, option=OPT_NON_STR_KEYS)
    if isinstance(parts, list) and parts[:2] in _SETS:
        parts[2] = sorted(map(repr, parts[2]))
    return f"{code} {parts!r}"


def _in_msgpack(value: Any) -> bytes:
    """Return a stored value as a part of a list."""
    if not isinstance(value, Packed):
        return packb(value)
    if value.type == "msgpack":
        return value.data
    if value.type == "json":
        return _THEIRS.dumps_typed(_THEIRS.loads_typed(value))[1]
    return packb(value.data)
