"""What a newcomer types first: the install command of the pages, and `make`, which says what it does meanwhile."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.deployment_files import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
RELEASED = "## [0.1.0] - unreleased" not in (ROOT / "CHANGELOG.md").read_text()
UV = """#!/bin/sh
echo "uv $*" >&2
[ "$1" = pip ] && exit 0
mkdir -p .venv/bin
"""
"""A `uv` that installs nothing, and tells how it was called."""

PYTHON = """#!/bin/sh
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip config get global.index-url") echo https://index.example/simple ;;
  "-m pip install "*) echo "pip $*" >&2; [ "${*%uv}" = "$*" ] || cp uv.sh .venv/bin/uv ;;
esac
"""
"""A Python whose pip installs nothing but such a `uv`."""


PAGES = [
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "pip install '" in page.read_text()
]


@pytest.mark.parametrize("page", PAGES)
def test_the_install_command_can_work_now(page: str) -> None:
    """Before a release there is nothing to be had by name, and afterwards nobody needs a checkout."""
    commands = re.findall(r"pip install '(\S+)\[([\w,-]+)\]'", (ROOT / page).read_text())
    assert commands
    assert len(PAGES) >= 10
    for what, extras in commands:
        assert what == ("statecache" if RELEASED else ".")
        assert set(extras.split(",")) <= EXTRAS.keys()
    if page in ("README.md", "docs/quickstart.md"):
        assert commands[0][1] == "cli,embedded"


def test_whoever_lacks_an_extra_is_told_what_works_in_a_checkout_too() -> None:
    code = [*(ROOT / "statecache").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]
    hints = [found for file in code for found in re.findall(r"'statecache\[([\w-]+)\]'(.{24})", file.read_text())]
    assert len(hints) >= 6
    for extra, behind in hints:
        assert extra in EXTRAS
        assert behind.startswith(f" ('.[{extra}]' in a checkout)"[: len(behind)])


def _set_up(checkout: Path, programs: Path) -> list[str]:
    """Have an environment set up with the programs of that folder; return what is said of it, a line each."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, checkout)
    done = subprocess.run(
        ["make", "--no-print-directory", ".venv/.installed"], cwd=checkout, capture_output=True, text=True, timeout=60,
        check=True, env={"PATH": f"{programs}:/usr/bin:/bin"},
    )  # fmt: skip
    assert (checkout / ".venv/.installed").read_text() == f"{checkout.resolve()}\n"
    return done.stderr.splitlines()


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_setting_up_says_what_it_does_before_it_does_it(tmp_path: Path) -> None:
    uv = tmp_path / "bin/uv"
    uv.parent.mkdir()
    uv.write_text(UV)
    uv.chmod(0o755)
    said, *called = _set_up(tmp_path, uv.parent)
    assert said == "setup: installing into .venv with uv"
    assert [line.split()[:2] for line in called] == [["uv", "venv"], ["uv", "pip"]]
    assert "-e .[dev]" in called[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("works", [True, False])
def test_without_uv_pip_installs_it_and_does_the_rest_itself_where_that_cannot(tmp_path: Path, works: bool) -> None:
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    uv = '#!/bin/sh\necho "uv $* from $UV_DEFAULT_INDEX" >&2\n'
    for file, text in ((python, PYTHON), (tmp_path / "uv.sh", uv if works else uv + "exit 1\n")):
        file.write_text(text)
        file.chmod(0o755)
    said, *called = _set_up(tmp_path, python.parent)
    assert said == "setup: installing into .venv with python3 and pip"
    first, second, *more = called
    assert re.fullmatch(r"pip -m pip install .*-c constraints\.txt -q uv", first)
    assert second.startswith("uv pip install")
    assert second.endswith("-c constraints.txt -e .[dev] from https://index.example/simple")
    if works:
        assert more == []
    else:
        assert more[0] == "setup: uv could not; trying pip alone"
        assert re.fullmatch(r"pip -m pip install .*-c constraints\.txt -q -e \.\[dev\]", more[1])
