"""One synchronous client in many threads: over TLS, interrupted by signals, and thrown away without a word."""

from __future__ import annotations

import gc
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statecache import Settings, StateCache
from statecache.clock import monotonic
from statecache.concurrency import run
from statecache.concurrency.threads import ThreadBackground
from statecache.core import runtime
from statecache.core.lock.leases import Leases
from tests.fixtures.servers import MakeSettings
from tests.fixtures.tls import tls_files
from tests.support.polling import pause_thread

LIMIT_S = 60.0


@pytest.fixture
def overlaps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The uses of a TLS connection that began while another thread was using it."""
    found: list[str] = []
    inside: dict[int, str] = {}

    def watched(name: str) -> Callable[..., Any]:
        usual = getattr(ssl.SSLSocket, name)

        def used(self: ssl.SSLSocket, *args: Any) -> Any:
            if id(self) in inside:
                found.append(f"{name} during {inside[id(self)]}")
                return usual(self, *args)
            inside[id(self)] = name
            try:
                return usual(self, *args)
            finally:
                del inside[id(self)]

        return used

    for name in ("recv_into", "sendall", "pending"):
        monkeypatch.setattr(ssl.SSLSocket, name, watched(name))
    return found


def test_of_threads_that_share_a_tls_connection_one_at_a_time_uses_it(
    make_settings: MakeSettings, tls: tuple[str, Path], overlaps: list[str]
) -> None:
    """While some read and one waits for pushes, others send: OpenSSL takes none of that at once."""
    url, folder = tls
    settings = make_settings(redis_url=url, **tls_files(folder))
    faults: list[BaseException] = []
    with StateCache(settings=settings) as cache, StateCache(settings=settings, near_bytes_max=0) as writer:
        for number in range(20):
            writer.set(f"runs/{number}", "x" * 200 * number)
        assert cache.warm("runs/") == 20

        def work(seed: int) -> None:
            try:
                for step in range(200):
                    number = (seed * 7 + step) % 20
                    if step % 4 == 0:
                        writer.set(f"runs/{number}", "y" * 200 * number)
                    cache.get(f"runs/{number}", read="local")
            except BaseException as error:  # whatever it is, the test says so
                faults.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert cache.near.hits > 100
        assert overlaps == []


def test_events_are_heard_of_over_tls_by_one_thread_at_a_time(
    make_settings: MakeSettings, tls: tuple[str, Path], overlaps: list[str]
) -> None:
    """The connection that events come on is listened to, and sent on by who begins to wait for a lock."""
    url, folder = tls
    settings = make_settings(redis_url=url, **tls_files(folder))
    with StateCache(settings=settings) as cache:
        faults: list[BaseException] = []

        def wait(number: int) -> None:
            try:
                with cache.lock(f"runs/{number}", ttl=5) as lease:
                    lease.set(f"runs/{number}", number)
            except BaseException as error:  # whatever it is, the test says so
                faults.append(error)

        threads = [threading.Thread(target=wait, args=(number % 3,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert overlaps == []


# Signals.

_INTERRUPTED = """
import signal, sys
from statecache import Settings, StateCache
from statecache.errors import Unavailable, UsageError

calls, refused, inside = 0, 0, False

def handler(*_):
    global calls, refused, inside
    if inside:
        return
    inside, calls = True, calls + 1
    try:
        cache.get(f"runs/{calls % 5}", timeout=0.1)
    except (UsageError, Unavailable):
        refused += 1
    inside = False

with StateCache(redis_url=sys.argv[1], postgres_url=sys.argv[2], prefix=sys.argv[3], postgres_schema=sys.argv[4],
                shards=int(sys.argv[5])) as cache:
    for number in range(5):
        cache.set(f"runs/{number}", number)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    for number in range(2000):
        cache.set(f"runs/{number % 5}", number % 5)
        assert cache.get(f"runs/{number % 5}").value == number % 5
    signal.setitimer(signal.ITIMER_REAL, 0)
print(calls, refused)
"""


def test_a_signal_handler_that_calls_the_client_waits_for_nobody_for_ever(settings: Settings) -> None:
    """It interrupts its own thread, which may hold what it would need: then it is refused, and the thread goes on."""
    names = [settings.prefix, settings.postgres_schema]
    given = [settings.redis_url, settings.postgres_url, *names, str(settings.shards)]
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, *given], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    calls, refused = map(int, done.stdout.split())
    assert calls > 50
    assert refused < calls


# Thrown away.


OURS = ("statecache-near", "statecache-events", "statecache-leases")


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name in OURS}


def _until_none_is_left() -> None:
    """Wait until the threads of clients that nobody has any more have ended."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name in OURS:
            thread.join(LIMIT_S)
    gc.collect()
    assert _threads() == set()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted under /proc")
def test_a_client_that_nobody_has_any_more_leaves_no_thread_and_no_descriptor(settings: Settings) -> None:
    def use() -> None:
        cache = StateCache(settings=settings, read="local")
        cache.set("runs/1", 1)
        cache.get("runs/1")
        with cache.lock("runs/1", ttl=5):
            assert "statecache-near" in _threads()

    gc.collect()
    before = _descriptors()
    for _ in range(3):
        use()
    _until_none_is_left()
    assert _descriptors() <= before


@pytest.mark.filterwarnings("ignore:.*deleted while still open:ResourceWarning")
def test_threads_end_although_a_signal_handler_ended_the_finalizer(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector runs it wherever it is, and Python swallows what is raised there."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def use() -> None:
        cache = StateCache(settings=settings, read="local", near_window_s=1)
        cache.get("runs/1")
        run(cache._runtime.events.watch("somewhere", lambda _: None, end=monotonic() + LIMIT_S))
        assert {"statecache-near", "statecache-events"} <= _threads()

    gc.collect()
    before, swallowed = _descriptors(), list[object]()
    monkeypatch.setattr(runtime, "_let_go", interrupted)
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    use()
    gc.collect()
    assert len(swallowed) == 1
    swallowed.clear()  # what was raised refers to the client's connections
    _until_none_is_left()
    assert _descriptors() <= before


def test_what_a_client_that_nobody_has_any_more_has_locked_is_free_soon(settings: Settings) -> None:
    def use() -> None:
        StateCache(settings=settings).lock("runs/1", ttl=1).take()

    use()
    _until_none_is_left()
    with StateCache(settings=settings) as other, other.lock("runs/1", ttl=1, timeout=LIMIT_S) as lease:
        assert lease.token.count == 2


def test_a_lease_is_not_renewed_once_its_block_is_gone_though_its_name_still_stands(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler ended the leaving of the block before the lease was given back, and the function goes on."""

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with StateCache(settings=settings) as cache, StateCache(settings=settings) as other:
        with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
            with cache.lock("runs/1", ttl=1) as lease:
                monkeypatch.setattr(Leases, "give_back", interrupted)
        assert not lease.lost
        with other.lock("runs/1", ttl=1, timeout=LIMIT_S) as second:
            assert second.token.count == 2
        with cache.lock("runs/1", ttl=1, timeout=LIMIT_S):
            assert lease.lost


def test_a_thread_whose_start_was_interrupted_gives_way_to_the_next_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs all the same, unknown to the client, and would go on taking pushes for the other's."""
    usual = ThreadBackground.start

    def interrupted(self: ThreadBackground) -> None:
        usual(self)
        monkeypatch.setattr(ThreadBackground, "start", usual)
        monkeypatch.setattr(self, "_thread", threading.Thread())  # as it looks before it has come up
        raise KeyboardInterrupt

    with StateCache(settings=settings, read="local", near_window_s=1) as cache:
        monkeypatch.setattr(ThreadBackground, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.get("runs/1")
        first = next(thread for thread in threading.enumerate() if thread.name == "statecache-near")
        cache._runtime.tracked._start()
        cache.set("runs/1", 1)
        first.join(LIMIT_S)
        assert not first.is_alive()
        while cache.near.hits == 0:
            assert (state := cache.get("runs/1")) is not None
            assert state.value == 1
            pause_thread()
