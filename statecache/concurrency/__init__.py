"""How a client waits: for tasks of an event loop, or for threads. All that differs between the two clients stands here.

What talks to the servers (`core`) is written once, as coroutines, and waits by its client's `Tasks` or `Threads` only.
The coroutines of `Threads` never suspend: they block their thread. So a coroutine that is built on them runs to its end
by one `send`, and the synchronous client needs no event loop:

    AsyncStateCache.set   await coroutine        on `TASKS`
    StateCache.set        run(coroutine)         on `THREADS`

* `slots` is a counting semaphore, first come first served, with a timeout; `signal` an event; `batcher` brings together
  what many ask at the same moment; `background` is a task or a daemon thread that runs until it is stopped, `thread` a
  daemon thread for both.
* `timeout` and `postgres` bound what is done with Postgres; `dialing`, `deadline`, `sending` and `receiving`
  what is done with Redis.
"""

from __future__ import annotations

from statecache.concurrency.interface import Background, Batcher, Beside, Concurrency, Request, Signal, Slot, Slots
from statecache.concurrency.lateness import SILENCE_S, TooLittleTime, no_answer, unanswered
from statecache.concurrency.running import entered, iterated, run
from statecache.concurrency.starting import NoThread
from statecache.concurrency.tasks import Tasks
from statecache.concurrency.threads import Threads

TASKS = Tasks()
THREADS = Threads()

__all__ = [
    "SILENCE_S",
    "TASKS",
    "THREADS",
    "Background",
    "Batcher",
    "Beside",
    "Concurrency",
    "NoThread",
    "Request",
    "Signal",
    "Slot",
    "Slots",
    "Tasks",
    "Threads",
    "TooLittleTime",
    "entered",
    "iterated",
    "no_answer",
    "run",
    "unanswered",
]
