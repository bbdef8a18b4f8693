"""`statecache dev`: a Valkey, a Postgres and a worker to develop against, kept under the user's data folder.

It runs in the foreground until Ctrl-C or SIGTERM, which stop it cleanly with status 0. What ends meanwhile (killed by
somebody who wants to see what happens, say) is started again, but not without end.
"""

from __future__ import annotations

import select
import shlex
import shutil
import signal
import socket
import sys
import textwrap
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self

import msgspec

from statecache.clock import monotonic
from statecache.errors import Unavailable
from statecache.testing import refuse_unfit_platform

if TYPE_CHECKING:
    from statecache.testing.dev_servers import Kept

REVIVALS_MAX = 5
REVIVALS_WINDOW_S = 60.0
EXAMPLE_KEY = "runs/42"
_FOLD = partial(textwrap.fill, break_long_words=False, break_on_hyphens=False)


def run_dev(
    *,
    folder: Path | None = None,
    redis_port: int | None = None,
    postgres_port: int | None = None,
    as_json: bool = False,
) -> int:
    """Run the servers until told to stop, and return the exit status.

    On stdout it tells a person what happens, or with `as_json` a program: one JSON object a line, with an `event` and
    its facts: `running` (folder, postgres_folder, redis_url, postgres_url), `restarted` (server), `stopping`. A port
    that is given is insisted on; otherwise that of the last run is taken if it is free, else another one. Raises
    ConfigurationError where another one runs in the folder, and Unavailable where a server does not start.
    """
    refuse_unfit_platform()
    from statecache.testing.dev_servers import Kept

    voice = _Voice(as_json=as_json)
    with (
        _Signals() as signals,
        suppress(_Asked),
        Kept(folder, redis_port=redis_port, postgres_port=postgres_port) as kept,
    ):
        signals.interrupt = False
        where = {
            "folder": str(kept.folder),
            "postgres_folder": str(kept.postgres_folder),
            "redis_url": kept.redis.url,
            "postgres_url": kept.postgres.url,
        }
        voice.tell("running", _welcome(kept), **where)
        _watch(kept, signals, voice)
        voice.tell("stopping", "Stopping; the data stay.\n")
    return 0


def _watch(kept: Kept, signals: _Signals, voice: _Voice) -> None:
    revivals: deque[float] = deque(maxlen=REVIVALS_MAX)
    while not signals.wait():
        for name in kept.revive():
            voice.tell("restarted", f"The {name} ended; it was started again.\n", server=name)
            if len(revivals) == REVIVALS_MAX and monotonic() - revivals[0] < REVIVALS_WINDOW_S:
                raise Unavailable(name, detail=f"it keeps ending; see the logs in {kept.folder}")
            revivals.append(monotonic())


class _Asked(BaseException):
    """A request to stop, raised in the middle of a start-up."""


class _Signals:
    """Signals as something to wait for, without a moment in which one can be missed.

    While `interrupt` is set, a request to stop is raised in the middle of whatever goes on.
    """

    _STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    _HEARD = (*_STOP, signal.SIGCHLD)

    def __init__(self) -> None:
        self.interrupt = True
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        self._read, write = (self._ending.enter_context(end) for end in socket.socketpair())
        self._read.setblocking(False)
        write.setblocking(False)
        before = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        self._ending.callback(signal.set_wakeup_fd, before)
        for number in self._HEARD:
            self._ending.callback(signal.signal, number, signal.signal(number, self._handle))
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back; one that comes meanwhile waits, or Python would say that nobody handles it."""
        held = signal.pthread_sigmask(signal.SIG_BLOCK, self._HEARD)
        try:
            self._ending.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def wait(self) -> bool:
        """Wait for a child's end or a request to stop, and return whether it was the latter."""
        select.select([self._read], [], [])
        arrived = b""
        with suppress(BlockingIOError):
            while more := self._read.recv(4096):
                arrived += more
        return any(number in arrived for number in self._STOP)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.interrupt and number in self._STOP:
            self.interrupt = False
            raise _Asked


class _Voice:
    """The output: text for a person, or events with their facts for a program."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def tell(self, event: str, text: str, **facts: str) -> None:
        """Tell of one event, if anybody still listens."""
        line = msgspec.json.encode({"event": event, **facts}).decode() + "\n"
        with suppress(BrokenPipeError):
            sys.stdout.write(line if self._as_json else text if not sys.stdout.isatty() else wrapped(text))
            sys.stdout.flush()


def wrapped(text: str) -> str:
    """Return text for a terminal of that width: its sentences broken between words, what is to be pasted as it is."""
    columns = shutil.get_terminal_size().columns
    return "".join(
        line if line.startswith("  ") or len(line) <= columns else _FOLD(line, columns) + "\n"
        for line in text.splitlines(keepends=True)
    )


def _welcome(kept: Kept) -> str:
    exports = "".join(f"  export {name}={shlex.quote(value)}\n" for name, value in kept.environment().items())
    in_redis, in_postgres = _ways_to_look(kept)
    code = f'from statecache import StateCache; StateCache().set("{EXAMPLE_KEY}", {{"step": 1}}, durability="postgres")'
    return f"""\
Valkey, Postgres {kept.install.version} and a worker are running. Data and logs are in {kept.folder}

{exports}
Commit a state from another terminal, after the two lines above:

  {shlex.quote(sys.executable)} -c {shlex.quote(code)}

Look at it in Redis, in Postgres, or ask where it is:

  {in_redis}
  {in_postgres}
  statecache where {EXAMPLE_KEY}

{_elsewhere(kept)}Ctrl-C stops them.
"""


def _elsewhere(kept: Kept) -> str:
    """Return what root has to know of data that are not in the folder, and of those that nobody looks after."""
    lines: list[str] = []
    if kept.postgres_folder.parent != kept.folder:
        lines.append(
            f"Postgres has its data in {kept.postgres_folder}, for it cannot be run by root, and nobody else gets at "
            f"{kept.folder}. Deleting that folder deletes none of them."
        )
    for home, owner in kept.left_behind():
        lines += [
            f"Nothing leads to {home} from {owner} any more. Where that is deleted:", "",
            f"  rm -r {shlex.quote(str(home))}",
        ]  # fmt: skip
    return "".join(f"{line}\n" for line in lines) + "\n" * bool(lines)


def _ways_to_look(kept: Kept) -> tuple[str, str]:
    from statecache.keys import KeySpace
    from statecache.settings import Settings

    settings = Settings()
    state = KeySpace(prefix=settings.prefix, shards=settings.shards).state(EXAMPLE_KEY)
    view = f"{settings.postgres_schema}.state_view"
    query = f"select key, epoch, version, value_json from {view}"  # noqa: S608 - a setting that was checked
    redis_cli = shutil.which("redis-cli") or shutil.which("valkey-cli") or "redis-cli"
    psql = shutil.which("psql") or str(kept.install.program("psql"))
    return (
        f'{shlex.quote(redis_cli)} -u "$STATECACHE_REDIS_URL" HGETALL {shlex.quote(state)}',
        f'{shlex.quote(psql)} "$STATECACHE_POSTGRES_URL" -c {shlex.quote(query)}',
    )
