"""What a client waits by: the interface of `Tasks` and `Threads`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Q = TypeVar("Q", contravariant=True)
A = TypeVar("A", covariant=True)
Q_co = TypeVar("Q_co", covariant=True)
Bound = AbstractAsyncContextManager[Any]
"""A block that bounds what is done in it."""


Beside = Callable[[], Coroutine[Any, Any, None]]
"""Something short that is done while an answer is on its way."""


class Slot(Protocol):
    """One of a number of slots, which somebody has."""

    def release(self) -> None:
        """Give the slot to whoever waits longest; once."""


class Slots(Protocol):
    """A number of slots, handed out first come first served."""

    def acquire_now(self) -> Slot | None:
        """Return a slot if one is free and nobody waits for it."""

    async def acquire(self, seconds: float, *, ahead: bool = False) -> Slot | None:
        """Return a slot, waiting for at most that many seconds for one to be free, or ahead of all who wait."""


class Signal(Protocol):
    """A signal that is set once and wakes whoever waits for it."""

    def set(self) -> None:
        """Wake all waiters, those of now and later ones."""

    async def wait(self, seconds: float) -> bool:
        """Wait for at most that many seconds, and return whether the signal was set."""


class Request(Protocol[Q_co]):
    """One question on its way in a batch."""

    @property
    def question(self) -> Q_co:
        """What is asked."""

    @property
    def gone(self) -> bool:
        """Whether whoever asked has stopped waiting."""


class Batcher(Protocol[Q, A]):
    """A carrier of what many ask at the same moment."""

    async def ask(self, question: Q, *, weight: int, seconds: float) -> A:
        """Return the answer, or raise the error of this request or of the whole batch."""


class Background(Protocol):
    """A function that runs beside its client, once started, until it ends or is stopped.

    It is given this object: whoever starts one keeps it first, and the function goes on only as long as it is the one
    that is kept. So none is left that nobody knows of, wherever its start was interrupted.
    """

    def start(self) -> None:
        """Have the function run from now on; raise NoThread where it needs a thread, and none can be started."""

    @property
    def alive(self) -> bool:
        """Whether the function still runs."""

    def let_go(self) -> None:
        """Have it end, without waiting, from wherever this is called."""

    async def stop(self, seconds: float = ...) -> None:
        """Wait for its end, for at most that many seconds."""


class Timeout(Protocol):
    """A bound on what is done with a connection to Postgres, in an `async with` block.

    `late_s` says of one that is `expired` how late this process looked, in seconds.
    """

    expired: bool
    late_s: float

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    def expire(self) -> None:
        """Shut the connection now."""


class Deadline(Protocol):
    """A bound on an exchange with Redis, in an `async with` block; `late_s` is how late this process saw its end."""

    late_s: float

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *exc_info: Any) -> None: ...


class Concurrency(ABC):
    """How a client waits."""

    plain: bool
    """Whether users' functions have to be plain, as nobody awaits them."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Sleep for that many seconds."""

    @abstractmethod
    def slots(self, count: int) -> Slots:
        """Return that many slots."""

    @abstractmethod
    def signal(self) -> Any:
        """Return a signal, not yet set."""

    @abstractmethod
    async def answered(self, signal: Any, seconds: float) -> None:
        """Wait for a signal that a server's answer sets; raise TimeoutError where it is not set in so many seconds."""

    @abstractmethod
    def batcher(self, go: Any) -> Any:
        """Return a carrier of questions."""

    @abstractmethod
    def background(self, function: Callable[[Background], Coroutine[Any, Any, None]], *, name: str) -> Background:
        """Return a function that is to run beside the client."""

    @abstractmethod
    def thread(self, function: Callable[[Background], Coroutine[Any, Any, None]], *, name: str) -> Background:
        """Return a function that is to run in a daemon thread: who blocks the client's loop does not hold it up."""

    @abstractmethod
    async def lead(
        self, ear: Slots, take: Callable[[float], Coroutine[Any, Any, bool]], signal: Any, seconds: float, arrivals: Any
    ) -> bool:
        """Wait for a signal that whoever reads what arrives will set, and return whether it was set."""

    @abstractmethod
    async def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something short, which runs to its end even if the caller is cancelled meanwhile."""

    @abstractmethod
    async def beside(self, work: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> None:
        """Start work that runs to its end by itself, and wait for it for at most that many seconds."""

    @abstractmethod
    async def called(self, value: Any) -> Any:
        """Return the result of a user's function, which may be asynchronous where the client is."""

    @abstractmethod
    async def computed(self, work: Callable[[], T], turns: Any, seconds: float) -> T:
        """Return what long work comes to, while an event loop goes on; raise TimeoutError where it takes too long."""

    @abstractmethod
    def place(self) -> object:
        """Return what a client is bound to: the running loop, or nothing."""

    @abstractmethod
    def runner(self) -> object:
        """Return the current task, or the current thread."""

    # Postgres.

    @abstractmethod
    async def postgres(self, url: str, options: dict[str, Any], seconds: float | None) -> Any:
        """Open a connection to Postgres; raise TimeoutError where that takes more than that many seconds."""

    @abstractmethod
    def spelled(self, connection: Any, text: str, parameters: Mapping[str, Any]) -> bytes:
        """Return statements with parameters in their text, as a connection to Postgres needs them."""

    @abstractmethod
    async def rows(self, connection: Any, text: bytes, beside: Beside | None) -> list[list[tuple[Any, ...]]]:
        """Run statements that are spelled out in one exchange with Postgres, and return the rows of each.

        While Postgres works, `beside` is awaited.
        """

    @abstractmethod
    def timeout(self, seconds: float, connection: Any) -> Timeout:
        """Return a bound on what is done with a connection to Postgres: past it, its socket is shut."""

    # Redis.

    @abstractmethod
    def dialect(self) -> Any:
        """Return redis-py's module of connections."""

    @abstractmethod
    def line(self, connection: Any) -> Any:
        """Return redis-py's connection as one whose methods are coroutines."""

    @abstractmethod
    def stay_closed(self, connection: Any) -> None:
        """Refuse redis-py's own reconnecting, which would lose what the server knew of the old connection."""

    @abstractmethod
    def pass_on_invalidations(self, connection: Any) -> None:
        """Have redis-py return pushes of invalidated keys as messages to whoever waits for the next one."""

    @abstractmethod
    def turn(self) -> Any:
        """Return whose turn it is to use a connection's socket."""

    @abstractmethod
    def dialing(self, connection: Any, seconds: float) -> Bound:
        """Bound the opening of a connection to Redis."""

    @abstractmethod
    def deadline(self, connection: Any, seconds: float) -> Deadline:
        """Bound one exchange on a connection to Redis; TimeoutError past it."""

    @abstractmethod
    def sending(self, connection: Any, seconds: float, turn: Any) -> Bound:
        """Bound the sending of a request whose answer is read elsewhere."""

    @abstractmethod
    def receiving(self, connection: Any, seconds: float, turn: Any) -> Bound:
        """Bound the wait for what arrives on a connection on which others send."""

    @abstractmethod
    def arrivals(self, connection: Any) -> Any:
        """Return the wait for what arrives on a connection, where one may wait without reading."""

    @abstractmethod
    def disown(self, connection: Any) -> None:
        """Part with a forked parent's connection."""

    @abstractmethod
    async def sever(self, line: Any) -> None:
        """End what is under way on a connection, whose user then closes it."""

    @abstractmethod
    def wake(self, connection: Any) -> None:
        """Wake who waits on a connection, where he cannot be cancelled."""
