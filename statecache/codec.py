"""Values to bytes and back, so that what a writer stored is what every reader gets.

Writing goes in three steps, before any effect: encode; read the bytes back as a reader will; compare with the value.
What cannot be read back is refused, for it would break all readers. What comes back otherwise is looked at for what it
lost (`value_loss`). Datetimes without a time zone are refused on both ways. Nesting ends at NESTING_MAX levels, for
readers have stacks of their own. Pydantic's models are known by their methods and stored as its JSON mode has them.
The members of sets are in one order (`set_order`).
Reasons name places, types and remedies, not values: they end up in logs.

The encoding `raw` is none: bytes are stored as they are.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, NoReturn, Union, get_origin

import msgspec
from msgspec import inspect

from statecache.errors import CodecError, LimitExceeded, SchemaNewer, UsageError
from statecache.expiry import form_of
from statecache.model import VALUE_BYTES_MAX, Encoding, State
from statecache.record_classes import (
    is_equal_in_part,
    is_model,
    is_record,
    is_same,
    is_same_throughout,
    is_typed_dict,
    name_of,
)
from statecache.schemas import classes_in, judged, schema_of, schemas_in, versions, with_name
from statecache.set_order import dump_in_order, has_sets, in_order
from statecache.signal_errors import pass_on
from statecache.tuple_slots import refuse_namedtuples, slot_of
from statecache.unread import Twin
from statecache.value_loss import (
    NAIVE,
    NESTING_MAX,
    is_deep,
    message_of,
    openers_in,
    refuse_bad_parts,
    refuse_losses,
    spelled,
    step_of,
    walk,
)

CODECS_MAX = 256
"""How many codecs are kept for reuse."""
_FRAMES_SAFE = 10_000 if sys.version_info < (3, 12) else sys.maxsize
"""Above this recursion limit Python 3.11 would overflow the C stack before it raises RecursionError."""
_WHICH = {"raw": "it is stored as raw bytes; read it with encoding='raw', or with type=bytes"}
_SPLIT = "Split the value over several keys of its group"
_PLAIN: tuple[type, ...] = (dict, list, str, int, float, bool, type(None), tuple, set, frozenset, bytes)
_UNIONS: tuple[object, ...] = (Union, types.UnionType)
_may_be_naive = {
    "json": re.compile(rb"-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?![\d:.Zz+-])").search,
    "msgpack": re.compile(rb"-\d\d[Tt ]\d\d:\d\d").search,
}
_END_OF_INFINITY = b"\xf0\0\0\0\0\0\0"
_place_in_message = re.compile(r" - at (?:`key` in )?`(\$[^`]*)`$").search


class Codec:
    """A converter between values of one type and bytes of one encoding; threads may share it.

    `type` is what msgspec decodes or a pydantic model; Any, None and object store plain data. `schema` is what readers
    know a type by (see `schemas`), and empty for Python's own; `known` are those of values that this type reads whole.
    """

    __slots__ = (
        "_by_class", "_class", "_dated", "_open", "_partly", "_read", "_readers", "_sets", "_slot", "_suspect", "_twin",
        "_write", "encoding", "known", "schema", "type",
    )  # fmt: skip

    def __init__(self, type: Any = Any, *, encoding: Encoding = "json") -> None:  # noqa: A002
        if encoding not in ("json", "msgpack"):
            raise UsageError(f"the encoding {encoding!r} is not known", hint="Use 'json', 'msgpack' or 'raw'.")
        self.type = Any if type is None or type is object else type
        self.encoding: Encoding = encoding
        self._class = _class_of(self.type)
        self._write = (msgspec.json if encoding == "json" else msgspec.msgpack).Encoder(enc_hook=dumped).encode
        try:
            self._readers = {name: _reader_of(self.type, name) for name in _may_be_naive}
            self._dated, self._open, self._sets, self._partly = _traits_of(self.type)
            self._slot = None if self.type is Any else slot_of(self.type)
            self.schema = schema_of(self.type)
            self._by_class = schemas_in(self.type)
            self.known = frozenset([self.schema, *self._by_class.values()])
        except Exception as error:  # type hints of users raise anything
            pass_on(error)
            raise UsageError(f"values of type {name_of(type)} cannot be stored: {error}") from error
        self._twin: Twin | None = None
        self._read = self._readers[encoding]
        self._suspect = _suspect_of(encoding, self._dated)

    def takes(self, value: object) -> bool:
        """Return whether a value is of this codec's type, as far as its class says that."""
        return self._class is None or isinstance(value, self._class)

    def of(self, value: object) -> Codec:
        """Return the codec to write a value with: its class's own where this one has no type, else this one."""
        kind = value.__class__
        if self.type is not Any or not is_record(kind):
            return self
        try:
            return codec_for(kind, self.encoding)
        except UsageError:
            return self

    def schema_for(self, value: object) -> str:
        """Return the schema to write a value with: its class's own where this type is none, or a union of several."""
        if self.type is Any and value.__class__ is not dict:
            return self.of(value).schema
        return self._by_class.get(value.__class__, self.schema) if self._by_class else self.schema

    def encode(self, value: Any, *, key: str, bytes_max: int, beside: int = 0) -> tuple[bytes, Any]:
        """Return the bytes to store, and the value that readers get; raise CodecError or LimitExceeded.

        `bytes_max` is the most that a value may have; of that, so many bytes stand `beside` this one.
        """
        if self._class is not None:
            if not isinstance(value, self._class):
                raise CodecError(key=key, reason=f"it is a {name_of(value.__class__)}, not a {name_of(self.type)}")
        elif value.__class__ not in _PLAIN and (own := self.of(value)) is not self:
            if isinstance(value, State):
                raise CodecError(key=key, reason="it is a State; write its value")
            encoded, _ = own.encode(value, key=key, bytes_max=bytes_max, beside=beside)
            return encoded, self._untyped(encoded, key, kind=value.__class__)
        if sys.getrecursionlimit() > _FRAMES_SAFE:
            self._refuse_bad_parts(value, key)
        try:
            data: bytes = self._write(in_order(value, self._write) if self._sets else value)
        except Exception as error:  # users' own classes take part
            self._refuse(value, key, error)
        _refuse_large(len(data), bytes_max, beside, key)
        return self._checked(value, data, key)

    def _untyped(self, data: bytes, key: str, *, kind: Any) -> Any:
        """Return what readers without a type get of a record; raise CodecError where they can read none of it."""
        try:
            return self._read(data)
        except Exception as error:  # what a class has its own words for
            pass_on(error)
            remedy = f"; without a type nobody could read it: write and read it with type={name_of(kind)}"
            raise _error_of(error, key, "encoded", more=remedy) from error

    def _checked(self, value: Any, data: bytes, key: str) -> tuple[bytes, Any]:
        """Return the bytes and what readers get from them; raise CodecError where it is not the value.

        Sets where no type says so come back as lists: only such a value is looked through for them.
        """
        try:
            back = self._read(data)
            if not is_same(back, value) or (self._partly and not is_same_throughout(back, value)):
                refuse_losses(value, back, key, typed=self.type is not Any, compares=not self._partly)
                if self._sets is None and (ordered := in_order(value, self._write, back)) is not value:
                    data = self._write(ordered)
                    back = self._read(data)
            if self._slot is not None:
                refuse_namedtuples(value, self._slot, key)
        except CodecError:
            raise
        except Exception as error:  # users' own classes take part
            self._refuse(value, key, error)
        if self._suspect is not None and self._suspect(data):
            self._refuse_bad_parts(value, key)
        if self._open and openers_in(data, self.encoding) > NESTING_MAX:
            self._refuse_nesting(data, back, key)
        return data, back

    def decode(self, data: bytes, *, key: str, encoding: str | None = None, schema: str = "") -> Any:
        """Return the value of stored bytes, in the encoding they were stored with (None: this codec's own).

        Raises CodecError where they cannot be read as this codec's type; `schema`, what they were written as, says why.
        """
        encoding = self.encoding if encoding is None else encoding
        if encoding not in self._readers and (encoding := form_of(encoding)) not in self._readers:
            if encoding == "raw" and (self.type is Any or self.type is bytes):
                return data
            raise CodecError(
                key=key, verb="decoded", reason=_WHICH.get(encoding, f"the encoding {encoding!r} is not known")
            )
        try:
            value = self._readers[encoding](data)
        except Exception as error:  # users' own classes take part
            pass_on(error)
            raise _error_of(
                error, key, "decoded", more=versions(schema, with_name(schema, self.known) or self.schema)
            ) from error
        if self._dated and _may_be_naive[encoding](data):
            for path, node in walk(value, key):
                if isinstance(node, datetime) and node.utcoffset() is None:
                    raise CodecError(key=key, verb="decoded", path=spelled(path), reason=NAIVE)
        return value

    def reader(self, encoding: str) -> Callable[[bytes], Any] | None:
        """Return what reads bytes of an encoding as `decode` does, errors apart; None where that looks at more."""
        return None if self._dated else self._readers.get(form_of(encoding))

    def refuse_to_drop(self, data: bytes, *, key: str, encoding: str, schema: str) -> None:
        """Raise SchemaNewer where writing this type over data of that schema would drop fields."""
        if schema in self.known or not (self.schema or self._by_class):
            return
        ours, path = with_name(schema, self.known) or self.schema, ""
        verdict = judged(schema, ours)
        if verdict == "look":
            value = self.decode(data, key=key, encoding=encoding)
            self._twin = self._twin or Twin(self.type)
            plain = codec_for(Any).decode(data, key=key, encoding=encoding)
            path = self._twin.left_out(plain, lambda: msgspec.to_builtins(value, enc_hook=dumped))
            ours = self.schema_for(value)
        if verdict == "newer" or path:
            raise SchemaNewer(key, stored=schema, ours=ours, path=path)

    def _refuse(self, value: Any, key: str, error: Exception) -> NoReturn:
        pass_on(error)
        self._refuse_bad_parts(value, key)
        raise _error_of(error, key, "encoded") from error

    def _refuse_bad_parts(self, value: Any, key: str) -> None:
        try:
            refuse_bad_parts(value, key, write=self._write, encoding=self.encoding)
        except CodecError:
            raise
        except Exception as error:  # users' own classes take part
            pass_on(error)
            raise _error_of(error, key, "encoded") from error

    def _refuse_nesting(self, data: bytes, back: Any, key: str) -> None:
        plain = back if self.type is Any else codec_for(Any, self.encoding)._read(data)
        if is_deep(plain):
            self._refuse_bad_parts(plain, key)


class RawCodec(Codec):
    """A converter that leaves bytes as they are."""

    __slots__ = ()

    def __init__(self, type: Any = bytes) -> None:  # noqa: A002
        super().__init__(type, encoding="msgpack")
        if type not in (Any, bytes):
            raise UsageError(
                f"raw values are bytes, not of type {name_of(type)}", hint="Use 'json' or 'msgpack' for it."
            )
        self.encoding = "raw"

    def takes(self, value: object) -> bool:
        """Return whether a value is one of bytes."""
        return isinstance(value, (bytes, bytearray, memoryview))

    def of(self, value: object) -> Codec:  # noqa: ARG002
        """Return this codec: bytes have no class of their own."""
        return self

    def encode(self, value: Any, *, key: str, bytes_max: int, beside: int = 0) -> tuple[bytes, Any]:
        """Return the bytes twice: to store, and as readers get them."""
        if not self.takes(value):
            raise CodecError(key=key, reason=f"it is a {name_of(value.__class__)}, and raw values are bytes")
        data = bytes(value)
        _refuse_large(len(data), bytes_max, beside, key)
        return data, data

    def reader(self, encoding: str) -> None:
        """Return nothing: what reads bytes looks at how they were stored."""

    def decode(self, data: bytes, *, key: str, encoding: str | None = None, schema: str = "") -> Any:  # noqa: ARG002
        """Return the bytes; raise CodecError for those of another encoding."""
        if encoding is not None and form_of(encoding) != "raw":
            reason = f"it is stored as {form_of(encoding)}; read it through a view with that encoding"
            raise CodecError(key=key, verb="decoded", reason=reason)
        return data


_codecs: dict[tuple[object, str], Codec] = {}


def codec_for(type: Any = Any, encoding: Encoding = "json") -> Codec:  # noqa: A002
    """Return the codec of a type and encoding, kept for reuse; an unhashable type is known by identity."""
    try:
        known = _codecs.get((type, encoding))
        place: tuple[object, str] = (type, encoding)
    except TypeError:
        place = (id(type), encoding)
        known = _codecs.get(place)
    if known is None:
        known = RawCodec(type) if encoding == "raw" else Codec(type, encoding=encoding)
        if len(_codecs) >= CODECS_MAX:
            _codecs.clear()
        _codecs[place] = known
    return known


def _refuse_large(size: int, bytes_max: int, beside: int, key: str) -> None:
    if size > bytes_max - beside:
        more = ", or raise value_bytes_max (at most 8 MiB)" if bytes_max < VALUE_BYTES_MAX else ""
        raise LimitExceeded("the value", actual=size, limit=bytes_max - beside, key=key, hint=f"{_SPLIT}{more}.")


def _reader_of(kind: Any, encoding: str) -> Callable[[bytes], Any]:
    if is_model(kind) and encoding == "json":
        return kind.model_validate_json  # type: ignore[no-any-return]
    if is_model(kind):
        return lambda data: kind.model_validate_json(msgspec.json.encode(msgspec.msgpack.decode(data)))
    library: Any = msgspec.json if encoding == "json" else msgspec.msgpack
    return library.Decoder(kind, dec_hook=_loaded).decode  # type: ignore[no-any-return]


def dumped(value: Any) -> Any:
    """Return a pydantic model as plain data, for msgspec; raise TypeError for anything else that it does not know."""
    if not is_model(value.__class__):
        raise TypeError(f"a {name_of(value.__class__)} cannot be stored; make plain data or a Struct of it")
    try:
        plain = value.model_dump(mode="json", by_alias=True, round_trip=True, warnings="error")
    except Exception as error:  # pydantic runs users' code
        pass_on(error)
        raise TypeError(f"{name_of(value.__class__)}: {message_of(error)}") from None
    return dump_in_order(plain, value) if has_sets(value.__class__) else plain


def _loaded(kind: Any, value: Any) -> Any:
    if kind is object:
        return value
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except Exception as error:  # pydantic runs users' code
        pass_on(error)
        inner = _error_of(error, "", "decoded")
        raise ValueError(f"{inner.reason} (in {name_of(kind)} at `{inner.path}`)") from None


def _traits_of(kind: Any) -> tuple[bool, bool, bool | None, bool]:
    """Return whether a type may hold naive datetimes, whether its values may nest without limit, and if it has sets.

    That is None where only values tell. The last is whether its values are equal though some of their fields are not.
    """
    dated, open_, sets, untyped = False, kind is Any, False, kind is Any
    seen: dict[int, Any] = {}
    infos: list[Any] = [] if kind is Any else [inspect.type_info(kind)]
    while infos:
        info = infos.pop()
        custom = isinstance(info, inspect.CustomType)
        if custom and info.cls is not object and not is_model(info.cls):
            raise TypeError(f"neither msgspec nor pydantic know what a {name_of(info.cls)} is")
        dated = dated or custom or (isinstance(info, inspect.DateTimeType) and info.tz is not True)
        sets = sets or isinstance(info, (inspect.SetType, inspect.FrozenSetType))
        untyped = untyped or custom or isinstance(info, inspect.AnyType)
        open_ = open_ or untyped or id(info) in seen
        if id(info) not in seen:
            seen[id(info)] = info
            for name in info.__struct_fields__:
                parts = getattr(info, name)
                parts = parts if isinstance(parts, tuple) else (parts,)
                infos += [part for part in parts if isinstance(part, (inspect.Type, inspect.Field))]
    partly = any(is_equal_in_part(one) for one in classes_in(kind))
    return dated, open_, sets or (None if untyped else False), partly


def _suspect_of(encoding: str, dated: bool) -> Callable[[bytes], object] | None:
    """Return a check for bytes that may hide a naive datetime or an infinity, which equality does not show; or None."""
    may_be_naive = _may_be_naive[encoding] if dated else None
    if encoding == "json":
        return may_be_naive
    return lambda data: _END_OF_INFINITY in data or (may_be_naive is not None and may_be_naive(data))


def _error_of(error: Any, key: str, verb: str, *, more: str = "") -> CodecError:
    """Return the CodecError for what msgspec, pydantic or a user's own class raised."""
    if error.__class__.__module__.startswith("pydantic") and hasattr(error, "errors"):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = [f"[{step}]" if isinstance(step, int) else step_of(step) for step in first["loc"]]
        return CodecError(key=key, verb=verb, path=spelled(path), reason=first["msg"] + more)
    message = message_of(error)
    if not (place := _place_in_message(message)):
        return CodecError(key=key, verb=verb, reason=message + more)
    reason = message[: place.start()] + (", in a key" if "`key`" in place.group() else "")
    return CodecError(key=key, verb=verb, path=place.group(1), reason=reason + more)


def _class_of(kind: Any) -> Any:
    """Return what `isinstance` can check of a type, or None."""
    if hasattr(kind, "__supertype__"):
        return _class_of(kind.__supertype__)
    origin = get_origin(kind) or kind
    if origin is Annotated:
        return _class_of(kind.__origin__)
    if origin is Any or not isinstance(origin, type) or origin in _UNIONS or is_typed_dict(origin):
        return None
    return (float, int) if origin is float else origin
