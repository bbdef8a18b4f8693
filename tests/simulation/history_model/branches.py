"""Branches of keys and of groups, and merges, drawn."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import msgspec

from statecache import AlreadyExists, NotFound, UsageError, VersionNotFound
from statecache.history_errors import MergeConflict
from statecache.keys import group_of
from statecache.model import Position
from statecache.rules.provenance import Provenance
from statecache.rules.three_way import merged
from tests.simulation.history_model.bases import Bases
from tests.simulation.history_model.drawing import Drawing, TakenAway
from tests.simulation.history_model.plain import Row
from tests.simulation.history_model.restores import Restores

KEYS_MAX = 45
"""How many keys there may be until nothing branches any more."""


class Branches:
    """The branching and merging."""

    def __init__(self, drawing: Drawing, restores: Restores) -> None:
        self._draw = drawing
        self._past = drawing.past
        self._bases = Bases(drawing.past)
        self._rng = drawing.rng
        self._restores = restores
        self._branched = 0

    async def branch(self) -> None:
        """Begin a key with what another one holds, or held."""
        key = self._draw.key()
        if key is None or len(self._draw.kinds) >= KEYS_MAX:
            return
        row, asked = self._past.chain(key)[-1], dict[str, Any]()
        if self._rng.random() < 0.6:
            row = self._rng.choice(self._past.chain(key)[-12:])
            asked = {"at": self._rng.choice((row.version, Position(row.epoch, row.n)))}
        new = self._new_key(key)
        self._draw.said = f"branch {key} at {asked} to {new}"
        async with self._draw.here.flushes():
            call = self._draw.client.branch(key, new, **asked)
            if self._past.exists(new):
                await self._draw.refused(call, AlreadyExists)
            elif not row.lives:
                await self._draw.refused(call, VersionNotFound if asked else NotFound)
            elif not await self._draw.learnt(row):
                self._draw.lacked(await self._draw.refused(call, VersionNotFound), row)
            else:
                state = await self._draw.made_of(row, call=call)
                self._draw.kinds[new] = self._draw.kinds[key]
                self._draw.took(new, "set", row, state, f"branch of {key}@{row.version}")

    def _new_key(self, key: str) -> str:
        """Draw where a branch begins: beside its origin, in a group of its own, or where something is or was.

        Never where a checkpoint was: an undo would bring the checkpoint back.
        """
        self._branched += 1
        gone = [one for one in sorted(self._draw.kinds) if self._draw.kinds[one] == self._draw.kinds[key] and one != key
                and not self._past.exists(one)]  # fmt: skip
        what = self._rng.random()
        if what < 0.1:
            there = [one for one in sorted(self._past.chains) if one != key and not self._past.was_marked(one)]
            return self._rng.choice(there or [f"{key}/b"])
        if what < 0.25 and gone:
            return self._rng.choice(gone)
        return f"{group_of(key)}/b{self._branched}" if what < 0.6 else f"runs/b{self._branched}"

    async def branch_group(self) -> None:
        """Begin a group with what another one holds, or held."""
        drawn = self._restores.point_of_group()
        if drawn is None or len(self._draw.kinds) >= KEYS_MAX:
            return
        group, asked, n = drawn
        if self._rng.random() < 0.4 or "at" in asked:
            asked, n = {}, self._past.n[self._past.shard(group)]
        self._branched += 1
        new, then = f"runs/g{self._branched}", self._past.group_at(group, n=n)
        live = {key: row for key, row in then.items() if row.lives and row.mark is None}
        self._draw.said = f"branch group {group} {asked} to {new}"
        lacking = [row for row in live.values() if not await self._draw.learnt(row)]
        async with self._draw.here.flushes():
            call = self._draw.client.branch(group, new, group=True, **{"at" if name == "to" else name: value
                                                                 for name, value in asked.items()})  # fmt: skip
            if not live:
                await self._draw.refused(call, NotFound, VersionNotFound)
                return
            if lacking:
                self._draw.lacked(await self._draw.refused(call, VersionNotFound), *live.values())
                return
            states = await self._draw.made_of(*live.values(), call=call)
        newest = max(then.values(), key=lambda row: row.n)
        why = str(Provenance(kind="branch", position=Position(newest.epoch, newest.n), origin=group))
        place = self._past.n.get(self._past.shard(new), 0) + 1
        assert {key.replace(group, new, 1) for key in live} == states.keys(), f"{self._draw.said}: {sorted(states)}"
        for key, row in sorted(live.items()):
            made = key.replace(group, new, 1)
            self._draw.kinds[made] = self._draw.kinds[key]
            self._draw.took(made, "set", row, states[made], why, n=place)

    async def merge(self) -> None:
        """Merge what was done on a branch: part by part, or by a function."""
        exists = self._past.exists
        pairs = [
            (one.key, one.origin) for one in self._past.origins
            if self._draw.kinds[one.key] in ("doc", "list") and exists(one.key) and exists(one.origin)
        ]  # fmt: skip
        strangers = [
            key for key in sorted(self._draw.kinds) if self._draw.kinds[key] == "doc" and self._past.exists(key)
        ]
        if self._rng.random() < 0.1 and len(strangers) > 1:
            pairs = [tuple(self._rng.sample(strangers, 2))]  # type: ignore[list-item]
        if not pairs:
            return
        branch, into = self._rng.choice(pairs) if self._rng.random() < 0.7 else self._rng.choice(pairs)[::-1]
        function = self._rng.choice((None, None, _both))
        self._draw.said = f"merge {branch} into {into}{' by a function' if function else ''}"
        base = self._bases.base_of(into, branch)
        if isinstance(base, bool):  # both were merged into one another: any of several may be the base
            return
        async with self._draw.here.flushes():
            await self._merged(branch, into, base, self._draw.client.merge(branch, into, function=function), function)

    async def _merged(
        self, branch: str, into: str, base: tuple[str, int] | None, call: Awaitable[Any], function: Any
    ) -> None:
        ours, theirs = self._past.chain(into)[-1], self._past.chain(branch)[-1]
        if base is None:
            await self._draw.refused(call, UsageError)
            return
        was = self._past.chain(base[0])[base[1] - 1]
        if was.lives and not await self._draw.learnt(was):
            call = self._read_elsewhere(was, (branch, into), call)
        else:
            call = self._draw.made_of(was, call=call)
        if was.op == theirs.op and was.content == theirs.content:
            state = await call
            assert (state.version, state.change_id) == (ours.version, ours.change_id), self._draw.said
            return
        reason = f"merge of {branch}@{theirs.version}"
        if was.op == ours.op and was.content == ours.content:
            self._draw.took(into, "set", theirs, await call, reason)
            return
        if function is not None:
            value = _both(was.value, ours.value, theirs.value)
            self._draw.took(into, "set", ("json", value), await call, reason)
            return
        result = merged(was.value if was.lives else msgspec.UNSET, ours.value, theirs.value)
        if result.conflicts:
            error = await self._draw.refused(call, MergeConflict)
            assert error.paths == tuple(one.place for one in result.conflicts), f"{self._draw.said}: {error}"
            return
        self._draw.took(into, "set", ("json", result.value), await call, reason)

    async def _read_elsewhere(self, was: Row, sides: tuple[str, str], call: Awaitable[Any]) -> Any:
        """Return the answer to a merge from a value that its own key lets go: where a copy of it is kept, that is read.

        The copy with which one of the two began has to be found, others may be.
        """
        copies = [(row, begun) for row, begun in self._bases.copies((was.key, was.version))
                  if await self._draw.learnt(row)]  # fmt: skip
        latest = self._draw.here.is_latest
        try:
            state = await call
        except VersionNotFound as error:
            if any(begun and row.key in sides and not (row.may_go and latest(row.key)) for row, begun in copies):
                raise
            self._draw.lacked(error, was)
            raise TakenAway from error
        assert copies, f"{self._draw.said} was answered, and no copy of {was.key}@{was.version} is kept"
        return state


def _both(base: Any, ours: Any, theirs: Any) -> Any:
    """Decide of a merge: both sides."""
    del base
    return [*ours, *theirs] if isinstance(ours, list) else {**ours, **theirs, "merged": True}
