"""Scripts live in files, one a name; this module reads them. A script's name is its metric's label."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple


class Script(NamedTuple):
    """This is a Lua script as the server knows it."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """This gives the named script with the digest that EVALSHA takes."""
    text = files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
