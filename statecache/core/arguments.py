"""What calls are given, checked before anything is done: each refusal names the argument, and what is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statecache.errors import CodecError, UsageError
from statecache.value_loss import name_of

if TYPE_CHECKING:
    from statecache.codec import Codec

_DEFAULT = "A default is a value of the type that is read, or a class or function that makes one."


def refuse_unlike(default: Any, codec: Codec) -> None:
    """Raise UsageError for a default that is not of the type of values; None, and what makes one, is taken."""
    if not (default is None or callable(default) or codec.takes(default)):
        raise UsageError(f"default= is a {name_of(default.__class__)}, not a {name_of(codec.type)}", hint=_DEFAULT)


def made_default(default: Any, codec: Codec, *, key: str, bytes_max: int) -> Any:
    """Return a default as readers get a value that was stored, so that whoever changes it changes nobody else's.

    Raises UsageError for one that cannot be a value.
    """
    value = default() if callable(default) else default
    if value is None:
        return None
    own = codec.of(value)
    try:
        data, _ = own.encode(value, key=key, bytes_max=bytes_max)
    except CodecError as error:
        raise UsageError(f"default= cannot be a value, at {error.path}: {error.reason}", hint=_DEFAULT) from error
    return own.decode(data, key=key, schema=own.schema)
