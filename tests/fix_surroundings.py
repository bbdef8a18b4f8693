"""What is the same wherever the tests run: nothing of the caller's terminal, nothing drawn by chance, no slow disk.

Where memory has room, temporary files lie there, and with them what the tests' servers write: a disk that stands still
for some seconds stops no story. What is killed is a process, so what it wrote is there afterwards all the same.

`--hypothesis-profile=default` draws other examples in every run, which no test that has to pass may depend on.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import hypothesis
import pytest

OF_A_TERMINAL = (
    "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR",
    "PY_COLORS", "TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE",
)  # fmt: skip
"""By these, colours and widths of what a command prints would be those of whoever runs the tests."""

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 2**30
"""A run of two processes needs less than half of it."""

hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")


def _has_room() -> bool:
    """Return whether temporary files, and programs among them, may lie in memory."""
    try:
        found = os.statvfs(MEMORY)
        free_kib = int(re.findall(r"^MemAvailable: *(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)[0])
    except (OSError, IndexError):  # there is nothing of the kind, as on macOS
        return False
    room = min(found.f_bavail * found.f_frsize, free_kib * 1024)
    return room >= MEMORY_BYTES_MIN and not found.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK | os.X_OK)


def short_folder() -> str:
    """Return a folder for temporary ones that every user can pass through, with a short name."""
    return str(MEMORY) if Path(tempfile.gettempdir()) == MEMORY else "/tmp"


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Forget the terminal, after pytest has looked at it and before any test's module is imported."""
    for name in OF_A_TERMINAL:
        os.environ.pop(name, None)
    if "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_report_header() -> str:
    """Return a line that says where temporary files lie."""
    return f"temporary files: {tempfile.gettempdir()}"
