"""Nodes of a Redis Cluster and sentinels are refused as what they are, by all that meets them, and with what to do."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from statecache import AsyncStateCache, ConfigurationError, RedisUnavailable, Settings
from statecache.keys import KeySpace
from statecache.testing.binaries import plain_environment, valkey_server
from statecache.testing.folders import Throwaway, ordinary_user
from statecache.testing.ports import free_port
from statecache.testing.process import Process, spawn
from statecache.testing.valkey import Valkey
from tests.fixtures.faults import through
from tests.fixtures.flusher import Agents, rows
from tests.fixtures.servers import MakeSettings, plain_client
from tests.support.command_line import CommandLine
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import pause, pause_thread
from tests.support.workers import ready

SLOTS = 16384
CLUSTER = "this is a node of a Redis Cluster"
SENTINEL = "this is a Redis Sentinel"
COMMANDS = (
    ("migrate",), ("set", "runs/1", "{}"), ("get", "runs/1"), ("ls", "runs/"), ("status",), ("worker",),
    ("epoch", "adopt", "all"), ("epoch", "adopt", "all", "--from", "f" * 40),
)  # fmt: skip


class Sentinel(Valkey):
    """A sentinel, which is asked for its primary and holds no data."""

    def _spawn(self) -> Process:
        config_file = self.folder / f"{self.name}.conf"
        monitored = f"sentinel monitor mine 127.0.0.1 {free_port()} 1\n"
        kept = ("bind", "port", "unixsocket", "unixsocketperm", "requirepass", "dir", "logfile")
        self._data.mkdir(mode=0o700, exist_ok=True)
        lines = [line for line in self._config_text().splitlines() if line.split(" ")[0] in kept]
        config_file.write_text("\n".join(lines) + "\n" + monitored)
        return spawn(
            [self._binary, config_file, "--sentinel"],
            name=self.name, folder=self.folder, environment=plain_environment(), cwd=Path("/"),
        )  # fmt: skip


@pytest.fixture(scope="module", params=["embedded", "debian"])
def binary(request: pytest.FixtureRequest) -> Path:
    """The program of a server."""
    if request.param == "embedded":
        return valkey_server()
    if (found := shutil.which("redis-server")) is None:
        pytest.skip("there is no redis-server on PATH")
    return Path(found)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that the servers may write into."""
    made = Throwaway.create(ordinary_user())
    yield made.path
    made.remove()


@pytest.fixture(scope="module")
def nodes(binary: Path, folder: Path) -> Iterator[dict[str, Valkey]]:
    """Nodes by what they own: two of a cluster, of which one has all slots but that of shard 0, and one without any."""
    with ExitStack() as ending:
        started, buses = dict[str, Valkey](), dict[str, int]()
        for name in ("some", "rest", "none", "all"):
            started[name], buses[name] = _node(folder, binary, name)
            ending.callback(started[name].discard)
        _share_out(started, buses["rest"])
        yield started


def _node(folder: Path, binary: Path, name: str) -> tuple[Valkey, int]:
    """Start a node, and return it with the port of its bus: one that nobody has taken since it was found free."""
    while True:
        bus = free_port()
        config = {"cluster-enabled": "yes", "cluster-port": str(bus), "cluster-config-file": "nodes.conf"}
        server = Valkey(folder, binary=binary, name=f"{binary.name}-{name}", config=config)
        try:
            server.start()
        except RedisUnavailable as error:
            server.discard()
            if f":{bus}: bind: Address already in use" not in str(error):
                raise
        else:
            return server, bus


def _share_out(nodes: dict[str, Valkey], bus: int) -> None:
    """Give the nodes their slots, and wait until the two of one cluster know of each other."""
    some, rest, whole = (plain_client(nodes[name].url) for name in ("some", "rest", "all"))
    with some, rest, whole:
        first = int(some.execute_command("CLUSTER", "KEYSLOT", KeySpace("any", 4).meta(0)))
        whole.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        rest.execute_command("CLUSTER", "ADDSLOTS", first)
        some.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, first - 1, first + 1, SLOTS - 1)
        some.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes["rest"].port, bus)
        while not (_is_ok(some) and _is_ok(rest) and _is_ok(whole)):
            pause_thread()


def _is_ok(client: Any) -> bool:
    return bool(client.cluster("INFO")["cluster_state"] == "ok")


@pytest.fixture(scope="module")
def sentinel(binary: Path, folder: Path) -> Iterator[Valkey]:
    """A sentinel."""
    server = Sentinel(folder, binary=binary, name=f"{binary.name}-sentinel")
    server.start()
    yield server
    server.discard()


@pytest.fixture(params=["fence", "no fence"])
def fence(request: pytest.FixtureRequest) -> str:
    """Whether the fence is on."""
    return "on" if request.param == "fence" else "off"


def _on(make_settings: MakeSettings, server: Valkey, fence: str = "on") -> Settings:
    """Return the settings of a deployment whose schema is there, at another Redis by now."""
    made = make_settings(timeout_s=5.0)
    return made.model_copy(update={"redis_url": server.url, "fence": fence})


@pytest.mark.parametrize("owns", ["all", "some", "none"])
def test_a_node_of_a_cluster_is_refused_as_that_by_every_command(
    make_settings: MakeSettings, nodes: dict[str, Valkey], owns: str, fence: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    cli = CommandLine(_on(make_settings, nodes[owns], fence), monkeypatch, capsys)
    for command in COMMANDS:
        ended = cli(*command)
        assert (ended.status, CLUSTER in ended.err, "name the primary itself" in ended.err) == (3, True, True), command
        assert "Redis 7.0" not in ended.err
    if owns == "some":
        assert "and answers: MOVED " in cli("status").err
    with plain_client(nodes[owns].url) as raw:
        assert raw.dbsize() == 0


def test_a_sentinel_is_refused_as_that_by_every_command(
    make_settings: MakeSettings, sentinel: Valkey, fence: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    cli = CommandLine(_on(make_settings, sentinel, fence), monkeypatch, capsys)
    for command in COMMANDS:
        ended = cli(*command)
        assert (ended.status, SENTINEL in ended.err, "a DNS name" in ended.err) == (3, True, True), command
        assert "EVAL" not in ended.err


def test_a_sentinel_that_is_given_no_password_asks_for_it(
    make_settings: MakeSettings, sentinel: Valkey, fence: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It says first that it lacks the commands of ours."""
    settings = _on(make_settings, sentinel, fence)
    without = re.sub("//[^@]*@", "//", settings.redis_url)
    assert without != settings.redis_url
    cli = CommandLine(settings.model_copy(update={"redis_url": without}), monkeypatch, capsys)
    for command in (*COMMANDS[:6], COMMANDS[7], ("doctor",)):
        ended = cli(*command)
        told = " ".join((ended.err + ended.out).split())
        status = 4 if command == ("worker",) else 3
        assert (ended.status, "Authentication required" in told, "unknown command" in told) == (status, True, False)
        assert "heck user and password" in told or command == ("worker",)


@pytest.mark.parametrize("what", ["all", "some", "none", "sentinel"])
def test_the_doctor_says_it_once_and_nothing_of_rights(
    make_settings: MakeSettings, nodes: dict[str, Valkey], sentinel: Valkey, what: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    server, said = (sentinel, SENTINEL) if what == "sentinel" else (nodes[what], CLUSTER)
    ended = CommandLine(_on(make_settings, server), monkeypatch, capsys)("doctor")
    assert ended.status == 3
    told = " ".join(ended.out.split())
    assert told.count(said) == 1
    for wrong in ("ACL SETUSER", "may not run", "statecache migrate", "CONFIG GET"):
        assert wrong not in told


async def test_a_client_raises_it_and_tries_no_longer(make_settings: MakeSettings, nodes: dict[str, Valkey]) -> None:
    async with AsyncStateCache(settings=_on(make_settings, nodes["none"])) as cache:
        with pytest.raises(ConfigurationError, match="which is not supported, and answers: CLUSTERDOWN"):
            await cache.set("runs/1", 1)


@pytest.mark.parametrize("what", ["cluster", "sentinel"])
def test_another_database_than_the_first_changes_nothing(
    make_settings: MakeSettings, nodes: dict[str, Valkey], sentinel: Valkey, what: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Both refuse SELECT, before any handshake; a Valkey whose clusters have databases lacks this one."""
    settings = _on(make_settings, sentinel if what == "sentinel" else nodes["all"])
    url = settings.redis_url.removesuffix("/0") + "/1"
    cli = CommandLine(settings.model_copy(update={"redis_url": url}), monkeypatch, capsys)
    for command in (*COMMANDS, ("doctor",)):
        ended = cli(*command)
        assert ended.status == 3, command
        assert re.search(CLUSTER if what == "cluster" else "as a Redis Sentinel", ended.err + ended.out) or (
            what == "cluster" and "DB index" in ended.err + ended.out
        )


@pytest.mark.own_servers("the sentinel asks for the same password")
async def test_a_worker_whose_address_leads_to_a_sentinel_for_a_moment_goes_on_afterwards(
    settings: Settings, proxy: FaultProxy, agents: Agents, psql: psycopg.Connection[Any], binary: Path, folder: Path
) -> None:
    url = urlsplit(settings.redis_url)
    server = Sentinel(folder, binary=binary, name=f"{binary.name}-met", password=url.password or "")
    server.start()
    try:
        async with ready(through(settings, redis=proxy), lease_s=3, lease_renew_s=0.5) as process:
            proxy.retarget("127.0.0.1", server.port)
            proxy.cut_all()
            while SENTINEL not in (told := await process.until("outage"))["detail"]:
                continue  # at first it is told that the connection is gone
            assert told["reason"] == "configuration"
            while SENTINEL not in repr(rows(psql, "SELECT trouble FROM worker")):
                await pause()
            agents.commit(agents.key_on(0))
            proxy.retarget("127.0.0.1", url.port or 0)
            proxy.cut_all()
            await process.until("recovered")
            process.send(signal.SIGTERM)
            assert (await process.until("stopped"))["left"] == 0
            assert await process.ended() == 0
    finally:
        server.discard()
    assert rows(psql, "SELECT count(*) FROM change") == [(1,)]
