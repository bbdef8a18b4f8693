"""Values as the inspector shows them: hostile ones, of every form, huge, and of which there are a thousand versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache.inspector.source import VERSIONS_MAX
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.inspected import TOKEN, Web, inspected

KEY = "runs/42"
VALUES_MAX = 2
"""What the page of one version reads, at most, counted in whole values: its run from the keyframe on is deltas."""
EVIL = "<script>alert('x')</script>\"'&\u202e"


@pytest.fixture
def web(settings: Settings) -> Iterator[Web]:
    """An inspector of the test's deployment."""
    with inspected(settings) as found:
        yield found


async def test_whatever_agents_write_is_shown_and_not_obeyed(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    key = f"runs/{EVIL.replace('/', '')}"
    await cache.set(key, {EVIL: EVIL, "long": EVIL * 50, "list": [EVIL]}, actor=EVIL, reason=EVIL)
    await cache.checkpoint(key, EVIL.replace("/", ""), metadata=EVIL, durability="memory")
    await cache.set(key, EVIL, actor=EVIL, reason=EVIL)
    await flush(worker)
    pages = [
        web.get(), web.get("keys", prefix="runs/"), web.get("keys", prefix=key), web.get("key", key=key),
        web.get("key", key=key, version=1), web.get("diff", key=key, a=1, b=2), web.get("run", group=key),
        web.get("key", key=key, path=f'["{EVIL}"]'), web.get("keys", prefix=EVIL), web.get("key", key=EVIL),
        web.get("key", key=key, version=EVIL), web.get("parked", id=EVIL), web.get(EVIL), web.get("shards"),
        web.get("live", prefix=EVIL), web.get("run", group=EVIL), web.get("conflict", key=key, change=EVIL),
        web.get("key", key=key, version=7),
    ]  # fmt: skip
    for page in pages:
        assert [given for tag, given in page.tags if tag == "script" and "src" not in given] == []
        assert all("alert(" not in " ".join(given) for _, given in page.tags)
        assert "<script>alert" not in page.source
        assert "\u202e" not in page.text
        told = [text for _, given in page.tags for name, text in given.items() if name.startswith("data-")]
        assert not any("\u202e" in (text or "") for text in told)
        assert not any(name.startswith("on") or name == "style" for _, given in page.tags for name in given)
    assert "<script>alert('x')</script>\"'&\\u202e" in pages[3].text
    (link,) = [link for link in pages[1].links if link.startswith("key?") and "checkpoints" not in link]
    assert web.follow(pages[1], link).status == 200


async def test_values_of_every_form_are_shown(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    packed, raw = cache.namespace("packed", encoding="msgpack"), cache.namespace("raw", encoding="raw")
    await packed.set("1", {"data": b"\x00\xff", "n": 1})
    await raw.set("text", "grüße".encode())
    await raw.set("bytes", bytes(range(256)) * 30)
    await cache.set("runs/short", 1, ttl=1000)
    await flush(worker)
    assert "data : 2 bytes: 00 ff n : 1" in web.get("key", key="packed/1").text
    assert "grüße" in web.get("key", key="raw/text").text
    page = web.get("key", key="raw/bytes")
    assert "00000010 10 11 12" in page.text
    assert "7,680 bytes in all" in page.text
    assert "ends" in web.get("key", key="runs/short").facts()


async def test_a_value_of_8_mib_is_cut_and_can_be_saved(web: Web, cache: AsyncStateCache) -> None:
    rows = [{"id": number, "text": "x" * 700} for number in range(11_000)]
    await cache.set(KEY, {"rows": rows, "last": "here"})
    await cache.set("runs/text", "y" * 8_000_000)
    page = web.get("key", key=KEY)
    assert page.status == 200
    assert len(page.source) < 1_000_000
    assert "10,900 more" in page.text
    assert "last : here" in page.text
    assert len(web.client.get(f"/{TOKEN}/raw?key={KEY}").content) > 7_500_000
    page = web.get("key", key="runs/text")
    assert len(page.source) < 100_000
    assert "8,000,000 characters, the first 20,000 are shown" in page.text


async def test_a_key_with_a_thousand_versions_of_50_kb_is_paged_and_one_value_is_read(
    web: Web, cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [{"role": "user", "content": f"this is message {number}, " * 8} for number in range(250)]
    for version in range(1, 1001):
        messages[version % 250]["content"] = f"answer {version} to what was asked before, " * 5
        await cache.set(KEY, {"messages": messages, "step": version})
    await flush(worker)
    size = len(web.client.get(f"/{TOKEN}/raw?key={KEY}").content)
    assert size > 50_000
    given = _given(web, monkeypatch)
    for shown in ({}, {"version": 1}, {"version": 500}, {"version": 999}):
        given.clear()
        assert web.get("key", key=KEY, **shown).status == 200
        assert sum(given) < VALUES_MAX * size
    page, found = web.get("key", key=KEY), list[int]()
    while True:
        listed = [int(query["b"]) for query in page.links_to("diff")]
        found += listed
        onward = [link for link in page.links if "until=" in link and f"until={listed[0] + VERSIONS_MAX}#" not in link]
        if not onward or listed[-1] == 2:
            break
        page = web.follow(page, onward[-1].partition("#")[0])
        assert len(listed) <= VERSIONS_MAX
    assert found == [*range(1000, 1, -1)]
    middle = [int(query["b"]) for query in web.get("key", key=KEY, version=500).links_to("diff")]
    assert 500 in middle
    assert len(middle) == VERSIONS_MAX


def _given(web: Web, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return where the bytes that Postgres gives the inspector are noted, query by query."""
    postgres, given = web.source.runtime.postgres, list[int]()

    async def fetch_each(*args: Any, through: Any = postgres.fetch_each, **more: Any) -> Any:
        found = await through(*args, **more)
        given.extend(len(cell) for rows in found for row in rows for cell in row if isinstance(cell, bytes))
        return found

    monkeypatch.setattr(postgres, "fetch_each", fetch_each)
    return given
