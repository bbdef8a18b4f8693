"""A plain value as rows of a tree, and in one line; both bounded, whatever the value is. Pure.

Containers are opened breadth first, so of a large value all that is near its top is shown before anything deeper. What
is left out is said in its place, with the path and the place in it from which a page of its own goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Literal

import msgspec

from statecache.rules.paths import Path, text_of

NODES_MAX = 1500
"""How many parts of a value one page shows at most."""
CHILDREN_MAX = 100
"""How many parts of one container are shown at most, before a page of its own goes on."""
LEVELS_MAX = 50
"""How deep a page shows a value; browsers draw little that is nested deeper."""
ALL_OPEN = 150
"""Up to how many parts all of a value is shown unfolded."""
FEW = 12
"""Up to how many parts a value, or one of its parts, has few of them."""
LINE_MAX = 100
"""Up to how many characters a text stands in its line; a longer one is unfolded."""
TEXT_MAX = 20_000
CHARACTERS_MAX = 400_000
"""How many characters of one text, and of all together, a page shows at most."""
BYTES_SHOWN = 64
NAME_MAX = 200

Kind = Literal["open", "close", "leaf", "text", "cut", "more"]
Sort = Literal["text", "number", "word", "bytes", "other", "object", "list"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row: the beginning or end of a container, a leaf, a long text, what is left out.

    `note` says how large it is. `path` is that of the part, '' where it has none; `first` where a page goes on in it.
    """

    kind: Kind
    name: str = ""
    sort: Sort = "other"
    text: str = ""
    note: str = ""
    path: str = ""
    first: int = 0
    unfolded: bool = False


def visible(text: str) -> str:
    """Return text with what a browser would not show, or would obey, escaped; lines stay lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def tree(value: Any, *, path: Path = (), first: int = 0) -> list[Row]:
    """Return the rows of the value that stands at a path, from its part `first` on."""
    opened, nodes = _opened(value, path, first)
    left, few = [CHARACTERS_MAX], _is_container(value) and len(value) <= FEW
    rows: list[Row] = []
    todo: list[tuple[str, Any, Path | None, int] | Row] = [("", value, path, 0)]
    while todo:
        one = todo.pop()
        if isinstance(one, Row):
            rows.append(one)
            continue
        name, part, at, level = one
        if not _is_container(part):
            rows.append(_leaf(name, part, at, left))
            continue
        sort: Sort = "object" if isinstance(part, dict) else "list"
        note = f"{len(part):,}"
        if at is None or at not in opened:
            kind: Kind = "cut" if part else "leaf"
            text = "" if part else ("{}" if sort == "object" else "[]")
            rows.append(Row(kind=kind, name=name, sort=sort, text=text, note=note, path=_text(at)))
            continue
        unfolded = level == 0 or nodes <= ALL_OPEN or (level == 1 and (few or len(part) <= FEW))
        rows.append(Row(kind="open", name=name, sort=sort, note=note, path=_text(at), unfolded=unfolded))
        begun = first if at == path else 0
        shown = [*_parts(part, at, begun)]
        todo.append(Row(kind="close"))
        if (more := len(part) - begun - len(shown)) > 0:
            todo.append(Row(kind="more", note=f"{more:,}", path=_text(at), first=begun + len(shown)))
        todo += [(step, inner, where, level + 1) for step, inner, where in reversed(shown)]
    return rows


def _opened(value: Any, path: Path, first: int) -> tuple[set[Path], int]:
    """Return the paths of the containers that are shown with their parts, and how many parts that are."""
    opened: set[Path] = set()
    nodes = 1
    queue: deque[tuple[Any, Path, int]] = deque([(value, path, 0)])
    while queue:
        part, at, level = queue.popleft()
        if not _is_container(part) or not part or level >= LEVELS_MAX:
            continue
        shown = [*_parts(part, at, first if level == 0 else 0)]
        if level and nodes + len(shown) > NODES_MAX:
            continue
        opened.add(at)
        nodes += len(shown)
        queue.extend((inner, where, level + 1) for _, inner, where in shown if where is not None)
    return opened, nodes


def _is_container(part: Any) -> bool:
    return isinstance(part, (dict, list, tuple, set, frozenset))


def _parts(part: Any, at: Path, first: int) -> Iterator[tuple[str, Any, Path | None]]:
    """Yield the parts of a container that are shown: their names, what they are, and their paths where they have one.

    Keys that are no text and no whole number, which msgpack allows, stand in no path, and very long ones neither.
    """
    if isinstance(part, dict):
        for key, inner in islice(part.items(), first, first + CHILDREN_MAX):
            is_text = isinstance(key, str)
            steps = len(key) <= NAME_MAX if is_text else isinstance(key, int) and not isinstance(key, bool)
            name = visible(key) if is_text and steps else brief(key, LINE_MAX)
            yield name, inner, (*at, key) if steps else None
    else:
        for number, inner in enumerate(islice(part, first, first + CHILDREN_MAX), first):
            yield str(number), inner, (*at, number)


def _text(path: Path | None) -> str:
    return "" if path is None else text_of(path)


def _leaf(name: str, part: Any, at: Path | None, left: list[int]) -> Row:
    """Return the row of what is no container; `left` is how many characters may still be shown."""
    if isinstance(part, str):
        if len(part) <= LINE_MAX and "\n" not in part:
            return Row(kind="leaf", name=name, sort="text", text=visible(part), path=_text(at))
        most = max(LINE_MAX, min(TEXT_MAX, left[0]))
        left[0] -= min(len(part), most)
        note = f"{len(part):,} characters" + (f", the first {most:,} are shown" if len(part) > most else "")
        return Row(kind="text", name=name, sort="text", text=visible(part[:most]), note=note, path=_text(at))
    if isinstance(part, bool) or part is None:
        return Row(kind="leaf", name=name, sort="word", text=brief(part, 5), path=_text(at))
    if isinstance(part, (int, float)):
        return Row(kind="leaf", name=name, sort="number", text=brief(part, LINE_MAX), path=_text(at))
    sort: Sort = "bytes" if isinstance(part, (bytes, bytearray, memoryview)) else "other"
    return Row(kind="leaf", name=name, sort=sort, text=brief(part, LINE_MAX * 2), path=_text(at))


def brief(value: Any, most: int) -> str:
    """Return a value in one line, much as JSON spells it, of about that many characters at most."""
    parts: list[str] = []
    length = 0
    for text in _pieces(value, most, 0):
        parts.append(text)
        length += len(text)
        if length > most:
            return f"{''.join(parts)[:most]}…"
    return "".join(parts)


def _pieces(value: Any, most: int, level: int) -> Iterator[str]:
    if isinstance(value, str):
        yield _quoted(value[: most + 1])
    elif value is None or value is True or value is False:
        yield {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, (int, float)):
        yield str(value)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value[:BYTES_SHOWN])
        yield f"{len(value):,} bytes: {data.hex(' ')}{' …' if len(value) > BYTES_SHOWN else ''}"
    elif isinstance(value, datetime):
        yield value.isoformat()
    elif isinstance(value, msgspec.msgpack.Ext):
        yield f"extension {value.code} of "
        yield from _pieces(value.data, most, level)
    elif _is_container(value):
        yield from _inside(value, most, level)
    else:
        yield visible(str(value))


def _inside(value: Any, most: int, level: int) -> Iterator[str]:
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    yield opening
    if level >= LEVELS_MAX:
        yield "…"
    elif isinstance(value, dict):
        for at, (key, inner) in enumerate(value.items()):
            yield ", " if at else ""
            yield from _pieces(key, most, level + 1)
            yield ": "
            yield from _pieces(inner, most, level + 1)
    else:
        for at, inner in enumerate(value):
            yield ", " if at else ""
            yield from _pieces(inner, most, level + 1)
    yield closing


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{visible(escaped)}"'
