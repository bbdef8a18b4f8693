"""Adapters in a forked child: nothing waits there for what its parent's threads hold, or for event loops that they run.

And in a signal handler, which cannot wait for what the thread holds that it has interrupted.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings, StateCache, UsageError
from statecache._process import begins_anew_after_fork
from statecache.adapters.clients import Clients
from statecache.adapters.event_loops import LoopClients, until_done
from statecache.adapters.in_threads import _Progress
from statecache.adapters.langgraph.decoded import Decoded
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.recent import PieceName, Recent
from statecache.adapters.plans import Level
from tests.support.forking import in_a_child, status_of

CHILD_S = 30
"""After how many seconds a child that still waits is ended."""


def _clients(cache: Any = None) -> Clients:
    return Clients(cache or Settings(), "n", {}, of="store", awaited="aget")


def _loop_clients() -> LoopClients:
    return LoopClients(Settings(), "n", {}, of="session", run_sync="get")


async def _made(clients: LoopClients | None) -> None:
    assert clients is not None
    assert clients.here() is clients.here()


async def _turn(clients: LoopClients) -> asyncio.Lock:
    return clients.here().writing


def _status(work: Callable[[], object]) -> int:
    """Return how a child ended that does the work."""

    def bounded() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_S)
        work()

    return status_of(in_a_child(bounded))


@contextmanager
def _held(mutex: Any) -> Iterator[None]:
    """Have another thread hold a mutex."""
    held, go = Event(), Event()

    def hold() -> None:
        with mutex:
            held.set()
            go.wait(CHILD_S)

    thread = Thread(target=hold)
    thread.start()
    try:
        assert held.wait(CHILD_S)
        yield
    finally:
        go.set()
        thread.join()


def _uses_decoded(decoded: Decoded) -> None:
    decoded._keep((0, 0, b""), None, None, 1)


HOLDERS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "clients of threads": (_clients, lambda one: one._sync_view()),
    "clients of event loops": (_loop_clients, lambda one: asyncio.run(_made(one))),
    "a plan in a thread": (_Progress, lambda one: (one.begins(Level()), one.stop())),
    "what was put last": (Recent, lambda one: one.latest(Place("1"))),
    "messages": (Decoded, _uses_decoded),
}
every_holder = pytest.mark.parametrize("holder", HOLDERS)


class _Failing:
    """What cannot begin anew."""

    def begin_anew(self, mutex: Any) -> None:
        """Fail."""
        raise ValueError("it cannot begin anew")


@every_holder
def test_a_child_does_not_wait_for_what_another_thread_of_its_parent_held(holder: str) -> None:
    make, use = HOLDERS[holder]
    made = make()
    with _held(made._mutex):
        assert _status(lambda: use(made)) == 0
    use(made)


@every_holder
def test_a_signal_handler_is_refused_what_its_thread_holds(holder: str) -> None:
    make, use = HOLDERS[holder]

    def interrupted() -> None:  # in a child, for one that waits has to be ended
        made, met = make(), list[str]()

        def handler(*_: object) -> None:
            try:
                use(made)
            except UsageError as error:
                met.append(str(error))

        signal.signal(signal.SIGUSR1, handler)
        with made._mutex:
            signal.raise_signal(signal.SIGUSR1)
        assert "signal handler" in met[0]

    assert _status(interrupted) == 0


def test_a_child_remembers_nothing_that_its_parent_may_have_been_about_to_change() -> None:
    recent, decoded, name = Recent(), Decoded(), PieceName("values", 1, "1", "digest")
    recent.add({name: b"piece"})
    _uses_decoded(decoded)

    def child() -> None:
        assert recent.pieces([name]) == {}
        assert (recent._bytes, decoded._bytes, len(decoded._copies)) == (0, 0, 0)

    assert _status(child) == 0
    assert recent.pieces([name]) == {name: b"piece"}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return an event loop that another thread runs: in a forked child it says so for ever, and nobody does."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[AsyncStateCache]:
    """Which clients were closed, each in its event loop."""
    caches = list[AsyncStateCache]()

    async def close(cache: AsyncStateCache) -> None:
        caches.append(cache)

    monkeypatch.setattr(AsyncStateCache, "close", close)
    return caches


@pytest.mark.parametrize("uses", [True, False])
@pytest.mark.parametrize("awaited", [True, False])
def test_a_child_closes_its_own_clients_and_none_of_its_parents_event_loops(
    loop: asyncio.AbstractEventLoop, closed: list[AsyncStateCache], awaited: bool, uses: bool
) -> None:
    clients = _clients()
    until_done(loop, _made(clients._loops))

    async def closes() -> None:
        if uses:
            await _made(clients._loops)
        await clients.aclose()

    def child() -> None:
        if awaited:
            asyncio.run(closes())
        else:
            if uses:
                asyncio.run(_made(clients._loops))
            clients.close()
        assert len(closed) == uses
        with pytest.raises(UsageError, match="is closed"):
            asyncio.run(_made(clients._loops))

    assert _status(child) == 0
    until_done(loop, _made(clients._loops))
    clients.close()
    assert len(closed) == 1


def test_a_call_in_a_child_does_not_wait_for_the_event_loop_of_a_client_that_was_given(
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def made() -> tuple[Clients, LoopClients]:
        given = AsyncStateCache(settings=Settings())
        given._runtime.redis.pool._place = asyncio.get_running_loop()  # as once it has been used
        return _clients(given), LoopClients(given, "n", {}, of="session", run_sync="get")

    clients, session = until_done(loop, made())
    turn = until_done(loop, _turn(session))

    def child() -> None:
        with pytest.raises(UsageError, match="that no event loop has used yet"):
            clients.run(iter(()))  # type: ignore[arg-type]
        assert asyncio.run(_turn(session)) is not turn

    assert _status(child) == 0
    assert clients._loop_of(clients._given) is loop  # type: ignore[arg-type]


def test_a_store_on_a_client_of_threads_works_in_a_child() -> None:
    clients = _clients(StateCache(settings=Settings()))
    with _held(clients._mutex):
        assert _status(partial(clients._sync_view)) == 0


def test_what_cannot_begin_anew_hinders_no_other() -> None:
    """The order in which they are called is nobody's."""
    many = [made for _ in range(10) for made in (_Failing(), _clients())]
    for one in many:
        if isinstance(one, _Failing):
            begins_anew_after_fork(one)
    with ExitStack() as held:
        for one in many:
            if isinstance(one, Clients):
                held.enter_context(_held(one._mutex))
        assert _status(lambda: [one._sync_view() for one in many if isinstance(one, Clients)]) == 0
