"""`statecache tail`: changes as lines, for a person and for a program, and from where on it can be gone on."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import termios
from array import array
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Change, Position, Settings
from statecache.cli.tail import line_of
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush
from tests.support.command_line import CommandLine
from tests.support.polling import pause

WAIT_S = 60.0
HEEDS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from statecache.cli import main
main()
"""
"""The command line, heeding Ctrl-C also where these tests were begun in a shell's background, which ignores it."""


async def test_what_there_is_is_printed_once_and_gone_on_from(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker
) -> None:
    await cache.set("runs/1", {"n": 1}, actor="ada", reason="began")
    await cache.delete("runs/1")
    await flush(worker)
    told = await asyncio.to_thread(cli.apart, "tail", "runs", "--once")
    assert told.status == 0
    header, *lines = (line.split("\t") for line in told.out.splitlines())
    assert header == ["at", "key", "version", "op", "writer", "value"]
    assert [line[1:4] for line in lines] == [["runs/1", "1", "set"], ["runs/1", "2", "delete"]]
    assert lines[0][5] == '{"n":1}'
    cursor = told.err.strip().partition("--since ")[2].strip("'")
    await cache.set("runs/2", "\x1b[31m", durability="memory")
    await flush(worker)
    more = await asyncio.to_thread(cli.apart, "tail", "runs/", "--since", cursor, "--once", "--json")
    (one,) = map(json.loads, more.out.splitlines())
    assert (one["key"], one["value"], one["version"], one["op"]) == ("runs/2", "\x1b[31m", 1, "set")
    assert (one["actor"], one["late"], one["at"][-1]) == ("", False, "Z")
    refused = await asyncio.to_thread(cli.apart, "tail", "runs/", "--since", "yesterday")
    assert (refused.status, refused.out) == (2, "")
    assert "is no cursor" in refused.err
    away = await asyncio.to_thread(cli.apart, "tail", "runs/", "--once", "--postgres-url", "postgresql://127.0.0.1:1/x")
    assert (away.status, away.out) == (4, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_follows_until_it_is_stopped(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker, number: signal.Signals
) -> None:
    await cache.set("runs/1", "before")
    await flush(worker)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "statecache", "tail", "runs/", "--since", "beginning", "--json",
        stdout=PIPE, stderr=PIPE, env=cli.environment(),
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            assert json.loads(await process.stdout.readline())["value"] == "before"
            await cache.set("runs/1", "then")
            await flush(worker)
            assert json.loads(await process.stdout.readline())["value"] == "then"
            process.send_signal(number)
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode, out) == (0, b"")
    assert err.startswith(b"statecache: go on with --since ")


@pytest.mark.counts_seconds
async def test_what_an_error_ends_can_be_gone_on_from(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker, settings: Settings, psql: psycopg.Connection[Any]
) -> None:
    await cache.set("runs/1", "before")
    await flush(worker)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "statecache", "tail", "runs/", "--since", "beginning", "--json",
        stdout=PIPE, stderr=PIPE, env=cli.environment() | {"STATECACHE_TIMEOUT_S": "3"},
    )  # fmt: skip
    assert process.stdout is not None
    table = f"{settings.postgres_schema}.change"
    try:
        async with asyncio.timeout(WAIT_S):
            assert json.loads(await process.stdout.readline())["value"] == "before"
            psql.execute(f"ALTER TABLE {table} RENAME TO hidden")
            out, err = await process.communicate()
            psql.execute(f"ALTER TABLE {settings.postgres_schema}.hidden RENAME TO change")
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode != 0
    assert "error" in json.loads(out)
    told, _ = err.decode().splitlines()[:2]
    await cache.set("runs/1", "then")
    await flush(worker)
    cursor = told.partition("go on with --since ")[2].strip("'")
    more = await asyncio.to_thread(cli.apart, "tail", "runs/", "--since", cursor, "--once", "--json")
    assert [json.loads(line)["value"] for line in more.out.splitlines()] == ["then"]


@pytest.mark.parametrize("command", [["tail", "runs/", "--once"], ["export", "runs/"]], ids=" ".join)
async def test_a_reader_that_has_stopped_does_not_keep_it_from_ending(
    cli: CommandLine, cache: AsyncStateCache, worker: Worker, command: list[str]
) -> None:
    await cache.set_many({f"runs/{at}": "x" * 1000 for at in range(300)})
    await flush(worker)
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HEEDS, *command, stdout=writing, stderr=DEVNULL, env=cli.environment()
    )
    os.close(writing)
    try:
        async with asyncio.timeout(WAIT_S):
            before, waiting = -1, array("i", [0])
            while not before == waiting[0] > 30_000:  # it writes until the pipe is full
                before = waiting[0]
                for _ in range(20):
                    await pause()
                fcntl.ioctl(reading, termios.FIONREAD, waiting)
            while process.returncode is None:  # two that come before the first is handled are one
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 2)
            assert process.returncode == 130
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            process.kill()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_line_is_as_wide_as_the_terminal_and_steers_nothing(width: int) -> None:
    def change(key: str, value: Any, **more: Any) -> Change[Any]:
        given: dict[str, Any] = {"op": "set", "version": 7, "late": False} | more
        return Change(
            key=key, value=value, epoch=1, change_id="c", parent_change_id="", position=Position(1, 2), shard=0,
            at=datetime(2026, 1, 1, tzinfo=UTC), writer="w", actor="", reason="", **given,
        )  # fmt: skip

    short = line_of(change("runs/1", {"n": 1}), width)
    assert short.endswith(' runs/1 v7 {"n":1}')
    assert line_of(change("runs/1", None, op="delete", late=True), width).endswith(" runs/1 v7 late deleted")
    long = line_of(change("runs/" + "k" * 300, "x" * 300), width)
    assert len(long) == width
    assert long.endswith("…")
    assert " v7 " in long
    keys = [f"jobs/{n}/steps/a-step-with-a-longer-name" for n in range(2)]
    assert line_of(change(keys[1], {"n": 88}), width).endswith(f' {keys[1]} v7 {{"n":88}}')
    apart = {line_of(change("runs/" + "k" * 300 + end, "x" * 300), width) for end in "ab"}
    assert len(apart) == 2
    assert line_of(change("runs/\x1b[31m", 1), width).endswith(" runs/\\x1b[31m v7 1")
