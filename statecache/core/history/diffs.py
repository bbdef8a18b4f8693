"""What differs between two versions of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from statecache.codec import codec_for
from statecache.rules.difference import Difference, differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statecache.core.runtime import Runtime
    from statecache.rules.versions import Version

_PLAIN = codec_for(Any, "json")


async def diff(runtime: Runtime, versions: Sequence[Version], *, end: float) -> tuple[Difference, ...]:
    """Return what differs between two versions, compared as plain data; a deleted state has none."""
    history = runtime.history
    values = [await history.value_of(one, end=end) if one.op == "set" else None for one in versions]
    size = sum(len(value or b"") for value in values)
    what = f"a comparison of {size:,} bytes"
    return await runtime.computations.result(lambda: _differences(versions, values), size=size, end=end, what=what)


def _differences(versions: Sequence[Version], values: Sequence[bytes | None]) -> tuple[Difference, ...]:
    before, after = map(_plain, versions, values)
    return differences(before, after)


def _plain(version: Version, value: bytes | None) -> Any:
    return UNSET if value is None else _PLAIN.decode(value, key=version.key, encoding=version.encoding, schema="")
