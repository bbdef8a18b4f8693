"""How tests are shared out between the processes of `-n`: a file at a time, and those that take longest first.

What a module's tests share is so made once, by one process. Files that load the machine, or that judge by how much
they saw, do not run beside each other; and no process is left alone with a long file when the others are through.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

LONGEST = (
    "tests/simulation/test_failpoints.py",
    "tests/simulation/test_model.py",
    "tests/simulation/test_chaos.py",
    "tests/simulation/test_profiles.py",
    "tests/simulation/test_coherence.py",
    "tests/acceptance/",
    "tests/simulation/",
    "tests/integration/",
)
"""The first ones, in this order: files, and folders for the rest of their files."""
ONE_AFTER_THE_OTHER = (
    "tests/simulation/test_chaos.py",
    "tests/simulation/test_profiles.py",
    "tests/simulation/test_coherence.py",
)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """A scheduler that gives a process a whole file, or several that must not run at once."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return ONE_AFTER_THE_OTHER[0] if path in ONE_AFTER_THE_OTHER else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    """Share out by file, in the order of the collection, unless `--dist` asks for something else."""
    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return _ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that take longest first."""

    def place(item: pytest.Item) -> int:
        return next((at for at, start in enumerate(LONGEST) if item.nodeid.startswith(start)), len(LONGEST))

    items.sort(key=place)
