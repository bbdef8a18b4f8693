"""Writes what is generated for readers, or says what is out of date.

    python -m tests.generators.generated             writes it (`make sync`)
    python -m tests.generators.generated --check     says whether it is fresh, by its exit status (`make lint`)

Nothing is written by hand there, so nothing there can be out of date; a test asks for `--check`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.generators import demo_picture, layers_drawing, reference, settings_page

ROOT = Path(__file__).parents[2]
ARCHITECTURE = ROOT / "docs/architecture.md"

MADE: Mapping[str, Callable[[], str]] = {
    "docs/reference.md": reference.page,
    "docs/settings.md": settings_page.page,
    "docs/architecture.md": lambda: layers_drawing.drawn(ARCHITECTURE.read_text(encoding="utf-8")),
    "docs/demo.svg": demo_picture.picture,
}
"""Every file, and what makes its text."""


def main(arguments: list[str], *, root: Path = ROOT) -> int:
    """Write the files, or check them; return the exit status."""
    status = 0
    for path, make in MADE.items():
        file, text = root / path, make()
        if "--check" not in arguments:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            sys.stdout.write(f"{path} is old: run `make sync`\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
