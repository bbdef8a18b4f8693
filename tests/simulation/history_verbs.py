"""What a session does with history: rollbacks, undos and redos, of a key and of a group, branches, checkpoints.

What they write was made by other writes, so they are moves; what they had to write, `judge_history` tells at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

from statecache.model import ABSENT
from tests.simulation.history import Invoke, Recorder
from tests.simulation.modifier_verbs import MODIFIED

if TYPE_CHECKING:
    from statecache import AsyncStateCache, State

VERBS = {"rollback": 5, "undo": 4, "redo": 2, "rollback_group": 3, "branch": 3, "checkpoint": 3}
BACK_MAX = 5
"""How many versions a rollback goes back at most."""


class HistoryVerbs:
    """The verbs about history, of a session."""

    groups: Mapping[str, Sequence[str]]
    _cache: AsyncStateCache
    _recorder: Recorder
    _name: str
    _rng: Random
    _known: dict[str, State[Any]]
    _begin: Callable[..., Invoke]
    _noting: Callable[..., Any]
    _timeout: Callable[[], float | None]
    _wrote: Callable[..., None]

    async def _rollback(self, key: str) -> None:
        known = self._known.get(key)
        to = max(1, (1 if known is None else known.version) - self._rng.randint(0, BACK_MAX))
        await self._going("rollback", key, lambda how: self._cache.rollback(key, to, ttl=inf, **how))

    async def _undo(self, key: str) -> None:
        await self._going("undo", key, lambda how: self._cache.undo(key, ttl=inf, **how))

    async def _redo(self, key: str) -> None:
        await self._undo(key)
        await self._going("redo", key, lambda how: self._cache.redo(key, ttl=inf, **how))

    async def _branch(self, key: str) -> None:
        to, known = f"new/{self._name}-{self._rng.getrandbits(60):x}", self._known.get(key)
        at = None if known is None or self._rng.random() < 0.5 else known.version
        branch = self._cache.branch
        await self._going("branch", to, lambda how: branch(key, to, at=at, ttl=inf, **how), expected={to: ABSENT})

    async def _going(self, verb: str, key: str, call: Callable[[Any], Any], **more: Any) -> None:
        """Make a call, and twice more under its change_id where its outcome is not known."""
        sent = self._begin(verb, [key], "write", own_id=self._rng.random() < 0.5, **more)
        for left in (True, True, False):
            how: Any = {"reason": sent.tag, "durability": sent.level, "timeout": self._timeout()}
            how |= {"change_id": sent.change_id} if sent.change_id else {}
            with self._noting(sent) as doubt:
                self._wrote(sent, [await call(how)])
            if not doubt.change_id or not left:
                return
            sent = self._recorder.again(sent, change_id=doubt.change_id)

    async def _rollback_group(self, key: str) -> None:
        """Go back with a group to where one of its keys was known to be; which keys that changes is found then."""
        group, keys = next((group, keys) for group, keys in self.groups.items() if key in keys)
        known = [self._known[name].position for name in keys if name in self._known]
        if not known or known[0] is None:
            return
        below = [name for name in MODIFIED if name.startswith(group + "/")]
        sent = self._begin("rollback_group", [*keys, *below], "write")
        with self._noting(sent):
            how: Any = {"reason": sent.tag, "durability": sent.level, "timeout": self._timeout()}
            states = await self._cache.rollback(group, self._rng.choice(known), group=True, **how)
            self._wrote(sent, [state for name, state in states.items() if name in keys])

    async def _checkpoint(self, key: str) -> None:
        """Make a checkpoint at the level `postgres`: what it names is durable then, as if that had been waited for."""
        sent = self._begin("checkpoint", [key], "confirm")
        with self._noting(sent):
            mark = await self._cache.checkpoint(key, sent.tag.replace("/", "-"), timeout=self._timeout())
            self._recorder.ok(sent, change_id=mark.change_id)
