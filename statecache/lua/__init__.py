"""Scripts live in files, one a name; this module reads them. A script's name is its metric's label."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple


class Script(NamedTuple):
    """A Lua script as the server knows it."""

    name: str
    text: str
    sha: str


def parts_of(reply: Any) -> Any:
    """Return the parts of a script's answer; some answers are one text, for a list costs the server more."""
    return reply.split(b" ") if reply.__class__ is bytes else reply


@cache
def script(name: str) -> Script:
    """Return the named script with the digest that EVALSHA takes."""
    text = files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
