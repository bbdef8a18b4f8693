"""The inspector in a real browser: by mouse and by keyboard, with and without scripts, light and dark, live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.browser import Browser
from tests.support.inspected import Served, served

KEY = "runs/42"
EVIL = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
PAGES = (
    "", "keys?prefix=runs/", "keys?prefix=runs/&order=key", f"key?key={KEY}", f"key?key={KEY}&version=2",
    f"diff?key={KEY}&a=1&b=3", f"run?group={KEY}", f"run?group={KEY}&n=2", "shards", "aside", "key?key=runs/evil",
)  # fmt: skip
UNNAMED = """
    const fields = [...document.querySelectorAll('input:not([type=hidden]), textarea')].filter(e => !e.labels.length);
    const links = [...document.querySelectorAll('a, button')].filter(e => !e.textContent.trim());
    return [...fields, ...links].filter(e => !e.ariaLabel).map(e => e.outerHTML);
"""
"""Returns what a screen reader would have no name for."""
FOREIGN = """
    return performance.getEntriesByType('resource').map(e => e.name).filter(e => !e.startsWith(location.origin));
"""
"""Returns what the page has loaded from elsewhere."""


@pytest.fixture
def inspector(settings: Settings) -> Iterator[Served]:
    """An inspector that may write."""
    with served(settings, "--write") as found:
        yield found


@pytest.fixture
async def story(cache: AsyncStateCache, worker: Worker) -> None:
    """A run of five steps with a plan and a checkpoint, and a key with hostile values."""
    for step in range(1, 6):
        await cache.set(KEY, {"step": step, "said": [f"word {step}"] * step}, actor="ada", reason=f"step {step}")
    await cache.set("runs/42/plan", {"next": ["search"]})
    await cache.checkpoint(KEY, "before payment", durability="memory")
    await cache.set("runs/evil", {EVIL: EVIL, "long": EVIL * 5}, actor=EVIL, reason=EVIL)
    await flush(worker)


def focused(window: Browser) -> str:
    """Return what has the focus: its tag, its id or its text."""
    return str(window.run("const e = document.activeElement; return e.tagName + ' ' + (e.id || e.innerText)"))


@pytest.mark.usefixtures("story")
async def test_every_page_is_drawn_in_light_and_dark_and_nothing_is_blocked(window: Browser, inspector: Served) -> None:
    for page in PAGES:
        paper = {}
        for scheme in ("light", "dark"):
            window.scheme("dark" if scheme == "dark" else "light")
            window.go(inspector.url + page)
            paper[scheme] = window.run("return getComputedStyle(document.body).backgroundColor")
            assert window.complaints() == []
            assert window.run("return window.hacked") is None
        assert paper["light"] != paper["dark"]
        assert window.run("return document.querySelectorAll('h1').length") == 1
        assert window.run(UNNAMED) == []
        assert window.run(FOREIGN) == []
        assert not window.run("return document.documentElement.scrollWidth > innerWidth")


@pytest.mark.usefixtures("story")
async def test_the_timeline_is_walked_with_the_arrow_keys(window: Browser, inspector: Served) -> None:
    window.go(f"{inspector.url}key?key={KEY}")
    window.run("document.getElementById('at').focus()")
    window.press("Left", "Left")
    window.until("return document.querySelector('#shown .facts')?.innerText.includes('step 3')")
    window.until("return location.search.includes('version=3')")
    assert "3 of 5" in window.text("#scrubbed")
    assert "step:\n3" in window.text("#shown .tree").replace(": ", ":\n")
    assert str(window.run("return document.getElementById('at').ariaValueText")).startswith("version 3, ")
    assert window.text("tr[aria-current] th") == "3"
    window.press("Home")
    window.until("return document.querySelector('#shown .facts')?.innerText.includes('step 1')")
    window.press("End")
    window.until("return document.querySelector('#shown .facts')?.innerText.includes('step 5')")
    window.click("a[rel=prev]")
    window.until("return document.querySelector('#shown .facts')?.innerText.includes('step 4')")
    assert window.complaints() == []


@pytest.mark.usefixtures("story")
async def test_all_is_reached_by_keyboard_and_the_focus_is_seen(window: Browser, inspector: Served) -> None:
    window.go(f"{inspector.url}key?key={KEY}")
    window.press("Tab")
    assert focused(window) == "A Skip to the content"
    assert window.run("return document.activeElement.getBoundingClientRect().left") == 0
    assert window.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    window.press("Enter")
    assert focused(window) == "MAIN main"
    window.press("/")
    assert focused(window) == "INPUT search"
    seen = set()
    for _ in range(60):
        window.press("Tab")
        seen.add(focused(window).replace("\n", " "))
    wanted = {"INPUT at", "BUTTON Show", "BUTTON Compare the two that are chosen"}
    assert wanted | {"A diff of version 5 to the one before"} <= seen
    window.run("document.getElementById('search').focus()")
    window.type("#search", "runs/42/")
    window.press("Enter")
    window.until("return document.querySelector('h1').innerText === 'Keys runs/42/'")


@pytest.mark.usefixtures("story")
async def test_a_run_is_walked_commit_by_commit(window: Browser, inspector: Served) -> None:
    window.go(f"{inspector.url}run?group={KEY}")
    window.run("document.getElementById('at').focus()")
    window.press("Left", "Left", "Left")
    window.until("return location.search.endsWith('&n=4')")
    window.until("return document.querySelector('h1')?.innerText.endsWith('as it was')")
    assert "step:\n4" in window.text(".cards .tree").replace(": ", ":\n")
    assert "plan" not in window.text(".cards")
    assert focused(window) == "INPUT at"
    window.press("Right", "Right")
    window.until("return location.search.endsWith('&n=6')")
    window.until("return document.querySelector('.cards')?.innerText.includes('plan')")


async def test_lists_and_keys_are_live(
    window: Browser, inspector: Served, cache: AsyncStateCache, worker: Worker
) -> None:
    await cache.set(KEY, 1)
    await flush(worker)
    window.go(f"{inspector.url}keys?prefix=runs/")
    window.until("return document.getElementById('live').innerText === 'live'")
    await cache.set(f"runs/{EVIL.replace('/', '')}", 1)
    await cache.set(KEY, 2)
    await flush(worker)
    first = "return document.querySelector('#keys tbody tr')?.dataset.key"
    window.until("return document.querySelectorAll('#keys tbody tr').length === 2")
    window.until("return document.querySelector('#keys tr[data-key=\"runs/42\"] [data-of=version]').innerText === '2'")
    assert window.run(first) in (KEY, f"runs/{EVIL.replace('/', '')}")
    assert window.run("return window.hacked") is None
    await cache.delete(KEY)
    await flush(worker)
    window.until("return document.querySelectorAll('#keys tbody tr').length === 1")
    window.go(f"{inspector.url}key?key={KEY}")
    window.until("return document.getElementById('live').innerText === 'live'")
    await cache.set(KEY, "again")
    await flush(worker)
    window.until("return document.querySelector('#live a')?.innerText === 'version 4 is there: show it'")
    window.click("#live a")
    window.until("return document.querySelector('#scrubbed').innerText === '4 of 4'")
    assert window.complaints() == []
    inspector.end()
    window.until("return document.getElementById('live').innerText.startsWith('not live')")


async def test_shards_are_looked_at_again(
    window: Browser, inspector: Served, cache: AsyncStateCache, worker: Worker
) -> None:
    window.go(f"{inspector.url}shards")
    assert "none" in window.text("dl").lower()
    await cache.set(KEY, 1)
    window.until("return document.querySelector('dl').innerText.includes('1 entry')")
    await flush(worker)
    window.until("return document.querySelector('.note.good')?.innerText === 'Nothing needs a person.'")
    assert window.complaints() == []


@pytest.mark.usefixtures("story")
async def test_without_scripts_forms_and_links_do_the_same(window: Browser, inspector: Served) -> None:
    window.scripts(False)
    try:
        window.go(f"{inspector.url}key?key={KEY}")
        window.click("a[rel=prev]")
        window.arrives("version=4")
        window.go(f"{inspector.url}key?key={KEY}")
        window.click("#scrub button")
        window.arrives("version=")
        window.click(".versions ~ .pages button, .pages button")
        window.arrives("diff?key=")
        window.go(f"{inspector.url}run?group={KEY}")
        window.click("a[rel=prev]")
        window.arrives("n=")
    finally:
        window.scripts(True)


@pytest.mark.usefixtures("story")
async def test_a_state_is_changed_and_deleted_by_hand(
    window: Browser, inspector: Served, cache: AsyncStateCache
) -> None:
    window.go(f"{inspector.url}key?key=runs/42/plan")
    window.click("a[href^=edit]")
    window.type("#value", '{"next": ["refund"]}')
    window.type("#reason", "set right by hand")
    window.click("button.primary")
    window.until("return document.querySelector('h1').innerText === 'Write runs/42/plan?'")
    assert "refund" in window.text(".diff")
    window.click("button.primary")
    window.until("return document.querySelector('.note.good')?.innerText === 'Version 2 was written.'")
    state = await cache.get("runs/42/plan")
    assert state is not None
    assert state.value == {"next": ["refund"]}
    window.click("a.danger")
    window.type("#reason", "not needed")
    window.click("button.primary")
    window.until("return document.querySelector('.note.good')?.innerText === 'Version 3 was written.'")
    assert not await cache.exists("runs/42/plan")
    assert window.complaints() == []


async def test_a_key_with_a_thousand_versions_of_50_kb_is_drawn_in_part(
    window: Browser, inspector: Served, cache: AsyncStateCache, worker: Worker
) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"message {number}, " * 13} for number in range(250)]
    for version in range(1, 1001):
        messages[version % 250]["content"] = f"answer {version} to what was asked, " * 7
        await cache.set(KEY, {"messages": messages, "step": version})
    await flush(worker)
    for version in (1000, 500, 1, 999):
        window.go(f"{inspector.url}key?key={KEY}&version={version}")
        window.until("return performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
        assert window.run("return performance.getEntriesByType('navigation')[0].decodedBodySize") < 200_000
        assert window.run("return document.querySelectorAll('*').length") < 4_000
    assert window.text(".versions tbody tr th") == "1000"
