"""What a signal handler raises while a call waits for a server goes through, also where sockets raise the same."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

from statecache import RedisUnavailable, StateCache
from tests.fixtures.faults import through
from tests.fixtures.servers import MakeSettings
from tests.support.fault_proxy import Fault, FaultProxy, Kind

T = TypeVar("T")
KEY = "runs/42"
UP = r"^the time is up"
KINDS = [TimeoutError, ConnectionResetError, OSError, AttributeError]
CALLS: dict[str, Callable[[StateCache], Any]] = {
    "get": lambda cache: cache.get(KEY, read="primary"),
    "get_many": lambda cache: cache.get_many([KEY], read="primary"),
    "set": lambda cache: cache.set(KEY, 2),
    "update": lambda cache: cache.update(KEY, lambda value: value + 1),
    "set_many": lambda cache: cache.set_many({KEY: 2}),
    "lock": lambda cache: cache.lock(KEY).__enter__(),
}


class Network:
    """A proxy that goes on in a thread of its own while the main thread waits."""

    def __init__(self, proxy: FaultProxy, loop: asyncio.AbstractEventLoop) -> None:
        self.proxy = proxy
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the thread do something, and return what comes of it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def arm(self, kind: Kind, *, at: bytes) -> Fault:
        """Let the next request that holds these bytes meet a fault."""

        async def arm() -> Fault:
            return self.proxy.arm(kind, at=at)

        return self.run(arm())

    def release(self, fault: Fault) -> None:
        """Let go of what a fault holds."""

        async def release() -> None:
            fault.release()

        self.run(release())

    def interrupt(self, kind: Kind, *, at: bytes) -> None:
        """Let the next request that holds these bytes meet a fault, and have the signal sent at that moment."""
        self.arm(kind, at=at).then(_send_signal)


def _send_signal() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)


def _interrupted_soon(call: Callable[[], Any]) -> None:
    """Have the signal sent a moment after a call has begun."""
    threading.Timer(0.2, _send_signal).start()
    call()


@contextmanager
def _network(url: str) -> Iterator[Network]:
    parts, loop = urlsplit(url), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    network = Network(FaultProxy(parts.hostname or "127.0.0.1", parts.port or 0), loop)
    network.run(network.proxy.__aenter__())
    yield network
    network.run(network.proxy.__aexit__())
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()


@pytest.fixture
def network(make_settings: MakeSettings) -> Iterator[Network]:
    """A network between a client and Redis."""
    with _network(make_settings().redis_url) as made:
        yield made


@pytest.fixture
def postgres(make_settings: MakeSettings) -> Iterator[Network]:
    """A network between a client and Postgres."""
    with _network(make_settings().postgres_url) as made:
        yield made


@pytest.fixture
def handler() -> Iterator[Callable[[type[Exception]], None]]:
    """Return what has the signal raise an error of a type from then on."""
    before = signal.getsignal(signal.SIGUSR1)

    def install(kind: type[Exception]) -> None:
        def interrupt(*_: object) -> None:
            raise kind("the time is up")

        signal.signal(signal.SIGUSR1, interrupt)

    yield install
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_goes_through_while_redis_is_waited_for(
    make_settings: MakeSettings, network: Network, handler: Callable[[type[Exception]], None], what: str,
    kind: type[Exception],
) -> None:  # fmt: skip
    handler(kind)
    with StateCache(settings=through(make_settings(near_bytes_max=0), redis=network.proxy)) as cache:
        cache.set(KEY, 1)
        cache.get(KEY, read="primary")
        network.interrupt("hold_reply", at=KEY.encode())
        with pytest.raises(kind, match=UP) as raised:
            CALLS[what](cache)
        assert raised.type is kind
        assert cache.get(KEY, read="primary") is not None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_goes_through_while_a_connection_is_opened(
    make_settings: MakeSettings, network: Network, handler: Callable[[type[Exception]], None], kind: type[Exception]
) -> None:
    handler(kind)
    with StateCache(settings=through(make_settings(near_bytes_max=0), redis=network.proxy)) as cache:
        network.interrupt("hold_reply", at=b"AUTH")
        with pytest.raises(kind, match=UP) as raised:
            cache.get(KEY, read="primary")
        assert raised.type is kind
        assert cache.get(KEY, read="primary") is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_goes_through_while_others_use_every_connection(
    make_settings: MakeSettings, network: Network, handler: Callable[[type[Exception]], None], kind: type[Exception]
) -> None:
    handler(kind)
    settings = through(make_settings(near_bytes_max=0, redis_connections_max=1), redis=network.proxy)
    with StateCache(settings=settings) as cache:
        cache.set(KEY, 1)
        held = network.arm("hold_reply", at=KEY.encode())
        other = threading.Thread(target=lambda: cache.get(KEY, read="primary"))
        other.start()
        network.run(held.wait())
        with pytest.raises(kind, match=UP) as raised:
            _interrupted_soon(lambda: cache.get("runs/43", read="primary"))
        network.release(held)
        other.join()
        assert raised.type is kind
        assert cache.get("runs/43", read="primary") is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_goes_through_while_postgres_is_waited_for(
    make_settings: MakeSettings, postgres: Network, handler: Callable[[type[Exception]], None], kind: type[Exception]
) -> None:
    """As a connection is opened, and as it is used."""
    handler(kind)
    with StateCache(settings=through(make_settings(near_bytes_max=0), postgres=postgres.proxy)) as cache:
        for at in (b"application_name", b"SELECT"):
            postgres.interrupt("hold_reply", at=at)
            with pytest.raises(kind, match=UP) as raised:
                list(cache.history(KEY))
            assert raised.type is kind
        assert not list(cache.history(KEY))


def test_what_was_raised_before_a_call_is_not_raised_again(
    make_settings: MakeSettings, network: Network, handler: Callable[[type[Exception]], None]
) -> None:
    """Whoever handles it by a call that fails is told why that one failed."""
    handler(TimeoutError)
    with StateCache(settings=through(make_settings(near_bytes_max=0), redis=network.proxy)) as cache:
        cache.set(KEY, 1)
        network.proxy.refusing = True
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeoutError:
            network.proxy.cut_all()
            with pytest.raises(RedisUnavailable):
                cache.get(KEY, read="primary", timeout=0.5)
