"""States changed in the inspector: shown before it is done, done once, said by whom and why, refused to all others."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from statecache import AsyncStateCache, Settings
from statecache.errors import OutcomeUnknown
from statecache.inspector.pages.writing import VALUE_MAX
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.inspected import ORIGIN, TOKEN, Page, Web, inspected

KEY = "runs/42"
SAID = {"actor": "bob", "reason": "set right by hand"}


class Run(msgspec.Struct, frozen=True):
    """A value with a type."""

    step: int


@pytest.fixture
def web(settings: Settings) -> Iterator[Web]:
    """An inspector of the test's deployment that may write."""
    with inspected(settings, write=True) as found:
        yield found


def edited(web: Web, value: str, key: str = KEY, **said: str) -> Page:
    """Return the confirmation of a value that was typed."""
    form = web.get("edit", key=key)
    assert form.status == 200
    return web.post("confirm", form.fields | {"value": value} | SAID | said)


async def test_a_value_is_edited_confirmed_and_written(web: Web, cache: AsyncStateCache) -> None:
    await cache.set(KEY, {"goal": "refund", "n": 1})
    page = web.get("key", key=KEY)
    assert "can write" in page.text
    assert page.links_to("edit") == [{"key": KEY}]
    form = web.get("edit", key=KEY)
    assert '"goal": "refund"' in form.text
    confirmation = edited(web, '{\r\n"goal": "refund",\r\n"n": 2}')
    assert confirmation.status == 200
    assert "changed n 1 2" in confirmation.text
    state = await cache.get(KEY)
    assert state is not None
    assert state.version == 1
    done = web.post("write", confirmation.fields)
    assert (done.status, done.url) == (200, f"{ORIGIN}/{TOKEN}/key?key=runs%2F42&written=2")
    assert "Version 2 was written" in done.text
    assert (done.facts()["actor"], done.facts()["reason"]) == ("bob", "set right by hand")
    state = await cache.get(KEY)
    assert state is not None
    assert (state.value, state.version) == ({"goal": "refund", "n": 2}, 2)


async def test_a_key_is_created_and_a_deleted_one_written_again(web: Web, cache: AsyncStateCache) -> None:
    assert web.get("key", key=KEY).links_to("edit") == [{"key": KEY}]
    confirmation = edited(web, '"new"')
    assert "added $" in confirmation.text
    assert web.post("write", confirmation.fields).status == 200
    await cache.delete(KEY)
    assert web.post("write", edited(web, '"again"').fields).status == 200
    state = await cache.get(KEY)
    assert state is not None
    assert (state.value, state.version) == ("again", 3)


async def test_a_delete_is_confirmed_and_done(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    await cache.set(KEY, {"a": 1})
    assert web.get("key", key=KEY).links_to("confirm") == [{"what": "delete", "key": KEY}]
    confirmation = web.get("confirm", what="delete", key=KEY)
    assert "Delete runs/42 ?" in confirmation.text
    assert "removed $" in confirmation.text
    assert await cache.exists(KEY)
    done = web.post("write", confirmation.fields | SAID)
    assert "Version 2 was written" in done.text
    assert "deleted at version 2" in done.text
    assert not await cache.exists(KEY)
    assert web.get("confirm", what="delete", key=KEY).status == 404
    await flush(worker)
    tombstone = [change async for change in cache.history(KEY)][-1]
    assert (tombstone.op, tombstone.actor, tombstone.reason) == ("delete", "bob", "set right by hand")


async def test_a_version_is_rolled_back_to(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    for step in range(1, 4):
        await cache.set(KEY, {"step": step})
    await flush(worker)
    (link,) = web.get("key", key=KEY, version=1).links_to("confirm")
    assert link == {"what": "rollback", "key": KEY, "to": "1"}
    confirmation = web.get("confirm", **link)
    assert "changed step 3 1" in confirmation.text
    done = web.post("write", confirmation.fields | SAID)
    assert "Version 4 was written" in done.text
    assert done.facts()["reason"] == "rollback to 1: set right by hand"
    state = await cache.get(KEY)
    assert state is not None
    assert (state.value, state.version) == ({"step": 1}, 4)
    nothing = web.post("write", web.get("confirm", what="rollback", key=KEY, to=4).fields | SAID)
    assert nothing.status == 409
    assert web.get("confirm", what="rollback", key=KEY, to=99).status == 404
    await cache.delete(KEY)
    assert web.post("write", web.get("confirm", what="rollback", key=KEY, to=2).fields | SAID).status == 200
    state = await cache.get(KEY)
    assert state is not None
    assert (state.value, state.version) == ({"step": 2}, 6)


async def test_where_somebody_was_quicker_nothing_is_written(web: Web, cache: AsyncStateCache) -> None:
    await cache.set(KEY, 1)
    form, confirmation = web.get("edit", key=KEY), edited(web, "2")
    deletion = web.get("confirm", what="delete", key=KEY)
    await cache.set(KEY, "quicker")
    for page in (
        web.post("confirm", form.fields | {"value": "3"} | SAID),
        web.post("write", confirmation.fields),
        web.post("write", deletion.fields | SAID),
    ):
        assert page.status == 409
        assert "was changed by someone else" in page.text
    state = await cache.get(KEY)
    assert state is not None
    assert (state.value, state.version) == ("quicker", 2)


async def test_a_second_press_writes_nothing_twice(web: Web, cache: AsyncStateCache) -> None:
    await cache.set(KEY, 1)
    confirmation = edited(web, "2")
    for _ in range(3):
        assert "Version 2 was written" in web.post("write", confirmation.fields).text
    deletion = web.get("confirm", what="delete", key=KEY).fields | SAID
    for _ in range(2):
        assert "Version 3 was written" in web.post("write", deletion).text


async def test_an_outcome_that_is_unknown_can_be_asked_for_again(
    web: Web, cache: AsyncStateCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cache.set(KEY, 1)
    confirmation = edited(web, "2")
    with monkeypatch.context() as patched:

        async def lost(*_: Any, change_id: str, **__: Any) -> None:
            raise OutcomeUnknown(change_id, keys=(KEY,))

        patched.setattr("statecache.core.view.View.commit_one", lost)
        page = web.post("write", confirmation.fields)
        assert page.status == 503
        assert "It is not known to be written" in page.text
    assert "Version 2 was written" in web.post("write", page.fields).text


async def test_who_and_why_have_to_be_said(web: Web, cache: AsyncStateCache) -> None:
    await cache.set(KEY, 1)
    form, deletion = web.get("edit", key=KEY).fields, web.get("confirm", what="delete", key=KEY).fields
    for lacking in ({"actor": "", "reason": "x"}, {"actor": "x", "reason": " "}, {"actor": "x"}, {}):
        for page in (web.post("confirm", form | {"value": "2"} | lacking), web.post("write", deletion | lacking)):
            assert page.status == 400
            assert "every change needs its" in page.text
    forged = web.post("write", deletion | {"actor": "x", "reason": "rollback to 7"})
    assert forged.status == 400
    assert "reads like what statecache itself says" in forged.text
    state = await cache.get(KEY)
    assert state is not None
    assert state.version == 1


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"origin": "http://evil.example"}, {}),
        ({"origin": "http://127.0.0.1:9999"}, {}),
        ({"origin": "null"}, {}),
        ({"sec_fetch_site": "cross-site"}, {}),
        ({"sec_fetch_site": "same-site"}, {}),
        ({"origin": "", "sec_fetch_site": ""}, {}),
        ({"host": "evil.example"}, {}),
        ({}, {"form_token": ""}),
        ({}, {"form_token": "guessed"}),
    ],
)
async def test_forms_of_other_pages_are_refused(
    web: Web, cache: AsyncStateCache, headers: dict[str, str], fields: dict[str, str]
) -> None:
    await cache.set(KEY, 1)
    deletion = web.get("confirm", what="delete", key=KEY).fields | SAID | fields
    assert web.post("write", deletion, **headers).status == 403
    assert await cache.exists(KEY)


async def test_nothing_is_written_by_a_link(web: Web, cache: AsyncStateCache) -> None:
    await cache.set(KEY, 1)
    fields = web.get("confirm", what="delete", key=KEY).fields | SAID
    assert web.get("write", **fields).status == 405
    assert web.get("confirm", **fields).status == 200
    assert await cache.exists(KEY)


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ({"what": "explode"}, 400),
        ({"key": "runs"}, 400),
        ({"change_id": "x y"}, 400),
        ({"to": "seven"}, 400),
        ({"expected": "no change"}, 400),
    ],
)
async def test_fields_that_no_form_has_are_refused(
    web: Web, cache: AsyncStateCache, what: dict[str, str], status: int
) -> None:
    await cache.set(KEY, 1)
    fields = web.get("confirm", what="delete", key=KEY).fields | SAID
    assert web.post("write", fields | what).status == status
    assert await cache.exists(KEY)


async def test_what_is_no_value_is_refused_before_anything_is_done(web: Web, cache: AsyncStateCache) -> None:
    await cache.set(KEY, 1)
    gc.collect()  # what is collected at the end of the recursion finds no room there to be finalized
    for value in ("{", "", "{'a': 1}", "NaN", "[" * 5000):
        page = edited(web, value)
        assert page.status == 400
        assert "Nothing was" in page.text or "nothing was written" in page.text
    assert edited(web, '"' + "x" * VALUE_MAX + '"').status == 400
    huge = web.client.post(f"/{TOKEN}/confirm", content=b"value=" + b"x" * (5 * VALUE_MAX), headers={"origin": ORIGIN})
    assert huge.status_code == 413
    assert web.client.post(f"/{TOKEN}/write", content=b"\xff\xfe", headers={"origin": ORIGIN}).status_code == 400


async def test_a_value_keeps_its_type_its_encoding_and_its_end(web: Web, cache: AsyncStateCache) -> None:
    typed = await cache.namespace("typed", type=Run).set("1", Run(1), ttl=1000)
    packed = cache.namespace("packed", encoding="msgpack")
    await packed.set("1", {"n": 1})
    assert web.post("write", edited(web, '{"step": 2}', "typed/1").fields).status == 200
    state = await cache.get("typed/1")
    assert state is not None
    assert (state.schema, state.expires_at, state.value) == (typed.schema, typed.expires_at, {"step": 2})
    assert web.post("write", edited(web, '{"n": 2}', "packed/1").fields).status == 200
    assert web.get("key", key="packed/1").facts()["size"].startswith("4 B msgpack")


async def test_what_would_come_back_as_something_else_is_not_edited(web: Web, cache: AsyncStateCache) -> None:
    await cache.namespace("packed", encoding="msgpack").set("1", {"data": b"\x00\xff"})
    await cache.namespace("raw", encoding="raw").set("1", b"bytes")
    await cache.set(KEY, "x" * (VALUE_MAX + 10))
    await cache.set("runs/43", 1)
    await cache.checkpoint("runs/43", "mark", durability="memory")
    for key, words in (
        ("packed/1", "holds what JSON cannot"), ("raw/1", "raw bytes cannot be edited"), (KEY, "cannot be edited here"),
        ("runs/43/checkpoints/mark", "a record of the library's own"),
    ):  # fmt: skip
        page = web.get("edit", key=key)
        assert page.status == 400
        assert words in page.text


async def test_without_redis_nothing_is_said_to_be_written(settings: Settings, cache: AsyncStateCache) -> None:
    await cache.set(KEY, 1)
    with inspected(settings, write=True) as web:
        fields = edited(web, "2").fields
    away = settings.model_copy(update={"redis_url": "redis://127.0.0.1:1", "timeout_s": 0.5})
    with inspected(away, write=True) as web:
        assert web.get("edit", key=KEY).status == 503
        page = web.post("write", fields | {"form_token": web.source.form_token})
        assert page.status == 503
        assert "Redis is unavailable" in page.text
