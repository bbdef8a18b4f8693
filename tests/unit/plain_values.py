"""Plain values of every shape, small ones that often have parts in common, and edits of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as some

NAN = float("nan")
SCALARS = some.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        2,
        -1,
        2**70,
        0.0,
        -0.0,
        1.0,
        0.5,
        NAN,
        float("inf"),
        "",
        "1",
        "a",
        "null",
        "#0",
        b"",
        b"a",
    ]
)
KEYS = some.sampled_from(["a", "b", "c", "", "odd key", 'a"]', "$", "1", 1, 0, -1])


def _containers(inner: some.SearchStrategy[Any]) -> some.SearchStrategy[Any]:
    return some.lists(inner, max_size=5) | some.dictionaries(KEYS, inner, max_size=4)


VALUES: some.SearchStrategy[Any] = some.recursive(SCALARS, _containers, max_leaves=10)
LISTS = some.lists(some.integers(0, 3) | some.fixed_dictionaries({"a": SCALARS}, optional={"b": SCALARS}), max_size=8)


@some.composite
def edited(draw: some.DrawFn, value: Any) -> Any:
    """Return a value with a few of its parts changed, removed and added."""
    if draw(some.integers(0, 9)) == 0:
        return draw(VALUES)
    if isinstance(value, dict):
        out = {key: draw(edited(part)) for key, part in value.items() if draw(some.integers(0, 7))}
        return out | draw(some.dictionaries(KEYS, VALUES, max_size=1))
    if isinstance(value, list):
        items = [draw(edited(part)) for part in value if draw(some.integers(0, 7))]
        if draw(some.booleans()):
            items.insert(draw(some.integers(0, len(items))), draw(VALUES))
        return items
    return value


@some.composite
def grown(draw: some.DrawFn, value: Any) -> Any:
    """Return a value whose lists only grew at their ends, and whose other parts may have changed."""
    if isinstance(value, dict):
        out = {key: draw(grown(part)) for key, part in value.items() if draw(some.integers(0, 7))}
        return out | draw(some.dictionaries(KEYS, VALUES, max_size=1))
    if isinstance(value, list):
        return value + draw(some.lists(SCALARS, max_size=3))
    return draw(SCALARS) if draw(some.booleans()) else value


def nested(levels: int, inner: Any) -> Any:
    """Return a value that stands that many lists deep."""
    for _ in range(levels):
        inner = [inner]
    return inner
