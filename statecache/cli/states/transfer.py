"""What `export` and `import` do: states as lines of JSON, out of a deployment and into one.

A line is an object: `key`, `encoding`, `schema`, and the value as it is stored: under `value` where it is JSON, else
under `base64`; and `expires_at`, where it ends some time. What else it says of the state (`version`, `change_id`,
`updated_at`, `writer`) is for its reader: an import makes new changes. So checkpoints are written out and not taken
in: what one names is a change of the history that it was made in.

Both can be interrupted and go on: an export after the last key that it has written, for it goes by key; an import by
leaving alone what is there already, which costs reading it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from math import inf
from os import SEEK_END
from pathlib import Path
from typing import Any

import msgspec

from statecache._async.client import AsyncStateCache
from statecache.cli.error_text import CommandGiven, text_of
from statecache.clock import monotonic
from statecache.core.read.listed import Listed
from statecache.errors import InvalidKey, StateCacheError, UsageError
from statecache.expiry import ending, expires_at, form_of, until_of
from statecache.keys import checked_key
from statecache.model import ABSENT, VALUE_BYTES_MAX, Position, Record, State, Write
from statecache.rules.checkpoints import CHECKPOINT_SCHEMA
from statecache.rules.filters import Selection

AT_ONCE = 500
"""How many states are read, compared and written together."""
_LINE_BYTES_MAX = 2 * VALUE_BYTES_MAX
"""More than a line is long, with a value in base64."""
_IMPORT = CommandGiven("import", takes_change_id=False)
_ENCODINGS = ("json", "msgpack", "raw")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One state in a file."""

    key: str
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    base64: str | msgspec.UnsetType = msgspec.UNSET
    encoding: str = "json"
    expires_at: datetime | msgspec.UnsetType = msgspec.UNSET
    schema: str = ""
    version: int = 0
    change_id: str = ""
    updated_at: str = ""
    writer: str = ""


class Imported(msgspec.Struct, kw_only=True):
    """What an import came to: states written, those that were there already, and keys with another value, left alone.

    `ended` are states whose end has come since the export, `checkpoints` those of another history, left out; `failed`
    are keys that could not be written, with the reason.
    """

    written: int = 0
    same: int = 0
    ended: int = 0
    checkpoints: int = 0
    kept: list[str] = []
    failed: dict[str, str] = {}

    @property
    def count(self) -> int:
        """How many lines were dealt with."""
        return self.written + self.same + self.ended + self.checkpoints + len(self.kept) + len(self.failed)


async def exported(cache: AsyncStateCache, prefix: str, *, after: str = "") -> AsyncIterator[bytes]:
    """Yield the states under a prefix as lines, by key, from behind the key `after`; quarantined ones are left out."""
    listed = Listed(selection=Selection(prefix=prefix, after=after))
    async for record in cache._runtime.listing.records(listed, seconds=cache.settings.timeout_s):
        if record.exists:
            yield line_of(record)


def line_of(record: Record) -> bytes:
    """Return a state as a line, without the line's end."""
    held: dict[str, Any] = {"base64": base64.b64encode(record.value).decode()}
    encoding = form_of(record.encoding)
    if encoding == "json":
        held = {"value": msgspec.Raw(record.value)}
    line = Line(
        key=record.key, encoding=encoding, expires_at=expires_at(record.encoding) or msgspec.UNSET,
        schema=record.schema, version=record.version, change_id=record.change_id, updated_at=record.updated_at,
        writer=record.writer, **held,
    )  # fmt: skip
    return msgspec.json.encode(line)


def last_key(output: Path) -> tuple[str, int]:
    """Return the key of the last whole line of an export, '' for none, and the length of all whole lines in bytes."""
    with output.open("rb") as file:
        begin = max(0, file.seek(0, SEEK_END) - 2 * _LINE_BYTES_MAX)
        file.seek(begin)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    if not whole:
        return "", 0
    return _read(whole[:-1].rpartition(b"\n")[2], "the last line").key, begin + len(whole)


async def imported(
    cache: AsyncStateCache,
    lines: Iterable[bytes],
    *,
    replace: bool,
    dry_run: bool,
    more: dict[str, Any],
    progress: Callable[[Imported], object],
) -> Imported:
    """Write the states of the lines, a few hundred at a time; what is there already is left alone.

    Where a key has another value it is `kept`, or written with `replace`; somebody else's write meanwhile makes it
    `failed`. Raises UsageError at a line that cannot be read, when those before it are written.
    """
    done = Imported()
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    for part in _parts(numbered):
        writes, wrong = list[Write](), None
        for number, line in part:
            try:
                write = _write_of(_read(line, f"line {number}"), f"line {number}", cache)
            except UsageError as error:
                wrong = error
                break
            if write.schema == CHECKPOINT_SCHEMA:
                done.checkpoints += 1
            elif (until_of(write.encoding) or inf) <= cache._runtime.redis.clock.now_ms():
                done.ended += 1
            else:
                writes.append(write)
        await _take_in(cache, {write.key: write for write in writes}, done, replace=replace, dry_run=dry_run, more=more)
        progress(done)
        if wrong is not None:
            raise wrong
    return done


def _parts(lines: Iterator[tuple[int, bytes]]) -> Iterator[Sequence[tuple[int, bytes]]]:
    while part := list(islice(lines, AT_ONCE)):
        yield part


def _read(line: bytes, where: str) -> Line:
    try:
        return msgspec.json.decode(line, type=Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where} is no line of an export: {error}") from None


def _write_of(line: Line, where: str, cache: AsyncStateCache) -> Write:
    """Return the write of a line's value, as it was stored; raise UsageError where there is none."""
    if line.encoding not in _ENCODINGS or (line.value is msgspec.UNSET) == (line.base64 is msgspec.UNSET):
        raise UsageError(f"{where} is no line of an export: it has no value, two, or one in no known encoding")
    if (line.value is msgspec.UNSET) == (line.encoding == "json"):
        raise UsageError(f"{where} is no line of an export: what is stored as JSON stands under value, else base64")
    try:
        data = (
            msgspec.json.format(bytes(line.value), indent=-1)
            if isinstance(line.value, msgspec.Raw)
            else base64.b64decode(str(line.base64), validate=True)
        )
    except binascii.Error as error:
        raise UsageError(f"{where} is no line of an export: {error}") from None
    until = line.expires_at if isinstance(line.expires_at, datetime) else None
    if until is not None and not (until.tzinfo and 1970 < until.year < 2280):
        raise UsageError(f"{where} is no line of an export: its expires_at has no zone, or is centuries away")
    if len(data) > VALUE_BYTES_MAX:
        raise UsageError(f"{where}: the value has {len(data):,} bytes, more than {VALUE_BYTES_MAX:,}")
    try:
        key = checked_key(line.key)
    except InvalidKey as error:
        raise UsageError(f"{where}: {error.problem}") from None
    return Write(
        key=key, op="set", expected=ABSENT, value=data, encoding=ending(line.encoding, until),
        schema=line.schema, ttl_ms=cache._view.ttl_ms,
    )  # fmt: skip


async def _take_in(
    cache: AsyncStateCache, writes: dict[str, Write], done: Imported, *, replace: bool, dry_run: bool,
    more: dict[str, Any],
) -> None:  # fmt: skip
    """Write what is not there yet, each as a commit of its own, and count what becomes of all of them."""
    there = await cache._runtime.many.primary([*writes], end=monotonic() + cache.settings.timeout_s)
    due: dict[str, Write] = {}
    for key, write in writes.items():
        record = there[key]
        if record.exists and _alike(record, write):
            done.same += 1
        elif record.exists and not replace:
            done.kept.append(key)
        else:
            expected = record.change_id if record.exists or record.op == "quarantined" else ABSENT
            due[key] = msgspec.structs.replace(write, expected=expected)
    if not dry_run:
        await _prove([record for key, record in there.items() if record.exists and key not in due], cache, more)
    if dry_run or not due:
        done.written += len(due)
        return
    states, errors = await cache._write_each(due, end=cache._view.end_of(None), **more)
    done.written += len(states)
    done.failed |= {key: _said(error) for key, error in errors.items()}


async def _prove(there: Sequence[Record], cache: AsyncStateCache, more: dict[str, Any]) -> None:
    """Wait until Postgres holds what was there already, where what is written counts once it does."""
    if cache._view.durability_of(more.get("durability")) != "postgres":
        return
    newest: dict[int, State[Any]] = {}
    for state in (cache._view.shown(record, None) for record in there):
        shard = cache._runtime.keys.shard(state.key)  # a shard's changes get there in their order
        newest[shard] = max(newest.get(shard, state), state, key=lambda one: one.position or Position(0, 0))
    for state in newest.values():
        await cache.wait_durable(state)


def _alike(record: Record, write: Write) -> bool:
    return (record.value, record.encoding, record.schema) == (write.value, write.encoding, write.schema)


def _said(error: StateCacheError) -> str:
    return text_of(error, _IMPORT).partition("\n")[0]
