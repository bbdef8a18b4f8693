"""Checkpoints that a namespace's policy has made unasked, by whichever client writes its keys.

    every_changes    at a version that is a multiple of it: each version is written by one client, so one makes it
    every_s          at the first change of a span of time, counted by Redis' clock; the label names the span, so of
    many
                     clients that write in it one makes the checkpoint
    before_step      before a step begins, so before its function is called
    at_shutdown      when a client is closed, of what it has written since it last made one: `WRITTEN_MAX` keys at most

They are made at the level `memory`, beside the call that wrote, which does not wait for them, but for `before_step`.
What goes wrong with one is logged and is nothing to the write. At most `UNDER_WAY_MAX` are under way; beyond that they
are left out, for a policy that asks for so many asks for too many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.core.history.checkpointing import Wanted, make
from statecache.core.history.terms import Terms
from statecache.core.own_records import OWN_SCHEMAS
from statecache.errors import NotFound, StateCacheError
from statecache.history_errors import CheckpointExists
from statecache.keys import group_of
from statecache.records import time_of
from statecache.rules.checkpoints import automatic_label

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from statecache.checkpoint_policy import CheckpointPolicy
    from statecache.commit_protocol.answers import Committed
    from statecache.commit_protocol.commit import Commit
    from statecache.concurrency import Concurrency
    from statecache.core.view import View
    from statecache.model import Policy

WRITTEN_MAX = 1000
"""Of how many keys, the last ones, it is known that they were written."""
UNDER_WAY_MAX = 16
SPANS_MAX = 10_000
"""Of how many keys, the last ones, it is known in which span of time they were written last."""
_MAKING_S = 2.0
"""How long one may take."""
_LOGGED_S = 60.0
"""How often it is logged that one was not made."""
_logger = logging.getLogger("statecache")


class AutomaticCheckpoints:
    """What a client has to know to make them, and the making."""

    def __init__(self, io: Concurrency) -> None:
        self._io = io
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Forget what a forked child's parent has written."""
        self._mutex = mutex
        self._written: dict[str, Policy] = {}
        self._spans: dict[str, int] = {}
        self._logged = float("-inf")
        self.under_way = 0
        self.made = 0
        self.failed = 0
        """How many were made, and were not, for whatever reason."""

    async def after(self, view: View[Any], commit: Commit, committed: Committed) -> None:
        """Note what a commit wrote, and begin to make the checkpoints that are due."""
        policy = view.policy.checkpoint
        if policy is None:
            return
        for write, version in zip(commit.written(), committed.versions, strict=True):
            if write.op != "set" or write.schema in OWN_SCHEMAS:
                continue
            wanted = self._due(policy, write.key, version, time_of(committed.updated_at))
            if wanted is not None and self._begins():
                self._forget(write.key)
                await self._io.beside(partial(self._make_beside, view, wanted), 0.0)
            elif policy.at_shutdown:
                self._note(write.key, view.policy)

    def _due(self, policy: CheckpointPolicy, key: str, version: int, at: datetime) -> Wanted | None:
        """Return the checkpoint that a change makes due."""
        if policy.every_changes is not None and version % policy.every_changes == 0:
            return _wanted(policy, key, "changes")
        if policy.every_s is None:
            return None
        span = int(at.timestamp() / policy.every_s)
        with self._mutex:
            known = self._spans.pop(key, None)
            while len(self._spans) >= SPANS_MAX:
                del self._spans[next(iter(self._spans))]
            self._spans[key] = span
        if known == span:
            return None
        begun = datetime.fromtimestamp(span * policy.every_s, UTC)
        return _wanted(policy, key, label=automatic_label(begun, f"every-{policy.every_s:g}s"))

    def _begins(self) -> bool:
        with self._mutex:
            if self.under_way >= UNDER_WAY_MAX:
                self.failed += 1
                return False
            self.under_way += 1
            return True

    def _note(self, key: str, policy: Policy) -> None:
        with self._mutex:
            self._written.pop(key, None)
            while len(self._written) >= WRITTEN_MAX:
                del self._written[next(iter(self._written))]
            self._written[key] = policy

    def _forget(self, key: str) -> None:
        with self._mutex:
            self._written.pop(key, None)

    async def _make_beside(self, view: View[Any], wanted: Wanted) -> None:
        try:
            await self._make(view, wanted, _MAKING_S)
        finally:
            with self._mutex:
                self.under_way -= 1

    async def before_step(self, view: View[Any], key: str) -> None:
        """Make the checkpoint of a key whose step is about to begin, if the policy says so."""
        policy = view.policy.checkpoint
        if policy is not None and policy.before_step:
            await self._make(view, _wanted(policy, key, "step"), _MAKING_S)

    async def at_shutdown(self, view_of: Callable[[Policy], View[Any]], *, seconds: float) -> None:
        """Make the checkpoints of what was written, within that many seconds; `view_of` makes a view of a policy."""
        with self._mutex:
            written, self._written = self._written, {}
        end, done = monotonic() + seconds, set[str]()
        for key, policy in written.items():
            if policy.checkpoint is None:
                continue
            wanted, left = _wanted(policy.checkpoint, key, "shutdown"), end - monotonic()
            if wanted.key not in done and left > 0:
                done.add(wanted.key)
                await self._make(view_of(policy), wanted, min(left, _MAKING_S))

    async def _make(self, view: View[Any], wanted: Wanted, seconds: float) -> None:
        """Make a checkpoint, or log why it was not made."""
        try:
            terms = Terms.of(view, durability="memory", actor="", reason="", timeout=seconds)
            await make(view, wanted, terms)
            self.made += 1
        except (CheckpointExists, NotFound):  # somebody else has made it, or has deleted what was there
            return
        except StateCacheError as error:
            self.failed += 1
            now = monotonic()
            if now > self._logged + _LOGGED_S:
                self._logged = now
                _logger.warning("the automatic checkpoint of %r was not made: %s", wanted.key, error)


def _wanted(policy: CheckpointPolicy, key: str, why: str = "", *, label: str | None = None) -> Wanted:
    return Wanted(
        key=group_of(key) if policy.group else key, scope="group" if policy.group else "key", label=label,
        automatic=True, why=why,
    )  # fmt: skip
