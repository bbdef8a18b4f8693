"""Processes that add to a chat of LlamaIndex at once, one of which is killed: nothing that any of them told is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from statecache import AsyncStateCache, Settings
from statecache.adapters.llama_index import StateCacheChatStore
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.rules.tree import ROOT

_NAMED = ("redis_url", "postgres_url", "prefix", "postgres_schema", "shards")


def begun(settings: Settings, *words: str) -> subprocess.Popen[str]:
    """Start the process."""
    environment = os.environ | {f"STATECACHE_{name.upper()}": str(getattr(settings, name)) for name in _NAMED}
    command = [sys.executable, "-m", "tests.support.llama_index_agent", *words]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


async def test_processes_that_add_at_once_lose_nothing_and_one_that_is_killed_nothing_that_it_told(
    settings: Settings, worker: Worker, psql: Any
) -> None:
    running = {name: begun(settings, "a/b", name, "30") for name in "xyz"}
    with running.pop("z") as killed:
        assert killed.stdout is not None
        assert "10" in (told.strip() for told in killed.stdout)
        killed.kill()
    assert killed.returncode < 0
    for process in running.values():
        told, _ = process.communicate(timeout=60)
        assert (process.returncode, told.split()) == (0, [str(number) for number in range(30)])
    async with AsyncStateCache(settings=settings) as cache:
        found = [one.content or "" for one in await StateCacheChatStore(cache).aget_messages("a/b")]
    for name in "xyz":
        numbers = [int(text.split()[1]) for text in found if text.startswith(name)]
        assert numbers == [*range(len(numbers))]
        assert len(numbers) == 30 or (name == "z" and len(numbers) in range(11, 31))
    await flush(worker)
    assert psql.execute("SELECT count(*) FROM conflict").fetchall() == [(0,)]
