"""A Redis that nobody has adopted yet: who writes waits, for a worker may come, and is soon told so."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE

import pytest

from statecache import Settings, Unavailable
from statecache.core.epoch.opener import SILENT_S, TOLD_EVERY_S
from statecache.core.postgres.migrate import migrate
from statecache.keys import shard_of
from tests.fixtures.servers import MakeClient, MakeSettings
from tests.support.command_line import CommandLine
from tests.support.polling import pause

WHY = "this Redis holds no data set of ours yet: `statecache migrate` adopts it, or a worker"


@pytest.fixture
async def settings(make_settings: MakeSettings) -> Settings:
    """A deployment whose schema is there, and whose Redis is empty."""
    made = make_settings(migrated=False, timeout_s=SILENT_S + 2)
    await migrate(made, redis=False)
    return made


@pytest.fixture
def shown(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on the test's deployment."""
    return CommandLine(settings, monkeypatch, capsys)


def _told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "statecache"]


async def test_a_client_says_what_it_waits_for_and_goes_on_when_that_comes(
    settings: Settings, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(settings)
    writing = [asyncio.create_task(client.set(f"runs/{n}", n, timeout=60)) for n in range(6)]
    while not _told(caplog):
        await pause()
    assert not any(one.done() for one in writing)
    assert (await migrate(settings)).shards_opened == settings.shards
    assert {(await one).version for one in writing} == {1}
    (record,) = _told(caplog)
    assert record.getMessage().startswith("waiting, for at most 5")
    assert WHY in record.getMessage()


async def test_a_client_that_nobody_adopts_a_redis_for_says_it_once_and_then_raises_it(
    settings: Settings, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert settings.timeout_s < TOLD_EVERY_S
    with pytest.raises(Unavailable, match=WHY) as caught:
        await make_client(settings).set("runs/1", 1)
    (record,) = _told(caplog)
    assert caught.value.detail in record.getMessage()
    assert caught.value.detail.startswith(f"shard {shard_of('runs/1', settings.shards)} is closed, at redis")


@pytest.mark.parametrize(
    "command", [("set", "runs/1", "1"), ("rm", "runs/1"), ("policy", "runs", "--locking", "enforced")]
)
async def test_a_command_says_on_stderr_what_it_waits_for_and_its_error_names_the_command(
    shown: CommandLine, command: tuple[str, ...]
) -> None:
    ended = await asyncio.to_thread(shown.apart, *command)
    waits, error = ended.err.splitlines()
    assert (ended.status, ended.out) == (4, "")
    assert waits.startswith("statecache: waiting, for at most 2 s more: shard ")
    assert waits.endswith(WHY)
    assert error.endswith(f"{WHY}.")


async def test_a_command_that_waited_goes_on_when_a_worker_or_a_person_has_come(
    settings: Settings, shown: CommandLine
) -> None:
    command = [sys.executable, "-m", "statecache", "set", "runs/1", "1"]
    environment = shown.environment() | {"STATECACHE_TIMEOUT_S": "60"}
    running = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=environment)
    assert running.stderr is not None
    line = await running.stderr.readline()
    await migrate(settings)
    out, rest = await running.communicate()
    assert WHY in line.decode()
    assert (running.returncode, rest) == (0, b"")
    assert out.startswith(b"runs/1  version 1 ")


async def test_looking_at_it_says_which_command_adopts_it(shown: CommandLine) -> None:
    status, locks, doctor = [await shown.beside(name) for name in ("status", "locks", "doctor")]
    looks = [line for line in status.out.splitlines() if line.startswith("Look")]
    assert "no shard was ever opened: `statecache migrate` adopts this Redis" in looks[0]
    assert len(looks) == 2
    assert "`statecache migrate` adopts a new Redis" in locks.err
    assert "statecache migrate" in doctor.out
