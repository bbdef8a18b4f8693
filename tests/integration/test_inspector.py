"""The inspector's pages at the height of HTTP: what each shows, how they lead to one another, and who is let in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from statecache import AsyncStateCache, Settings
from statecache.inspector.pages.keys import PAGE
from statecache.inspector.source import COMMITS_MAX
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, flush, flushing
from tests.support.inspected import ORIGIN, TOKEN, Page, Web, inspected

Psql = psycopg.Connection[Any]
KEY = "runs/42"
EVIL = "<script>alert('x')</script>\"'&\u202e"


@pytest.fixture
def web(settings: Settings) -> Iterator[Web]:
    """An inspector of the test's deployment that cannot write."""
    with inspected(settings) as found:
        yield found


async def _written(cache: AsyncStateCache, first: int, last: int, key: str = KEY) -> None:
    for step in range(first, last + 1):
        await cache.set(
            key, {"goal": "refund", "step": step, "said": [*range(step)]}, actor="ada", reason=f"why {step}"
        )


def rows_of(page: Page, column: str) -> list[str]:
    """Return the texts of the first links of a table's rows."""
    return [query["key"] for query in page.links_to(column)]


async def test_only_this_machine_and_the_token_get_an_answer(web: Web, cache: AsyncStateCache) -> None:
    await cache.set(KEY, {"secret": "treasure"})
    for path in ("/", "/keys?prefix=runs/", f"/key?key={KEY}", "/wrong/key?key=runs/42", "/assets/inspector.css"):
        answer = web.client.get(path)
        assert answer.status_code == 403
        assert "treasure" not in answer.text
        assert TOKEN not in answer.text
    for host in ("evil.example", "127.0.0.1.evil.example:8042"):
        assert web.client.get(f"/{TOKEN}/key?key={KEY}", headers={"host": host}).status_code == 403
    page = web.get("key", key=KEY)
    assert page.status == 200
    assert "treasure" in page.text
    assert TOKEN not in page.source
    assert web.client.get(f"/{TOKEN}", follow_redirects=False).headers["location"] == f"/{TOKEN}/"


async def test_what_pages_load_is_here_and_nothing_is_from_elsewhere(web: Web) -> None:
    page = web.get()
    loaded = [given.get("src") or given.get("href") for tag, given in page.tags if tag in ("script", "link", "img")]
    assert loaded == ["assets/inspector.css", "assets/icon.svg", "assets/inspector.js"]
    for one in loaded:
        answer = web.follow(page, str(one))
        assert answer.status == 200
        assert "http" not in answer.source.replace("http://www.w3.org/2000/svg", "")
    assert web.get("assets/other.js").status == 404
    assert web.get("assets/..%2Fbase.html").status == 404


async def test_namespaces_and_what_changed_in_them(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    assert "There is nothing yet" in web.get().text
    await cache.set("approvals/1", True)
    await flush(worker)
    await cache.set("runs/1", 1)
    await cache.set("runs/2", 2)
    page = web.get()
    assert [query["prefix"] for query in page.links_to("keys")] == ["approvals/", "runs/"]
    assert rows_of(page, "key") == ["approvals/1", "runs/2"]
    some = web.get("keys", prefix="ru")
    assert [query["prefix"] for query in some.links_to("keys")] == ["runs/"]
    assert "None does" in web.get("keys", prefix="zz").text


async def test_keys_are_listed_newest_first_and_by_key_a_page_at_a_time(
    web: Web, cache: AsyncStateCache, worker: Worker
) -> None:
    names = [f"runs/{number:03d}" for number in range(2 * PAGE + 5)]
    for name in names[:-3]:
        await cache.set(name, 0)
    await flush(worker)
    for name in names[-3:]:
        await cache.set(name, 0)
    first = web.get("keys", prefix="runs/")
    assert rows_of(first, "key") == names[::-1][:PAGE]
    assert (first.text.count("in Redis"), first.text.count("durable")) == (3, PAGE - 3)
    second = web.follow(first, next(link for link in first.links if "skip=50" in link))
    assert rows_of(second, "key") == names[::-1][PAGE : 2 * PAGE]
    third = web.follow(second, next(link for link in second.links if "skip=100" in link))
    assert rows_of(third, "key") == names[::-1][2 * PAGE :]
    assert not any("skip=150" in link for link in third.links)
    page, found = web.get("keys", prefix="runs/", order="key"), list[str]()
    for _ in range(3):
        found += rows_of(page, "key")
        onward = [link for link in page.links if "after=" in link]
        page = web.follow(page, onward[0]) if onward else page
    assert found == names
    assert rows_of(web.get("keys", prefix="runs/00"), "key") == names[9::-1]
    assert "No key begins so" in web.get("keys", prefix="runs/9").text


async def test_the_value_of_a_key_its_facts_and_its_versions(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    await _written(cache, 1, 3)
    await flush(worker)
    await _written(cache, 4, 4)
    page = web.get("key", key=KEY)
    assert "Agents see version 4 Durable: not yet" in page.text
    assert "goal : refund step : 4 said : [4]" in page.text
    facts, state = page.facts(), await cache.get(KEY)
    assert state is not None
    assert (facts["actor"], facts["reason"], facts["kept"]) == ("ada", "why 4", "yes")
    assert (facts["change"], facts["writer"], facts["position"]) == (
        state.change_id, state.writer, str(state.position),
    )  # fmt: skip
    assert facts["durable"] == "in Redis, not yet flushed"
    assert [query["version"] for query in page.links_to("key") if "version" in query][-4:] == ["4", "3", "2", "1"]
    assert [(query["a"], query["b"]) for query in page.links_to("diff")] == [("3", "4"), ("2", "3"), ("1", "2")]
    then = web.get("key", key=KEY, version=2)
    assert "goal : refund step : 2 said : [2]" in then.text
    assert then.facts()["durable"] == "in Postgres"
    assert len(then.facts()["SHA-256"]) == 64
    assert "2 of 4" in then.text


async def test_a_part_of_a_value_stands_on_a_page_of_its_own(web: Web, cache: AsyncStateCache) -> None:
    await cache.set(KEY, {"rows": [{"id": number} for number in range(250)]})
    page = web.get("key", key=KEY)
    assert "150 more" in page.text
    more = next(query for query in page.links_to("key") if query.get("first"))
    rest = web.get("key", **more)
    assert "id : 99 " not in rest.text
    assert "id : 100 " in rest.text
    assert "id : 7 " in web.get("key", key=KEY, path="rows[7]").text
    assert "nothing stands at that path" in web.get("key", key=KEY, path="rows[999]").text
    assert web.get("key", key=KEY, path="rows[").status == 400


async def test_the_bytes_of_a_version_can_be_saved(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    await _written(cache, 1, 2)
    await flush(worker)
    answer = web.client.get(f"/{TOKEN}/raw?key={KEY}&version=1")
    assert msgspec.json.decode(answer.content) == {"goal": "refund", "step": 1, "said": [0]}
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''runs_42%401.json"
    assert answer.headers["content-type"] == "application/octet-stream"
    await cache.delete(KEY)
    assert web.get("raw", key=KEY).status == 404


async def test_deleted_keys_and_keys_that_never_were(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    await _written(cache, 1, 1)
    await cache.delete(KEY, actor="bob", reason="over")
    for _ in range(2):
        page = web.get("key", key=KEY)
        assert page.status == 200
        assert "Agents see nothing: deleted at version 2" in page.text
        assert "This version is a delete" in page.text
        assert page.facts()["reason"] == "over"
        assert "step : 1" in web.get("key", key=KEY, version=1).text
        await flush(worker)
    page = web.get("key", key="runs/43")
    assert page.status == 404
    assert "There is nothing at runs/43" in page.text
    page = web.get("key", key=KEY, version=9)
    assert page.status == 404
    assert "There is no version 9 of 'runs/42' in its history: its newest is version 2." in page.text
    assert {"key": KEY, "version": "1"} in page.links_to("key")


async def test_two_versions_are_compared_by_paths(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    await cache.set(KEY, {"a": 1, "b": [1, 2], "gone": EVIL})
    await cache.set(KEY, {"a": 2, "b": [1, 2, 3], "new": None})
    await cache.delete(KEY)
    page = web.get("diff", key=KEY, a=1, b=2)
    assert "4 differences" in page.text
    assert "changed a 1 2" in page.text
    assert "added b[2] 3" in page.text
    assert "removed gone" in page.text
    assert "added new null" in page.text
    assert page.links_to("diff") == [{"key": KEY, "a": "2", "b": "1"}]
    assert "removed $" in web.get("diff", key=KEY, a=2, b=3).text
    assert "Both hold the same" in web.get("diff", key=KEY, a=1, b=1).text
    assert web.get("diff", key=KEY, a=1).status == 400
    assert web.get("diff", key=KEY, a=1, b=7).status == 404


async def test_checkpoints_are_jumped_to(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    await _written(cache, 1, 2)
    await cache.checkpoint(KEY, "before payment", metadata={"ticket": "OPS-7"}, durability="memory")
    await _written(cache, 3, 3)
    await cache.checkpoint(KEY, "reviewed", group=True, durability="memory")
    await _written(cache, 4, 5)
    await flush(worker)
    page = web.get("key", key=KEY)
    assert '"ticket": "OPS-7"' in page.text
    marks = [given for tag, given in page.tags if tag == "option"]
    assert marks == [{"value": "2", "label": "before payment"}]
    named = next(link for link in page.links if link.endswith("version=2"))
    assert "step : 2" in web.follow(page, named).text
    (group,) = [query for query in page.links_to("run") if "n" in query]
    assert "step : 3" in web.get("run", **group).text
    (point,) = [query for query in web.get("key", key=KEY).links_to("key") if "n" in query]
    assert point["n"] == group["n"]
    page = web.get("keys", prefix="runs/42/checkpoints/")
    assert rows_of(page, "key") == ["runs/42/checkpoints/reviewed", "runs/42/checkpoints/before payment"]


async def test_branches_and_merges_are_drawn_and_lead_to_their_versions(
    web: Web, cache: AsyncStateCache, worker: Worker
) -> None:
    await _written(cache, 1, 5)
    async with flushing(worker):
        await cache.branch(KEY, "runs/42-b", at=3)
        await cache.set("runs/42-b", {"goal": "refund", "step": 3, "said": [0, 1, 2], "new": True})
        await cache.branch("runs/42-b", "runs/42-c", at=1)
        await cache.merge("runs/42-b", into=KEY)
    await flush(worker)
    whole = {
        (KEY, "3"), (KEY, "6"), ("runs/42-b", "1"), ("runs/42-b", "2"), ("runs/42-c", "1"),
    }  # fmt: skip
    for key in (KEY, "runs/42-b", "runs/42-c"):
        page = web.get("key", key=key)
        lanes = [str(given["class"]).split() for tag, given in page.tags if tag == "line"]
        assert lanes == [["lane", *(["current"] if name == key else [])] for name in (KEY, "runs/42-b", "runs/42-c")]
        curves = [str(given["class"]).split() for tag, given in page.tags if tag == "path"]
        assert sorted(curves) == [["curve"], ["curve"], ["curve", "merged"]]
        dots = {(query["key"], query["version"]) for query in page.links_to("key") if "version" in query}
        assert {one for one in whole if one[0] != key} <= dots
    assert "merge of runs/42-b@2" in web.get("key", key=KEY).facts()["reason"]
    await cache.set("runs/43", 1)
    await flush(worker)
    assert "svg" not in {tag for tag, _ in web.get("key", key="runs/43").tags}


async def test_a_run_is_shown_over_all_its_keys_at_one_moment(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    await _written(cache, 1, 1)
    await cache.set("runs/42/plan", {"next": "search"})
    await _written(cache, 2, 2)
    await cache.delete("runs/42/plan")
    await cache.set("runs/43", "another run")
    await flush(worker)
    await _written(cache, 3, 3)
    now = web.get("run", group=KEY)
    assert "step : 3" in now.text
    assert "Deleted by then: runs/42/plan" in now.text
    assert "Some of it is in Redis, not yet flushed" in now.text
    assert "another run" not in now.text
    commits = [query for query in now.links_to("run") if query.get("n")]
    places = sorted({int(query["n"]) for query in commits})
    then = web.get("run", group=KEY, n=places[1])
    assert "step : 1" in then.text
    assert "next : search" in then.text
    assert "changed by this commit" in then.text
    assert "Deleted" not in then.text
    assert "search" not in web.get("run", group=KEY, n=places[0]).text
    assert web.get("run", group="runs/42/plan").status == 400
    assert web.get("run", group="runs/nothing").status == 404


async def test_the_commits_of_a_long_run_are_paged(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    count = COMMITS_MAX + 10
    for number in range(count):
        await cache.set(f"runs/42/{number % 3}", number, reason=f"why {number}")
    await flush(worker)
    page = web.get("run", group=KEY)
    assert f"why {count - 1}" in page.text
    assert "why 9 " not in page.text
    older = next(link for link in page.links if "until=" in link)
    page = web.follow(page, older)
    assert "why 9 " in page.text
    assert next(given["value"] for tag, given in page.tags if tag == "option") == "1"
    ranges = [given for tag, given in page.tags if given.get("type") == "range"]
    assert [(given["min"], given["value"]) for given in ranges] == [("1", "10")]


async def test_large_values_of_a_run_are_links(web: Web, cache: AsyncStateCache, worker: Worker) -> None:
    for number in range(30):
        await cache.set(f"runs/42/{number:02d}", {"text": "x" * 5000, "number": number})
    await cache.set("runs/42/large", "y" * 20_000)
    await flush(worker)
    page = web.get("run", group=KEY)
    assert 10 < page.text.count("Show its value") < 30
    assert page.source.count("y" * 200) == 0
    assert len(page.source) < 400_000


async def test_shards_servers_and_workers(web: Web, cache: AsyncStateCache, worker: Worker, settings: Settings) -> None:
    await _written(cache, 1, 3)
    page = web.get("shards")
    assert page.status == 200
    assert "shards have no worker" in page.text
    assert "No worker lives" in page.text
    assert page.text.count(" open ") >= settings.shards
    assert "3 entries" in page.text
    await flush(worker)
    page = web.get("shards", part=1)
    assert "<html" not in page.source
    assert "Nothing needs a person" in page.text
    assert "Lag none" in page.text


async def test_what_was_set_aside(web: Web, agents: Agents, worker: Worker, psql: Psql) -> None:
    page = web.get("aside")
    for words in ("Nothing is in quarantine", "There are none", "Nothing is known to be lost"):
        assert words in page.text
    agents.commit(("runs/1", f'"{EVIL[:20]}"'), reason="a\0b", change_id="c" * 24)
    agents.commit(("runs/2", '{"step": 1}'))
    await flush(worker)
    psql.execute(
        "INSERT INTO conflict SELECT 'd' || substr(change_id, 2), key, shard, epoch, n, op, version, parent_change_id,"
        " convert_to('{\"step\": 9}', 'UTF8'), encoding, schema, 'other', 'bob', %s, at, 'forked'"
        " FROM change WHERE key = 'runs/2'",
        (EVIL,),
    )
    page = web.get("aside")
    assert "22021 (character not in repertoire)" in page.text
    (entry,) = page.links_to("parked")
    shown = web.get("parked", **entry)
    assert shown.facts()["take it in"] == f"statecache quarantine retry {entry['id']}"
    assert "a\\x00b" in shown.text
    assert "runs/1" in shown.text
    (conflict,) = page.links_to("conflict")
    shown = web.get("conflict", **conflict)
    assert shown.facts()["cause"] == "forked"
    assert "step : 9" in shown.text
    assert "changed step 1 9" in shown.text
    assert "Version 1" in shown.text
    assert web.get("conflict", key="runs/2", change="e" * 24).status == 404
    assert web.get("parked", id="0:1-999").status == 404
    assert web.get("parked", id="nonsense").status == 400
    assert "1 in quarantine, 1 in conflict" in web.get("shards").text
    assert "in quarantine" in web.get("key", key="runs/1").text
    psql.execute("UPDATE quarantine SET sqlstate = 'dropping ' || sqlstate")
    assert "being dropped; 22021 (character not in repertoire)" in web.get("aside").text
    assert web.get("parked", **entry).facts()["take it in"].endswith(" --dropped")


async def test_of_more_than_is_listed_in_quarantine_that_is_said(
    web: Web, agents: Agents, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statecache.inspector.pages.aside.LIST_MAX", 2)
    for i in range(3):
        agents.commit(f"runs/{i}", reason="a\0b")
        await flush(worker)
        page = web.get("aside")
        assert len(page.links_to("parked")) == min(i + 1, 2)
        assert ("statecache quarantine list --limit 0" in page.text) == (i == 2)


async def test_nothing_can_be_changed_unless_it_was_started_for_that(web: Web, cache: AsyncStateCache) -> None:
    await cache.set(KEY, 1)
    page = web.get("key", key=KEY)
    assert "read-only" in page.text
    assert not page.links_to("edit")
    assert not page.links_to("confirm")
    for path in ("edit", "confirm"):
        assert web.get(path, key=KEY, what="delete").status == 403
    for path in ("write", "confirm", "key", ""):
        refused = web.client.post(f"/{TOKEN}/{path}", data={"key": KEY}, headers={"origin": ORIGIN})
        assert refused.status_code == 403
    for method in ("PUT", "DELETE", "PATCH"):
        assert web.client.request(method, f"/{TOKEN}/key?key={KEY}").status_code == 405
    state = await cache.get(KEY)
    assert state is not None
    assert state.version == 1
