"""The verbs about branches: begin one, list them, see where a key came from, merge one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, TypeVar, overload

from statecache.changes import Branch
from statecache.checkpoints import Checkpoint
from statecache.codec import codec_for
from statecache.core.history import branching, merges
from statecache.core.history.branches import link_of
from statecache.core.history.targets import checked_aim
from statecache.core.history.terms import ASK_FIRST, Terms
from statecache.core.own_records import refuse_merge_of_head
from statecache.core.view import VerbGroup
from statecache.errors import UsageError
from statecache.history_errors import MergeConflict
from statecache.keys import checked_group, checked_key
from statecache.model import Durability, Position, State, Ttl
from statecache.rules.ancestry import Ancestry, Place

D = TypeVar("D")


class AsyncBranches(VerbGroup[D], Generic[D]):
    """The verbs about branches."""

    @overload
    async def branch(
        self, name: str, to: str, *, at: Checkpoint | str | int | Position | None = ..., group: Literal[False] = ...,
        ttl: Ttl | None = ..., durability: Durability | None = ..., actor: str = ..., reason: str = ...,
        change_id: str | None = ..., timeout: float | None = ...,
    ) -> State[D]: ...  # fmt: skip
    @overload
    async def branch(
        self, name: str, to: str, *, at: Checkpoint | str | Position | None = ..., group: Literal[True],
        durability: Durability | None = ..., actor: str = ..., reason: str = ..., timeout: float | None = ...,
    ) -> dict[str, State[Any]]: ...  # fmt: skip
    async def branch(
        self,
        name: str,
        to: str,
        *,
        at: Checkpoint | str | int | Position | None = None,
        group: bool = False,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[Any] | dict[str, State[Any]]:
        """Begin the key `to` with what `name` holds, or held at a point, and return its state.

        `at` is a checkpoint or its label, a version, or a position. Postgres keeps a reference in place of the bytes,
        so the origin has to be there first: the call waits for that. The branch lasts as `ttl` or the namespace says,
        or until the end of its origin. Raises AlreadyExists where there is a state `to`, NotFound where there is
        nothing to branch from, what `rollback` raises for a point, and UsageError for what an adapter keeps in several
        keys of a group.

        With `group`, `name` and `to` are groups, and all keys begin in one commit, with the records of their steps and
        without checkpoints; their states are returned by key, as plain data. Raises AlreadyExists where there is any
        state of `to`, and LimitExceeded for more than 256 keys or 16 MiB. `change_id`, for one key, repeats a call
        whose outcome is unknown. `timeout` is in seconds.
        """
        full, new = self._view.source(name), self._view.full(to)
        if group and (change_id is not None or ttl is not None):
            hint = "" if change_id is None else ASK_FIRST
            raise UsageError("change_id= and ttl= are for one key, not for a group", hint=hint)
        key, new = (checked_group(full), checked_group(new)) if group else (checked_key(full), checked_key(new))
        if key == new:
            raise UsageError(f"{key!r} cannot be a branch of itself")
        if at is not None:
            checked_aim(at, None, whole=group)
        terms = Terms.of(
            self._view, durability=durability, actor=actor, reason=reason, timeout=timeout, change_id=change_id
        )
        if group:
            return await branching.branch_group(self._view, key, new, at, terms)
        return await branching.branch(self._view, key, new, at, terms, ttl=ttl)

    async def branches(self, name: str, *, group: bool = False, timeout: float | None = None) -> list[Branch]:
        """Return the branches that began with a key, in the order of its versions, or with any key of a group.

        What Postgres does not hold yet is not among them. `timeout` is in seconds. Raises PostgresUnavailable.
        """
        full, end = self._view.full(name), self._view.end_of(timeout)
        key = checked_group(full) if group else checked_key(full)
        found = await self._runtime.branches.below(key, whole=group, end=end)
        return [one for one in found if one.kind == "branch"]

    async def ancestry(self, name: str, *, timeout: float | None = None) -> list[Branch]:
        """Return from which changes of other keys a state was made, and those, and so on, the newest first.

        These are the branches that it began as and the merges that it has seen. What Postgres does not hold yet is not
        among them. `timeout` is in seconds. Raises PostgresUnavailable.
        """
        key, end = checked_key(self._view.full(name)), self._view.end_of(timeout)
        found = await self._runtime.branches.above([key], end=end)
        newest = max((one.version for one in found if one.key == key), default=0)
        lives = Ancestry(map(link_of, found)).reached(Place(key, newest))
        spans = [(life.key, range(life.begun, last + 1)) for life, last in lives.items()]
        return [one for one in found if any(one.key == of and one.version in span for of, span in spans)]

    async def merge(
        self,
        name: str,
        into: str,
        *,
        function: Callable[[Any, Any, Any], Awaitable[Any] | Any] | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[D]:
        """Write into one key what was done on a branch since both were the same, and return its state.

        The two, and the version that both were made from, or at which they were merged last, are merged part by part:
        what one side changed is taken from it, what both appended to a list is kept, ours first. What they changed
        differently raises MergeConflict, which names the paths. With `function(base, ours, theirs)`, or that of the
        namespace, it decides where both have changed; it may be async, and may be called again where somebody else was
        quicker. Where the branch has nothing new, nothing is written. A merge that an undo or a rollback has taken back
        does not count as the last one: what it took in comes in again, until a redo brings the merge back.

        Both have to be in Postgres first: the call waits for that. Raises NotFound where either is gone, UsageError for
        keys that have nothing in common, for a key that has taken back a merge of the other one, which had merged it in
        turn by then, for what an adapter keeps in several keys of a group, of which a merge takes one alone, and for a
        `function` that is none; VersionNotFound where what both were made from is no longer kept, neither by its key
        nor by a branch of it. By a lease, `name` may be of another group. `change_id` repeats a call whose outcome is
        unknown. `timeout` is in seconds.
        """
        if function is not None and not callable(function):
            raise UsageError(
                f"function={function!r} is not a function of base, ours and theirs",
                hint="Say function=lambda base, ours, theirs: ours, or whatever decides where both have changed.",
            )
        branch, target = checked_key(self._view.source(name)), checked_key(self._view.full(into))
        if branch == target:
            raise UsageError(f"{branch!r} cannot be merged into itself")
        terms = Terms.of(
            self._view, durability=durability, actor=actor, reason=reason, timeout=timeout, change_id=change_id
        )
        try:
            return await merges.merge(self._view, branch, target, function or self._view.policy.merge, terms)
        except MergeConflict:
            ours = await self._runtime.reader.record(target, end=terms.end)
            if ours.exists:
                refuse_merge_of_head(target, codec_for(Any).decode(ours.value, key=target, encoding=ours.encoding))
            raise
