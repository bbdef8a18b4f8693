"""The files that the rules are held against, by their paths below the root."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.generators import unasync

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("statecache", "workers/statecache_workers")
MIRROR = f"{unasync.TARGET}/"


def texts(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> dict[str, str]:
    """Return the files of these folders by their path below the root."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


CODE = texts(*PACKAGES)
BY_HAND = {path: text for path, text in CODE.items() if not path.startswith(MIRROR)}
TESTS = texts("tests", "examples")
DATA = texts(*PACKAGES, suffixes=(".lua", ".sql"))
EVERYTHING = BY_HAND | TESTS | DATA
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = texts("docs", suffixes=(".md",))
PAGES = README + "".join(DOCS.values())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
