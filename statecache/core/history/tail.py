"""What the stream holds of a group beyond what Postgres does: the newest part of its history.

Postgres is asked first, and says up to where it holds the shard's changes. Behind that the stream is read, on the
server that has the shard open in that epoch. n is contiguous, so whatever was flushed and left the stream in between
shows as a gap, and a new epoch as another number: then all is read anew, as where a gate is closed, which is left a
moment to open. What is looked at is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from statecache.clock import monotonic
from statecache.entries import ForeignEntry, NewerFormat, change_set
from statecache.redis_errors import refusal
from statecache.rules.versions import Version, version_of_change

if TYPE_CHECKING:
    from statecache.core.read.closed_gates import ClosedGates
    from statecache.core.read.listed import Watermark
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.settings import Settings

ENTRIES_MAX = 20_000
"""How many entries of a shard's stream are looked at at most."""
BYTES_MAX = 64 * 1024 * 1024
"""How many bytes of a group's entries are read at most."""
_PAGE, _PAGE_BYTES = 1000, 4 * 1024 * 1024


class Tail(NamedTuple):
    """What was found behind a watermark, in order; `lacking` says why it is not all, or ''.

    `anew` says that Postgres has to be asked again first, `newest` up to which n it is all.
    """

    versions: Sequence[Version]
    lacking: str = ""
    anew: bool = False
    newest: int = 0


class Tails:
    """The reading of what is not flushed yet."""

    def __init__(self, settings: Settings, keys: KeySpace, redis: RedisTier, closed_gates: ClosedGates) -> None:
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._closed_gates = closed_gates

    async def behind(self, mark: Watermark, shard: int, group: str, *, seconds: float) -> Tail:
        """Return the changes of a group behind a watermark.

        Raises RedisUnavailable past `seconds`, ConfigurationError for a right that the user lacks, and ForeignData.
        """
        names = [self._keys.meta(shard), self._keys.changes(shard)]
        start = await self._run("seek", names[1:], [mark.flushed, mark.epoch], seconds)
        last, looked, size = start.decode(), 0, 0
        found: list[Version] = []
        while looked < ENTRIES_MAX and size < BYTES_MAX:
            asked = [self._settings.fence, last, _PAGE, group, _PAGE_BYTES]
            verdict, *rest = await self._run("tail", names, asked, seconds)
            if verdict == b"CLOSED":
                self._closed_gates.met(shard)
                return Tail(
                    found, "the gate of its shard is closed", monotonic() < self._closed_gates.patient_until([shard])
                )
            self._closed_gates.opened(shard)
            epoch, newest, first, last, count, *entries = rest
            if int(epoch) != mark.epoch or int(newest) < mark.flushed:
                return Tail(found, "its shard changed epoch meanwhile", anew=True)
            if count and int(first) != mark.flushed + looked + 1:
                return Tail(found, "what was flushed meanwhile has left the stream", anew=True)
            looked, last = looked + count, last.decode()
            for entry in entries:
                size += sum(map(len, entry[1]))
                try:
                    found += _versions(entry, group)
                except (ForeignEntry, NewerFormat) as error:
                    return Tail(found, f"the entry {entry[0].decode()} of the stream cannot be read: {error}")
            if not count:
                behind = int(newest) - mark.flushed - looked
                lacking = f"{behind} entries are missing from the stream" if behind > 0 else ""
                return Tail(found, lacking, behind > 0, int(newest))
        return Tail(found, f"more than {looked} entries of its shard are waiting to be flushed")

    async def _run(self, name: str, names: Sequence[str], asked: Sequence[Any], seconds: float) -> Any:
        try:
            (reply,) = await self._redis.read_script(name, names, asked, seconds=seconds)
        except ResponseError as error:
            raise refusal(error, names[-1]) from error
        return reply


def _versions(entry: Sequence[Any], group: str) -> list[Version]:
    commit = change_set(entry[0], entry[1])
    below = group + "/"
    return [
        version_of_change(commit, change)
        for change in commit.changes
        if change.key == group or change.key.startswith(below)
    ]
