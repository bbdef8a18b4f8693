"""Paths and their texts: one text a path, and back, whatever the keys hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import UNSET

from statecache.errors import UsageError
from statecache.rules.paths import Path, part_at, path_of, text_of

STEPS = (
    some.text(max_size=6) | some.characters(categories=["Cs", "Cc", "Cf", "Zl", "Co"]) | some.integers(-(2**63), 2**64)
)
PATHS = some.lists(STEPS | some.sampled_from(["a", '"]', "\\", "\\n", "\ud83d\ude00"]), max_size=5).map(tuple)


@given(PATHS)
def test_a_path_is_its_text_and_a_terminal_prints_it(path: Path) -> None:
    text = text_of(path)
    assert path_of(text) == path
    assert text.isprintable()


@given(PATHS, PATHS)
def test_two_paths_have_two_texts(one: Path, other: Path) -> None:
    assert (text_of(one) == text_of(other)) == (one == other)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), "$"),
        (("messages", 3, "content"), "messages[3].content"),
        (("x-request-id", "_a1"), "x-request-id._a1"),
        ((0, 0), "[0][0]"),
        (("tools", "read file", "42", 0), 'tools["read file"]["42"][0]'),
        (("$",), '["$"]'),
        (("",), '[""]'),
        (("größe", "日本", "😀"), '["größe"]["日本"]["😀"]'),
        (('say "hi"\\', "a.b", "[0]"), r'["say \"hi\"\\"]["a.b"]["[0]"]'),
        (("two\nlines\t", "\x1b[31m", "\u202e", "\ud800", "\U000e0001"),
         r'["two\nlines\t"]["\u001b[31m"]["\u202e"]["\ud800"]["\U000e0001"]'),
        ((-1, "-1", "-a"), '[-1]["-1"]["-a"]'),
    ],
)  # fmt: skip
def test_the_text_of_a_path(path: Path, text: str) -> None:
    assert text_of(path) == text
    assert path_of(text) == path


@pytest.mark.parametrize(
    ("text", "path"),
    [("$.a[0]", ("a", 0)), ("$[0]", (0,)), (".a", ("a",)), ('["a"]', ("a",)), ('["\n"]', ("\n",)), ('$["$"]', ("$",))],
)
def test_other_texts_of_a_path_are_read_too(text: str, path: Path) -> None:
    assert path_of(text) == path


@pytest.mark.parametrize(
    "text",
    ["", None, 3, "a.", "a..b", "a[", "a[]", "a[01]", "a[-0]", "a[1.0]", "a[b]", "a b", "größe", "3", "-a", "$a", "$$",
     "a[\"b]", "a['b']", r'["\x"]', r'["\u12"]', r'["\UFFFFFFFF"]', r'["\U00110000"]', '["a"]b', "a\n", "[" * 10_000,
     "[" + "9" * 10_000 + "]", '["' + "\\" * 9_999 + '"]'],
)  # fmt: skip
def test_what_is_no_path_is_refused(text: object) -> None:
    with pytest.raises(UsageError, match="is no path"):
        path_of(text)


def test_a_refusal_says_from_where_on() -> None:
    with pytest.raises(UsageError, match=r"from character 3 on"):
        path_of("ab c")


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ((), {"a": [{"b": None}], 1: "one"}),
        (("a", 0, "b"), None),
        ((1,), "one"),
        (("a", -1), UNSET),
        (("a", 1), UNSET),
        (("a", "0"), UNSET),
        (("a", 0, "b", "c"), UNSET),
        (("1",), UNSET),
    ],
)
def test_what_stands_at_a_path(path: Path, part: Any) -> None:
    assert part_at({"a": [{"b": None}], 1: "one"}, path) == part
