"""A step's record as it is stored: reading it, and the write that follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from statecache.codec import codec_for
from statecache.errors import Quarantined
from statecache.model import ABSENT, Encoding, Record, Write
from statecache.rules.steps import StepRecord

if TYPE_CHECKING:
    from statecache.core.runtime import Runtime
    from statecache.core.view import View

_CODECS = {"json": codec_for(StepRecord, "json"), "msgpack": codec_for(StepRecord, "msgpack")}
_WRITTEN = {"json": msgspec.json.Encoder().encode, "msgpack": msgspec.msgpack.Encoder().encode}


STEP_SCHEMA = _CODECS["json"].schema
"""What marks the records of steps among other states."""


class Held(msgspec.Struct, frozen=True):
    """A step as its record has it, and the change that wrote it."""

    step: StepRecord
    change_id: str
    encoding: Encoding
    record: Record | None = None


async def held_step(runtime: Runtime, key: str, *, end: float) -> tuple[str, Held | None]:
    """Read a step's record: return the change_id to compare with, and what it holds, None where there is no step."""
    record = await runtime.reader.record(key, end=end)
    if not record.exists:
        if record.op == "quarantined":
            raise Quarantined(key, record.change_id)
        return record.change_id, None
    encoding: Encoding = "msgpack" if record.encoding == "msgpack" else "json"
    step = _CODECS[encoding].decode(record.value, key=key, encoding=record.encoding)
    return record.change_id, Held(step, record.change_id, encoding, record)


def record_write(
    view: View[Any], key: str, step: StepRecord, expected: str, encoding: Encoding, *, new_in: int | None = None
) -> Write:
    """Return the write of a record; `expected` as in `Write`, where ABSENT vouches that the step is new."""
    return Write(
        key=key,
        op="set",
        expected=expected,
        value=_WRITTEN[encoding](step),
        seen=step,
        encoding=encoding,
        schema=_CODECS[encoding].schema,
        ttl_ms=view.ttl_ms,
        assume_new=expected == ABSENT,
        new_in=new_in,
    )
