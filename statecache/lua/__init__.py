"""Scripts live in files, in folders by what they are for; this module reads them.

A script's name is its file's stem, unique among all folders, and its metric's label. What several scripts do alike,
and a part of a long one, stands beside the folders; a line `-- include name` is replaced by it.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

_INCLUDE = re.compile(r"^-- include (\w+)\n", re.MULTILINE)


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
    text = _INCLUDE.sub(lambda found: included(found[1]), _paths()[name].read_text(encoding="utf-8"))
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """Return the names of all scripts."""
    return sorted(_paths())


def included(name: str) -> str:
    """Return what stands beside the folders under that name."""
    return files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


@cache
def _paths() -> dict[str, Traversable]:
    folders = [path for path in files(__name__).iterdir() if path.is_dir()]
    found = [path for folder in folders for path in folder.iterdir() if path.name.endswith(".lua")]
    return {path.name.removesuffix(".lua"): path for path in found}
