"""Paths to the parts of a plain value, and the one text that each of them has.

A path is a tuple of steps: the key of a dict, or an index into a list. `("messages", 3, "content")` is, as text,

    messages[3].content      and with other keys     tools["read file"].calls["42"][0]

A key that is a word of ASCII letters, digits, `_` and `-`, and does not begin with a digit or `-`, stands as it is. Any
other stands in quotes, with backslashes before quotes and backslashes; what a terminal does not print is escaped. A
number without quotes is an index, or a whole number as a dict's key, which msgpack allows. The whole value is `$`,
which may also stand before any other path.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from statecache.errors import UsageError

Step = str | int
Path = tuple[Step, ...]

WHOLE = "$"
_WORD = r"[A-Za-z_][A-Za-z0-9_-]*"
_is_word = re.compile(_WORD).fullmatch
_step_at = re.compile(rf'\.({_WORD})|\[(0|-?[1-9][0-9]{{0,19}})\]|\["((?:[^"\\]|\\.)*)"\]', re.DOTALL).match
_escape = re.compile(r"\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPED = {plain: f"\\{letter}" for letter, plain in _PLAIN_ESCAPES.items()}


def text_of(path: Path) -> str:
    """Return the text of a path."""
    if not path:
        return WHOLE
    text = "".join(map(_text_of_step, path))
    return text.removeprefix(".")


def path_of(text: object) -> Path:
    """Read the text of a path, or raise UsageError."""
    if not isinstance(text, str) or not text:
        raise _no_path(text, 0)
    rest = text.removeprefix(WHOLE)
    rest = rest if not rest or rest[0] in ".[" or rest != text else f".{rest}"
    steps: list[Step] = []
    at = 0
    while at < len(rest):
        found = _step_at(rest, at)
        if found is None:
            raise _no_path(text, at - len(rest) + len(text))
        word, number, quoted = found.groups()
        try:
            steps.append(word or (int(number) if number else _unquoted(quoted)))
        except (ValueError, OverflowError):
            raise _no_path(text, at - len(rest) + len(text)) from None
        at = found.end()
    return tuple(steps)


def part_at(value: Any, path: Path) -> Any:
    """Return what stands at a path, or UNSET where nothing does; no index counts from the end."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step, UNSET)
        elif isinstance(value, (list, tuple)) and isinstance(step, int) and 0 <= step < len(value):
            value = value[step]
        else:
            return UNSET
    return value


def _text_of_step(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _is_word(step) else f'["{"".join(map(_escaped, step))}"]'


def _escaped(character: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if character <= "\uffff" else f"\\U{ord(character):08x}"


def _unquoted(quoted: str) -> str:
    return _escape.sub(_unescaped, quoted) if "\\" in quoted else quoted


def _unescaped(found: re.Match[str]) -> str:
    short, long, plain = found.groups()
    if plain is None:
        return chr(int(short or long, 16))
    if plain not in _PLAIN_ESCAPES:
        raise ValueError(plain)
    return _PLAIN_ESCAPES[plain]


def _no_path(text: object, at: int) -> UsageError:
    where = f", from character {at + 1} on" if isinstance(text, str) and at > 0 else ""
    return UsageError(f"{text!r} is no path{where}", hint='Say messages[3].content, or tools["read file"]; $ is all.')
