"""Draws the layers of the code for docs/architecture.md, from the house rules that every import is held against."""

from __future__ import annotations

import re
from itertools import chain
from textwrap import wrap

from tests.rules.house_rules import APART, LAYERS, PURE

BEGIN, END = "<!-- layers: drawn by `make sync` -->\n", "<!-- end of layers -->\n"
_NAMES, _MEANING = 38, 38
_MEANINGS = {
    "statecache.model": "values, facts, errors",
    "statecache.keys": "rules, decided from values alone",
    "statecache.lua": "scripts, statements, settings, clocks, and what differs between tasks and threads",
    "statecache.commit_protocol": "what comes next for a commit, and what Redis' errors mean: decided without waiting",
    "statecache.core": "all that asks Redis and Postgres, written once as coroutines",
    "statecache._async": "the verbs of the two clients; _sync is generated from _async",
    "statecache": "the public names",
    "statecache_workers": "the worker: flusher, gatekeeper, janitor",
    "statecache.testing": "servers for tests; what ties in other libraries",
    "statecache.dev": "servers to develop against; runs under kills, audited",
    "statecache.cli": "the commands, and pages for a browser",
}
"""What each row is, by its first entry."""


def drawn(page: str) -> str:
    """Return the page with the drawing between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page lacks {BEGIN.strip()} … {END.strip()}")
    return f"{before}{BEGIN}\n```text\n{drawing()}```\n\n{END}{after}"


def drawing() -> str:
    """Return the rows, the highest first; then who never meets."""
    rule = "─" * (_NAMES + 2), "─" * (_MEANING + 2)
    rows = [_row(units) for units in reversed(LAYERS)]
    lines = [f"┌{rule[0]}┬{rule[1]}┐", *chain(*([f"├{rule[0]}┼{rule[1]}┤", *row] for row in rows))]
    del lines[1]
    apart = [f"{_short(one)} never imports {_short(other)}" for one, other in APART]
    return "\n".join([*lines, f"└{rule[0]}┴{rule[1]}┘", *wrap("; ".join(apart) + ".", _NAMES + _MEANING)]) + "\n"


def _row(units: tuple[str, ...]) -> list[str]:
    pure = "; no I/O" if set(units) <= set(PURE) else ""
    names = wrap("  ".join(map(_short, units)), _NAMES, break_on_hyphens=False)
    meaning = wrap(_MEANINGS[units[0]] + pure, _MEANING)
    height = max(len(names), len(meaning))
    names += [""] * (height - len(names))
    meaning += [""] * (height - len(meaning))
    return [f"│ {name:<{_NAMES}} │ {text:<{_MEANING}} │" for name, text in zip(names, meaning, strict=True)]


def _short(unit: str) -> str:
    return re.sub(r"^statecache\.", "", unit)
