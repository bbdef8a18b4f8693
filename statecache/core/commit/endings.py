"""Deleting states whose end has come, each by a commit of its own, with the reason `expired`.

Postgres is asked which they may be; one that ends before it is flushed is found a moment later. Redis decides: its
script deletes only what has ended by its own clock and nobody has written again. So nothing is lost by asking twice, or
from several workers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from statecache.clock import monotonic
from statecache.commit_protocol.answers import Absent
from statecache.errors import StateCacheError
from statecache.model import EXPIRED, Write

if TYPE_CHECKING:
    from statecache.core.runtime import Runtime

REASON = "expired"
"""The reason of these deletions in the history."""
_AT_ONCE = 200


async def delete_ended(
    runtime: Runtime, shards: Sequence[int], *, seconds: float, enough: Callable[[], bool] = lambda: False
) -> int:
    """Delete the states of these shards whose end has come, and return how many were.

    `seconds` is for each few hundred; the first error of these is raised once all of them were tried. Before the next
    few hundred `enough` is asked whether the others are to be left.
    """
    deleted, after = 0, ("", "")
    while True:
        asked = {"shards": [*shards], "now": str(runtime.redis.clock.now_ms()), "limit": _AT_ONCE,
                 "after": after[0], "after_key": after[1]}  # fmt: skip
        rows = await runtime.postgres.fetch("ended_states", asked, seconds=seconds)
        if rows:
            deleted += await _delete(runtime, [key for key, _ in rows], seconds)
            after = (rows[-1][1], rows[-1][0])
        if len(rows) < _AT_ONCE or enough():
            return deleted


async def _delete(runtime: Runtime, keys: Sequence[str], seconds: float) -> int:
    """Delete those that have ended and return how many; no lock is in the way of what nobody finds any more."""
    end = monotonic() + seconds
    commits = [
        runtime.committer.new(
            [Write(key=key, op="delete", expected=EXPIRED)], runtime.keys.shard(key), durability="memory", actor="",
            reason=REASON, end=end, locks=runtime.policies.unguarded(key, None),
        )
        for key in keys
    ]  # fmt: skip
    outcomes = await runtime.many_commits.commit(commits)
    errors = [one for one in outcomes if isinstance(one, StateCacheError) and not isinstance(one, Absent)]
    if errors:
        raise errors[0]
    return sum(not isinstance(one, StateCacheError) for one in outcomes)
