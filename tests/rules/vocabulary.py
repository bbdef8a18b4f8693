"""Words that have given way to a standard term, which `docs/glossary.md` explains."""

from __future__ import annotations

import re

GIVEN_WAY = {
    "astray": "may arrive",
    "baton": "turn",
    "batons": "turns",
    "doubts": "unknown outcomes",
    "greet": "handshake",
    "greeted": "handshake",
    "hindrance": "unavailable reason",
    "inquiry": "outcome lookup",
    "seat": "request",
    "seats": "requests",
    "settling": "resync",
    "strays": "foreign entries",
    "tally": "counters",
    "underway": "in flight",
    "unsettled": "unknown outcomes",
    "until_told": "until_stopped",
}
_WORD = re.compile(rf"\b_?({'|'.join(GIVEN_WAY)})\b", re.IGNORECASE)


def given_way(path: str, text: str) -> list[str]:
    """Return a line for each such word."""
    return [
        f"{path}:{number}: say {GIVEN_WAY[found[1].lower()]!r} instead of {found[1]!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for found in _WORD.finditer(line)
    ]
