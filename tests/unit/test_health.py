"""Whether a worker lives and is ready, decided on plain values; and the port that says so, on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from statecache import ConfigurationError
from statecache_workers import health
from statecache_workers.health import HealthServer, Page, Pulse, verdict
from tests.fixtures.time import ManualClock
from tests.support.polling import pause, pause_thread
from tests.support.probing import PROBE_S, Answer, ask

Serve = Callable[..., HealthServer]


@pytest.fixture
def pulse(clock: ManualClock) -> Pulse:
    """The pulse of a worker that has just begun."""
    return Pulse(timeout_s=10.0, lease_s=5.0, monotonic=clock.monotonic)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A maker of servers on a free port."""
    made: list[HealthServer] = []

    def make(pages: health.Pages, *, port: int = 0, host: str = "127.0.0.1") -> HealthServer:
        made.append(HealthServer(host, port, pages))
        return made[-1]

    yield make
    for server in made:
        server.close()


def test_it_is_ready_once_a_turn_came_through_with_the_shards_settled(pulse: Pulse) -> None:
    assert pulse.unready() == "starting: no turn has come through"
    pulse.turn_passed(resynced=False)
    assert pulse.unready() == "starting: the shards are not in step with Redis"
    pulse.turn_passed(resynced=True)
    assert (pulse.unready(), pulse.unhealthy()) == ("", "")


def test_draining_it_is_healthy_and_not_ready(pulse: Pulse) -> None:
    pulse.turn_passed(resynced=True)
    pulse.draining = True
    assert (pulse.unready(), pulse.unhealthy()) == ("draining", "")


def test_an_outage_is_named_until_a_turn_comes_through_and_never_unhealthy(pulse: Pulse, clock: ManualClock) -> None:
    pulse.turn_passed(resynced=True)
    for _ in range(60):
        clock.advance(5)
        pulse.beat = clock.monotonic()
        pulse.turn_failed("postgres", "connect")
        pulse.lost("redis", "timeout")
    assert pulse.unready() == "postgres cannot be used (connect); redis cannot be used (timeout)"
    assert pulse.unhealthy() == ""
    pulse.reached("redis")
    assert pulse.unready() == "postgres cannot be used (connect)"
    pulse.turn_passed(resynced=True)
    assert pulse.unready() == ""
    assert pulse.errors == {"redis": 0, "postgres": 60, "other": 0}


def test_a_loop_that_stands_still_is_unhealthy_and_unready(pulse: Pulse, clock: ManualClock) -> None:
    pulse.turn_passed(resynced=True)
    clock.advance(health.LOOP_SILENT_MAX_S)
    assert pulse.unhealthy() == ""
    clock.advance(0.5)
    assert pulse.unhealthy() == pulse.unready() == "the event loop has stood still for 10.5 s"


def test_a_turn_that_never_ends_is_unhealthy_though_the_loop_goes_on(pulse: Pulse, clock: ManualClock) -> None:
    pulse.turn_passed(resynced=True)
    clock.advance(150)
    pulse.beat = clock.monotonic()
    assert pulse.unhealthy() == ""
    assert pulse.unready() == "no turn has come through for 150.0 s"
    clock.advance(1)
    pulse.beat = clock.monotonic()
    assert pulse.unhealthy() == "no turn has ended for 151.0 s"


def test_not_ready_when_no_turn_came_through_for_two_leases(pulse: Pulse, clock: ManualClock) -> None:
    pulse.turn_passed(resynced=True)
    clock.advance(10)
    pulse.beat = clock.monotonic()
    assert pulse.unready() == ""
    clock.advance(0.1)
    assert pulse.unready() == "no turn has come through for 10.1 s"


async def test_a_blocked_loop_is_seen_from_outside_while_it_is_blocked(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is blocked by this very test, which asks and does not let it turn."""
    monkeypatch.setattr(health, "LOOP_SILENT_MAX_S", 0.3)
    monkeypatch.setattr(health, "BEAT_S", 0.01)
    pulse = Pulse(timeout_s=10.0, lease_s=5.0)
    server = serve({"/healthz": lambda: verdict(pulse.unhealthy())})
    beating = asyncio.create_task(pulse.keep())
    async with asyncio.timeout(PROBE_S):
        while (await asyncio.to_thread(ask, server.port, "/healthz")).status != 200:
            await pause()
    while (answer := ask(server.port, "/healthz")).status == 200:
        pause_thread()
    assert (answer.status, answer.body[:34]) == (503, "the event loop has stood still for")
    while (await asyncio.to_thread(ask, server.port, "/healthz")).status == 503:
        await pause()
    beating.cancel()
    await asyncio.wait([beating])


def test_a_page_is_served_with_its_status_type_and_length(serve: Serve) -> None:
    server = serve({"/metrics": lambda: Page(200, b"a 1\n", "text/x"), "/readyz": lambda: verdict("draining")})
    answer = ask(server.port, "/metrics?name=a")
    assert (answer.status, answer.body) == (200, "a 1\n")
    assert (answer.headers["Content-Type"], answer.headers["Content-Length"]) == ("text/x", "4")
    assert answer.headers["Server"] == "statecache"
    answer = ask(server.port, "/readyz")
    assert (answer.status, answer.body) == (503, "draining\n")


def test_head_is_the_same_without_a_body(serve: Serve) -> None:
    server = serve({"/healthz": lambda: verdict("")})
    answer = ask(server.port, "/healthz", method="HEAD")
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, "", "3")


@pytest.mark.parametrize("path", ["/", "/etc/passwd", "/healthz/", "/../healthz"])
def test_other_paths_are_not_found(serve: Serve, path: str) -> None:
    assert ask(serve({"/healthz": lambda: verdict("")}).port, path).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_not_allowed(serve: Serve, method: str) -> None:
    answer = ask(serve({"/healthz": lambda: verdict("")}).port, "/healthz", method=method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_a_page_that_fails_is_an_error_and_the_port_goes_on(serve: Serve) -> None:
    def broken() -> Page:
        raise ZeroDivisionError

    server = serve({"/metrics": broken, "/healthz": lambda: verdict("")})
    answer = ask(server.port, "/metrics")
    assert (answer.status, answer.body) == (500, "ZeroDivisionError\n")
    assert ask(server.port, "/healthz").status == 200


def test_a_taken_port_is_a_matter_of_configuration(serve: Serve) -> None:
    taken = serve({})
    with pytest.raises(ConfigurationError, match=rf"health port 127\.0\.0\.1:{taken.port} cannot be served.*in use"):
        HealthServer("127.0.0.1", taken.port, {})


def test_a_host_that_is_not_ours_is_a_matter_of_configuration() -> None:
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1:0 cannot be served"):
        HealthServer("192.0.2.1", 0, {})


def test_ipv6_is_served_too(serve: Serve) -> None:
    server = serve({"/healthz": lambda: verdict("")}, host="::1")
    assert ask(server.port, "/healthz", host="::1").status == 200


def test_closed_the_port_is_free_at_once_even_with_a_connection_open(serve: Serve) -> None:
    first = HealthServer("127.0.0.1", 0, {})
    with socket.create_connection(("127.0.0.1", first.port)) as idle:
        idle.settimeout(20)
        assert ask(first.port, "/").status == 404
        first.close()
        assert idle.recv(1) == b""
    again = serve({"/healthz": lambda: verdict("")}, port=first.port)
    assert ask(again.port, "/healthz").status == 200


def test_who_takes_too_long_in_all_is_hung_up_on(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CONNECTION_S", 0.05)
    monkeypatch.setattr(health._Handler, "timeout", 600)
    server = serve({})
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.settimeout(20)
        silent.sendall(b"GET / HT")
        assert silent.recv(1) == b""


def _answered_again(port: int) -> Answer:
    """Ask until a connection is accepted: a place becomes free only a moment after its answer was read."""
    while True:
        with contextlib.suppress(http.client.RemoteDisconnected, ConnectionError):
            return ask(port, "/healthz")


def test_more_connections_than_it_takes_are_turned_away_and_room_comes_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CONNECTIONS_MAX", 2)
    inside, let_go = threading.Semaphore(0), threading.Event()

    def slow() -> Page:
        inside.release()
        assert let_go.wait(20)
        return verdict("")

    server = serve({"/healthz": slow})
    asking = [threading.Thread(target=ask, args=(server.port, "/healthz")) for _ in range(2)]
    for one in asking:
        one.start()
    assert inside.acquire(timeout=20)
    assert inside.acquire(timeout=20)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        ask(server.port, "/healthz")
    let_go.set()
    for one in asking:
        one.join(20)
    assert _answered_again(server.port).status == 200


def test_a_request_line_without_end_is_refused(serve: Serve) -> None:
    server = serve({})
    with socket.create_connection(("127.0.0.1", server.port)) as talker:
        talker.settimeout(20)
        talker.sendall(b"GET /" + b"a" * 70_000)
        assert talker.recv(64).startswith(b"HTTP/1.0 414 ")
