"""Rollbacks, undos and redos of keys and of groups, drawn: some are cut short."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from statecache import AsyncStateCache, State, VersionNotFound
from statecache.history_errors import AlreadyCurrent
from statecache.model import Position
from tests.simulation.history_model.drawing import Drawing
from tests.simulation.history_model.plain import Row
from tests.simulation.history_model.servers import cancelled_at


class Restores:
    """The going back, and forth again."""

    def __init__(self, drawing: Drawing) -> None:
        self._draw = drawing
        self._past = drawing.past
        self._rng = drawing.rng

    async def rollback(self) -> None:
        """Go back with a key: to a version, a position, a moment or a checkpoint."""
        key = self._draw.key()
        if key is None:
            return
        chain, how = self._past.chain(key), self._rng.choice(("version", "position", "time", "checkpoint"))
        row, asked = self._rng.choice(chain[-12:]), dict[str, Any]()
        marks = self._past.marks_of(key)
        if how == "checkpoint" and marks:
            mark = self._rng.choice(marks)
            label = next(one for one in marks if one.label == mark.label and one.key == key) if any(
                one.label == mark.label and one.key == key for one in marks) else mark  # fmt: skip
            found = chain[label.version - 1] if label.version is not None else self._past.at(key, n=label.n)
            asked = {"to": label.label}
            if found is None:
                self._draw.said = f"rollback {key} to {asked}"
                await self._draw.refused(self._draw.client.rollback(key, **asked), VersionNotFound)
                return
            row = found
        elif how == "position":
            row, asked = self._past.at(key, n=row.n) or row, {"to": Position(row.epoch, row.n)}
        elif how == "time":
            row, asked = self._past.at(key, time=row.at) or row, {"at": row.at}
        else:
            asked = {"to": row.version}
        self._draw.said = f"rollback {key} to {asked}, which is version {row.version}"
        await self._restored(
            key, row, f"rollback to {row.version}", self._draw.client.rollback(key, **asked), same=True
        )

    async def undo(self) -> None:
        """Take the last edit of a key back."""
        await self._walk("undo", self._draw.key())

    async def redo(self) -> None:
        """Bring back what an undo took back."""
        await self._walk("redo", self._draw.key())

    async def walk_to_and_fro(self) -> None:
        """Take several edits of a key back, and bring them back, in any order."""
        key = self._draw.key()
        for kind in self._rng.choices(("undo", "redo"), k=self._rng.randrange(3, 8)):
            await self._walk(kind, key)

    async def _walk(self, kind: str, key: str | None) -> None:
        if key is None:
            return
        self._draw.said, call = f"{kind} {key}", getattr(self._draw.client, kind)(key)
        place = self._past.walk(key, kind)
        if place is None:
            await self._draw.refused(call, VersionNotFound)
            return
        await self._restored(key, self._past.chain(key)[place - 1], f"{kind} to {place}", call, same=False)

    async def _restored(self, key: str, row: Row, reason: str, call: Awaitable[Any], *, same: bool) -> None:
        """Compare what a key went back to with the row that it had to be."""
        tip = self._past.chain(key)[-1]
        if not row.lives:
            if not tip.lives:
                await self._draw.refused(call, AlreadyCurrent)
            else:
                self._draw.took(key, "delete", None, await call, reason)
        elif not await self._draw.learnt(row):
            self._draw.gone(await self._draw.refused(call, VersionNotFound), row)
        elif same and tip.lives and tip.content == row.content:
            await self._draw.refused(call, AlreadyCurrent)
        else:
            self._draw.took(key, "set", row, await call, reason)

    async def rollback_group(self) -> None:
        """Go back with a whole group to a commit, a moment or a checkpoint of it."""
        drawn = self.point_of_group()
        if drawn is None:
            return
        group, asked, n = drawn
        self._draw.said = f"rollback group {group} to {asked}"
        then = self._past.group_at(group, n=n)
        newest = max(then.values(), key=lambda row: row.n)
        reason = f"rollback to {newest.epoch}-{newest.n}"
        await self._group_restored(group, n, reason, lambda client: client.rollback(group, group=True, **asked))

    def point_of_group(self) -> tuple[str, dict[str, Any], int] | None:
        """Draw a group, a point in its history as a verb is asked for it, and the n that this is."""
        group = self._draw.group()
        if group is None:
            return None
        rows = sorted((row for key in self._past.group(group) for row in self._past.chain(key)), key=lambda row: row.n)
        row, marks = (
            self._rng.choice(rows[-25:]),
            [one for one in self._past.marks_of(group) if one.scope == "group"],
        )
        if marks and self._rng.random() < 0.4:
            mark = self._rng.choice(marks)
            return group, {"to": mark.label}, mark.n
        if self._rng.random() < 0.3:
            then = self._past.group_at(group, time=row.at)
            return group, {"at": row.at}, max(one.n for one in then.values())
        return group, {"to": Position(row.epoch, row.n)}, row.n

    async def walk_group(self) -> None:
        """Undo, or redo, the last commit of a group."""
        group, kind = self._draw.group(), self._rng.choice(("undo", "undo", "redo"))
        if group is None or group in self._past.erased_groups:
            return
        self._draw.said = f"{kind} group {group}"
        place = self._past.walk_group(group, kind)
        if place is None:
            await self._draw.refused(getattr(self._draw.client, kind)(group, group=True), VersionNotFound)
            return
        row = next(row for key in self._past.group(group) for row in self._past.chain(key) if row.n == place)
        reason = f"{kind} to {row.epoch}-{row.n}"
        await self._group_restored(group, place, reason, lambda client: getattr(client, kind)(group, group=True))

    async def _group_restored(
        self, group: str, n: int, reason: str, call: Callable[[AsyncStateCache], Awaitable[Any]]
    ) -> None:
        """Compare what a group went back to with what it was; the call may be cancelled at one of its exchanges."""
        writes = self._past.back(group, n)
        rows = [row for row in (writes or {}).values() if row is not None]
        lacking = [row for row in rows if not await self._draw.learnt(row)]
        if writes is None or lacking:
            error = await self._draw.refused(call(self._draw.client), VersionNotFound)
            if writes is not None:
                self._draw.gone(error, next(row for row in lacking if row.key == error.key))
            return
        if not writes:
            await self._draw.refused(call(self._draw.client), AlreadyCurrent)
            return
        if self._rng.random() >= 0.3:
            self._group_took(writes, await call(self._draw.client), reason)
            return
        moment = self._rng.randrange(1, 14)
        cancelled, states = await cancelled_at(moment, call(self._draw.here.clients[0]))
        if cancelled:
            self._draw.said += f", cancelled at {moment}"
            await self._group_is_whole(writes, reason)
        else:
            self._group_took(writes, states, reason)

    async def _group_is_whole(self, writes: Mapping[str, Row | None], reason: str) -> None:
        """See that of a commit that was cut short all is there or nothing."""
        states = {key: state for key in writes if (state := await self._draw.newest(key)) is not None}
        if not states:
            return
        assert states.keys() == writes.keys(), f"{self._draw.said}: {sorted(states)} of {sorted(writes)} went back"
        self._group_took(writes, states, reason)

    def _group_took(self, writes: Mapping[str, Row | None], states: Mapping[str, State[Any]], reason: str) -> None:
        assert states.keys() == writes.keys(), (
            f"{self._draw.said}: {sorted(states)} was written, and {sorted(writes)} was to"
        )
        n = self._past.n[self._past.shard(next(iter(writes)))] + 1
        for key, row in sorted(writes.items()):
            self._draw.took(key, "delete" if row is None else "set", row, states[key], reason, n=n)
