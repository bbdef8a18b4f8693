"""Policies of namespaces that all who write must keep: how locks are kept.

The truth is a row in Postgres; every shard's meta has a copy, which the commit script reads with what it reads anyway.
A client that knows nothing of a policy is told by the script, which refuses its commit (POLICY), and learns; it is told
the same way where a policy was changed back. A view that asks for enforced locks records that: in Postgres first, then
in every shard, before its first lock, and again where a commit of its own finds a shard that lacks it. Where an
operator has recorded that they are advisory, that stands, and the view follows it too.

A revision orders the copies. A data set that is opened gets its copy from Postgres, unless it has a newer one: then
Postgres went back, and what it has forgotten is recorded again before anything else is, and by workers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from statecache.clock import monotonic
from statecache.errors import StateCacheError, UsageError
from statecache.lua import script
from statecache.redis_errors import refusal
from statecache.rules.leases import UNGUARDED, Locks, forgotten, guards_of, taken_back
from statecache.settings import Settings, writer_of

if TYPE_CHECKING:
    from statecache.commit_protocol.commit import Commit
    from statecache.core.epoch.opener import Opener
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.model import Locking

_SHARDS_PER_EXCHANGE = 256
_logger = logging.getLogger("statecache")


class Policies:
    """What a client knows of the policies, and how it records one."""

    def __init__(
        self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier, opener: Opener
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._opener = opener
        self._enforced: frozenset[str] = frozenset()
        self._recorded: frozenset[tuple[str, int, int]] = frozenset()
        self._waived: frozenset[str] = frozenset()

    def enforces(self, key: str, locking: Locking | None) -> bool:
        """Return whether, as far as is known here, the locks of a key's namespace are enforced for a view."""
        if locking == "enforced":
            return not self._waived or _namespace_of(key) not in self._waived
        return bool(self._enforced) and _namespace_of(key) in self._enforced

    def unguarded(self, key: str, locking: Locking | None) -> Locks:
        """Return the locks of a commit that no lock can be in the way of, be they enforced or not."""
        return Locks((), UNGUARDED if self.enforces(key, locking) else (), is_unguarded=True)

    async def heed(self, commit: Commit, found: bytes) -> None:
        """Prepare a commit to be sent again that was refused because of the policy that the script found."""
        namespace, locks = _namespace_of(commit.writes[0].key), commit.locks
        held, locking = ((), None) if locks is None else (locks.held, locks.locking)
        if found == b"enforced" and locking == "advisory":
            hint = "Leave locking= out, or change it for all: `statecache policy`."
            commit.fail(UsageError(f"the locks of the namespace {namespace!r} are enforced", hint=hint))
        if found == b"enforced":
            self._enforced |= {namespace}
            self._waived -= {namespace}
            is_unguarded = locks is not None and locks.is_unguarded
            guarded = UNGUARDED if is_unguarded else guards_of(write.key for write in commit.written())
            commit.locks = Locks(held, guarded, locking, is_unguarded)
            return
        if locking == "enforced":
            try:
                await self._ask(namespace, seconds=max(commit.end - monotonic(), 0.001))
            except StateCacheError as error:
                commit.fail(error)
        if locking != "enforced" or namespace in self._waived:
            self._enforced -= {namespace}
            commit.locks = Locks(held, (), locking, locks.is_unguarded) if locks else None

    async def ensure(self, key: str, epoch: int, *, seconds: float) -> None:
        """Record that a key's namespace enforces its locks, unless it was seen in this epoch that all shards know.

        A data set of another epoch may have been made by a Postgres that has forgotten it.
        """
        namespace, end = _namespace_of(key), monotonic() + seconds
        seen = (namespace, self._keys.shard(key), epoch)
        if seen in self._recorded or namespace in self._waived:
            return
        copies = await self._copies(end)
        if not all(isinstance(copy, bytes) and b" %b " % namespace.encode() in copy for copy in copies):
            await self._ask(namespace, seconds=max(end - monotonic(), 0.001))
        self._recorded |= {seen}

    async def _ask(self, namespace: str, *, seconds: float) -> None:
        """Record enforced locks, which a view asks for, unless somebody has recorded that they are advisory."""
        end = monotonic() + seconds
        for name, locking, *_ in await self._postgres.fetch("namespaces", {}, seconds=seconds):
            if (name, locking) == (namespace, "advisory"):
                self._waived |= {namespace}
                return
        await self.record(namespace, "enforced", seconds=max(end - monotonic(), 0.001))

    async def record(self, namespace: str, locking: Locking, *, seconds: float) -> None:
        """Record how a namespace's locks are kept: in Postgres, then in every shard."""
        end = monotonic() + seconds
        seen = await self._restore(end)
        waiting: Sequence[int] = range(self._keys.shards)
        while waiting:
            parameters = {"name": namespace, "locking": locking, "by": writer_of(self._settings), "seen": seen}
            rows = await self._postgres.fetch("set_locking", parameters, seconds=max(end - monotonic(), 0.001))
            policies = str(rows[0][0])
            ours = int(policies.partition(" ")[0])
            revisions = dict(zip(waiting, await self._told(waiting, policies, end), strict=True))
            waiting = [shard for shard, revision in revisions.items() if revision != ours]
            seen = max([seen, *revisions.values()]) if waiting else seen
            for shard in [shard for shard in waiting if revisions[shard] < 0]:
                await self._opener.open(shard, end=end)
        self._enforced = self._enforced | {namespace} if locking == "enforced" else self._enforced - {namespace}
        self._recorded = frozenset(one for one in self._recorded if one[0] != namespace)
        self._waived -= {namespace}

    async def _restore(self, end: float) -> int:
        """Record again what Postgres has forgotten; return a revision above all that Redis has seen, or 0.

        Redis is asked first: whether the two belong together, and every shard is open on this one, is known before
        anything is recorded.
        """
        every = range(self._keys.shards)
        for shard, revision in zip(every, await self._told(every, "0 ", end), strict=True):
            if revision < 0:
                await self._opener.open(shard, end=end)
        copies = await self._copies(end)
        ((recorded,),) = await self._postgres.fetch("enforced_locks", {}, seconds=max(end - monotonic(), 0.001))
        seen, names = forgotten(recorded, copies)
        if names:
            back = taken_back(recorded, copies)
            _logger.warning(
                "Postgres went back: enforced locks of %s are recorded again%s", ", ".join(names),
                f"; those of {', '.join(back)} may have been taken back since" if back else "",
            )  # fmt: skip
        for name in names:
            parameters = {"name": name, "locking": "enforced", "by": writer_of(self._settings), "seen": seen}
            await self._postgres.fetch("set_locking", parameters, seconds=max(end - monotonic(), 0.001))
        return seen

    async def _copies(self, end: float) -> list[Any]:
        commands = [("HGET", self._keys.meta(shard), "enforced") for shard in range(self._keys.shards)]
        return await self._redis.read(commands, seconds=max(end - monotonic(), 0.001))

    async def _told(self, shards: Sequence[int], policies: str, end: float) -> list[int]:
        """Give shards their copies of the policies, and return the revisions that they have then."""
        text, revisions = script("set_policy").text, list[int]()
        for start in range(0, len(shards), _SHARDS_PER_EXCHANGE):
            some = shards[start : start + _SHARDS_PER_EXCHANGE]
            commands: list[Any] = [("EVAL", text, 1, self._keys.meta(shard), policies) for shard in some]
            replies = await self._redis.read(commands, seconds=max(end - monotonic(), 0.001))
            for shard, reply in zip(some, replies, strict=True):
                if isinstance(reply, Exception):
                    raise refusal(reply, self._keys.meta(shard)) from reply
                revisions.append(int(reply))
        return revisions


def _namespace_of(key: str) -> str:
    return key.partition("/")[0]
