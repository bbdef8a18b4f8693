"""Erasures, drawn: some are cut short."""

from __future__ import annotations

from tests.simulation.history_model.drawing import Drawing
from tests.simulation.history_model.servers import cancelled_at


class Erasures:
    """The erasing of keys and of groups."""

    def __init__(self, drawing: Drawing) -> None:
        self._draw = drawing
        self._past = drawing.past
        self._rng = drawing.rng

    async def erase(self) -> None:
        """Erase a key, or a group, once or after whoever did so was cancelled in the middle of it."""
        whole = self._rng.random() < 0.3
        key = self._draw.group() if whole else self._draw.key()
        if key is None:
            return
        below = (f"{key}/",) if whole else (f"{key}/checkpoints/",)
        keys = [one for one in sorted(self._past.chains) if one == key or one.startswith(below)]
        self._draw.said = f"erase {key}{' with its group' if whole else ''}"
        async with self._draw.here.flushes():
            if self._rng.random() < 0.4:
                moment = self._rng.randrange(1, 40)
                cancelled, _ = await cancelled_at(moment, self._draw.here.clients[0].erase(key, group=whole))
                if cancelled:
                    self._draw.said += f", cancelled at {moment}"
                await self._erased(keys)
            proof = await self._draw.here.clients[0].erase(key, group=whole)
            await self._erased(keys)
        assert list(proof.keys) == keys, f"{self._draw.said}: {proof.keys} went, and {keys} had to"
        self._past.blank(keys)

    async def _erased(self, keys: list[str]) -> None:
        """Add the tombstones that an erasure has made: all of them, or none."""
        states = {key: state for key in keys if (state := await self._draw.newest(key)) is not None}
        assert not states or len(states) == len(keys), f"{self._draw.said}: {sorted(states)} of {keys} were deleted"
        if not states:
            return
        n = self._past.n[self._past.shard(keys[0])] + 1
        for key in keys:
            self._draw.took(key, "delete", None, states[key], "erased", n=n)
