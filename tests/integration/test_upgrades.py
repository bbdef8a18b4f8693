"""Two releases at work on one deployment, the newer one with upgrades: nothing is dropped, nothing is doubled."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import msgspec

from statecache import AsyncStateCache, Settings, StateCache
from statecache.settings import process_environment
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.command_line import CommandLine

WAIT_S = 60.0
KEYS = 5
TURNS = 40

OLD = """
class Run(msgspec.Struct):
    turns: int

def later(run):
    return Run(run.turns + 1)

how = {}
"""
NEW = """
class Run(msgspec.Struct):
    __schema_version__ = 2
    count: int
    by: list[str]

def later(run):
    return Run(run.count + 1, [*run.by, "new"])

how = {"upgrade": {1: lambda run: {"count": run["turns"], "by": []}}}
"""
AGENT = """
import json, sys
import msgspec
from statecache import CodecError, SchemaNewer, StateCache

{release}

done, refused = [0] * {keys}, [0] * {keys}
with StateCache() as cache:
    runs = cache.namespace("runs", type=Run, **how)
    for turn in range({turns}):
        for at in range({keys}):
            try:
                runs.update(str(at), later)
                done[at] += 1
            except (SchemaNewer, CodecError):
                refused[at] += 1
        if turn == {turns} // 4:
            print("on", flush=True)
            sys.stdin.readline()
print(json.dumps([done, refused]))
"""


FIRST: Any = msgspec.defstruct("Run", [("turns", int)])
"""The first version of the class."""


class Run(msgspec.Struct):
    """What the test looks at it with: the newest version."""

    __schema_version__ = 2
    count: int
    by: list[str]


class Counted(msgspec.Struct, frozen=True):
    """One that is read from old data with an upgrade, and without one by its default; all readers may share it."""

    __schema_version__ = 2
    count: int = 0


def _agent(release: str, settings: Settings) -> subprocess.Popen[str]:
    given = {
        "STATECACHE_REDIS_URL": settings.redis_url, "STATECACHE_POSTGRES_URL": settings.postgres_url,
        "STATECACHE_PREFIX": settings.prefix, "STATECACHE_POSTGRES_SCHEMA": settings.postgres_schema,
        "STATECACHE_SHARDS": str(settings.shards),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", AGENT.format(release=release, keys=KEYS, turns=TURNS)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=process_environment() | given,
    )  # fmt: skip


def test_processes_of_two_releases_lose_nothing_of_each_other(settings: Settings) -> None:
    with StateCache(settings=settings) as cache:
        cache.namespace("runs", type=FIRST).set_many({str(at): FIRST(0) for at in range(KEYS)})
        with _agent(OLD, settings) as old, _agent(NEW, settings) as new:
            for agent in (old, new):  # by now, the newer one has written all of them
                assert agent.stdout is not None
                assert agent.stdout.readline() == "on\n"
            for agent in (old, new):
                assert agent.stdin is not None
                agent.stdin.write("on\n")
                agent.stdin.flush()
            told = [json.loads(agent.communicate(timeout=WAIT_S)[0]) for agent in (old, new)]
        (old_done, old_refused), (new_done, new_refused) = told
        runs = cache.namespace("runs", type=Run)
        for at in range(KEYS):
            state = runs.get(str(at))
            assert state is not None
            assert state.value == Run(old_done[at] + new_done[at], ["new"] * new_done[at])
            assert state.schema.startswith("Run@2#")
        assert (new_done, new_refused) == ([TURNS] * KEYS, [0] * KEYS)
        assert min(old_refused) > TURNS // 2


async def test_what_is_left_of_a_version_is_counted(cli: CommandLine, cache: AsyncStateCache, worker: Worker) -> None:
    told = await asyncio.to_thread(cli.apart, "schemas")
    assert (told.status, told.out) == (0, "Postgres holds no states\n")
    upgraded: Any = cache.namespace("runs", type=Run, upgrade={1: lambda run: {"count": run["turns"], "by": []}})
    await cache.namespace("runs", type=FIRST).set_many({str(at): FIRST(at) for at in range(3)})
    await cache.set("runs/plain", {"n": 1})
    await cache.set("other/1", [1])
    await cache.set("runs/gone", 1)
    await cache.delete("runs/gone")
    await upgraded.update("1", lambda run: run)
    await flush(worker)
    found = json.loads((await asyncio.to_thread(cli.apart, "schemas", "--json")).out)["schemas"]
    assert [(one["namespace"], one["type"], one["version"], one["states"]) for one in found] == [
        ("other", "", 0, 1), ("runs", "", 0, 1), ("runs", "Run", 1, 2), ("runs", "Run", 2, 1),
    ]  # fmt: skip
    assert found[3]["bytes"] == len('{"count":1,"by":[]}')
    ended = await asyncio.to_thread(cli.apart, "schemas", "runs/1")
    assert ended.out.splitlines()[0].split() == [
        "namespace", "type", "version", "fields", "states", "bytes", "oldest", "newest",
    ]  # fmt: skip
    assert ended.out.splitlines()[1].split()[:3] == ["runs", "Run", "2"]


async def test_what_only_one_view_upgrades_is_shared_with_no_other(settings: Settings) -> None:
    async with AsyncStateCache(settings=settings.model_copy(update={"read": "local"})) as near:
        await near.namespace("runs", type=FIRST).set("1", FIRST(7))
        plain = near.namespace("runs", type=Counted)
        upgraded = near.namespace("runs", type=Counted, upgrade={1: lambda run: {"count": run["turns"]}})
        for _ in range(20):
            for view, count in ((plain, 0), (upgraded, 7)):
                state = await view.get("1")
                assert state is not None
                assert state.value == Counted(count)
        assert near.near.hits > 4
