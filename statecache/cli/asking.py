"""Asking before something is done that cannot be undone."""

from __future__ import annotations

import sys

import typer

from statecache.cli.screen import is_terminal
from statecache.errors import UsageError


def confirmed(what: str, *, yes: bool) -> bool:
    """Ask on a terminal whether what is said there is meant, unless `yes`; raise UsageError where nobody can answer."""
    if yes:
        return True
    if sys.stdin.isatty() and is_terminal():
        return typer.confirm(f"{what[0].upper()}{what[1:]}. Go on?", err=True)
    raise UsageError(what, hint="Say --yes if that is meant.")
