"""What the verbs of a drawn history share: what is drawn, and how an answer is told to the plain history.

Each verb is told to the plain history as well: what it answers, and what it refuses, has to be what that says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from math import inf
from random import Random
from typing import Any

import msgspec

from statecache import AsyncStateCache, State, VersionNotFound
from tests.simulation.history_model.plain import Row
from tests.simulation.history_model.servers import HistoryServers

GROUPS = ("runs/1", "runs/2", "notes/1", "last/1", "blobs/1")
NAMES = {"": "doc", "/plan": "doc", "/log": "list", "/count": "number"}
RAW = "blobs"
WORDS = [f"word {number} of what an agent said" for number in range(40)]
Content = tuple[str, Any]


class TakenAway(Exception):
    """A flush took away a value that a call needed, before the call read it: nothing was made of it."""


class Drawing:
    """What is drawn from the seed of one run, and what was said last."""

    def __init__(self, here: HistoryServers, rng: Random) -> None:
        self.here = here
        self.past = here.past
        self.rng = rng
        self.kinds: dict[str, str] = {}
        for group in GROUPS:
            for name, kind in NAMES.items():
                self.kinds[group + name] = "raw" if group.startswith(RAW) else kind
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
        """Compare the error about a value that is gone: it names what is nearest, past what may have gone by now."""
        assert isinstance(error, VersionNotFound), error
        held = {one.version: one for one in self.past.chain(error.key) if one.lives and one.kept}
        distance = inf if error.nearest is None else abs(error.nearest - row.version)
        nearer = [version for version, one in held.items() if not one.may_go and abs(version - row.version) < distance]
        assert error.nearest is None or error.nearest in held, f"{self.said}: {error}, which is not kept"
        assert not nearer, f"{self.said}: {error}, nearest {error.nearest}, kept {nearer}"

    async def learnt(self, row: Row) -> bool:
        """Learn which values of a key are kept that may have gone, and return whether this one is."""
        chain = self.past.chain(row.key)
        if any(one.may_go and one.kept for one in chain):
            async for change in self.here.clients[0].history(row.key):
                one = chain[change.version - 1]
                one.kept = one.kept and (change.kept or not one.may_go)
        return row.kept

    async def made_of(self, *rows: Row, call: Awaitable[Any]) -> Any:
        """Return the answer to a call that reads these kept values while a worker flushes."""
        try:
            return await call
        except VersionNotFound as error:
            self.lacked(error, *rows)
            raise TakenAway from error

    def lacked(self, error: VersionNotFound, *rows: Row) -> None:
        """Compare the error about one of these values, which a flush may have taken away since it was seen.

        Of a namespace that keeps its newest values alone, a worker takes what it replaces.
        """
        row = next((row for row in rows if row.key == error.key), None)
        self.here.look()
        self.here.mark()
        if row is None or (row.kept and not (row.may_go and self.here.is_latest(row.key))):
            raise error
        row.kept = False
        self.gone(error, row)

    def form(self, key: str) -> str:
        """Return how the values of a key are encoded."""
        return "raw" if self.kinds[key] == "raw" else "json"

    def view(self, key: str) -> tuple[Any, str]:
        if self.kinds[key] != "raw":
            return self.client, key
        namespace, _, name = key.partition("/")
        return self.client.namespace(namespace, encoding="raw"), name

    async def newest(self, key: str) -> State[Any] | None:
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


def _of(row: Row) -> Content:
    return row.form, row.value


def _encoded(form: str, value: Any) -> bytes:
    return value if form == "raw" else msgspec.json.encode(value)
