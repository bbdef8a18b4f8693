"""A miss: what Postgres holds nothing of is absent (`absences`); the rest is token, Postgres, install.

A state of which Postgres holds anything is loaded under a hydration token, which stands for a few seconds and in
one epoch. Only one reader at a time holds a key's token; others wait for what it brings. The install checks that the
token and the epoch still stand, and any commit or hydration of the key takes the token away, so a slow reader cannot
put an older version over a newer one. Every attempt to take a token brings one of its own: an attempt that was held up
on its way and arrives when all of that is over leaves a token that nobody installs with. The next attempt names those
before it, whose answers were lost, and takes over what they took. Whoever is hindered, or cancelled, gives back what
may stand, so that nobody waits for it. While a key is in `unflushed` there is no token: Redis lost its state by hand,
Postgres does not have it yet, and the flusher will bring it there. Absence is installed like any other record.

Misses of many tasks at one moment are read from Postgres in one query.

What Postgres was read to hold is also given to the caller, whether or not it could be installed: it is no older than
the moment the read began. A commit takes the install along, ahead of its script, in one exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from statecache.backoff import Backoff
from statecache.call_notes import note
from statecache.clock import monotonic
from statecache.commit_protocol.install import INSTALL, Install
from statecache.concurrency import SILENCE_S
from statecache.concurrency.batching import WEIGHT_MAX
from statecache.core.read.absences import Absences, Looked, no_row, purpose
from statecache.core.read.listed import BEHIND, Watermark
from statecache.core.redis.tier import patience_for
from statecache.entries import parts_text
from statecache.errors import Backpressure, PostgresUnavailable, RedisUnavailable, StateCacheError, Unavailable
from statecache.model import Record
from statecache.records import absence, hash_of, record_of_row
from statecache.redis_errors import FINAL, found_at, refusal

if TYPE_CHECKING:
    from statecache.concurrency import Batcher, Request
    from statecache.core.epoch.opener import Opener
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier
    from statecache.core.redis.tracking import TrackedConnection
    from statecache.keys import KeySpace
    from statecache.settings import Settings

_FORGET_S = 0.2
"""How long giving tokens back may take, in seconds; they also end by themselves."""
_END_S = 0.05
"""How long a caller who failed, or was cancelled, waits for that, in seconds."""
_WEIGHT = WEIGHT_MAX // 64
"""What a key counts in a query, whose answer may hold eight megabytes for each: at most 64 callers' keys share one."""
_HYDRATE = ("watermarks", "states", "lost_keys", "recent_changes")
_TOKENS_MAX = 32
"""How many tokens of lost attempts are remembered; older ones end by themselves."""


class _Found(NamedTuple):
    """A state that Postgres holds, its `recent`, and `parts`, which tells of its commit."""

    record: Record
    recent: str = ""
    parts: str = ""


class _Held(NamedTuple):
    """What Postgres holds: a shard's epoch and watermark, and the keys that have a state.

    `lost` are the keys of which changes are lost: a state does not remember these, so a repeat has to look them up.
    """

    epoch: int
    flushed: int
    lost: Set[str]
    found: Mapping[str, _Found]

    def reaches(self, epoch: str, flushed: int) -> bool:
        """Return whether this Postgres holds what a Redis at that epoch, with that watermark, was flushed into.

        One that has gone back, or a copy of it that was taken earlier, holds what is old.
        """
        return Watermark(self.epoch, self.flushed).reaches(Watermark(int(epoch), flushed))


def _why(verdicts: Mapping[str, str]) -> str:
    if "DIRTY" in verdicts.values():
        return "not yet in Postgres"
    if "BEHIND" in verdicts.values():
        return BEHIND
    return "another reader is loading it"


class Hydrator:
    """The loading of missing states of one group from Postgres into Redis."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        redis: RedisTier,
        postgres: PostgresTier,
        opener: Opener,
        *,
        new_token: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._opener = opener
        self._new_token = new_token
        self._absences = Absences(settings, keys, redis, postgres)
        self._batcher: Batcher[tuple[int, Sequence[str]], _Held] = redis.io.batcher(self._read)

    async def load(self, keys: Sequence[str], *, end: float, to_write: bool = False) -> dict[str, Record]:
        """Bring the keys of one shard into Redis, and return the records that were read on the way.

        A key that another reader brought in the meantime is not among them, nor are those of a shard whose gate is
        closed: reading never opens it. A Redis that takes no writes is enough for reading: what Postgres holds is
        returned all the same. `to_write` says that the states are needed in Redis, and opens the gate. Raises
        Unavailable past `end`, and Backpressure where there is no memory for them. A lost exchange is repeated.
        """
        return await self._load(keys, await self.look(keys, end=end), end=end, to_write=to_write)

    async def load_missed(self, key: str, tracked: TrackedConnection, *, end: float) -> Record | None:
        """Load a key that Redis lacked on the tracked connection; None as of `load`.

        Where it is absent, who reads waits neither for Redis to prove that nor for it to be installed.
        """
        note(hydrations=1)
        looked, absent = await self._absences.prove(self._keys.shard(key), key, tracked, end=end)
        if absent is not None:
            return absent
        return (await self._load([key], looked, end=end)).get(key)

    async def _load(
        self, keys: Sequence[str], looked: Looked, *, end: float, to_write: bool = False
    ) -> dict[str, Record]:
        """Load keys, as `load` does, of which it is known what Postgres holds."""
        shard, loaded = self._keys.shard(keys[0]), dict[str, Record]()
        left = [key for key in keys if key in looked.known]
        if unknown := looked.unknown(keys):
            loaded, more = await self._absences.install(shard, unknown, looked, end=end, to_write=to_write)
            left += more
        return loaded | await self._load_held(shard, left, end=end, to_write=to_write) if left else loaded

    async def _load_held(self, shard: int, keys: list[str], *, end: float, to_write: bool) -> dict[str, Record]:
        """Bring keys into Redis under tokens, as `load` does."""
        tokens = list[str]()
        try:
            loaded, install = await self._loaded(shard, keys, tokens, end=end, to_write=to_write)
            if install is not None:
                await self._install(install, end)
        except BaseException as error:  # whatever it is, nobody shall wait for what does not come
            await self._hindered(error, shard, keys, tokens)
            raise
        return loaded

    async def look(self, keys: Sequence[str], *, end: float) -> Looked:
        """Ask Postgres of which keys of one shard it holds anything, and where it stands with the shard."""
        note(hydrations=len(keys))
        return await self._absences.look(self._keys.shard(keys[0]), keys, end=end)

    async def load_ahead(self, keys: Sequence[str], looked: Looked, *, end: float) -> Install | None:
        """Load the keys of one shard for a commit, but for the last install, which goes ahead of the commit's script.

        None where nothing is left to install. Who gets one gives it back, unless it was carried out.
        """
        shard, tokens = self._keys.shard(keys[0]), list[str]()
        if not looked.known.intersection(keys):
            return self._absences.ahead(shard, keys, looked)
        try:
            _, install = await self._loaded(shard, list(keys), tokens, end=end, to_write=True)
        except BaseException as error:  # whatever it is, nobody shall wait for what does not come
            await self._hindered(error, shard, keys, tokens)
            raise
        return install

    async def give_back(self, install: Install) -> None:
        """Give back the tokens of what was not installed, as far as they still stand."""
        if not install.tokens:
            return
        await self._redis.io.beside(lambda: self._forget(install.shard, list(install.records), install.tokens), _END_S)

    async def _hindered(self, error: BaseException, shard: int, keys: Sequence[str], tokens: Sequence[str]) -> None:
        """Give the tokens back of a loader who failed, or was cancelled."""
        if tokens and not isinstance(error, GeneratorExit):  # who is thrown away cannot wait for an answer
            await self._redis.io.beside(lambda: self._forget(shard, keys, tokens), _END_S)

    async def _loaded(
        self, shard: int, missing: list[str], tokens: list[str], *, end: float, to_write: bool
    ) -> tuple[dict[str, Record], Install | None]:
        """Load the missing keys, but for the last install; `tokens` are at any moment those of ours that may stand."""
        loaded: dict[str, Record] = {}
        backoff = Backoff(0.002, 0.1)
        waiting: Unavailable | None = None
        while True:
            try:
                verdicts, epoch, flushed = await self._begin(shard, missing, tokens, end, to_write=to_write)
            except RedisUnavailable as error:
                if error.reason in ("refused", "memory", *FINAL):
                    raise
                if backoff.outlasts(end):
                    raise error if waiting is None else waiting from error
                note(retries=1)
                await self._redis.io.sleep(backoff.take())
                continue
            if "FENCED" in verdicts.values() and not to_write:
                return loaded, None
            if to_write and "FULL" in verdicts.values():
                raise Backpressure(shard, reason="Redis is out of memory")
            taken = [key for key, verdict in verdicts.items() if verdict in ("TAKEN", "FULL")]
            if taken:
                held = await self._held(shard, taken, end, waiting)
                if held.reaches(epoch, flushed):
                    install = self._prepared(shard, taken, held, tokens, epoch)
                    loaded.update(install.records)
                    if len(taken) + list(verdicts.values()).count("PRESENT") == len(verdicts):
                        return loaded, install
                    await self._install(install, end)
                else:
                    await self._forget(shard, taken, tokens)
                    verdicts |= dict.fromkeys(taken, "BEHIND")
                tokens.pop()
            missing = [key for key, verdict in verdicts.items() if verdict in ("DIRTY", "WAIT", "FENCED", "BEHIND")]
            if not missing:
                return loaded, None
            waiting = Unavailable("hydration", detail=f"{missing[0]!r} is not in Redis and {_why(verdicts)}")
            if backoff.outlasts(end):
                raise waiting
            if "FENCED" not in verdicts.values():
                await self._redis.io.sleep(backoff.take())

    async def _begin(
        self, shard: int, missing: list[str], tokens: list[str], end: float, *, to_write: bool
    ) -> tuple[dict[str, str], str, int]:
        """Return the verdicts on the keys, and the epoch and the watermark that stood when tokens were taken.

        The fresh token is then the last of `tokens`.

        The token is added where it was taken, and where nobody knows whether it was.
        """
        keys, token = self._keys, self._new_token()
        fixed = [keys.meta(shard), keys.unflushed(shard), keys.hydrating(shard)]
        token_ms = round(self._settings.hydrate_token_s * 1000)
        earlier = " ".join(tokens)
        tokens.append(token)
        del tokens[:-_TOKENS_MAX]
        seconds = max(end - monotonic(), 0.001)
        try:
            reply: list[bytes] = await self._redis.script(
                "hydrate_begin",
                [*fixed, *(keys.state(key) for key in missing)],
                [self._settings.fence, token, token_ms, earlier, purpose(to_write=to_write), *missing],
                seconds=seconds * patience_for(seconds), ahead=True,
            )  # fmt: skip
        except ResponseError as error:
            tokens.pop()
            raise refusal(error, fixed[2]) from error
        except RedisUnavailable as error:
            if error.reason not in ("timeout", "connection"):
                tokens.pop()
            raise
        verdict, *rest = (part.decode("utf-8", "replace") for part in reply)
        if verdict != "OK" or not {"TAKEN", "FULL"}.intersection(rest[2:]):
            tokens.pop()
        if verdict == "FOREIGN":
            raise found_at(rest[0], rest[1])
        if verdict == "FENCED":
            if to_write:
                await self._opener.open(shard, end=end)
            return dict.fromkeys(missing, "FENCED"), "", 0
        return dict(zip(missing, rest[2:], strict=True)), rest[0], int(rest[1] or 0)

    async def _forget(self, shard: int, keys: Sequence[str], tokens: Sequence[str]) -> int:
        """Give tokens back, so that nobody waits for their end, and return how many stood."""
        arguments = [" ".join(tokens), *keys]
        with suppress(StateCacheError, ResponseError):
            return int(
                await self._redis.script("hydrate_forget", [self._keys.hydrating(shard)], arguments, seconds=_FORGET_S)
            )
        return 0

    async def _held(self, shard: int, keys: Sequence[str], end: float, waiting: Unavailable | None) -> _Held:
        """Read from Postgres what it holds of keys, and where it stands with their shard.

        An attempt that had hardly any time is no reason: what has been waited for is raised.
        """
        seconds = max(end - monotonic(), 0.001)
        try:
            return await self._batcher.ask((shard, keys), weight=_WEIGHT * len(keys), seconds=seconds)
        except PostgresUnavailable as error:
            if waiting is not None and error.reason == "timeout" and seconds < SILENCE_S:
                raise waiting from error
            raise

    async def _read(
        self, requests: Sequence[Request[tuple[int, Sequence[str]]]], seconds: float
    ) -> list[_Held | Exception]:
        """Read what Postgres holds of the keys of many callers in one exchange.

        Where their shards stand is read first: what they are read to hold is no older. The last changes of a state that
        has gone on between two statements are left out: '' is true of any state.
        """
        asked = [request.question for request in requests]
        keys = list(dict.fromkeys(key for _, keys in asked for key in keys))
        parameters = {"shards": sorted({shard for shard, _ in asked}), "keys": keys}
        shards, states, lost, newest = await self._postgres.fetch_each(_HYDRATE, parameters, seconds=seconds)
        places = {shard: (epoch, flushed) for shard, epoch, flushed in shards}
        records, lost_keys = {row[0]: record_of_row(row)[0] for row in states}, {key for (key,) in lost}
        found = {key: _Found(record) for key, record in records.items()}
        for key, version, recent, actor, reason in newest:
            if (record := records.get(key)) is not None and record.version == version:
                told = parts_text(record.position, 1, actor, reason) if actor or reason else ""
                found[key] = _Found(record, " ".join(recent), told)
        return [
            _Held(
                *places[shard],
                lost_keys.intersection(keys),
                {key: found[key] for key in keys if key in found},
            )
            if shard in places
            else no_row(shard)
            for shard, keys in asked
        ]

    def _prepared(self, shard: int, taken: Sequence[str], held: _Held, tokens: Sequence[str], epoch: str) -> Install:
        """Return what Postgres holds of keys, to be installed under the last of the tokens."""
        arguments: list[Any] = []
        records: dict[str, Record] = {}
        for key in taken:
            found = held.found.get(key) or _Found(absence(key, int(epoch)))
            ttl_s = self._settings.redis_ttl_s if found.record.exists else self._settings.absent_ttl_s
            ttl_ms, lost = round(ttl_s * 1000), key in held.lost
            arguments += hash_of(found.record, found.recent, ttl_ms, lost=lost, parts=found.parts)
            records[key] = found.record
        keys = self._keys
        return Install(
            shard=shard,
            records=records,
            tokens=tuple(tokens),
            redis_keys=[keys.meta(shard), keys.hydrating(shard), *(keys.state(key) for key in taken)],
            arguments=[self._settings.fence, tokens[-1], epoch, *arguments],
        )

    async def _install(self, install: Install, end: float) -> None:
        """Install it in an exchange of its own; where Redis cannot be had, or has no memory, give its tokens back."""
        seconds = max(end - monotonic(), 0.001)
        try:
            await self._redis.script(
                INSTALL, install.redis_keys, install.arguments, seconds=seconds * patience_for(seconds), ahead=True
            )
        except RedisUnavailable:
            await self._forget(install.shard, list(install.records), install.tokens)
        except ResponseError as error:
            refused = refusal(error, self._keys.hydrating(install.shard))
            if not isinstance(refused, RedisUnavailable):
                raise refused from error
            await self._forget(install.shard, list(install.records), install.tokens)
