"""Checkpoints that a namespace's policy has made unasked, by whichever client writes its keys.

    every_changes    at a version that is a multiple of it: each version is written by one client, so one makes it
    every_s          at the first change of a span of time, counted by Redis' clock; the label names the span, so of
                     many clients that write in it one makes the checkpoint
    before_step      before a step begins, so before its function is called
    at_shutdown      when a client is closed, of the last keys that it has written since it made one

They are made at the level `memory`, beside the call that wrote, which does not wait for them, but for `before_step`.
The first two name the version that made them due, whatever was written since, unless the latest values alone are kept.
What goes wrong with one is logged and is nothing to the write. Some are made at once, the others wait for their turn;
where WAITING_MAX wait, further ones are left out, which is logged too.

Those of writes under a lease are made under it. Where it was given back meanwhile they are made without: of an enforced
lock by waiting for whoever has it now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.core.history.checkpointing import Wanted, make
from statecache.core.history.due import Due, DueCheckpoint
from statecache.core.history.terms import Terms
from statecache.core.own_records import OWN_SCHEMAS
from statecache.core.view import View
from statecache.errors import LeaseLost, LockHeld, NotFound, StaleToken, StateCacheError
from statecache.history_errors import CheckpointExists
from statecache.keys import group_of
from statecache.records import time_of

if TYPE_CHECKING:
    from statecache.checkpoint_policy import CheckpointPolicy
    from statecache.commit_protocol.answers import Committed
    from statecache.commit_protocol.commit import Commit
    from statecache.core.runtime import Runtime
    from statecache.model import Policy

_MAKING_S = 2.0
"""How long one may take."""
_LOGGED_S = 60.0
"""How often it is logged that one was not made."""
_logger = logging.getLogger("statecache")


class AutomaticCheckpoints:
    """The making of the checkpoints that one policy asks for."""

    def __init__(self, policy: CheckpointPolicy) -> None:
        self._policy = policy

    async def after(self, view: View[Any], commit: Commit, committed: Committed) -> None:
        """Note what a commit wrote, and begin to make the checkpoints that are due."""
        policy, remembered = self._policy, view.runtime.due_checkpoints
        for write, version in zip(commit.written(), committed.versions, strict=True):
            if write.op == "delete" or write.schema in OWN_SCHEMAS:
                continue
            if policy.at_shutdown:
                remembered.note(write.key, view.policy, version)
            found = remembered.due(policy, write.key, version, time_of(committed.updated_at))
            if found is None:
                continue
            wanted = msgspec.structs.replace(
                _wanted(policy, write.key, found), version=version, position=committed.position
            )
            due = Due(write.key, version, partial(_make, view, wanted))
            if (begins := remembered.begins(due)) is None:
                _log(view.runtime, wanted.key, "too many wait for their turn")
            elif begins:
                await view.runtime.io.beside(partial(_make_beside, view.runtime, due), 0.0)

    async def before_step(self, view: View[Any], key: str) -> None:
        """Make the checkpoint of a key whose step is about to begin, if the policy says so."""
        if self._policy.before_step:
            await _make(view, _wanted(self._policy, key, DueCheckpoint("step")), _MAKING_S)


async def make_at_shutdown(runtime: Runtime, view_of: Callable[[Policy], View[Any]], *, seconds: float) -> None:
    """Make the checkpoints of what was written, within that many seconds; `view_of` makes a view of a policy."""
    end, done, remembered = monotonic() + seconds, set[str](), runtime.due_checkpoints
    for due in remembered.waiting():
        if (left := end - monotonic()) > 0:
            await _make_due(runtime, due, min(left, _MAKING_S))
        else:
            _log(runtime, due.key, "the client is closed")
    for key, (policy, _) in remembered.written().items():
        if policy.checkpoint is None:
            continue
        wanted, left = _wanted(policy.checkpoint, key, DueCheckpoint("shutdown")), end - monotonic()
        if wanted.key not in done and left > 0:
            done.add(wanted.key)
            await _make(view_of(policy), wanted, min(left, _MAKING_S))


async def _make_beside(runtime: Runtime, due: Due | None) -> None:
    """Make a checkpoint, and those that wait, one after the other."""
    remembered = runtime.due_checkpoints
    try:
        while due is not None:
            await _make_due(runtime, due, _MAKING_S)
            due = remembered.next()
    finally:
        if due is not None:
            remembered.ends()


async def _make_due(runtime: Runtime, due: Due, seconds: float) -> None:
    if await due.make(seconds):
        runtime.due_checkpoints.made(due.key, due.version)


async def _make(view: View[Any], wanted: Wanted, seconds: float) -> bool:
    """Make a checkpoint and return True, or log why it was not made."""
    backoff, terms = Backoff(0.005, 0.1), Terms.of(view, durability="memory", actor="", reason="", timeout=seconds)
    while True:
        try:
            await make(view, wanted, terms)
        except (CheckpointExists, NotFound):  # somebody else has made it, or has deleted what was there
            return False
        except (LeaseLost, StaleToken):
            view = View(view.runtime, view.policy, view.prefix)
        except StateCacheError as error:
            if not isinstance(error, LockHeld) or backoff.outlasts(terms.end):
                _log(view.runtime, wanted.key, error)
                return False
            await view.runtime.io.sleep(backoff.take())
        else:
            return True


def _log(runtime: Runtime, key: str, why: object) -> None:
    """Log that one was not made, once in a while."""
    now, remembered = monotonic(), runtime.due_checkpoints
    if now > remembered.logged + _LOGGED_S:
        remembered.logged = now
        _logger.warning("the automatic checkpoint of %r was not made: %s", key, why)


def _wanted(policy: CheckpointPolicy, key: str, due: DueCheckpoint) -> Wanted:
    return Wanted(
        key=group_of(key) if policy.group else key, scope="group" if policy.group else "key", label=due.label,
        automatic=True, why=due.why,
    )  # fmt: skip
