# Generated from statecache/_async/rollback.py by tests/generators/unasync.py. Do not edit.

"""The verbs that go back, and forth again: rollback, undo, redo; of one key, or of all keys of a group at once."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, overload

from statecache.checkpoints import Checkpoint
from statecache.concurrency import run
from statecache.core.history.repeats import Asked
from statecache.core.history.restoring import Walk, restore, to_target, walking
from statecache.core.history.restoring_groups import group_walking, restore_group, to_group_target
from statecache.core.history.targets import checked_aim
from statecache.core.history.terms import ASK_FIRST, Terms
from statecache.core.view import VerbGroup
from statecache.errors import UsageError
from statecache.keys import checked_group, checked_key
from statecache.model import Durability, Expected, Position, State, Ttl

D = TypeVar("D")


class Rollback(VerbGroup[D], Generic[D]):
    """The verbs that go back."""

    @overload
    def rollback(
        self, name: str, to: Checkpoint | str | int | Position | None = ..., *, at: datetime | None = ...,
        group: Literal[False] = ..., expected: Expected = ..., ttl: Ttl | None = ...,
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., change_id: str | None = ...,
        timeout: float | None = ...,
    ) -> State[D | None]: ...  # fmt: skip
    @overload
    def rollback(
        self, name: str, to: Checkpoint | str | Position | None = ..., *, at: datetime | None = ...,
        group: Literal[True], steps: bool = ..., durability: Durability | None = ..., actor: str = ...,
        reason: str = ..., timeout: float | None = ...,
    ) -> dict[str, State[Any]]: ...  # fmt: skip
    def rollback(
        self,
        name: str,
        to: Checkpoint | str | int | Position | None = None,
        *,
        at: datetime | None = None,
        group: bool = False,
        steps: bool = False,
        expected: Expected = ...,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[Any] | dict[str, State[Any]]:
        """Write what the state was, by a new commit whose reason says so, and return it: a tombstone for a delete.

        `to` is a checkpoint or its label, a version, or a position; `at` is a moment. The value comes back as it was
        stored, with its schema; it lasts as `ttl` or the namespace says, or until the end that it had. `expected` is
        as in `set`. Raises AlreadyCurrent where nothing would change, VersionNotFound, with what is nearest, where
        there is no such version or its value is no longer kept, CheckpointNotFound, HistoryIncomplete.

        With `group`, `name` is a group, and all of its keys go back in one commit: what was created since is deleted,
        what was deleted is created again. What was written is returned by key, as plain data. What has ended since
        counts as deleted. Checkpoints stay, and so do the records of steps, which would run again without them, unless
        `steps`. Raises LimitExceeded, before any effect, for more than 256 keys or 16 MiB. `change_id`, for one key,
        repeats a call whose outcome is unknown. `timeout` is in seconds.
        """
        terms = self._terms_of(durability, actor, reason, change_id, timeout, group=group, steps=steps)
        if not group:
            key = checked_key(self._view.full(name))
            checked_aim(to, at, whole=False)
            decide = to_target(self._view, key, to, at, terms)
            asked = Asked("rollback", aim=to, at=at)
            return run(restore(self._view, key, decide, asked, terms, expected=expected, ttl=ttl))
        if expected is not ... or ttl is not None:
            raise UsageError("expected= and ttl= are for one key, not for a group")
        key = checked_group(self._view.full(name))
        checked_aim(to, at, whole=True)
        return run(restore_group(self._view, key, to_group_target(self._view, key, to, at, terms), terms, steps=steps))

    @overload
    def undo(
        self, name: str, *, group: Literal[False] = ..., expected: Expected = ..., ttl: Ttl | None = ...,
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., change_id: str | None = ...,
        timeout: float | None = ...,
    ) -> State[D | None]: ...  # fmt: skip
    @overload
    def undo(
        self, name: str, *, group: Literal[True], durability: Durability | None = ..., actor: str = ...,
        reason: str = ..., timeout: float | None = ...,
    ) -> dict[str, State[Any]]: ...  # fmt: skip
    def undo(
        self,
        name: str,
        *,
        group: bool = False,
        expected: Expected = ...,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[Any] | dict[str, State[Any]]:
        """Take back the last edit by a new commit, and return the state; undo after undo goes further back.

        An edit is every change but an undo and a redo, whoever made it. With `group`, `name` is a group, and the last
        commit of its keys is taken back, by one commit of them all; one that changed nothing is passed over. Raises
        VersionNotFound where there is nothing to be undone: the first change is not. Otherwise as `rollback`.
        """
        terms = self._terms_of(durability, actor, reason, change_id, timeout, group=group)
        return run(self._walked("undo", name, terms, group=group, expected=expected, ttl=ttl))

    @overload
    def redo(
        self, name: str, *, group: Literal[False] = ..., expected: Expected = ..., ttl: Ttl | None = ...,
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., change_id: str | None = ...,
        timeout: float | None = ...,
    ) -> State[D | None]: ...  # fmt: skip
    @overload
    def redo(
        self, name: str, *, group: Literal[True], durability: Durability | None = ..., actor: str = ...,
        reason: str = ..., timeout: float | None = ...,
    ) -> dict[str, State[Any]]: ...  # fmt: skip
    def redo(
        self,
        name: str,
        *,
        group: bool = False,
        expected: Expected = ...,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[Any] | dict[str, State[Any]]:
        """Bring back by a new commit what the last undo took back, and return the state.

        Any edit since ends that: VersionNotFound says that there is nothing to be redone. Otherwise as `undo`.
        """
        terms = self._terms_of(durability, actor, reason, change_id, timeout, group=group)
        return run(self._walked("redo", name, terms, group=group, expected=expected, ttl=ttl))

    def _walked(
        self, kind: Walk, name: str, terms: Terms, *, group: bool, expected: Expected, ttl: Ttl | None
    ) -> State[Any] | dict[str, State[Any]]:
        view = self._view
        if not group:
            key = checked_key(view.full(name))
            decide = walking(view, key, kind, terms)
            return run(restore(view, key, decide, Asked(kind), terms, expected=expected, ttl=ttl))
        if expected is not ... or ttl is not None:
            raise UsageError("expected= and ttl= are for one key, not for a group")
        key = checked_group(view.full(name))
        return run(restore_group(view, key, group_walking(view, key, kind, terms), terms, steps=False))

    def _terms_of(
        self, durability: Durability | None, actor: str, reason: str, change_id: str | None, timeout: float | None, *,
        group: bool, steps: bool = False,
    ) -> Terms:  # fmt: skip
        if group and change_id is not None:
            raise UsageError("change_id= is for one key, not for a group", hint=ASK_FIRST)
        if steps and not group:
            raise UsageError("steps= is for a group, not for one key")
        return Terms.of(
            self._view, durability=durability, actor=actor, reason=reason, timeout=timeout, change_id=change_id
        )
