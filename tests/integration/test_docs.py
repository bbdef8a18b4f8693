"""Every block of every page is run, against servers of its own, in an empty folder, with an empty home."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from statecache.adapters.prometheus import PrometheusObserver
from statecache.testing import servers
from tests.fixtures.surroundings import short_folder
from tests.support.pages import ROOT, Behind, PageFailed, Reader, blocks, console_lines, psql_folder

PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if blocks(page.read_text(encoding="utf-8"))
]
BY_ITSELF: tuple[str, ...] = ("quickstart.md",)
"""Pages that begin the servers themselves."""
DEV = "statecache dev"
ON_THEIR_OWN = tuple(
    command
    for page in PAGES
    for block in blocks(page.read_text(encoding="utf-8"))
    if block.language == "console"
    for command, _ in console_lines(block.text)
    if command.startswith(("statecache replay ", "python -m pytest "))
)
"""Commands with servers of their own: nothing of them is left for a second reading to meet."""

REDIS_CLI = f"""#!{sys.executable}
import sys, redis
words = [word for word in sys.argv[1:] if word != "--raw"]
reply = redis.Redis.from_url(words[words.index("-u") + 1], decode_responses=True).execute_command(*words[2:])
rows = [part for pair in reply.items() for part in pair] if isinstance(reply, dict) else reply
print("\\n".join(map(str, rows)) if isinstance(rows, (list, set)) else "" if rows is None else rows)
"""
"""What stands in for redis-cli where there is none; its output is that of the real one behind a pipe."""


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty home that the user who runs Postgres for root can pass through: nothing is kept outside it."""
    with tempfile.TemporaryDirectory(prefix="sct", dir=short_folder()) as name:
        data = Path(name, ".local/share/statecache")
        data.mkdir(parents=True)
        for part in (data, *data.parents[:3]):
            part.chmod(0o711)
        yield Path(name)


@pytest.fixture
def environment(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a reader's shell: statecache, psql, redis-cli, and no settings yet."""
    tools = tmp_path / "bin"
    tools.mkdir()
    if shutil.which("redis-cli") is None:
        (tools / "redis-cli").write_text(REDIS_CLI)
        (tools / "redis-cli").chmod(0o755)
    for name in [name for name in os.environ if name.startswith("STATECACHE_")]:
        monkeypatch.delenv(name)
    path = [tools, Path(sys.executable).parent, psql_folder(), Path(os.environ["PATH"])]
    return {
        "PATH": os.pathsep.join(map(str, path)),
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "workers"))),
        "LANG": "C.UTF-8",
    }


@pytest.fixture
def running(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The settings of running servers, in the shell's environment and in this process's."""
    with servers(workers=1) as s:
        given = {"STATECACHE_REDIS_URL": s.redis_url, "STATECACHE_POSTGRES_URL": s.postgres_url}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        yield environment | given


def _follow(
    page: Path, environment: dict[str, str], folder: Path, running: Sequence[str] = (), *, here: bool = False
) -> None:
    with Reader(environment, folder, running=running, here=here) as reader:
        reader.follow(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", BY_ITSELF)
def test_a_page_that_begins_with_nothing_does_what_it_says(
    name: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting in ("STATECACHE_REDIS_URL", "STATECACHE_POSTGRES_URL"):
        monkeypatch.setenv(setting, "")
    _follow(ROOT / "docs" / name, environment, tmp_path)


@pytest.fixture
def dev(environment: dict[str, str], tmp_path: Path) -> Iterator[Behind]:
    """`statecache dev`, ready, in a home of its own; at the end it stops by itself."""
    begun = Behind(DEV, environment=environment, folder=tmp_path)
    ready = begun.prints("Ctrl-C stops them.")
    yield begun
    assert (ready, begun.end()) == (True, 0), begun.printed


def test_every_page_does_what_it_says_in_any_order_and_again_on_one_dev(
    dev: Behind, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last page comes first, so that none can build on what those before it leave behind; then all come again.

    What brings servers of its own is left out of the second reading, whose commands are run in this process.
    """
    indented = re.findall(r"^  (\S.*)$", dev.printed, re.MULTILINE)
    exports = dict(line.removeprefix("export ").split("=", 1) for line in indented if line.startswith("export "))
    hint = [line for line in indented if not line.startswith("export ")]
    assert (len(exports), len(hint)) == (2, 4)
    for name, value in exports.items():
        monkeypatch.setenv(name, value)
    readings, failed = 0, list[str]()
    for page in (*reversed(PAGES), *PAGES):
        if readings % len(PAGES) == 0:
            for line in hint:
                subprocess.run(["bash", "-c", line], env=environment | exports, check=True, capture_output=True)
        folder = tmp_path / f"{readings}-{page.stem}"
        folder.mkdir()
        monkeypatch.setattr(PrometheusObserver.__init__, "__defaults__", (CollectorRegistry(),))  # as in a new process
        try:
            again = readings >= len(PAGES)
            running = [DEV, *(ON_THEIR_OWN if again else ())]
            _follow(page, environment | exports, folder, running, here=again)
        except PageFailed as error:
            failed.append(f"{page.relative_to(ROOT)}, reading {1 + readings // len(PAGES)}: {error}")
        readings += 1
    assert not failed, "\n".join(failed)
    assert readings == 2 * len(PAGES) > 20
    assert len(ON_THEIR_OWN) == 2


def test_a_statement_that_postgres_refuses_is_a_failure(running: dict[str, str], tmp_path: Path) -> None:
    with Reader(running, tmp_path) as reader, pytest.raises(PageFailed, match=r"line 1 \(sql\).*nothing_of_the_kind"):
        reader.follow("```sql\nselect * from nothing_of_the_kind\n```")
