"""The process: signals in, JSON lines out, an exit status at the end.

SIGTERM or SIGINT: what stands in the streams at that moment is flushed, for at most `drain_s`, and so is what the
worker itself was deleting because it has ended. What old primaries have taken by then is kept in `conflict`, as far as
they are reached, within the same time. Then the shards are given back and what is left is logged. A second
signal cuts the draining short. Outages are waited out, at the start too, with ever longer pauses; so is, once a turn
has come through, what would be a wrong configuration at the start: an address may lead elsewhere for a moment, and a
right be taken away. Statuses: 0 everything flushed, 1 something left, 3 configuration, 4 a server that will never let
us in.

Where a health port is set it is served from before the first turn until after the last, and in an outage of Postgres
Redis is still asked how far the shards are, so that the lag which grows meanwhile is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from statecache.clock import monotonic
from statecache.errors import ConfigurationError, PostgresUnavailable, RedisUnavailable, Unavailable
from statecache.settings import masked
from statecache_workers.health import HealthServer, Page, Pulse, verdict
from statecache_workers.logs import alarm, crash, log_to_stderr, say, warn
from statecache_workers.worker import Worker

if TYPE_CHECKING:
    from statecache.settings import Settings

DRAINED, LEFT, CONFIGURATION, UNREACHABLE = 0, 1, 3, 4
PAUSE_MAX_S = 5.0
LEAVE_S = 4.0
"""For how long a server is asked what is left, and the other one to take the shards, once the draining is over.

Both, and the closing, are to end within ten seconds: then whoever told the worker to stop may kill it.
"""
LOOK_S = 2.0
GARBAGE = 20_000
"""How many objects are made before those are looked for that only refer to each other; hardly any do in a good turn.

A turn that failed leaves its errors, with all that was at hand when they were raised, and the buffers of connections
that it gave up: a batch and more. So garbage is looked for after each of these, and once all goes well again.
"""
NO_METRICS = Page(
    501, b"no metrics without the extra: pip install 'statecache[metrics]' ('.[metrics]' in a checkout)\n"
)


async def run_worker(settings: Settings) -> int:
    """Run a worker until it is told to stop, and return the exit status."""
    log_to_stderr()
    gc.freeze()
    gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])
    runner = Runner(settings)
    with _signals(runner.signalled):
        return await runner.run()


class Runner:
    """A worker that is kept going until it is told to stop."""

    def __init__(self, settings: Settings) -> None:
        self.worker = Worker(settings)
        self.pulse = Pulse(timeout_s=settings.timeout_s, lease_s=settings.lease_s)
        self.health: HealthServer | None = None
        self._beating: asyncio.Task[None] | None = None
        self._settings = settings
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._connected = False
        self._troubled = False
        self._drained_by = 0.0
        """When the time for the draining is up, once the worker was told to stop."""
        self._until = 0.0
        """Until when old primaries have taken what is to be kept before the end."""
        self._targets: dict[int, int] | None = None
        """Where the streams ended when the draining began; None until Redis has told."""

    def signalled(self) -> None:
        """Start the draining, or end it when it goes on already."""
        if self._stop.is_set():
            self._hurry.set()
        else:
            self._drained_by = monotonic() + self._settings.drain_s
            self._stop.set()
        self.worker.nudge()

    async def run(self) -> int:
        """Work until told to stop, drain, and return the exit status."""
        settings = self._settings
        say("started", worker=self.worker.id, redis=masked(settings.redis_url), postgres=masked(settings.postgres_url),
            prefix=settings.prefix, schema=settings.postgres_schema, shards=settings.shards)  # fmt: skip
        try:
            self._open_health()
            await self._work_until_stopped()
            return await self._end()
        except ConfigurationError as error:
            alarm("configuration", detail=str(error))
            return CONFIGURATION
        except Unavailable as error:
            alarm("unreachable", reason=error.reason, detail=str(error))
            return UNREACHABLE
        except Exception:  # whatever it is, the shards are given back and the log shows where it happened
            crash("crashed", worker=self.worker.id)
            await self._leave()
            return LEFT
        finally:
            await self.worker.close()
            await self._close_health()

    def _open_health(self) -> None:
        settings = self._settings
        if settings.health_port is None:
            return
        pages = {
            "/healthz": lambda: verdict(self.pulse.unhealthy()),
            "/readyz": lambda: verdict(self.pulse.unready()),
            "/metrics": _metrics(self.worker, self.pulse),
        }
        self.health = HealthServer(settings.health_host, settings.health_port, pages)
        self._beating = asyncio.create_task(self.pulse.keep(), name="pulse")
        say("listening", host=self.health.host, port=self.health.port)

    async def _close_health(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        if self.health is not None:
            await asyncio.to_thread(self.health.close)

    async def _work_until_stopped(self) -> None:
        """Work until told to stop; a turn that is under way then takes of the time for the draining."""
        working = asyncio.create_task(self._work_on(), name="work")
        stopped = asyncio.create_task(self._stop.wait(), name="told to stop")
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set():
                await self._in_time(working)
        finally:
            await _cut_short(working, stopped)
        if not working.cancelled():
            working.result()

    async def _in_time(self, work: asyncio.Task[None]) -> None:
        """Wait for work until the time for the draining is up, or a second signal comes."""
        hurried = asyncio.create_task(self._hurry.wait(), name="hurried")
        try:
            left_s = max(0.0, self._drained_by - monotonic())
            await asyncio.wait((work, hurried), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cut_short(hurried)

    async def _work_on(self) -> None:
        while not self._stop.is_set():
            try:
                await self._patiently(self._work, give_up=self._stop.is_set)
            except (Unavailable, ConfigurationError):
                if not self._stop.is_set():
                    raise

    async def _work(self) -> None:
        more = await self.worker.turn()
        self._recovered()
        if not more:
            await self.worker.rest()

    def _recovered(self) -> None:
        self._connected = True
        self.pulse.turn_passed(resynced=self.worker.ready)
        if self._troubled:
            self._troubled = False
            gc.collect()
            say("recovered")

    async def _patiently(self, work: Callable[[], Awaitable[None]], *, give_up: Callable[[], bool]) -> None:
        """Do one piece of work, again and again with longer pauses while a server is unavailable."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(self._passes),
            wait=wait_random_exponential(multiplier=0.1, max=PAUSE_MAX_S),
            stop=lambda _: give_up(),
            before_sleep=self._note,
            sleep=self._wait_out,
            reraise=True,
        ):
            with attempt:
                await work()

    def _passes(self, error: BaseException) -> bool:
        """Return whether to try again: what fitted once, an address, a user or a right of his, may fit again."""
        if isinstance(error, ConfigurationError):
            return self._connected
        return isinstance(error, Unavailable) and (self._connected or error.reason != "authentication")

    def _note(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        self._troubled = True
        gc.collect()
        server, reason = _named(error, lacks_rights=self.worker.redis.lacks_rights)
        self.pulse.turn_failed(server, reason)
        if server == "redis":
            self.pulse.reached("postgres")  # which is always asked first
        warn("outage", reason=reason, detail=str(error), attempt=state.attempt_number,
             pause_s=round(state.upcoming_sleep, 3))  # fmt: skip

    async def _wait_out(self, seconds: float) -> None:
        """Pause before the next attempt; where only Postgres is gone, ask Redis how the backlog grows.

        Where Postgres is there, say in it what is not: `statecache status` tells it from a dead worker.
        """
        if self.health is not None and "postgres" in self.pulse.troubles:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self.worker.look()
                self.pulse.reached("redis")
            except (Unavailable, TimeoutError) as error:
                self.pulse.lost("redis", error.reason if isinstance(error, Unavailable) else "timeout")
            except ConfigurationError:
                self.pulse.lost("redis", "configuration")
        end, ends = monotonic() + seconds, self._ends
        while "postgres" not in self.pulse.troubles and end > monotonic() and not ends.is_set():
            await self._tell()
            await self._pause(min(self._settings.lease_renew_s, max(end - monotonic(), 0)))
        await self._pause(end - monotonic())

    async def _tell(self) -> None:
        with contextlib.suppress(Unavailable, ConfigurationError, TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self.worker.tell()

    @property
    def _ends(self) -> asyncio.Event:
        """What cuts a pause short."""
        return self._hurry if self._stop.is_set() else self._stop

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ends.wait()

    async def _end(self) -> int:
        """Drain with a deadline, give the shards back, log what is left, and return the exit status."""
        begun = self._until = monotonic()
        worker = self.worker
        worker.taking = False
        worker.expiry.end()
        worker.primary.look_soon(begun)
        self.pulse.draining = True
        say("draining", owned=len(worker.holdings), within_s=self._settings.drain_s)
        left = await self._drained()
        given_back = await self._leave()
        say("stopped", left=left, given_back=given_back, seconds=round(monotonic() - begun, 3))
        return DRAINED if left == 0 else LEFT

    async def _drained(self) -> int | None:
        """Flush what stands in the streams now, and return how much is left in the end; None where unknown."""
        worker = self.worker
        if not (worker.holdings or worker.primary.left or worker.primary.told):
            return 0 if worker.is_spare else None
        draining = asyncio.create_task(self._drain(), name="draining")
        try:
            await self._in_time(draining)
        finally:
            self._hurry.set()
            await _cut_short(draining)
        if not draining.cancelled() and (error := draining.exception()) is not None:
            warn("not_drained", detail=str(error))
        left = 0 if self._is_drained() else await self._still_behind()
        worker.primary.stop(self._until)
        return left

    def _is_drained(self) -> bool:
        flushed = self._targets is not None and not self.worker.behind(self._targets)
        return flushed and self.worker.primary.has_kept(self._until)

    async def _still_behind(self) -> int | None:
        """Count what is left by the newest heads; None where none were told since the draining began.

        None as well where an old primary holds what was not kept.
        """
        told = self._targets is not None or not self.worker.holdings
        with contextlib.suppress(Unavailable, ConfigurationError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.worker.look()
                told = True
        heads = self.worker.positions()
        known = told and self.worker.primary.has_kept(self._until)
        return self.worker.behind(heads) if heads is not None and known else None

    async def _drain(self) -> None:
        async def turn() -> None:
            more = await self.worker.turn()
            self._recovered()
            if self._targets is None and not self.worker.expiry.busy:
                await self.worker.look()
                self._targets, self._until = self.worker.positions(), monotonic()
            if not more and not self._is_drained():
                await self._pause(0.05)

        while not self._is_drained() and not self._hurry.is_set():
            await self._patiently(turn, give_up=self._hurry.is_set)

    async def _leave(self) -> bool:
        try:
            async with asyncio.timeout(LEAVE_S):
                return await self.worker.leave()
        except TimeoutError:
            warn("not_given_back", detail="Postgres does not answer")
            return False


async def _cut_short(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _named(error: BaseException | None, *, lacks_rights: bool) -> tuple[str, str]:
    """Return which server an outage is of, and why; of a right that is missing Redis alone says so."""
    if isinstance(error, PostgresUnavailable):
        return "postgres", error.reason
    if isinstance(error, ConfigurationError):
        return ("redis", "rights") if lacks_rights else ("other", "configuration")
    reason = error.reason if isinstance(error, Unavailable) else ""
    return "redis" if isinstance(error, RedisUnavailable) else "other", reason


def _metrics(worker: Worker, pulse: Pulse) -> Callable[[], Page]:
    """Return what makes the page of metrics, or one that says what it needs."""
    try:
        from statecache_workers.metrics import Exposition
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        return lambda: NO_METRICS
    return Exposition(worker, pulse).page


@contextlib.contextmanager
def _signals(handle: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    caught = []
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # on Windows, and beside the main thread
        for kind in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(kind, handle)
            caught.append(kind)
    try:
        yield
    finally:
        for kind in caught:
            loop.remove_signal_handler(kind)
