"""The update queue of all clients: of all processes that update one state at once, the one whose turn it is goes next.

Without it they would read the same state, and all but one would do their work in vain, again and again. Nobody asks for
it before there is a reason to: a commit met a conflict, or an update of the same state did so, or had to wait, within
the last second. Then

    ask     a script has the next one called where it is nobody's turn: with the state as it is
    wait    in the same go, on a list of Redis, which wakes only whoever waits longest; who came first is called first
    pass    sent in one go with the commit, which it follows if that is applied: with the state that the commit has
            left, so that the next one begins without reading anything. Whoever has given up passes it on too

A turn is a courtesy and no lock: the compare-and-set of the commit decides. One that is not passed on ends by itself a
second after somebody was called, and whoever has waited for as long goes on without. So does at once who may not wait,
for Redis refuses it, or half of this client's connections are held already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.errors import ForeignData, StateCacheError
from statecache.lua import script
from statecache.records import FIELDS, record_of

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.model import Record
    from statecache.near import Near
    from statecache.resp import Command

_LASTS_MS = 1000
"""How long whoever has a turn is waited for, in ms."""
_PATIENCE_S = 1.0
_CROWDED_S = 1.0
"""How long after a conflict, or a wait, updates of a state begin by asking for the turn, in seconds."""
_CROWDED_MAX = 1000
"""Of how many states that is remembered."""
_REFUSED_S = 60.0
_PASS_S = 0.2
_END_S = 0.05
"""How long whoever has not committed may take to pass the turn on, in seconds; it also expires by itself."""
_HANDED_BYTES_MAX = 64 * 1024
"""The largest value that is sent along with a call, in bytes; larger ones are read."""


class SharedQueues:
    """What a client knows of these queues: which states are crowded, and on how many connections it may wait."""

    def __init__(self, keys: KeySpace, redis: RedisTier, near: Near, *, new_token: Callable[[], str]) -> None:
        self.keys = keys
        self.redis = redis
        self.near = near
        self.new_token = new_token
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget what a parent knew of others."""
        self._mutex = mutex
        self._crowded: dict[str, float] = {}
        self._not_before = 0.0

    def of(self, key: str, *, end: float) -> SharedTurn:
        """Return the turn of a state, for one update; leaving its block passes it on."""
        return SharedTurn(self, key, end)

    def is_crowded(self, key: str) -> bool:
        """Return whether others have lately updated the state at the same time, and waiting is possible."""
        return self._not_before <= monotonic() < self._crowded.get(key, 0.0)

    def crowd(self, key: str) -> None:
        """Note that others are updating the state at the same time."""
        with self._mutex:
            self._crowded.pop(key, None)
            self._crowded[key] = monotonic() + _CROWDED_S
            if len(self._crowded) > _CROWDED_MAX:
                del self._crowded[next(iter(self._crowded))]

    def refused(self) -> None:
        """Note that Redis does not allow this client to wait, or to call; it is tried again after a while."""
        self._not_before = monotonic() + _REFUSED_S


class SharedTurn:
    """The turn of one state for one update, which may get it or not.

    `record` is the state that came with it, if it did and may be believed.
    """

    __slots__ = ("_end", "_key", "_names", "_queues", "_token", "record", "unlearnt")

    def __init__(self, queues: SharedQueues, key: str, end: float) -> None:
        self._queues = queues
        self._key = key
        self._end = end
        self._names: tuple[str, str, str] = ("", "", "")
        self._token = ""
        self.record: Record | None = None
        self.unlearnt: Callable[[BaseException], None] | None = None
        """What is told of an error by which the caller never learns of the update's commit, once that is answered."""

    @property
    def held(self) -> bool:
        """Whether the turn is held, as far as is known."""
        return self._token != ""

    def crowd(self) -> None:
        """Note a conflict: from now on updates of the state ask for the turn."""
        self._queues.crowd(self._key)

    async def comes(self) -> bool:
        """Wait for the turn, and return whether it came; at once where there is no need, or no way, to wait."""
        queues = self._queues
        if self.held or not queues.is_crowded(self._key) or (spare := queues.redis.pool.hold_now()) is None:
            return False
        try:
            with suppress(StateCacheError):  # what hinders more than this is met by whatever comes next
                self._got(await self._called())
        finally:
            spare.release()
        return self.held

    async def _called(self) -> Sequence[Any]:
        """Ask for the turn and wait; return what comes with the call, nothing where none came."""
        queues, patience = self._queues, self._patience()
        self._names = queues.keys.turn(self._key)
        calls, known = self._names[1], script("turn")
        wait = ("BLMPOP", f"{patience:.3f}", 1, calls, "LEFT", "COUNT", 1 + len(FIELDS))
        link = await queues.redis.pool.take(patience)
        try:
            ask = link.call(known, self._names, self._spelled(queues.new_token(), ""))
            asked, called = await link.run([ask, wait], seconds=patience * 2)
        finally:
            queues.redis.pool.give(link)
        link.knows(known, not isinstance(asked, Exception))
        if asked == 0:
            self.crowd()
        if asked == -1 or isinstance(called, Exception):
            queues.refused()
        return called[1] if isinstance(called, list) and called[0] == calls.encode() else ()

    def _patience(self) -> float:
        """Return how long to wait, in seconds: half of the time is left for the update, and for a late answer."""
        return max(min(_PATIENCE_S, (self._end - monotonic()) / 2), 0.001)

    def _got(self, answer: Sequence[Any]) -> None:
        """Keep what came: the token, and the state unless this process has seen a later one."""
        if not answer:
            return
        token, *fields = answer
        self._token = token.decode()
        if fields:
            with suppress(ForeignData):  # reading it says so
                self.record = record_of(self._names[2], self._key, fields)
        if self.record is not None and not self._queues.near.seen(self._key, (self.record.epoch, self.record.version)):
            self.record = None

    # Passing it on.

    def passing(self, link: Link, change_id: str) -> Command:
        """Return the command that passes the turn on if that change is the state's last one."""
        return link.call(script("turn"), self._names, self._spelled(change_id, change_id))

    def passed(self, link: Link, reply: Any) -> None:
        """Read the answer to the command that passes the turn on."""
        link.knows(script("turn"), not isinstance(reply, Exception))
        if reply == 1:
            self._token = ""

    def _spelled(self, next_token: str, change_id: str) -> list[Any]:
        return [self._token, next_token, change_id, _LASTS_MS, _HANDED_BYTES_MAX, *FIELDS]

    async def _pass(self) -> bool:
        """Pass the turn on whatever the state is, and return whether that was done."""
        spelled = self._spelled(self._queues.new_token(), "")
        self._token = ""
        with suppress(StateCacheError, ResponseError):
            return bool(await self._queues.redis.script("turn", self._names, spelled, seconds=_PASS_S))
        return False

    async def __aenter__(self) -> SharedTurn:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.held and kind is not GeneratorExit:  # who is thrown away cannot wait for an answer
            try:
                await self._queues.redis.io.beside(self._pass, _END_S)
            except BaseException as ended:  # the update is committed: its caller learns nothing of that
                if self.unlearnt is not None:
                    self.unlearnt(ended)
                raise
