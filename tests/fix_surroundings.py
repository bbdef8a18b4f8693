"""What is the same wherever the tests run: nothing of the caller's terminal, nothing drawn by chance.

`--hypothesis-profile=default` draws other examples in every run, which no test that has to pass may depend on.
"""

from __future__ import annotations

import os

import hypothesis
import pytest

OF_A_TERMINAL = (
    "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR",
    "PY_COLORS", "TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE",
)  # fmt: skip
"""By these, colours and widths of what a command prints would be those of whoever runs the tests."""

hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """This forgets the terminal, after pytest has looked at it and before any test's module is imported."""
    for name in OF_A_TERMINAL:
        os.environ.pop(name, None)
