"""What is drawn next of a history: writes of every kind, and the verbs that go back, branch, merge, mark and erase.

Each verb is told to the plain history as well: what it answers, and what it refuses, has to be what that says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

import msgspec

from statecache import AlreadyExists, AsyncStateCache, NotFound, State, UsageError, VersionNotFound
from statecache.history_errors import AlreadyCurrent, CheckpointExists, CheckpointNotFound, MergeConflict
from statecache.keys import group_of
from statecache.model import Position
from statecache.rules.provenance import Provenance
from statecache.rules.three_way import merged
from tests.simulation.history_servers import HistoryServers, cancelled_at
from tests.simulation.plain_history import Mark, Row, nearest

GROUPS = ("runs/1", "runs/2", "notes/1", "last/1", "blobs/1")
NAMES = {"": "doc", "/plan": "doc", "/log": "list", "/count": "number"}
RAW = "blobs"
KEYS_MAX = 45
LABELS = ("a", "b", "c", "d")
WORDS = [f"word {number} of what an agent said" for number in range(40)]
Content = tuple[str, Any]


class Drawn:
    """The verbs of one run, drawn from its seed."""

    def __init__(self, here: HistoryServers, rng: Random) -> None:
        self.here = here
        self.past = here.past
        self.rng = rng
        self.kinds: dict[str, str] = {}
        for group in GROUPS:
            for name, kind in NAMES.items():
                self.kinds[group + name] = "raw" if group.startswith(RAW) else kind
        self.branched = 0
        self.said = ""

    @property
    def client(self) -> AsyncStateCache:
        """One of the clients."""
        return self.rng.choice(self.here.clients)

    # Drawing.

    def key(self, *kinds: str, written: bool = True) -> str | None:
        """Draw a key of one of these kinds, or of any, that was written before."""
        known = [
            key for key, kind in sorted(self.kinds.items())
            if (not kinds or kind in kinds) and (not written or self.past.chain(key))
        ]  # fmt: skip
        return self.rng.choice(known) if known else None

    def group(self) -> str | None:
        """Draw a group of which something was written."""
        groups = self.past.groups()
        return self.rng.choice(groups) if groups else None

    def value(self, key: str) -> Any:
        """Draw a value: small, large, grown from the last one, or one that does not compress."""
        rng, kind, tip = self.rng, self.kinds[key], self.past.tip(key)
        if kind == "number":
            return rng.randrange(1000)
        if kind == "list":
            return rng.choices(WORDS, k=rng.choice((0, 1, 3, 200)))
        if kind == "raw":
            grown = tip.value if tip is not None and tip.lives and rng.random() < 0.6 else b""
            return grown + rng.choice((b"", b"x", rng.randbytes(40), b"bytes that say the same " * 200))
        what = rng.random()
        if what < 0.25:
            return {"step": rng.randrange(100)}
        if what < 0.4:
            return {"noise": rng.randbytes(rng.choice((200, 3000))).hex(), "step": rng.randrange(100)}
        if what < 0.6:
            return {"step": rng.randrange(100), "said": rng.choices(WORDS, k=rng.choice((30, 900)))}
        return self.edited(tip.value if tip is not None and tip.lives else {})

    def edited(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document with something said more, something changed, or something gone."""
        rng, found = self.rng, dict(value)
        what = rng.random()
        if what < 0.6:
            found["said"] = [*found.get("said", []), f"{rng.choice(WORDS)} {rng.randrange(10**6)}"]
        elif what < 0.85:
            found[f"field {rng.randrange(6)}"] = {"at": rng.randrange(10**6), "in": {"deep": rng.random() < 0.5}}
        elif len(found) > 1:
            del found[rng.choice(sorted(found))]
        return found

    # Telling the plain history.

    def took(
        self, key: str, op: str, content: Content | Row | None, state: State[Any], reason: str, *, n: int | None = None
    ) -> None:
        """Compare an answer with what was to be written, and add that to the plain history."""
        tip = self.past.tip(key)
        form, value = ("", None) if content is None else content if isinstance(content, tuple) else _of(content)
        data = b"" if op != "set" else content.data if isinstance(content, Row) else _encoded(form, value)
        version = 1 if tip is None else tip.version + 1
        place = self.past.n.get(self.past.shard(key), 0) + 1 if n is None else n
        assert state.position is not None
        found = (state.key, state.version, state.position.n, state.parent_change_id)
        wanted = (key, version, place, tip.change_id if tip is not None else "")
        assert found == wanted, f"{found} was answered, and {wanted} was to be"
        assert state.value == value, f"{key}@{version} was answered as {state.value!r}, and {value!r} was to be"
        self.past.add(Row(
            key=key, version=version, op=op, value=value, data=data, form=form, change_id=state.change_id,
            parent=state.parent_change_id, n=place, epoch=state.position.epoch, at=state.updated_at, reason=reason,
        ))  # fmt: skip

    async def refused(self, call: Awaitable[Any], *kinds: type[BaseException]) -> Any:
        """Return the error with which a call has to end."""
        try:
            answer = await call
        except kinds as error:
            return error
        raise AssertionError(f"{self.said} was answered with {str(answer)[:200]}, and {kinds} was to be raised")

    def gone(self, error: Any, row: Row) -> None:
        """Compare the error about a value that is gone: it names what is nearest."""
        assert isinstance(error, VersionNotFound), error
        held = nearest(self.past.held(error.key), row.version)
        assert error.nearest in (held or {None}), f"{self.said}: {error}, nearest {error.nearest}, kept {held}"

    async def learnt(self, row: Row) -> bool:
        """Learn which values of a key are kept that may have gone, and return whether this one is."""
        chain = self.past.chain(row.key)
        if any(one.may_go and one.kept for one in chain):
            async for change in self.here.clients[0].history(row.key):
                one = chain[change.version - 1]
                one.kept = one.kept and (change.kept or not one.may_go)
        return row.kept

    # Writing.

    async def set(self) -> None:
        """Write a value over whatever is there."""
        key = self.rng.choice(sorted(self.kinds))
        await self._set(key, self.value(key))

    async def _set(self, key: str, value: Any) -> None:
        self.said = f"set {key}"
        view, name = self._view(key)
        reason = f"said {self.rng.randrange(10**6)}"
        state = await view.set(name, value, reason=reason)
        self.took(key, "set", (self.form(key), value), state, reason)

    def form(self, key: str) -> str:
        """Return how the values of a key are encoded."""
        return "raw" if self.kinds[key] == "raw" else "json"

    def _view(self, key: str) -> tuple[Any, str]:
        if self.kinds[key] != "raw":
            return self.client, key
        namespace, _, name = key.partition("/")
        return self.client.namespace(namespace, encoding="raw"), name

    async def edit(self) -> None:
        """Change a part of a document."""
        key = self.key("doc")
        if key is None or not self.past.exists(key):
            return
        tip = self.past.chain(key)[-1]
        value, self.said = self.edited(tip.value), f"edit {key}"
        state = await self.client.update(key, lambda _: value, type=dict[str, Any])
        self.took(key, "set", ("json", value), state, "")

    async def modify(self) -> None:
        """Count, or append to a list."""
        key = self.key("number", "list", written=False)
        if key is None:
            return
        tip, self.said = self.past.tip(key), f"modify {key}"
        now = tip.value if tip is not None and tip.lives else None
        if self.kinds[key] == "number":
            by = self.rng.randrange(-5, 50)
            state: State[Any] = await self.client.increment(key, by)
            self.took(key, "set", ("json", (now or 0) + by), state, "")
            return
        items = self.rng.choices(WORDS, k=self.rng.choice((1, 2, 20)))
        state = await self.client.append(key, *items)
        self.took(key, "set", ("json", [*(now or []), *items]), state, "")

    async def delete(self) -> None:
        """Delete a state."""
        key = self.key()
        if key is None:
            return
        self.said = f"delete {key}"
        state = await self.client.delete(key)
        assert (state is not None) == self.past.exists(key), self.said
        if state is not None:
            self.took(key, "delete", None, state, "")

    async def recreate(self) -> None:
        """Create a state where there is none, or be refused."""
        gone = [key for key in sorted(self.kinds) if self.past.chain(key) and not self.past.exists(key)]
        key = self.rng.choice(gone) if gone else self.key()
        if key is None:
            return
        self.said, value = f"create {key}", self.value(key)
        view, name = self._view(key)
        if self.past.exists(key):
            await self.refused(view.create(name, value), AlreadyExists)
            return
        self.took(key, "set", (self.form(key), value), await view.create(name, value), "")

    # Checkpoints.

    async def checkpoint(self) -> None:
        """Make a checkpoint of a key or a group, durable or not; a label that is in use is refused."""
        whole = self.rng.random() < 0.5
        key = self.group() if whole else self.key()
        if key is None:
            return
        label, metadata = self.rng.choice(LABELS), {"why": self.rng.choice(WORDS)}
        durability: Any = self.rng.choice(("memory", "postgres"))
        self.said = f"checkpoint {key} {label} {durability} {'of the group' if whole else ''}"
        target = f"{key}/checkpoints/{label}"
        there = any(self.past.exists(one) for one in self._own(key, whole=whole))
        call = self.client.checkpoint(key, label, metadata=metadata, group=whole, durability=durability)
        if not there or target in self.past.marks():
            await self.refused(call, CheckpointExists if there else NotFound)
            return
        if durability == "postgres":
            async with self.here.flushes():
                made = await call
        else:
            made = await call
        n = self.past.n.get(self.past.shard(key), 0) + 1
        tip = None if whole else self.past.chain(key)[-1]
        mark = Mark(label, "group" if whole else "key", key, tip.version if tip else None, n, metadata)
        wanted = (mark.scope, key, label, mark.version, n, metadata, tip.digest if tip else "")
        found = (made.scope, made.key, made.label, made.version, made.position.n, made.metadata, made.sha256)
        assert found == wanted, f"{self.said}: {found} was made, and {wanted} was to be"
        await self._marked(target, mark, "set")
        self.here.look()

    def _own(self, key: str, *, whole: bool) -> list[str]:
        return [one for one in self.past.group(key) if "/checkpoints/" not in one] if whole else [key]

    async def _marked(self, target: str, mark: Mark | None, op: str, n: int | None = None) -> None:
        """Add what was written at a checkpoint's record, as it is read there."""
        tip = self.past.tip(target)
        version = 1 if tip is None else tip.version + 1
        change = [one async for one in self.here.clients[0].history(target, values=True)][-1]
        place = self.past.n.get(self.past.shard(target), 0) + 1 if n is None else n
        found = (change.version, change.position.n, change.op)
        assert found == (version, place, op), f"{self.said}: {found} was written, and {(version, place, op)} was to be"
        self.past.add(Row(
            key=target, version=version, op=op, value=change.value,
            data=b"" if op != "set" else msgspec.json.encode(change.value), form="json" if op == "set" else "",
            change_id=change.change_id, parent=change.parent_change_id, n=place, epoch=change.epoch, at=change.at,
            reason="", mark=mark,
        ))  # fmt: skip

    async def rename_checkpoint(self) -> None:
        """Give a checkpoint another label; it names what it named."""
        drawn = self._some_mark()
        if drawn is None:
            return
        place, mark = drawn
        label = self.rng.choice(LABELS)
        if label == mark.label:
            return
        self.said, target = f"rename checkpoint {place} to {label}", f"{mark.key}/checkpoints/{label}"
        call = self.client.rename_checkpoint(mark.key, mark.label, label, durability="memory")
        if target in self.past.marks():
            await self.refused(call, CheckpointExists)
            return
        renamed = await call
        assert (renamed.label, renamed.position.n, renamed.version) == (label, mark.n, mark.version), self.said
        n = self.past.n[self.past.shard(place)] + 1
        await self._marked(place, None, "delete", n)
        await self._marked(target, msgspec.structs.replace(mark, label=label), "set", n)

    async def unpin(self) -> None:
        """Delete a checkpoint, or be told that there is none."""
        drawn = self._some_mark()
        if drawn is None:
            return
        place, mark = drawn
        self.said = f"delete checkpoint {place}"
        gone = await self.client.delete_checkpoint(mark.key, mark.label)
        assert (gone.position.n, gone.version, gone.pinned) == (mark.n, mark.version, False), self.said
        await self._marked(place, None, "delete")
        await self.refused(self.client.delete_checkpoint(mark.key, mark.label), CheckpointNotFound)

    def _some_mark(self) -> tuple[str, Mark] | None:
        marks = sorted(self.past.marks().items())
        return self.rng.choice(marks) if marks else None

    # Going back.

    async def rollback(self) -> None:
        """Go back with a key: to a version, a position, a moment or a checkpoint."""
        key = self.key()
        if key is None:
            return
        chain, how = self.past.chain(key), self.rng.choice(("version", "position", "time", "checkpoint"))
        row, asked = self.rng.choice(chain[-12:]), dict[str, Any]()
        marks = self.past.marks_of(key)
        if how == "checkpoint" and marks:
            mark = self.rng.choice(marks)
            label = next(one for one in marks if one.label == mark.label and one.key == key) if any(
                one.label == mark.label and one.key == key for one in marks) else mark  # fmt: skip
            found = chain[label.version - 1] if label.version is not None else self.past.at(key, n=label.n)
            asked = {"to": label.label}
            if found is None:
                self.said = f"rollback {key} to {asked}"
                await self.refused(self.client.rollback(key, **asked), VersionNotFound)
                return
            row = found
        elif how == "position":
            row, asked = self.past.at(key, n=row.n) or row, {"to": Position(row.epoch, row.n)}
        elif how == "time":
            row, asked = self.past.at(key, time=row.at) or row, {"at": row.at}
        else:
            asked = {"to": row.version}
        self.said = f"rollback {key} to {asked}, which is version {row.version}"
        await self._restored(key, row, f"rollback to {row.version}", self.client.rollback(key, **asked), same=True)

    async def undo(self) -> None:
        """Take the last edit of a key back."""
        await self._walk("undo")

    async def redo(self) -> None:
        """Bring back what an undo took back."""
        await self._walk("redo")

    async def _walk(self, kind: str) -> None:
        key = self.key()
        if key is None:
            return
        self.said, call = f"{kind} {key}", getattr(self.client, kind)(key)
        place = self.past.walk(key, kind)
        if place is None:
            await self.refused(call, VersionNotFound)
            return
        await self._restored(key, self.past.chain(key)[place - 1], f"{kind} to {place}", call, same=False)

    async def _restored(self, key: str, row: Row, reason: str, call: Awaitable[Any], *, same: bool) -> None:
        """Compare what a key went back to with the row that it had to be."""
        tip = self.past.chain(key)[-1]
        if not row.lives:
            if not tip.lives:
                await self.refused(call, AlreadyCurrent)
            else:
                self.took(key, "delete", None, await call, reason)
        elif not await self.learnt(row):
            self.gone(await self.refused(call, VersionNotFound), row)
        elif same and tip.lives and tip.content == row.content:
            await self.refused(call, AlreadyCurrent)
        else:
            self.took(key, "set", row, await call, reason)

    async def rollback_group(self) -> None:
        """Go back with a whole group to a commit, a moment or a checkpoint of it."""
        drawn = self._group_point()
        if drawn is None:
            return
        group, asked, n = drawn
        self.said = f"rollback group {group} to {asked}"
        then = self.past.group_at(group, n=n)
        newest = max(then.values(), key=lambda row: row.n)
        reason = f"rollback to {newest.epoch}-{newest.n}"
        await self._group_restored(group, n, reason, lambda: self.client.rollback(group, group=True, **asked))

    def _group_point(self) -> tuple[str, dict[str, Any], int] | None:
        group = self.group()
        if group is None:
            return None
        rows = sorted((row for key in self.past.group(group) for row in self.past.chain(key)), key=lambda row: row.n)
        row, marks = self.rng.choice(rows[-25:]), [one for one in self.past.marks_of(group) if one.scope == "group"]
        if marks and self.rng.random() < 0.4:
            mark = self.rng.choice(marks)
            return group, {"to": mark.label}, mark.n
        if self.rng.random() < 0.3:
            then = self.past.group_at(group, time=row.at)
            return group, {"at": row.at}, max(one.n for one in then.values())
        return group, {"to": Position(row.epoch, row.n)}, row.n

    async def walk_group(self) -> None:
        """Undo, or redo, the last commit of a group."""
        group, kind = self.group(), self.rng.choice(("undo", "undo", "redo"))
        if group is None or group in self.past.erased_groups:
            return
        self.said = f"{kind} group {group}"
        place = self.past.walk_group(group, kind)
        if place is None:
            await self.refused(getattr(self.client, kind)(group, group=True), VersionNotFound)
            return
        row = next(row for key in self.past.group(group) for row in self.past.chain(key) if row.n == place)
        reason = f"{kind} to {row.epoch}-{row.n}"
        await self._group_restored(group, place, reason, lambda: getattr(self.client, kind)(group, group=True))

    async def _group_restored(self, group: str, n: int, reason: str, call: Callable[[], Awaitable[Any]]) -> None:
        """Compare what a group went back to with what it was; the call may be cancelled at one of its exchanges."""
        writes = self.past.back(group, n)
        rows = [row for row in (writes or {}).values() if row is not None]
        lacking = [row for row in rows if not await self.learnt(row)]
        if writes is None or lacking:
            error = await self.refused(call(), VersionNotFound)
            if writes is not None:
                self.gone(error, next(row for row in lacking if row.key == error.key))
            return
        if not writes:
            await self.refused(call(), AlreadyCurrent)
            return
        if self.rng.random() < 0.3 and await cancelled_at(self.rng.randrange(1, 14), call()):
            self.said += ", cancelled"
            await self._group_is_whole(writes, reason)
            return
        states = await call() if self.said[-1] != "," else {}
        self._group_took(writes, states, reason)

    async def _group_is_whole(self, writes: Mapping[str, Row | None], reason: str) -> None:
        """See that of a commit that was cut short all is there or nothing."""
        states = {key: state for key in writes if (state := await self._newest(key)) is not None}
        if not states:
            return
        assert states.keys() == writes.keys(), f"{self.said}: {sorted(states)} of {sorted(writes)} went back"
        self._group_took(writes, states, reason)

    async def _newest(self, key: str) -> State[Any] | None:
        """Return what was written to a key behind what the plain history has, if anything was."""
        known = len(self.past.chain(key))
        changes = [one async for one in self.here.clients[0].history(key, since=known + 1, values=True)]
        assert len(changes) <= 1, f"{self.said}: {len(changes)} changes were made of {key}"
        if not changes:
            return None
        one = changes[0]
        return State(
            key=key, value=one.value, epoch=one.epoch, version=one.version, change_id=one.change_id,
            parent_change_id=one.parent_change_id, position=one.position, updated_at=one.at, writer=one.writer,
        )  # fmt: skip

    def _group_took(self, writes: Mapping[str, Row | None], states: Mapping[str, State[Any]], reason: str) -> None:
        assert states.keys() == writes.keys(), f"{self.said}: {sorted(states)} was written, and {sorted(writes)} was to"
        n = self.past.n[self.past.shard(next(iter(writes)))] + 1
        for key, row in sorted(writes.items()):
            self.took(key, "delete" if row is None else "set", row, states[key], reason, n=n)

    # Branches.

    async def branch(self) -> None:
        """Begin a key with what another one holds, or held."""
        key = self.key()
        if key is None or len(self.kinds) >= KEYS_MAX:
            return
        row, asked = self.past.chain(key)[-1], dict[str, Any]()
        if self.rng.random() < 0.6:
            row = self.rng.choice(self.past.chain(key)[-12:])
            asked = {"at": self.rng.choice((row.version, Position(row.epoch, row.n)))}
        new = self._new_key(key)
        self.said = f"branch {key} at {asked} to {new}"
        async with self.here.flushes():
            call = self.client.branch(key, new, **asked)
            if self.past.exists(new):
                await self.refused(call, AlreadyExists)
            elif not row.lives:
                await self.refused(call, VersionNotFound if asked else NotFound)
            elif not await self.learnt(row):
                self.gone(await self.refused(call, VersionNotFound), row)
            else:
                self.kinds[new] = self.kinds[key]
                self.took(new, "set", row, await call, f"branch of {key}@{row.version}")

    def _new_key(self, key: str) -> str:
        """Draw where a branch begins: beside its origin, in a group of its own, or where something is or was."""
        self.branched += 1
        gone = [one for one in sorted(self.kinds) if self.kinds[one] == self.kinds[key] and one != key
                and not self.past.exists(one)]  # fmt: skip
        what = self.rng.random()
        if what < 0.1:
            return self.rng.choice([one for one in sorted(self.past.chains) if one != key] or [f"{key}/b"])
        if what < 0.25 and gone:
            return self.rng.choice(gone)
        return f"{group_of(key)}/b{self.branched}" if what < 0.6 else f"runs/b{self.branched}"

    async def branch_group(self) -> None:
        """Begin a group with what another one holds, or held."""
        drawn = self._group_point()
        if drawn is None or len(self.kinds) >= KEYS_MAX:
            return
        group, asked, n = drawn
        if self.rng.random() < 0.4 or "at" in asked:
            asked, n = {}, self.past.n[self.past.shard(group)]
        self.branched += 1
        new, then = f"runs/g{self.branched}", self.past.group_at(group, n=n)
        live = {key: row for key, row in then.items() if row.lives and row.mark is None}
        self.said = f"branch group {group} {asked} to {new}"
        lacking = [row for row in live.values() if not await self.learnt(row)]
        async with self.here.flushes():
            call = self.client.branch(group, new, group=True, **{"at" if name == "to" else name: value
                                                                 for name, value in asked.items()})  # fmt: skip
            if not live:
                await self.refused(call, NotFound, VersionNotFound)
                return
            if lacking:
                error = await self.refused(call, VersionNotFound)
                self.gone(error, next(row for row in lacking if row.key == error.key))
                return
            states = await call
        newest = max(then.values(), key=lambda row: row.n)
        why = str(Provenance(kind="branch", position=Position(newest.epoch, newest.n), origin=group))
        place = self.past.n.get(self.past.shard(new), 0) + 1
        assert {key.replace(group, new, 1) for key in live} == states.keys(), f"{self.said}: {sorted(states)}"
        for key, row in sorted(live.items()):
            made = key.replace(group, new, 1)
            self.kinds[made] = self.kinds[key]
            self.took(made, "set", row, states[made], why, n=place)

    async def merge(self) -> None:
        """Merge what was done on a branch: part by part, or by a function."""
        pairs = [
            (one.key, one.origin) for one in self.past.origins
            if self.kinds[one.key] in ("doc", "list") and self.past.exists(one.key) and self.past.exists(one.origin)
        ]  # fmt: skip
        strangers = [key for key in sorted(self.kinds) if self.kinds[key] == "doc" and self.past.exists(key)]
        if self.rng.random() < 0.1 and len(strangers) > 1:
            pairs = [tuple(self.rng.sample(strangers, 2))]  # type: ignore[list-item]
        if not pairs:
            return
        branch, into = self.rng.choice(pairs) if self.rng.random() < 0.7 else self.rng.choice(pairs)[::-1]
        function = self.rng.choice((None, None, _both))
        self.said = f"merge {branch} into {into}{' by a function' if function else ''}"
        base = self.past.base_of(into, branch)
        if isinstance(base, bool):  # both were merged into one another: any of several may be the base
            return
        async with self.here.flushes():
            await self._merged(branch, into, base, self.client.merge(branch, into, function=function), function)

    async def _merged(
        self, branch: str, into: str, base: tuple[str, int] | None, call: Awaitable[Any], function: Any
    ) -> None:
        ours, theirs = self.past.chain(into)[-1], self.past.chain(branch)[-1]
        if base is None:
            await self.refused(call, UsageError)
            return
        was = self.past.chain(base[0])[base[1] - 1]
        if was.lives and not await self.learnt(was):
            await self.refused(call, VersionNotFound)
            return
        if was.op == theirs.op and was.content == theirs.content:
            state = await call
            assert (state.version, state.change_id) == (ours.version, ours.change_id), self.said
            return
        reason = f"merge of {branch}@{theirs.version}"
        if was.op == ours.op and was.content == ours.content:
            self.took(into, "set", theirs, await call, reason)
            return
        if function is not None:
            value = _both(was.value, ours.value, theirs.value)
            self.took(into, "set", ("json", value), await call, reason)
            return
        result = merged(was.value if was.lives else msgspec.UNSET, ours.value, theirs.value)
        if result.conflicts:
            error = await self.refused(call, MergeConflict)
            assert error.paths == tuple(one.place for one in result.conflicts), f"{self.said}: {error}"
            return
        self.took(into, "set", ("json", result.value), await call, reason)

    # Erasing.

    async def erase(self) -> None:
        """Erase a key, or a group, once or after whoever did so was cancelled in the middle of it."""
        whole = self.rng.random() < 0.3
        key = self.group() if whole else self.key()
        if key is None:
            return
        below = (f"{key}/",) if whole else (f"{key}/checkpoints/",)
        keys = [one for one in sorted(self.past.chains) if one == key or one.startswith(below)]
        self.said = f"erase {key}{' with its group' if whole else ''}"
        async with self.here.flushes():
            if self.rng.random() < 0.4:
                moment = self.rng.randrange(1, 40)
                if await cancelled_at(moment, self.here.clients[0].erase(key, group=whole)):
                    self.said += f", cancelled at {moment}"
                await self._erased(keys)
            proof = await self.here.clients[0].erase(key, group=whole)
            await self._erased(keys)
        assert list(proof.keys) == keys, f"{self.said}: {proof.keys} went, and {keys} had to"
        self.past.blank(keys)

    async def _erased(self, keys: list[str]) -> None:
        """Add the tombstones that an erasure has made: all of them, or none."""
        states = {key: state for key in keys if (state := await self._newest(key)) is not None}
        assert not states or len(states) == len(keys), f"{self.said}: {sorted(states)} of {keys} were deleted"
        if not states:
            return
        n = self.past.n[self.past.shard(keys[0])] + 1
        for key in keys:
            self.took(key, "delete", None, states[key], "erased", n=n)

    async def pause(self) -> None:
        """Let some time pass, so that ages differ."""
        await asyncio.sleep(0.02)


def _of(row: Row) -> Content:
    return row.form, row.value


def _encoded(form: str, value: Any) -> bytes:
    return value if form == "raw" else msgspec.json.encode(value)


def _both(base: Any, ours: Any, theirs: Any) -> Any:
    """Decide of a merge: both sides."""
    del base
    return [*ours, *theirs] if isinstance(ours, list) else {**ours, **theirs, "merged": True}
