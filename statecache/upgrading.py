"""Reading what an earlier release wrote: functions that make of one version's data the next one's, on the way in.

A stored value has the version of its class in its schema (`Run@2#…`). What is of a version that `upgrade=` knows is
read as plain data, goes through the function of each version up to the type's, and is then read as the type. Nothing is
written for it: the next write of the state stores it as it was read, in the new version. Whoever writes over it has
read all of it, so it is not asked what the type leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statecache.codec import Codec, codec_for
from statecache.errors import CodecError, UsageError
from statecache.expiry import form_of
from statecache.model import VALUE_BYTES_MAX, Encoding, Upgrade
from statecache.schemas import Schema
from statecache.signal_errors import pass_on
from statecache.value_loss import message_of

_HINT = "Say upgrade={1: from_1_to_2} for a class with __schema_version__ = 2."
_VERSION_MAX = 2**63 - 1
"""The highest version that upgrade= may name."""


class UpgradingCodec(Codec):
    """A codec that reads earlier versions too."""

    __slots__ = ("_steps", "_version")

    def __init__(self, type: Any, upgrade: Upgrade, *, encoding: Encoding) -> None:  # noqa: A002
        super().__init__(type, encoding=encoding)
        ours = Schema.parse(self.schema)
        if not ours.name:
            raise UsageError("upgrade= needs type=, a class that has a version", hint=_HINT)
        self._version = ours.version
        self._steps = dict(upgrade) if isinstance(upgrade, Mapping) else {}
        if not self._steps or not all(_is_version(at) and callable(step) for at, step in self._steps.items()):
            raise UsageError("upgrade= is a dictionary of versions and functions", hint=_HINT)
        first, known = min(self._steps), self._steps.keys()
        if first < 0 or max(known) != self._version - 1 or len(known) != self._version - first:
            told = f"{', '.join(map(str, sorted(known)))} of a class whose version is {self._version}"
            raise UsageError(f"upgrade= is for {told}; it takes every version from the first to the last", hint=_HINT)

    def decode(self, data: bytes, *, key: str, encoding: str | None = None, schema: str = "") -> Any:
        """Return the value of stored bytes of that schema, through every upgrade that it lacks.

        Raises CodecError where they cannot be read, or where an upgrade raises.
        """
        version = Schema.parse(schema).version
        if version not in self._steps:
            return super().decode(data, key=key, encoding=encoding, schema=schema)
        value = codec_for(Any).decode(data, key=key, encoding=self.encoding if encoding is None else encoding)
        for at in range(version, self._version):
            try:
                value = self._steps[at](value)
            except Exception as error:  # users' own functions
                pass_on(error)
                reason = f"its upgrade from version {at} failed: {message_of(error)}"
                raise CodecError(key=key, verb="decoded", reason=reason) from error
        if self._class is not None and isinstance(value, self._class):
            return value
        return self._read_of(value, key, version, form_of(encoding or ""))

    def _read_of(self, value: Any, key: str, version: int, stored: str) -> Any:
        """Return upgraded data as the type, in the form that they were stored in, or in one that holds them."""
        first: CodecError | None = None
        forms: tuple[Encoding, ...] = ("json", "msgpack")
        for form in sorted(forms, key=lambda form: (form != stored, form != self.encoding)):
            try:
                upgraded, _ = codec_for(Any, form).encode(value, key=key, bytes_max=VALUE_BYTES_MAX)
                return super().decode(upgraded, key=key, encoding=form, schema=self.schema)
            except CodecError as error:
                first = first or error
        assert first is not None
        reason = f"its upgrade from version {version} made what does not fit: {first.reason}"
        raise CodecError(key=key, path=first.path, verb="decoded", reason=reason) from first

    def reader(self, encoding: str) -> None:
        """Return nothing: what reads the bytes depends on what they were written as."""

    def refuse_to_drop(self, data: bytes, *, key: str, encoding: str, schema: str) -> None:
        """Raise SchemaNewer where writing this type over data of that schema would drop what no upgrade has read."""
        if Schema.parse(schema).version not in self._steps:
            super().refuse_to_drop(data, key=key, encoding=encoding, schema=schema)


def _is_version(at: Any) -> bool:
    return isinstance(at, int) and not isinstance(at, bool) and at <= _VERSION_MAX
