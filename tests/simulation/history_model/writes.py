"""Writes of every kind, drawn."""

from __future__ import annotations

from typing import Any

from statecache import AlreadyExists, State
from tests.simulation.history_model.drawing import WORDS, Drawing
from tests.support.polling import pause


class Writes:
    """Sets, edits, counters and lists, deletes, and what begins anew."""

    def __init__(self, drawing: Drawing) -> None:
        self._draw = drawing
        self._past = drawing.past
        self._rng = drawing.rng

    async def set(self) -> None:
        """Write a value over whatever is there."""
        key = self._rng.choice(sorted(self._draw.kinds))
        await self.write(key, self._draw.value(key))

    async def write(self, key: str, value: Any) -> None:
        self._draw.said = f"set {key}"
        view, name = self._draw.view(key)
        reason = f"said {self._rng.randrange(10**6)}"
        state = await view.set(name, value, reason=reason)
        self._draw.took(key, "set", (self._draw.form(key), value), state, reason)

    async def edit(self) -> None:
        """Change a part of a document."""
        key = self._draw.key("doc")
        if key is None or not self._past.exists(key):
            return
        tip = self._past.chain(key)[-1]
        value, self._draw.said = self._draw.edited(tip.value), f"edit {key}"
        state = await self._draw.client.update(key, lambda _: value, type=dict[str, Any])
        self._draw.took(key, "set", ("json", value), state, "")

    async def modify(self) -> None:
        """Count, or append to a list."""
        key = self._draw.key("number", "list", written=False)
        if key is None:
            return
        tip, self._draw.said = self._past.tip(key), f"modify {key}"
        now = tip.value if tip is not None and tip.lives else None
        if self._draw.kinds[key] == "number":
            by = self._rng.randrange(-5, 50)
            state: State[Any] = await self._draw.client.increment(key, by)
            self._draw.took(key, "set", ("json", (now or 0) + by), state, "")
            return
        items = self._rng.choices(WORDS, k=self._rng.choice((1, 2, 20)))
        state = await self._draw.client.append(key, *items)
        self._draw.took(key, "set", ("json", [*(now or []), *items]), state, "")

    async def delete(self) -> None:
        """Delete a state."""
        key = self._draw.key()
        if key is None:
            return
        self._draw.said = f"delete {key}"
        state = await self._draw.client.delete(key)
        assert (state is not None) == self._past.exists(key), self._draw.said
        if state is not None:
            self._draw.took(key, "delete", None, state, "")

    async def recreate(self) -> None:
        """Create a state where there is none, or be refused."""
        gone = [key for key in sorted(self._draw.kinds) if self._past.chain(key) and not self._past.exists(key)]
        key = self._rng.choice(gone) if gone else self._draw.key()
        if key is None:
            return
        self._draw.said, value = f"create {key}", self._draw.value(key)
        view, name = self._draw.view(key)
        if self._past.exists(key):
            await self._draw.refused(view.create(name, value), AlreadyExists)
            return
        self._draw.took(key, "set", (self._draw.form(key), value), await view.create(name, value), "")

    async def pause(self) -> None:
        """Let some time pass, so that ages differ."""
        for _ in range(4):
            await pause()
