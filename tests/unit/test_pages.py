"""The reader of pages sees when a page does not do what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.pages import PageFailed, Reader, agrees, blocks, console_lines

PAGE = """# Title

```python
x = 1
print(f"x is {x}")
```

```text output
x is …
```

```console
$ echo one
one
$ printf 'two\\n
> three\\n'
two

three
```
"""

PATIENT = "bash -c 'trap \"exit 0\" TERM; echo export STATECACHE_EXAMPLE=7; echo up; sleep 60 & wait'"


def _followed(page: str, folder: Path) -> None:
    with Reader(dict(os.environ), folder) as reader:
        reader.follow(page)


def test_blocks_are_found_with_their_lines() -> None:
    assert [(block.line, block.info, block.language) for block in blocks(PAGE)] == [
        (3, "python", "python"), (8, "text output", "text"), (12, "console", "console"),
    ]  # fmt: skip


def test_a_command_goes_on_over_lines() -> None:
    lines = list(console_lines(blocks(PAGE)[2].text))
    assert [(line.command, line.printed) for line in lines] == [
        ("echo one", "one"), ("printf 'two\\n\nthree\\n'", "two\n\nthree"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "printed", "right"),
    [
        ("a\nb", "a\nb\n", True),
        ("a", "a\nb", False),
        ("a …c", "a b c", True),
        ("a …c", "a b d", False),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…\nd", "a\nd", True),
        ("a\n…\nd", "a\nb\nc", False),
        ("a.b", "axb", False),
        ("", "", True),
        ("", "anything", False),
    ],
)
def test_what_is_said_is_compared_with_what_is_printed(said: str, printed: str, right: bool) -> None:
    assert agrees(said, printed) is right


def test_a_page_that_is_right_is_followed_to_its_end(tmp_path: Path) -> None:
    _followed(PAGE, tmp_path)


@pytest.mark.parametrize(
    ("page", "what"),
    [
        ("```python\nraise ValueError('no')\n```", r"line 1 \(python\): ValueError: no"),
        ("```python\nprint('a')\n```\n```text output\nb\n```", r"line 4 .*printed\s+a"),
        ("```console\n$ exit 3\n```", "status 3"),
        ("```console\n$ echo a\nb\n```", r"printed\s+a"),
        ("```console background\n$ sh -c 'echo a; exec sleep 60'\nb\n```", None),
        ("```ini README.md\nnot there at all\n```", "does not stand in README.md"),
        ("```yaml\na: 1\n```", "names no file"),
    ],
)
def test_a_page_that_is_wrong_fails(
    page: str, what: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.pages.READY_S", 0.2)
    with pytest.raises(PageFailed, match=what):
        _followed(page, tmp_path)


def test_await_may_stand_at_the_top_and_names_live_on(tmp_path: Path) -> None:
    page = "```python\nimport asyncio\nasync def f():\n    return 2\nx = await f()\n```\n```python\nassert x == 2\n```"
    _followed(page, tmp_path)


def test_what_goes_on_behind_must_end_well(tmp_path: Path) -> None:
    with pytest.raises(PageFailed, match="ended with status"):
        _followed("```console\n$ sleep 60 &\n```", tmp_path)
    _followed(f"```console background\n$ {PATIENT}\nup\n```", tmp_path)


def test_what_a_page_exports_is_forgotten_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "before"):
        if before is not None:
            monkeypatch.setenv("STATECACHE_EXAMPLE", before)
        python = "```python\nimport os\nassert os.environ['STATECACHE_EXAMPLE'] == '7'\n```"
        _followed(f"```console background\n$ {PATIENT}\nup\n```\n{python}", tmp_path)
        assert os.environ.get("STATECACHE_EXAMPLE") == before


def test_exports_of_what_goes_on_behind_count_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_EXAMPLE", "")
    page = f"```console background\n$ {PATIENT}\nup\n```\n```console\n$ echo $STATECACHE_EXAMPLE\n7\n```"
    _followed(page, tmp_path)
