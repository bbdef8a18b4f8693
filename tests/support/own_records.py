"""What the library keeps of its own beside the states of an adapter: named checkpoints, and steps."""

from __future__ import annotations

from statecache import AsyncStateCache


async def marked(cache: AsyncStateCache, *groups: str, label: str = "one") -> set[str]:
    """Name a point of each state of the groups and of each group, run a step of each, and return the keys made."""
    before = {state.key async for state in cache.list(values=False)}
    theirs = [state.key async for state in cache.list(type=object, values=False)]
    states = [key for key in theirs if key in groups or key.startswith(tuple(f"{group}/" for group in groups))]
    for key in {*states, *groups}:
        await cache.step(key, label, lambda _: {"value": 1, "of": "llama-index value"})
    for key in states:
        await cache.checkpoint(key, label)
    for group in groups:
        await cache.checkpoint(group, f"all-{label}", group=True)
    made = {state.key async for state in cache.list(values=False)} - before
    assert len(made) >= 2 * len({*states, *groups})
    return made
