"""Values to bytes and back, so that what a writer stored is what every reader gets.

Writing goes in three steps, before any effect: encode; read the bytes back as a reader will; compare with the value.
What cannot be read back is refused, for it would break all readers. What comes back equal has lost nothing. Where it
does not, a walk over the value looks for what would be lost in silence: NaN and infinities (JSON makes them null),
bytes without a type (JSON makes them text), dict keys that become the same text, a subclass that becomes its base.

What changes its form but keeps its content is let through: without a type, a Struct comes back as a dict, a tuple or
a set as a list, a UUID or an aware datetime as text. Datetimes without a time zone are refused on both ways. Nesting
ends at NESTING_MAX levels, for readers have stacks of their own. Pydantic's models are known by their methods and
stored as its JSON mode has them. Reasons name places, types and remedies, not values: they end up in logs.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, Any, NoReturn, Union, get_origin, is_typeddict

import msgspec
from msgspec import inspect

from statecache.errors import CodecError, LimitExceeded, UsageError
from statecache.model import VALUE_BYTES_MAX, Encoding

NESTING_MAX = 200
"""Levels of containers in a value."""
CODECS_MAX = 256
"""Codecs that are kept for reuse."""
_FRAMES_SAFE = 10_000 if sys.version_info < (3, 12) else sys.maxsize
"""Above this recursion limit Python 3.11 would overflow the C stack before it raises RecursionError."""
_PATH_CHARACTERS_MAX = 120
_CYCLE = "it contains itself; store a key or an id in place of the reference"
_DEEP = f"it is nested deeper than {NESTING_MAX} levels; flatten it, or split it over several keys of its group"
_NAIVE = "it is a datetime without a time zone; give it one, for instance datetime.now(UTC)"
_LOST_BYTES = "JSON would bring these bytes back as text; give a type that says bytes, or use the msgpack encoding"
_SPLIT = "Split the value over several keys of its group"
_PLAIN: tuple[type, ...] = (dict, list, str, int, float, bool, type(None), tuple, set, frozenset, bytes)
_BYTES = (bytes, bytearray, memoryview)
_LEAVES = frozenset({str, int, float, bool, type(None), datetime, *_BYTES})
_END = object()
_UNIONS: tuple[object, ...] = (Union, types.UnionType)
_may_be_naive = {
    "json": re.compile(rb"-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?![\d:.Zz+-])").search,
    "msgpack": re.compile(rb"-\d\d[Tt ]\d\d:\d\d").search,
}
_openers = {"json": b"[{", "msgpack": bytes(range(0x80, 0xA0)) + b"\xdc\xdd\xde\xdf"}
"""The bytes that begin a container; a value has at most as many levels as these occur in it."""
_END_OF_INFINITY = b"\xf0\0\0\0\0\0\0"
_is_identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}").fullmatch
_place_in_message = re.compile(r" - at (?:`key` in )?`(\$[^`]*)`$").search
_input_in_message = re.compile(r"input_value=.*?, (?=input_type=)", re.DOTALL)


class Codec:
    """This turns values of one type into bytes of one encoding and back; threads may share it.

    `type` is what msgspec decodes or a pydantic model; Any, None and object store plain data. `schema` is the name and
    version (`__schema_version__`, or 1) of a class, as in `Run@1`, and empty for Python's own types.
    """

    __slots__ = ("_class", "_dated", "_open", "_read", "_readers", "_suspect", "_write", "encoding", "schema", "type")

    def __init__(self, type: Any = Any, *, encoding: Encoding = "json") -> None:  # noqa: A002
        if encoding not in ("json", "msgpack"):
            raise UsageError(f"the encoding {encoding!r} is not known", hint="Use 'json' or 'msgpack'.")
        self.type = Any if type is None or type is object else type
        self.encoding: Encoding = encoding
        self.schema = _schema_of(self.type)
        self._class = _class_of(self.type)
        self._write = (msgspec.json if encoding == "json" else msgspec.msgpack).Encoder(enc_hook=dumped).encode
        try:
            self._readers = {name: _reader_of(self.type, name) for name in _may_be_naive}
            self._dated, self._open = _traits_of(self.type)
        except Exception as error:  # type hints of users raise anything
            raise UsageError(f"values of type {_name_of(type)} cannot be stored: {error}") from error
        self._read = self._readers[encoding]
        self._suspect = _suspect_of(encoding, self._dated)

    def of(self, value: object) -> Codec:
        """This gives the codec to write a value with: its class's own, where this one has no type."""
        kind = value.__class__
        if self.type is not Any or not _is_record(kind):
            return self
        try:
            return codec_for(kind, self.encoding)
        except UsageError:
            return self

    def encode(self, value: Any, *, key: str, bytes_max: int) -> bytes:
        """This gives the bytes to store, read back once already; else it raises CodecError or LimitExceeded."""
        if self._class is not None:
            if not isinstance(value, self._class):
                raise CodecError(key=key, reason=f"it is a {_name_of(value.__class__)}, not a {_name_of(self.type)}")
        elif value.__class__ not in _PLAIN and (own := self.of(value)) is not self:
            return own.encode(value, key=key, bytes_max=bytes_max)
        if sys.getrecursionlimit() > _FRAMES_SAFE:
            self._refuse_bad_parts(value, key)
        try:
            data: bytes = self._write(value)
        except Exception as error:  # users' own classes take part
            self._refuse(value, key, error)
        if len(data) > bytes_max:
            hint = _SPLIT + (", or raise value_bytes_max (at most 8 MiB)." if bytes_max < VALUE_BYTES_MAX else ".")
            raise LimitExceeded("the value", actual=len(data), limit=bytes_max, key=key, hint=hint)
        try:
            back = self._read(data)
            same = back == value
        except Exception as error:  # users' own classes take part
            self._refuse(value, key, error)
        if same is not True or (self._suspect is not None and self._suspect(data)):
            self._refuse_losses(value, back, key)
        if self._open and len(data) - len(data.translate(None, _openers[self.encoding])) > NESTING_MAX:
            self._refuse_nesting(data, back, key)
        return data

    def decode(self, data: bytes, *, key: str, encoding: str | None = None) -> Any:
        """This gives the value of stored bytes in the encoding they were stored with (None: this codec's own)."""
        encoding = self.encoding if encoding is None else encoding
        if encoding not in self._readers:
            raise CodecError(key=key, verb="decoded", reason=f"the encoding {encoding!r} is not known")
        try:
            value = self._readers[encoding](data)
        except Exception as error:  # users' own classes take part
            raise _error_of(error, key, "decoded") from error
        if self._dated and _may_be_naive[encoding](data):
            for path, node in _walk(value, key):
                if isinstance(node, datetime) and node.utcoffset() is None:
                    raise CodecError(key=key, verb="decoded", path=_spelled(path), reason=_NAIVE)
        return value

    def _refuse(self, value: Any, key: str, error: Exception) -> NoReturn:
        self._refuse_bad_parts(value, key)
        raise _error_of(error, key, "encoded") from error

    def _refuse_bad_parts(self, value: Any, key: str) -> list[str]:
        """This gives the paths of the bytes in a value, having found nothing in it that cannot be stored."""
        paths_of_bytes = []
        try:
            for path, node in _walk(value, key):
                if isinstance(node, _BYTES):
                    paths_of_bytes.append("".join(path))
                elif reason := _fault_of(node, self._write, self.encoding):
                    raise CodecError(key=key, path=_spelled(path), reason=reason)
        except CodecError:
            raise
        except Exception as error:  # users' own classes take part
            raise _error_of(error, key, "encoded") from error
        return paths_of_bytes

    def _refuse_losses(self, value: Any, back: Any, key: str) -> None:
        if paths_of_bytes := self._refuse_bad_parts(value, key):
            kept = {"".join(path) for path, node in _walk(back, key) if isinstance(node, _BYTES)}
            for path in paths_of_bytes:
                if path not in kept:
                    raise CodecError(key=key, path=_spelled([path]), reason=_LOST_BYTES)
        gave, gets = value.__class__, back.__class__
        if gave is not gets and self.type is not Any and _is_record(gave):
            what = f"it is a {_name_of(gave)} and readers would get a {_name_of(gets)}"
            raise CodecError(key=key, reason=f"{what}; use {_name_of(gave)} as the type")

    def _refuse_nesting(self, data: bytes, back: Any, key: str) -> None:
        plain = back if self.type is Any else codec_for(Any, self.encoding)._read(data)
        if _is_deep(plain):
            self._refuse_bad_parts(plain, key)


_codecs: dict[tuple[object, str], Codec] = {}


def codec_for(type: Any = Any, encoding: Encoding = "json") -> Codec:  # noqa: A002
    """This gives the codec of a type and encoding, kept for reuse; an unhashable type is known by identity."""
    try:
        known = _codecs.get((type, encoding))
        place: tuple[object, str] = (type, encoding)
    except TypeError:
        place = (id(type), encoding)
        known = _codecs.get(place)
    if known is None:
        known = Codec(type, encoding=encoding)
        if len(_codecs) >= CODECS_MAX:
            _codecs.clear()
        _codecs[place] = known
    return known


def _reader_of(kind: Any, encoding: str) -> Callable[[bytes], Any]:
    if _is_model(kind) and encoding == "json":
        return kind.model_validate_json  # type: ignore[no-any-return]
    if _is_model(kind):
        return lambda data: kind.model_validate_json(msgspec.json.encode(msgspec.msgpack.decode(data)))
    library: Any = msgspec.json if encoding == "json" else msgspec.msgpack
    return library.Decoder(kind, dec_hook=_loaded).decode  # type: ignore[no-any-return]


def dumped(value: Any) -> Any:
    """This gives msgspec what it does not know by itself: a pydantic model as plain data."""
    if not _is_model(value.__class__):
        raise TypeError(f"a {_name_of(value.__class__)} cannot be stored; make plain data or a Struct of it")
    try:
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings="error")
    except Exception as error:  # pydantic runs users' code
        raise TypeError(f"{_name_of(value.__class__)}: {_message_of(error)}") from None


def _loaded(kind: Any, value: Any) -> Any:
    if kind is object:
        return value
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except Exception as error:  # pydantic runs users' code
        inner = _error_of(error, "", "decoded")
        raise ValueError(f"{inner.reason} (in {_name_of(kind)} at `{inner.path}`)") from None


def _traits_of(kind: Any) -> tuple[bool, bool]:
    """This tells whether a type may hold naive datetimes, and whether it may let values nest without end."""
    dated, open_ = False, kind is Any
    seen: dict[int, Any] = {}
    infos: list[Any] = [] if kind is Any else [inspect.type_info(kind)]
    while infos:
        info = infos.pop()
        custom = isinstance(info, inspect.CustomType)
        if custom and info.cls is not object and not _is_model(info.cls):
            raise TypeError(f"neither msgspec nor pydantic know what a {_name_of(info.cls)} is")
        dated = dated or custom or (isinstance(info, inspect.DateTimeType) and info.tz is not True)
        open_ = open_ or custom or isinstance(info, inspect.AnyType) or id(info) in seen
        if id(info) not in seen:
            seen[id(info)] = info
            for name in info.__struct_fields__:
                parts = getattr(info, name)
                parts = parts if isinstance(parts, tuple) else (parts,)
                infos += [part for part in parts if isinstance(part, (inspect.Type, inspect.Field))]
    return dated, open_


def _suspect_of(encoding: str, dated: bool) -> Callable[[bytes], object] | None:
    """This gives what tells bytes that may hide what equality does not show, a naive datetime or an infinity."""
    may_be_naive = _may_be_naive[encoding] if dated else None
    if encoding == "json":
        return may_be_naive
    return lambda data: _END_OF_INFINITY in data or (may_be_naive is not None and may_be_naive(data))


def _walk(value: Any, key: str) -> Iterator[tuple[list[str], Any]]:
    """This yields every part of a value and the steps that lead to it, a list that changes as the walk goes on."""
    path: list[str] = []
    above: dict[int, Any] = {}
    open_parts = [iter([("", value)])]
    while open_parts:
        step, part = next(open_parts[-1], ("", _END))
        if part is _END:
            open_parts.pop()
            if path:
                path.pop()
                above.popitem()
            continue
        path.append(step)
        yield path, part
        parts = _parts_of(part)
        if parts is None:
            path.pop()
            continue
        if id(part) in above or len(open_parts) > NESTING_MAX:
            raise CodecError(key=key, path=_spelled(path), reason=_CYCLE if id(part) in above else _DEEP)
        above[id(part)] = part
        open_parts.append(parts)


def _parts_of(node: Any) -> Iterator[tuple[str, Any]] | None:
    kind = node.__class__
    if kind in _LEAVES:
        return None
    if isinstance(node, dict):
        keys = [(_step(name), name) for name in node if name.__class__ is not str]
        return iter([(_step(name), part) for name, part in node.items()] + keys)
    if isinstance(node, (list, tuple)):
        return ((f"[{index}]", part) for index, part in enumerate(node))
    if isinstance(node, (set, frozenset)):
        return iter([("[...]", part) for part in node])
    if isinstance(node, msgspec.Struct):
        names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        return ((_step(shown), getattr(node, name, None)) for shown, name in names)
    if _is_model(kind):
        fields = {**vars(node), **(getattr(node, "__pydantic_extra__", None) or {})}
        return iter([(_step(name), part) for name, part in fields.items()])
    if not _is_record(kind):
        return None
    members = dataclasses.fields(node) if dataclasses.is_dataclass(node) else kind.__attrs_attrs__
    return iter([(_step(one.name), getattr(node, one.name, None)) for one in members])


def _step(name: object) -> str:
    return f".{name}" if isinstance(name, str) and _is_identifier(name) else f"[{repr(name)[:40]}]"


def _spelled(path: list[str]) -> str:
    text = "$" + "".join(path)
    return text if len(text) <= _PATH_CHARACTERS_MAX else text[: _PATH_CHARACTERS_MAX - 1] + "…"


def _fault_of(node: Any, write: Callable[[Any], bytes], encoding: str) -> str:
    """This gives the reason why a part of a value cannot be stored, or nothing; a dict answers for its keys."""
    if isinstance(node, str) and node.isascii():
        return ""
    if isinstance(node, float) and not math.isfinite(node):
        return f"{node} is not a number that can be stored; use None or text"
    if isinstance(node, datetime) and node.utcoffset() is None:
        return _NAIVE
    if isinstance(node, dict):
        return _fault_of_keys(node, write, encoding)
    if node is None or (_parts_of(node) is not None and not _is_model(node.__class__)):
        return ""
    try:
        write(node)
    except Exception as error:  # users' own classes take part
        return _message_of(error)
    return ""


def _fault_of_keys(node: dict[Any, Any], write: Callable[[Any], bytes], encoding: str) -> str:
    try:
        data = write(dict.fromkeys(node))
    except Exception as error:  # users' own classes take part
        return f"one of its keys cannot be stored: {_message_of(error)}"
    odd = encoding == "json" and any(name.__class__ is not str for name in node)
    lost = odd and len(msgspec.json.decode(data)) < len(node)
    return "two of its keys become the same text; rename one" if lost else ""


def _is_deep(plain: Any) -> bool:
    level = [plain] if plain.__class__ is dict or plain.__class__ is list else []
    for _ in range(NESTING_MAX):
        level = [
            part
            for node in level
            for part in (node.values() if node.__class__ is dict else node)
            if part.__class__ is dict or part.__class__ is list
        ]
        if not level:
            return False
    return True


def _error_of(error: Any, key: str, verb: str) -> CodecError:
    """This translates what msgspec, pydantic or a user's own class raised."""
    if error.__class__.__module__.startswith("pydantic") and hasattr(error, "errors"):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = [f"[{step}]" if isinstance(step, int) else _step(step) for step in first["loc"]]
        return CodecError(key=key, verb=verb, path=_spelled(path), reason=first["msg"])
    message = _message_of(error)
    if not (place := _place_in_message(message)):
        return CodecError(key=key, verb=verb, reason=message)
    reason = message[: place.start()] + (", in a key" if "`key`" in place.group() else "")
    return CodecError(key=key, verb=verb, path=place.group(1), reason=reason)


def _message_of(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply for this thread's stack"
    text = _input_in_message.sub("", " ".join(str(error).split()))
    text += "; replace them" if isinstance(error, UnicodeEncodeError) else ""
    return text if isinstance(error, (TypeError, ValueError, OverflowError)) else f"{error.__class__.__name__}: {text}"


def _class_of(kind: Any) -> Any:
    """This gives what `isinstance` can check of a type, or None."""
    if hasattr(kind, "__supertype__"):
        return _class_of(kind.__supertype__)
    origin = get_origin(kind) or kind
    if origin is Annotated:
        return _class_of(kind.__origin__)
    if origin is Any or not isinstance(origin, type) or origin in _UNIONS or is_typeddict(origin):
        return None
    return (float, int) if origin is float else origin


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


def _is_record(kind: Any) -> bool:
    marks = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__")
    return isinstance(kind, type) and (any(hasattr(kind, mark) for mark in marks) or _is_model(kind))


def _name_of(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)


def _schema_of(kind: Any) -> str:
    owner = get_origin(kind) or kind
    if not isinstance(owner, type) or owner.__module__.partition(".")[0] in sys.stdlib_module_names:
        return ""
    return f"{owner.__qualname__}@{getattr(owner, '__schema_version__', 1)}"
