"""Plans that are awaited, and carried out in a thread with the verbs of a StateCache.

Nobody can cancel a thread. So a plan whose caller is cancelled begins no verb any more, and one that writes is waited
for until it has ended: what was given up writes over nothing that comes after it.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from statecache._process import begins_anew_after_fork, mutex
from statecache.adapters.given_up import until_ended
from statecache.adapters.plans import Asked, Call, Level, Plan, run

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from statecache import Namespace

T = TypeVar("T")
_READING = frozenset({"get", "get_at", "get_many", "history", "list", "outcome", "wait_durable", "_prove"})


class GivenUp(Exception):
    """Ends a plan in its thread that nobody waits for any more."""


class _Progress:
    """How far a plan has come: whether the verb that is under way writes, and whether it may begin another one."""

    def __init__(self) -> None:
        self._mutex = mutex()
        self._stopped = self._writes = False
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Go on with a new mutex in a forked child."""
        self._mutex = mutex

    def begins(self, asked: Asked) -> None:
        """Note the verb that begins; raise GivenUp where none may."""
        with self._mutex:
            if self._stopped:
                raise GivenUp
            self._writes = not (isinstance(asked, Level) or (isinstance(asked, Call) and asked.verb in _READING))

    def stop(self) -> bool:
        """Have no verb begin any more, and return whether one may be under way that writes."""
        with self._mutex:
            self._stopped = True
            return self._writes


async def run_in_thread(view: Namespace[Any], plan: Plan[T]) -> T:
    """Carry out a plan in a thread; who is cancelled waits for the verb that is under way, if it writes."""
    progress = _Progress()
    context = copy_context()
    work = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(run, view, plan, progress.begins))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if progress.stop():
            await until_ended([work])
        work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # which nobody is told
        raise
