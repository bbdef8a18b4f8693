"""Named readers of changes: where each stands is kept in Postgres, and one process at a time reads for it.

A name is held by a lease in its row, renewed while the feed is there, also through a change whose handling takes long.
Whoever comes second waits until the lease ends or is given back, and goes on where the row says. Where the reader
stands is stored with the next change after those that were handled, at most once a second, and at the end: a process
that dies leaves what it had handled since to be given again. A holder whose lease was taken cannot store any more, and
gives no more: by its own clock it trusts the lease only until its end, and asks first then. So it is where Postgres was
restored, and the row names who read before: what was given since the row was copied is given again.
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from statecache import _process
from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import boottime, monotonic
from statecache.errors import LeaseLost, StateCacheError, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    from statecache.concurrency import Background
    from statecache.core.postgres.tier import PostgresTier

END_S = 0.05
"""How long who is cancelled waits for a name to be given back, in seconds."""
LEASE_S = 10.0
STORE_S = 1.0
"""How often it is stored where a reader stands, in seconds."""
_LOOK_S = 1.0
"""How often a reader that waits for its name looks whether it is free, in seconds."""
_GIVE_BACK_S = 1.0
_UNDER_WAY_S = 0.2
"""How long after it was cut off a request may come to its end, in seconds."""
_is_name = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch


class Consumer:
    """One name as it is held here, by the task or thread `owner`.

    `until` is the moment to which the lease is trusted, on the clock of `boottime`.
    """

    def __init__(self, name: str, prefix: str) -> None:
        self.name = name
        self.prefix = prefix
        self.holder = secrets.token_hex(8)
        self.owner: ref[object] | None = None
        """A reference to it would keep the name: what has failed has the feed in its traceback."""
        self.until = -inf
        self.stored = ""
        self.store_at = 0.0
        self._pid = _process.pid

    @property
    def inherited(self) -> bool:
        """Whether this process has it from the one that forked it, which goes on reading for it."""
        return self._pid != _process.pid

    def reads_like(self, other: Consumer) -> bool:
        """Return whether another one is for the same name, of the same task or thread."""
        return (self.name, self.owner) == (other.name, other.owner)

    def refuse_inherited(self) -> None:
        """Raise UsageError in a forked child: what is given there, the parent would be given no more."""
        if self.inherited:
            hint = "Ask for its feed in the process that reads it."
            raise UsageError(
                f"the feed of the consumer {self.name!r} belongs to the process that has forked", hint=hint
            )

    def lost(self) -> LeaseLost:
        """Return the error for a name that its row gives to somebody else, or to nobody; it does not tell why."""
        reason = "another process reads for it now, or Postgres was restored to a moment before this one read for it"
        hint = "Ask for its feed again: it goes on where Postgres says that its reader stood; changes may come again."
        return LeaseLost(f"consumer {self.name}", token=self.holder, reason=reason, hint=hint)


class Consumers:
    """The names that a client holds, and their renewal."""

    def __init__(self, postgres: PostgresTier) -> None:
        self._postgres = postgres
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget the names, which another process holds."""
        self._mutex = mutex
        self._held: WeakSet[Consumer] = WeakSet()
        self._renewer: Background | None = None
        self._end = self._postgres.io.signal()

    async def take(self, consumer: Consumer, stands_at: str, *, seconds: float) -> str:
        """Wait until nobody else has the name, and return where its reader stands; a new one begins at `stands_at`.

        Raises UsageError where this task or thread reads for it already.
        """
        consumer.owner = ref(self._postgres.io.runner())
        self._refuse_second(consumer)
        given = {"name": consumer.name, "prefix": consumer.prefix, "stands_at": stands_at, "holder": consumer.holder}
        while True:
            asked = boottime()
            rows = await self._postgres.fetch(
                "take_consumer", given | {"lease": timedelta(seconds=LEASE_S)}, seconds=seconds
            )
            prefix, stored, holder = rows[0]
            if prefix != consumer.prefix:
                hint = "Take another name, or delete its row in the table consumer to begin anew."
                raise UsageError(f"the consumer {consumer.name!r} reads {prefix!r}", hint=hint)
            if holder == consumer.holder:
                break
            await self._postgres.io.sleep(_LOOK_S)
        consumer.until, consumer.stored, consumer.store_at = asked + LEASE_S, stored, monotonic() + STORE_S
        with self._mutex:
            self._held.add(consumer)
        if self._renewer is None or not self._renewer.alive:
            self._renewer = self._postgres.io.background(self._renew, name="statecache-consumers")
            self._renewer.start()
        return str(stored)

    async def keep(
        self, consumer: Consumer, stands_at: str | None, *, seconds: float, lease: float | None = None
    ) -> None:
        """Renew the lease, and store where the reader stands; raise LeaseLost where its row names another one."""
        asked, lease = boottime(), LEASE_S if lease is None else lease
        given = {"name": consumer.name, "holder": consumer.holder, "lease": timedelta(seconds=lease)}
        rows = await self._postgres.fetch("keep_consumer", given | {"stands_at": stands_at}, seconds=seconds)
        if not rows[0][0]:
            self._let_go(consumer)
            consumer.until = -inf
            raise consumer.lost()
        consumer.until = asked + lease
        if stands_at is not None:
            consumer.stored, consumer.store_at = stands_at, monotonic() + STORE_S

    async def give_back(self, consumer: Consumer, stands_at: str | None, *, seconds: float) -> None:
        """Store where the reader stands, and let others have the name; a forked child has none to give."""
        if consumer.inherited:
            return
        self._let_go(consumer)
        await self.keep(consumer, stands_at, seconds=seconds, lease=0.0)

    async def withdraw(self, consumer: Consumer) -> None:
        """Let others have the name of a reader that was cut off; where that fails, its lease ends by itself.

        A request for the name that was cut off too may come to its end in between: so it is done twice.
        """
        for pause_s in (0.0, _UNDER_WAY_S):
            await self._postgres.io.sleep(pause_s)
            with suppress(StateCacheError):
                await self.give_back(consumer, None, seconds=_GIVE_BACK_S)

    def _refuse_second(self, consumer: Consumer) -> None:
        """Raise UsageError where the task or thread of a new feed has one of the name: it would wait for itself."""
        for one in self._all():
            if one is not consumer and one.reads_like(consumer) and boottime() < one.until:
                hint = "Go on with the feed that you have, or leave its block first: this one would wait for itself."
                raise UsageError(f"{one.name!r} is read for already by this very task or thread", hint=hint)

    def _let_go(self, consumer: Consumer) -> None:
        with self._mutex:
            self._held.discard(consumer)

    def _all(self) -> tuple[Consumer, ...]:
        with self._mutex:
            return tuple(self._held)

    async def _renew(self, background: Background) -> None:
        """Renew what is held, at a third of its time, until nothing is."""
        while self._renewer is background and self._all() and not await self._end.wait(LEASE_S / 3):
            for consumer in self._all():
                with suppress(StateCacheError):  # its reader finds out, and says so
                    await self.keep(consumer, None, seconds=LEASE_S / 3)
                del consumer

    async def close(self) -> None:
        """Let others have the names; where Postgres is away, the leases end by themselves."""
        self._end.set()
        for consumer in self._all():
            with suppress(StateCacheError):
                await self.give_back(consumer, None, seconds=_GIVE_BACK_S)
        if self._renewer is not None:
            await self._renewer.stop(_GIVE_BACK_S)


def checked_consumer(name: object) -> str:
    """Return a reader's name unchanged, or raise UsageError."""
    if isinstance(name, str) and _is_name(name):
        return name
    raise UsageError(f"consumer={name!r} is not a name", hint="It is of 1 to 64 letters, digits and _ . -")
