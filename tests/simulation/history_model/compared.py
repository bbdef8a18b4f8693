"""Every read of history, compared with the plain one."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any

from msgspec import UNSET

from statecache import AsyncStateCache, Change, State, VersionNotFound
from statecache.keys import group_of
from statecache.model import Position
from statecache.rules.difference import applied
from statecache.rules.sameness import Labels
from statecache_workers.verification import verify
from tests.simulation.history_model.plain import PlainHistory, Row, nearest
from tests.simulation.history_model.servers import HistoryServers

POINTS = 3
"""At how many points of each kind a key, or a group, is read in between."""
KEYS = 6
"""How many keys are compared in between."""


class Compared:
    """The comparing: what differs is found, what was compared is counted."""

    def __init__(self, here: HistoryServers, rng: Random) -> None:
        self._here = here
        self._past: PlainHistory = here.past
        self._rng = rng
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self._said = ""

    @property
    def _client(self) -> AsyncStateCache:
        return self._rng.choice(self._here.clients)

    async def some(self) -> None:
        """Compare some keys, and a group of these, at some points."""
        keys = self._past.users()
        for key in self._rng.sample(keys, min(KEYS, len(keys))):
            await self._key(key, every=False)
        if keys:
            await self._group(group_of(self._rng.choice(keys)), every=False)

    async def everything(self) -> None:
        """Compare all keys and groups at all points, and have the history verified."""
        for key in sorted(self._past.chains):
            await self._key(key, every=True)
        for group in self._past.groups():
            await self._group(group, every=True)
        await self.verified()

    async def verified(self) -> None:
        """Compare what `verify` says with what was flushed."""
        async with self._finds("verify"):
            self._here.look()
            counts, faults = await verify(self._here.settings)
            self._is("faults", [(one.key, one.version, one.what, one.detail) for one in faults], [])
            rows = [row for chain in self._past.chains.values() for row in chain if self._past.is_flushed(row)]
            self._is("changes", (counts.changes, counts.keys), (len(rows), len({row.key for row in rows})))

    @asynccontextmanager
    async def _finds(self, said: str) -> AsyncIterator[None]:
        """Find what goes wrong in a block."""
        self._said = said
        try:
            yield
        except AssertionError as error:
            self.findings.append(f"{self._said}: {error}")
        except Exception as error:  # whatever a read raises that had an answer is a finding
            self.findings.append(f"{self._said}: {type(error).__name__}: {error}")

    def _is(self, what: str, found: Any, wanted: Any, said: str = "") -> None:
        self.counts[what] += 1
        assert found == wanted, f"{what}: {str(found)[:400]} was given, and {str(wanted)[:400]} was to be{said}"

    # One key.

    async def _key(self, key: str, *, every: bool) -> None:
        chain = self._past.chain(key)
        if not chain:
            return
        async with self._finds(f"history of {key}"):
            await self._headers(key)
        async with self._finds(f"values of {key}"):
            await self._values(key)
        async with self._finds(f"ranges of {key}"):
            await self._ranges(key)
        rows = chain if every else self._rng.sample(chain, min(POINTS, len(chain)))
        for row in rows:
            for asked in ({"version": row.version}, {"position": Position(row.epoch, row.n)}, {"time": row.at}):
                async with self._finds(f"get_at {key} {asked}"):
                    await self._at(key, asked)
        async with self._finds(f"get_at {key} where nothing is"):
            await self._nowhere(key)
        for _ in range(len(chain) if every else POINTS):
            one, other = self._rng.choice(chain), self._rng.choice(chain)
            async with self._finds(f"diff {key}@{one.version} @{other.version}"):
                await self._diff(key, one, other)
        async with self._finds(f"what is known of {key}"):
            await self._known(key)

    async def _headers(self, key: str) -> None:
        chain = self._past.chain(key)
        found = await _all(self._client.history(key))
        self._is("versions", [one.version for one in found], [row.version for row in chain])
        for one, row in zip(found, chain, strict=True):
            self._header(one, row)
            if row.may_go and row.kept and not one.kept:
                row.kept = False
            self._is("kept", (row.version, one.kept), (row.version, row.kept))

    def _header(self, one: Change[Any], row: Row) -> None:
        size = 0 if row.erased else len(row.data)
        digest = one.sha256 if row.mark is not None else row.digest
        self._is(
            "headers",
            (one.version, one.op, one.change_id, one.parent_change_id, one.position, one.at, one.reason, one.durable,
             one.size, one.sha256),
            (row.version, row.op, row.change_id, row.parent, Position(row.epoch, row.n), row.at, row.reason,
             self._past.is_flushed(row), one.size if row.mark is not None else size, digest),
        )  # fmt: skip

    async def _values(self, key: str) -> None:
        found = await _all(self._client.history(key, values=True, reverse=True))
        wanted = [(row.version, row.value if row.lives and row.kept else None, row.kept)
                  for row in reversed(self._past.chain(key))]  # fmt: skip
        for one, row in zip([(one.version, one.value, one.kept) for one in found], wanted, strict=True):
            self._is("values", one, row)

    async def _ranges(self, key: str) -> None:
        chain, rng = self._past.chain(key), self._rng
        one, other = sorted((rng.choice(chain).version, rng.choice(chain).version))
        limit, reverse, flushed = rng.choice((None, 1, 2, 3)), rng.random() < 0.5, rng.random() < 0.3
        asked: dict[str, Any] = {"since": one, "until": other}
        wanted = chain[one - 1 : other]
        if rng.random() < 0.5:
            begin, end = chain[one - 1].at, chain[other - 1].at
            asked = {"since": begin, "until": end}
            wanted = [row for row in chain if begin <= row.at <= end]
        if flushed:
            wanted = [row for row in wanted if self._past.is_flushed(row)]
        wanted = wanted[::-1] if reverse else wanted
        asked |= {"limit": limit, "reverse": reverse, "unflushed": not flushed}
        found = await _all(self._client.history(key, **asked))
        self._said += f" {asked}"
        self._is("ranges", [change.version for change in found], [row.version for row in wanted[:limit]])

    async def _at(self, key: str, asked: dict[str, Any]) -> None:
        row = self._past.at(key, n=asked["position"].n if "position" in asked else None, time=asked.get("time"))
        if "version" in asked:
            row = self._past.chain(key)[asked["version"] - 1]
        assert row is not None
        if row.lives and not row.kept:
            await self._gone(key, row.version, asked)
            return
        state = await self._client.get_at(key, **asked)
        self._state(state, row)

    def _state(self, state: State[Any] | None, row: Row) -> None:
        if not row.lives:
            self._is("get_at", state, None)
            return
        assert state is not None, f"nothing was given, and version {row.version} was to be"
        self._is(
            "get_at",
            (state.key, state.version, state.change_id, state.position, state.updated_at, state.value),
            (row.key, row.version, row.change_id, Position(row.epoch, row.n), row.at, row.value),
        )

    async def _gone(self, key: str, version: int, asked: dict[str, Any]) -> None:
        """See that what is not there is told with the version next to it that has a value."""
        try:
            state = await self._client.get_at(key, **asked)
        except VersionNotFound as error:
            held: set[int | None] = {*nearest(self._past.held(key), version)} or {None}
            self.counts["refused"] += 1
            self._is("nearest", error.nearest in held, True, f": {error.nearest} of {held}: {error}")
        else:
            raise AssertionError(f"{state} was given, and VersionNotFound was to be raised")

    async def _nowhere(self, key: str) -> None:
        chain = self._past.chain(key)
        await self._gone(key, 0, {"version": 0})
        await self._gone(key, len(chain) + 1, {"version": len(chain) + 1})
        for asked in ({"time": chain[0].at - timedelta(seconds=1)}, {"position": Position(chain[0].epoch, 0)}):
            try:
                await self._client.get_at(key, **asked)
            except VersionNotFound:
                self.counts["refused"] += 1
            else:
                raise AssertionError(f"something was there at {asked}")

    async def _diff(self, key: str, one: Row, other: Row) -> None:
        if any(row.lives and not row.kept for row in (one, other)):
            return
        found = await self._client.diff(key, one.version, other.version)
        before, after = (row.value if row.lives else UNSET for row in (one, other))
        made = applied(before, found)
        labels = Labels(made, after)
        self._is("diffs", labels.same(made, after), True)
        self._is("diffs", bool(found), not Labels(before, after).same(before, after))

    async def _known(self, key: str) -> None:
        marks = [_shown(one) for one in await self._client.checkpoints(key)]
        wanted = [(one.label, one.scope, one.key, one.version, one.n, one.metadata)
                  for one in self._past.marks_of(key)]  # fmt: skip
        self._is("checkpoints", marks, wanted)
        self._here.look()
        origins = self._past.flushed_origins()
        begun = {(one.key, one.version, one.origin_version) for one in origins
                 if one.origin == key and one.kind == "branch"}  # fmt: skip
        branches = await self._client.branches(key)
        self._is("branches", {(one.key, one.version, one.origin_version) for one in branches}, begun)
        above = {(one.kind, one.key, one.version, one.origin, one.origin_version)
                 for one in await self._client.ancestry(key)}  # fmt: skip
        self._is("ancestry", above, {tuple(one) for one in self._past.ancestry(key)})
        state = await self._client.get(key)
        tip = self._past.chain(key)[-1]
        found = None if state is None else (state.version, state.change_id, state.value)
        self._is("states", found, (tip.version, tip.change_id, tip.value) if tip.lives else None)

    # A group.

    async def _group(self, group: str, *, every: bool) -> None:
        rows = [row for key in self._past.group(group) for row in self._past.chain(key)]
        for row in rows if every else self._rng.sample(rows, min(POINTS, len(rows))):
            asked: dict[str, Any] = self._rng.choice(({"position": Position(row.epoch, row.n)}, {"time": row.at}))
            async with self._finds(f"get_group_at {group} {asked}"):
                await self._group_at(group, asked)
        async with self._finds(f"checkpoints of the group {group}"):
            marks = [_shown(one) for one in await self._client.checkpoints(group, group=True)]
            wanted = [(one.label, one.scope, one.key, one.version, one.n, one.metadata)
                      for one in self._past.marks_of(group, whole=True)]  # fmt: skip
            self._is("checkpoints", sorted(marks, key=str), sorted(wanted, key=str))

    async def _group_at(self, group: str, asked: dict[str, Any]) -> None:
        n = asked["position"].n if "position" in asked else None
        then = self._past.group_at(group, n=n, time=asked.get("time"))
        live = {key: row for key, row in then.items() if row.lives}
        for row in live.values():
            if row.may_go and row.kept:
                await self._headers(row.key)
        gone = [row for row in live.values() if not row.kept]
        try:
            found = await self._client.get_group_at(group, **asked)
        except VersionNotFound as error:
            wanted = {(row.key, f"version {row.version}") for row in gone}
            self._is("gone", (error.key, error.wanted) in wanted, True, f": {error}")
            self.counts["refused"] += 1
            return
        assert not gone, f"{[(row.key, row.version) for row in gone]} was given, and is gone"
        self._is("groups", sorted(found), sorted(live))
        for key, state in found.items():
            if live[key].mark is None:
                self._state(state, live[key])


def _shown(one: Any) -> tuple[Any, ...]:
    return one.label, one.scope, one.key, one.version, one.position.n, one.metadata


async def _all(history: AsyncIterator[Change[Any]]) -> list[Change[Any]]:
    return [change async for change in history]
