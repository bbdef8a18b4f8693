"""States changed by a person: set by hand, rolled back, deleted. Nothing is written before its differences were shown.

    edit      a form with the value, actor and reason
    confirm   what would change, and a form that says yes to exactly that: it names the change that is replaced, and the
              new change's id, so a second press, or one after an answer was lost, writes nothing twice
    write     a commit like any other; where somebody was quicker it is refused

Who wrote, and why, has to be said. A value keeps its encoding and its schema, and ends when it would have ended.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from statecache.cli.states.by_hand import json_of
from statecache.codec import codec_for
from statecache.core.commit.committer import new_change_id
from statecache.core.history.reader import Point
from statecache.core.own_records import OWN_SCHEMAS
from statecache.core.view import checked_change_id, expected_of
from statecache.errors import NotFound, OutcomeUnknown, Unavailable, UsageError, VersionConflict
from statecache.expiry import form_of
from statecache.inspector.errors import status_of
from statecache.inspector.pages.asked import key_in, number_in, number_of, source_of
from statecache.inspector.pages.key import DIFFERENCES_MAX, Compared, compare
from statecache.inspector.rendering import page, url
from statecache.keys import checked_key
from statecache.model import Record
from statecache.rules import exact_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from statecache.inspector.source import Source

VALUE_MAX = 1024 * 1024
"""How large a value may be that is edited in a browser, in bytes."""
BODY_MAX = VALUE_MAX * 4
_SET, _ROLLBACK, _DELETE = "set", "rollback", "delete"
_PLAIN = codec_for(Any, "json")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wants: it travels through the confirmation as the fields of a form."""

    what: str
    key: str
    expected: str
    change_id: str
    actor: str = ""
    reason: str = ""
    value: str = ""
    to: int = 0


async def edit(request: Request) -> Response:
    """Return the form to write a value by hand."""
    source, key = _writing(request), key_in(request)
    record = await _current(source, key)
    return await page(
        request, "edit.html", query=key, key=key, record=record, text=await asyncio.to_thread(_editable, record),
        actor=source.operator, form_token=source.form_token,
    )  # fmt: skip


async def confirm(request: Request) -> Response:
    """Return what would change, and the form that says yes to that."""
    source = _writing(request)
    if request.method == "POST":
        given = await _form(request, source)
        key = checked_key(given.get("key", ""))
        wish = Wish(
            what=_SET, key=key, expected=given.get("expected", ""), change_id=new_change_id(),
            actor=_said(given, "actor"), reason=_said(given, "reason"), value=given.get("value", ""),
        )  # fmt: skip
        record = await _current(source, key)
        if record.change_id != wish.expected:
            raise VersionConflict(key, wish.expected or None, record.change_id)
    else:
        key, what = key_in(request), request.query_params.get("what", "")
        record = await _current(source, key)
        if what not in (_ROLLBACK, _DELETE):
            raise UsageError(f"{what!r} is nothing that can be done to a state")
        if what == _DELETE and not (record.exists or record.op == "quarantined"):
            raise NotFound(key, hint="There is nothing to delete.")
        to = number_in(request, "to") or 0
        expected = record.change_id if record.exists or what == _DELETE else ""
        wish = Wish(what=what, key=key, expected=expected, change_id=new_change_id(), to=to)
    return await _confirmation(request, source, wish, record)


async def write(request: Request) -> Response:
    """Do what was confirmed, and lead to the key."""
    source = _writing(request)
    given = await _form(request, source)
    wish = Wish(
        what=given.get("what", ""), key=checked_key(given.get("key", "")), expected=given.get("expected", ""),
        change_id=checked_change_id(given.get("change_id", "")), actor=_said(given, "actor"),
        reason=_said(given, "reason"), value=given.get("value", ""), to=number_of(given.get("to", ""), "to") or 0,
    )  # fmt: skip
    try:
        version = await _done(source, wish)
    except (OutcomeUnknown, Unavailable) as error:
        return await page(
            request, "again.html", status=status_of(error), query=wish.key, wish=wish, error=error,
            form_token=source.form_token,
        )  # fmt: skip
    return RedirectResponse(url("key", key=wish.key, written=version), status_code=303)


async def _done(source: Source, wish: Wish) -> int:
    """Commit what is wished, and return the version that it made."""
    cache = source.cache
    more: dict[str, Any] = {"actor": wish.actor, "reason": wish.reason, "change_id": wish.change_id}
    if wish.what == _DELETE:
        tombstone = await cache.delete(wish.key, expected=checked_change_id(wish.expected), **more)
        if tombstone is None:
            raise NotFound(wish.key, hint="Nothing was deleted.")
        return tombstone.version
    if wish.what == _ROLLBACK:
        restored = await cache.rollback(wish.key, wish.to, expected=wish.expected or None, **more)
        return restored.version
    if wish.what != _SET:
        raise UsageError(f"{wish.what!r} is nothing that can be done to a state")
    record, view = await _current(source, wish.key, to_write=True), cache._view
    expected = expected_of(wish.key, wish.expected or None)
    form = form_of(record.encoding) if record.exists else "json"
    if form == "msgpack":
        view = cache.namespace(wish.key.partition("/")[0], encoding="msgpack")._view
    made = view.write_of(wish.key, _value_of(wish.value), expected=expected, over=record)
    if record.exists:
        made = replace(made, schema=record.schema)
    return (await view.commit_one(made, durability=None, end=source.end, **more)).version


async def _confirmation(request: Request, source: Source, wish: Wish, record: Record) -> Response:
    before = await asyncio.to_thread(_plain_of, record)
    after: Any = msgspec.UNSET
    if wish.what == _SET:
        after = _value_of(wish.value)
    elif wish.what == _ROLLBACK:
        shown = await source.shown(wish.key, Point(version=wish.to))
        if shown.lacking is not None:
            raise shown.lacking
        after = shown.plain() if shown.value is not None else msgspec.UNSET
    found: list[Compared] = await asyncio.to_thread(compare, before, after)
    return await page(
        request, "confirm.html", query=wish.key, wish=wish, record=record, found=found[:DIFFERENCES_MAX],
        count=len(found), actor=wish.actor or source.operator, form_token=source.form_token,
    )  # fmt: skip


def _writing(request: Request) -> Source:
    """Return the source if it may be written to; the page of a refusal else."""
    source = source_of(request)
    if not source.write:
        raise HTTPException(403, "This inspector is read-only: start it with --write to change states.")
    return source


async def _current(source: Source, key: str, *, to_write: bool = False) -> Record:
    """Return a key's record; raise UsageError for what nobody changes by hand."""
    read = source.runtime.reader.record if to_write else source.runtime.reader.primary
    record = await read(key, end=source.end)
    if record.exists and record.schema in OWN_SCHEMAS:
        raise UsageError(f"{key!r} is a record of the library's own", hint="Change what it is about.")
    return record


def _editable(record: Record) -> str:
    """Return a value as JSON to be edited; raise UsageError where it would come back as something else."""
    if not record.exists:
        return ""
    hint = f"Write it with a program, or overwrite it: `statecache set {record.key} …`."
    if form_of(record.encoding) == "raw":
        raise UsageError("raw bytes cannot be edited here", hint=hint)
    if len(record.value) > VALUE_MAX:
        raise UsageError(f"a value of {len(record.value):,} bytes cannot be edited here", hint=hint)
    text = json_of(record.value, record.encoding, key=record.key)
    if form_of(record.encoding) == "msgpack" and msgspec.json.decode(text) != _plain_of(record):
        raise UsageError("the value holds what JSON cannot, as bytes or times", hint=hint)
    return msgspec.json.format(text, indent=2).decode()


def _plain_of(record: Record) -> Any:
    if not record.exists:
        return msgspec.UNSET
    return _PLAIN.decode(record.value, key=record.key, encoding=record.encoding)


def _value_of(text: str) -> Any:
    if len(text) > VALUE_MAX:
        raise UsageError(f"a value of more than {VALUE_MAX:,} bytes cannot be written here")
    return exact_json.decoded(text, "the value", hint="Go back and mend it: nothing was written.")


def _said(given: dict[str, str], what: str) -> str:
    """Return the actor or the reason; raise UsageError where there is none."""
    text = given.get(what, "").strip()
    if not text:
        raise UsageError(f"every change needs its {what}", hint="Go back and say it: nothing was written.")
    return text


async def _form(request: Request, source: Source) -> dict[str, str]:
    """Return the fields of a form of ours; refuse any other."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_MAX:
            raise HTTPException(413, "That is more than can be written here.")
    try:
        given = dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict"))
    except ValueError:
        raise HTTPException(400, "That is not a form of this page.") from None
    if not secrets.compare_digest(given.get("form_token", "").encode(), source.form_token.encode()):
        raise HTTPException(403, "The form is not of this inspector: load the page again.")
    return given
