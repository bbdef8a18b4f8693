"""Which releases of another library an adapter was tested with: any other is refused as it is imported, in one line."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from statecache import ConfigurationError

Release = tuple[int, ...]


def require(package: str, since: Release, before: Release, *, what: str, extra: str) -> None:
    """Raise ConfigurationError unless a release of the package from `since` on, and earlier than `before`, is there.

    `what` says what needs it, and `extra` is the extra of statecache that brings it.
    """
    try:
        there = version(package)
    except PackageNotFoundError:
        there = ""
    if there and since <= _release(there) < before:
        return
    wanted = f"{_text(since)} or newer, below {_text(before)}"
    raise ConfigurationError(
        f"{what} needs the package {package}, {wanted}{f', and {there} is installed' if there else ''}",
        hint=f"pip install 'statecache[{extra}]' ('.[{extra}]' in a checkout)",
    )


def _release(text: str) -> Release:
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def _text(release: Release) -> str:
    return ".".join(map(str, release))
