"""Deleting all keys of a subject beside agents that go on writing, so that none of their commits is torn.

A commit of others may write several keys, and none of them goes without the rest. Many keys are deleted by several
commits, and what comes between these, or between the look and the first of them, may be torn:

    send    the keys are deleted by commits that go one directly behind the other, and are not waited for
    rest    the stream is read up to this moment. Where a commit is torn, the keys that hold its rest are sent, with
            those that were committed together with them since: that tears nothing but what comes in the moment
            between, a commit or two. So it ends after a few rounds, however busy the writers are
    hold    Postgres is waited for, once. What a failover of Redis took meanwhile is deleted again
    prove   Postgres alone says what was committed, and whether any of it is torn: then it goes on with the rest

A single commit that deletes all is waited for at once: as a rule nothing came before it, and Postgres says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from statecache.clock import monotonic
from statecache.core.history.subjects import known_of
from statecache.core.read.listed import Watermark
from statecache.errors import NotFound, OutcomeUnknown, StateCacheError
from statecache.history import ERASED
from statecache.keys import beyond_prefix, group_of
from statecache.model import BLIND, STATES_PER_COMMIT_MAX, Position, Write

if TYPE_CHECKING:
    from statecache.commit_protocol.answers import Committed
    from statecache.commit_protocol.commit import Commit
    from statecache.core.history.subjects import Known, Subject
    from statecache.core.runtime import Runtime

ROUNDS_MAX = 100
"""How often keys are sent at most."""


class Deleted(NamedTuple):
    """A key's last commit: the version of its tombstone, and where that is."""

    version: int
    position: Position


async def delete_all(runtime: Runtime, subject: Subject, *, seconds: float) -> tuple[dict[str, Deleted], set[str]]:
    """Delete all of a subject, and return its tombstones, which Postgres holds, and the keys whose commits are torn.

    There are such only where others tore some in each of the rounds. Raises NotFound where there was never anything.
    """
    known = await known_of(runtime, subject, seconds=seconds)
    if not known.keys:
        raise NotFound(subject.key, hint="There was never anything to erase.")
    deletion = _Deletion(runtime, subject, known, seconds)
    rest = set(known.keys)
    for _ in range(ROUNDS_MAX):
        await deletion.send(sorted(rest))
        rest = await deletion.rest()
        if not rest:
            break
    else:
        await deletion.hold()
    return deletion.deleted, rest


class _Deletion:
    """The deletes of a subject, and what of it was committed since it was looked at."""

    def __init__(self, runtime: Runtime, subject: Subject, known: Known, seconds: float) -> None:
        self._runtime = runtime
        self._subject = subject
        self._seconds = seconds
        self._shard = runtime.keys.shard(subject.key)
        self._looked_at = self._mark = known.mark
        self._commits: dict[int, dict[str, int]] = {}
        self._unheld: list[tuple[Commit, Committed]] = []
        self._places: dict[str, Position] = {}
        self.deleted: dict[str, Deleted] = {}

    async def send(self, keys: Sequence[str]) -> None:
        """Delete keys, whatever they hold; no lock is in the way."""
        runtime, subject, at_once = self._runtime, self._subject, not self.deleted
        at_once = at_once and len(keys) <= STATES_PER_COMMIT_MAX
        await runtime.committer.prepare("postgres", self._shard, end=monotonic() + self._seconds)
        locks = runtime.policies.unguarded(keys[0], None)
        for start in range(0, len(keys), STATES_PER_COMMIT_MAX):
            commit = runtime.committer.new(
                [Write(key=key, op="delete", expected=BLIND) for key in keys[start : start + STATES_PER_COMMIT_MAX]],
                self._shard, durability="postgres" if at_once else "memory",
                actor=subject.actor, reason=f"{ERASED}: {subject.why}" if subject.why else ERASED,
                end=monotonic() + self._seconds, locks=locks,
            )  # fmt: skip
            try:
                done = await runtime.committer.commit(commit)
            except StateCacheError as error:
                if not self.deleted or isinstance(error, OutcomeUnknown):
                    raise
                what = f"{len(self.deleted)} other keys of {subject.key!r} are deleted by now: call it again"
                raise OutcomeUnknown(commit.change_id, keys=commit.keys, reason=f"{what}. {error.problem}") from error
            self._note(commit, done)
            if not at_once:
                self._unheld.append((commit, done))

    def _note(self, commit: Commit, done: Committed) -> None:
        self._places[commit.change_id] = done.position
        for key, version in zip(commit.keys, done.versions, strict=True):
            self.deleted[key] = Deleted(version, done.position)

    async def rest(self) -> set[str]:
        """Return the keys that have to go too; none once Postgres holds all deletes, and nothing is torn."""
        if self._unheld and (rest := await self._rest_in_stream()):
            return rest
        await self.hold()
        await self._ask_postgres()
        return self._rest() and await self._rest_in_stream()

    async def hold(self) -> None:
        """Wait until Postgres holds what was sent; what a failover took is applied again."""
        held = [(commit, await self._endured(commit, done)) for commit, done in self._unheld]
        self._unheld.clear()
        for commit, done in sorted(held, key=lambda one: one[1].position):
            self._note(commit, done)

    async def _endured(self, commit: Commit, done: Committed) -> Committed:
        commit.durability, commit.end = "postgres", monotonic() + self._seconds
        try:
            return await self._runtime.committer.endured(commit, done)
        except StateCacheError as error:
            await self._runtime.committer.failed(commit, error)
            raise

    async def _ask_postgres(self) -> None:
        """Read anew what was committed since the look, and how far Postgres holds the shard."""
        subject = self._subject
        asked = {
            "shard": self._shard, "after": self._looked_at.flushed, "key": subject.key, "prefixes": [*subject.prefixes],
            "beyond": [beyond_prefix(prefix) for prefix in subject.prefixes],
        }  # fmt: skip
        self._commits.clear()
        for key, version, n in await self._runtime.postgres.fetch("erase_between", asked, seconds=self._seconds):
            if key:
                self._commits.setdefault(n, {})[key] = version
            else:
                self._mark = Watermark(version, n)

    async def _rest_in_stream(self) -> set[str]:
        """Add what the stream holds of the subject; what cannot be read there now is found in Postgres later."""
        group = group_of(self._subject.key)
        tail = await self._runtime.tails.behind(self._mark, self._shard, group, seconds=self._seconds)
        for one in tail.versions:
            if self._subject.means(one.key):
                self._commits.setdefault(one.position.n, {})[one.key] = one.version
        if not tail.lacking:
            self._mark = Watermark(self._mark.epoch, tail.newest)
        return self._rest()

    def _rest(self) -> set[str]:
        """Return the keys that have to go so that no commit loses some of its keys and keeps others.

        A change goes if it is no later than its key's tombstone, or was there before the first delete. Who deletes a
        key takes every change of it that is known here: the rest of those commits goes with it.
        """
        rest: set[str] = set()
        first = min(place.n for place in self._places.values())  # of those that were made again, where they are now

        def goes(key: str, version: int) -> bool:
            return key in rest or (key in self.deleted and version <= self.deleted[key].version)

        while True:
            more = {
                key for n, written in self._commits.items()
                if n <= first or any(goes(*one) for one in written.items())
                for key, version in written.items() if not goes(key, version)
            }  # fmt: skip
            if not more:
                return rest
            rest |= more
