# Generated from statecache/_async/bulk.py by tests/generators/unasync.py. Do not edit.

"""The verbs about many states at once, and about whether there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from statecache.clock import boottime, monotonic
from statecache.commit_protocol.answers import Absent
from statecache.concurrency import iterated, run
from statecache.core.arguments import refuse_no_function, refuse_no_mapping, refuse_no_names
from statecache.core.parts import in_parts
from statecache.core.read.listed import Listed
from statecache.core.view import VerbGroup, checked_reason, checked_text
from statecache.errors import BulkError, StateCacheError, UsageError, VersionConflict
from statecache.keys import checked_key, checked_prefix_of_list
from statecache.model import BLIND, PRESENT, Durability, ReadMode, State, Ttl, Write
from statecache.rules.filters import Selection

if TYPE_CHECKING:
    from statecache.model import Record

D = TypeVar("D")
V = TypeVar("V")
_DELETED_AT_ONCE = 500
"""How many states are deleted before the next are listed."""
_GONE = (Absent, VersionConflict)
"""What a delete of many meets where somebody else was quicker."""


class Bulk(VerbGroup[D], Generic[D]):
    """The verbs about many states."""

    @overload
    def get_many(
        self, names: Iterable[str], *, read: ReadMode | None = ..., max_stale: float | None = ...,
        timeout: float | None = ...,
    ) -> dict[str, State[D] | None]: ...  # fmt: skip
    @overload
    def get_many(
        self, names: Iterable[str], *, type: type[V], read: ReadMode | None = ..., max_stale: float | None = ...,
        timeout: float | None = ...,
    ) -> dict[str, State[V] | None]: ...  # fmt: skip
    @overload
    def get_many(
        self, names: Iterable[str], *, type: object, read: ReadMode | None = ..., max_stale: float | None = ...,
        timeout: float | None = ...,
    ) -> dict[str, State[Any] | None]: ...  # fmt: skip
    def get_many(
        self,
        names: Iterable[str],
        *,
        type: Any = None,  # noqa: A002
        read: ReadMode | None = None,
        max_stale: float | None = None,
        timeout: float | None = None,
    ) -> dict[str, State[Any] | None]:
        """Return the current state of each name, or None where there is none, in the order of the names.

        Each is read as `get` reads it, with the same promises, and hundreds in one exchange; together they are no
        snapshot. `read`, `max_stale` and the errors are those of `get`: one state that cannot be had fails the call.
        `timeout` is for the whole call, in seconds.
        """
        refuse_no_names(names, "get_many")
        end, mode = self._view.end_of(timeout), self._view.mode_of(read, max_stale)
        keys = {name: checked_key(self._view.full(name)) for name in names}
        found: dict[str, State[Any] | None] = {}
        missing = keys
        if mode == "local":
            found = self._kept_of(keys, type, inf if max_stale is None else max_stale)
            missing = {name: key for name, key in keys.items() if name not in found}
        records = run(self._records(list(missing.values()), mode, max_stale, end)) if missing else {}
        found |= {name: self._view.state_of(records[key], type) for name, key in missing.items()}
        return {name: found[name] for name in keys}

    def _kept_of(self, keys: dict[str, str], type: Any, stale_s: float) -> dict[str, State[Any] | None]:  # noqa: A002
        """Return the states of those names that are kept here and may be believed."""
        found: dict[str, State[Any] | None] = {}
        kind, now = self._view.kind if type is None else type, boottime()
        for name, key in keys.items():
            entry = self._view.near.look(key, now, stale_s)
            if entry is not None:
                shared_kind, state = entry.shared
                found[name] = state if shared_kind is kind else self._view.decoded(entry, kind, type)
        return found

    def _records(self, keys: list[str], mode: str, max_stale: float | None, end: float) -> dict[str, Record]:
        many = self._runtime.many
        if mode == "local":
            return run(many.local(keys, end=end, max_stale=max_stale))
        return run((many.fenced if mode == "fenced" else many.primary)(keys, end=end))

    def set_many(
        self,
        values: Mapping[str, D],
        *,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> dict[str, State[D]]:
        """Write each value under its name, whatever is there, and return the states by name.

        Each is a commit of its own, with the promises of `set`, and dozens go in one exchange: there is no order among
        them, and another's failure is nothing to them. Names and values that cannot be written are refused before
        anything is. Raises BulkError once all were tried, where any failed: its `states` and `errors` say of each name
        what became of it. `ttl` is how long each lasts, as in `set`. `timeout` is for the whole call, in seconds; use
        `commit` for states that belong together.
        """
        refuse_no_mapping(values, "set_many")
        writes = {name: self._view.write_of(checked_key(self._view.full(name)), value, expected=BLIND, ttl=ttl)
                  for name, value in values.items()}  # fmt: skip
        states, errors = run(self._write_each(writes, durability, actor, reason, self._view.end_of(timeout)))
        if errors:
            raise BulkError(states=states, errors=errors)
        return states

    def delete_many(
        self,
        names: Iterable[str] | None = None,
        *,
        prefix: str | None = None,
        dry_run: bool = False,
        progress: Callable[[int], object] | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> int:
        """Delete the named states, or all whose keys start with the prefix, and return how many were deleted.

        Each is a commit of its own, and dozens go in one exchange. Under a prefix each is deleted as it was listed,
        the records of steps too: what somebody writes meanwhile stays, and is not counted. `dry_run` only counts.
        `progress` is called with the count after every few hundred, and `timeout`, in seconds, is for each of these.
        Raises BulkError, with the tombstones of those few hundred, where one of them failed: the rest was not tried.
        """
        if isinstance(names, str) or (names is None) == (prefix is None):
            raise UsageError("delete_many takes names, or a prefix", hint='Say delete_many(prefix="42/").')
        if names is not None:
            refuse_no_names(names, "delete_many")
        if progress is not None:
            refuse_no_function(progress, "progress=")
        count, seconds = 0, self._view.end_of(timeout) - monotonic()
        for writes in iterated(self._deletions(names, prefix, seconds)):
            if dry_run:
                count += run(self._present(writes, seconds)) if prefix is None else len(writes)
            else:
                states, errors = run(self._write_each(writes, durability, actor, reason, monotonic() + seconds))
                count += len(states)
                left = {name: error for name, error in errors.items() if not isinstance(error, _GONE)}
                if left:
                    raise BulkError(states=states, errors=left)
            if progress is not None:
                progress(count)
        return count

    def _deletions(self, names: Iterable[str] | None, prefix: str | None, seconds: float) -> Iterator[dict[str, Write]]:
        """Yield what is to be deleted, a few hundred at a time, under names as the caller knows them."""
        if names is not None:
            keys = {name: checked_key(self._view.full(name)) for name in names}
            for some in in_parts([*keys], _DELETED_AT_ONCE):
                yield {
                    name: Write(key=keys[name], op="delete", expected=PRESENT, ttl_ms=self._view.ttl_ms)
                    for name in some
                }
            return
        whole, _ = checked_prefix_of_list(self._view.full(prefix or ""), self._runtime.keys.shards)
        listed = Listed(selection=Selection(prefix=whole), values=False)
        writes: dict[str, Write] = {}
        for record in iterated(self._runtime.listing.records(listed, seconds=seconds)):
            writes[record.key.removeprefix(self._view.full(""))] = Write(
                key=record.key, op="delete", expected=record.change_id, ttl_ms=self._view.ttl_ms
            )
            if len(writes) == _DELETED_AT_ONCE:
                yield writes
                writes = {}
        if writes:
            yield writes

    def _present(self, writes: Mapping[str, Write], seconds: float) -> int:
        """Return how many of them there are to delete."""
        keys = [write.key for write in writes.values()]
        records = run(self._runtime.many.primary(keys, end=monotonic() + seconds))
        return sum(record.exists for record in records.values())

    def _write_each(
        self, writes: Mapping[str, Write], durability: Durability | None, actor: str, reason: str, end: float
    ) -> tuple[dict[str, State[Any]], dict[str, StateCacheError]]:
        """Make each write a commit of its own; return the states by name, and the errors of those that failed."""
        view = self._view
        level, who, why = view.durability_of(durability), checked_text(actor, "actor"), checked_reason(reason)
        new, shard = self._runtime.committer.new, self._runtime.keys.shard
        commits = [
            new([write], shard(write.key), durability=level, actor=who, reason=why, end=end,
                locks=view.locks_of((write.key,)))
            for write in writes.values()
        ]  # fmt: skip
        outcomes = run(self._runtime.many_commits.commit(commits)) if commits else []
        states: dict[str, State[Any]] = {}
        errors: dict[str, StateCacheError] = {}
        for (name, write), outcome in zip(writes.items(), outcomes, strict=True):
            if isinstance(outcome, StateCacheError):
                errors[name] = outcome
            else:
                states[name] = view.committed_state(write, outcome, 0)
        both = zip(commits, outcomes, strict=True)
        run(view.applied(*((commit, done) for commit, done in both if not isinstance(done, StateCacheError))))
        return states, errors

    def exists(
        self, name: str, *, read: ReadMode | None = None, max_stale: float | None = None, timeout: float | None = None
    ) -> bool:
        """Return whether there is a state, read as `get` reads it, whatever the type of its value.

        Raises Unavailable where that cannot be learnt in time, and Quarantined for a state that only quarantine holds.
        """
        view = self._view
        key, end, mode = checked_key(view.full(name)), view.end_of(timeout), view.mode_of(read, max_stale)
        entry = view.near.look(key, boottime(), inf if max_stale is None else max_stale) if mode == "local" else None
        record = entry.record if entry is not None else run(view.read_record(key, mode, max_stale, 0, end))
        view.refuse_quarantined(record)
        return record.exists
