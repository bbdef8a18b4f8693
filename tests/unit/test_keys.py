"""Keys are checked, never changed, and always land on the same shard."""

from __future__ import annotations

import enum
import unicodedata
from zlib import crc32

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from statecache.errors import ConfigurationError, InvalidKey, UsageError
from statecache.keys import (
    KEY_BYTES_MAX,
    KeySpace,
    beyond_prefix,
    checked_key,
    checked_namespace,
    checked_prefix_of_list,
    group_of,
    shard_of,
)

NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=64)
SEGMENTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=20)
KEYS = st.builds(lambda name, rest: "/".join([name, *rest]), NAMES, st.lists(SEGMENTS, min_size=1, max_size=4))


FIXED = ["meta", "changes", "unflushed", "hydrating", "leases", "waiters", "events"]


class Named(enum.StrEnum):
    KEY = "runs/42"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "one segment"),
        ("runs", "one segment"),
        ("runs/", "segment 2 is empty"),
        ("/runs", "segment 1 is empty"),
        ("runs//42", "segment 2 is empty"),
        ("runs/42/", "segment 3 is empty"),
        ("runs/4\0002", "NUL"),
        ("runs/é\0", "NUL"),
        ("runs/\ud800", "lone surrogate at character 5"),
        ("runs/" + "x" * 508, "513 UTF-8 bytes"),
        ("runs/" + "é" * 254, "513 UTF-8 bytes"),
        ("{runs}/42", "namespace '{runs}' does not match"),
        ("ru:ns/42", "namespace 'ru:ns' does not match"),
        ("rüns/42", "namespace 'rüns' does not match"),
        ("runs /42", "namespace 'runs ' does not match"),
        ("runs\n/42", "does not match"),
        ("n" * 65 + "/42", "does not match"),
        (b"runs/42", "bytes, not text"),
        (42, "int, not text"),
        (None, "NoneType, not text"),
    ],
)
def test_a_bad_key_is_refused_with_the_rule_that_it_breaks(key: object, reason: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        checked_key(key)
    assert reason in caught.value.reason
    assert "namespace/name" in str(caught.value)
    str(caught.value).encode()


def test_a_key_of_a_megabyte_does_not_make_a_message_of_a_megabyte() -> None:
    with pytest.raises(InvalidKey) as caught:
        checked_key("runs/" + "x" * 1_000_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "key",
    [
        "runs/42",
        "a/b",
        "n" * 64 + "/42",
        "runs/" + "x" * 507,
        "runs/" + "é" * 253,
        "runs/{42}",
        "runs/}{",
        "runs/a:b:c/{}/d",
        "runs/ \t\n*?[x]\\",
        "runs/ключ/🔑",
        "runs/.",
        "../..",
    ],
)
def test_whatever_follows_the_namespace_may_hold_anything(key: str) -> None:
    assert checked_key(key) == key


@given(KEYS)
def test_a_good_key_comes_back_unchanged(key: str) -> None:
    assert checked_key(key) == key


@given(st.text(max_size=600) | KEYS)
def test_the_fast_path_and_the_rules_agree(key: str) -> None:
    segments = key.split("/")
    good = (
        len(segments) >= 2
        and all(segments)
        and "\0" not in key
        and not any("\ud800" <= char <= "\udfff" for char in key)
        and len(key.encode("utf-8", "surrogatepass")) <= KEY_BYTES_MAX
        and len(segments[0]) <= 64
        and all(char.isascii() and (char.isalnum() or char in "_.-") for char in segments[0])
    )
    try:
        assert checked_key(key) == key
        assert good
    except InvalidKey:
        assert not good


def test_two_normal_forms_are_two_keys() -> None:
    composed, decomposed = (unicodedata.normalize(form, "runs/é") for form in ("NFC", "NFD"))
    space = KeySpace()
    assert checked_key(composed) != checked_key(decomposed)
    assert space.state(composed) != space.state(decomposed)


def test_text_of_a_subclass_becomes_plain_text() -> None:
    assert type(checked_key(Named.KEY)) is str
    assert checked_key(Named.KEY) == "runs/42"


def test_a_namespace_is_a_name() -> None:
    assert checked_namespace("runs") == "runs"
    for bad in ("", "runs/", "runs/42", "{runs}", "é", "n" * 65, 7):
        with pytest.raises(InvalidKey):
            checked_namespace(bad)


@pytest.mark.parametrize(
    ("key", "group"),
    [("runs/42", "runs/42"), ("runs/42/steps/3", "runs/42"), ("runs/é/x", "runs/é"), ("runs/42/", "runs/42")],
)
def test_the_group_is_the_first_two_segments(key: str, group: str) -> None:
    assert group_of(key) == group


@pytest.mark.parametrize(("key", "shard"), [("runs/42", 58), ("runs/é", 12), ("a/b/c", 28)])
def test_shards_are_the_same_in_every_release(key: str, shard: int) -> None:
    """The numbers say where data lies: a change here loses every state that was ever stored."""
    assert shard_of(key, 64) == crc32("/".join(key.split("/")[:2]).encode()) % 64 == shard


@given(KEYS, SEGMENTS, st.integers(1, 100))
def test_a_group_lives_on_one_shard(key: str, more: str, shards: int) -> None:
    space = KeySpace(shards=shards)
    shard, state = space.place(key)
    assert shard == space.shard(f"{key}/{more}") == shard_of(key, shards) == shard_of(group_of(key), shards)
    assert 0 <= shard < shards
    assert state == space.state(key)


@given(KEYS)
def test_the_first_braces_of_a_redis_key_are_the_tag_of_its_shard(key: str) -> None:
    shard, state = KeySpace().place(key)
    assert state[state.index("{") + 1 : state.index("}")] == f"{shard:02d}"
    assert state == f"sc:{{{shard:02d}}}:state:{key}"


def test_fixed_keys_are_readable() -> None:
    space = KeySpace("team-a", 64)
    fixed = [getattr(space, kind)(7) for kind in FIXED]
    assert fixed == [
        "team-a:{07}:meta",
        "team-a:{07}:changes",
        "team-a:{07}:unflushed",
        "team-a:{07}:hydrating",
        "team-a:{07}:leases",
        "team-a:{07}:waiters",
        "team-a:{07}:events",
    ]


@pytest.mark.parametrize("prefix", ["", "a:b", "{a}", "a}b", "a b", "é", "p" * 65, "a\n"])
def test_a_prefix_cannot_reach_the_tag(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        KeySpace(prefix)


def test_a_shard_count_is_at_least_one() -> None:
    with pytest.raises(ConfigurationError, match="shard count"):
        KeySpace(shards=0)


def test_a_key_space_does_not_change() -> None:
    with pytest.raises(AttributeError):
        KeySpace().prefix = "other"  # type: ignore[misc]
    assert KeySpace() == KeySpace("sc", 64)
    assert repr(KeySpace()) == "KeySpace(prefix='sc', shards=64)"


def test_a_commit_is_about_one_group() -> None:
    space = KeySpace()
    assert space.one_group(["runs/42", "runs/42/plan", "runs/42/steps/1"]) == space.shard("runs/42")
    with pytest.raises(InvalidKey) as caught:
        space.one_group(["runs/42", "runs/42/plan", "runs/43", "runs/44"])
    assert caught.value.key == "runs/43"
    assert "is not of the group 'runs/42'; give it a commit of its own" in caught.value.reason
    with pytest.raises(UsageError, match="at least one key"):
        space.one_group([])


@pytest.mark.parametrize(
    ("prefix", "group"),
    [
        ("runs/", None),
        ("runs/4", None),
        ("runs/{é", None),
        ("runs/42/", "runs/42"),
        ("runs/42/ste", "runs/42"),
        ("runs/42/steps/", "runs/42"),
        ("runs/é/", "runs/é"),
    ],
)
def test_a_listing_of_a_complete_group_asks_one_shard(prefix: str, group: str | None) -> None:
    assert checked_prefix_of_list(prefix, 64) == (prefix, None if group is None else shard_of(group, 64))


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "runs",
        "/",
        "//",
        "runs//",
        "runs/42//",
        "runs//x",
        "{r}/",
        "é/",
        "runs/\0",
        "runs/\ud800",
        "runs/" + "x" * 508,
        7,
    ],
)
def test_a_bad_prefix_to_list_by_is_refused(prefix: object) -> None:
    with pytest.raises(InvalidKey):
        checked_prefix_of_list(prefix, 64)


@given(KEYS, st.data())
def test_a_listing_never_asks_the_wrong_shard(key: str, data: st.DataObject) -> None:
    start = key.index("/") + 1
    prefix, shard = checked_prefix_of_list(key[: data.draw(st.integers(start, len(key)))], 64)
    assert key.startswith(prefix)
    assert shard in (None, shard_of(key, 64))


@given(KEYS, st.sampled_from(["", "\U0010ffff", "\U0010ffff" * 120, "x\U0010ffff"]))
def test_every_key_with_a_prefix_comes_before_what_is_beyond_it(key: str, more: str) -> None:
    key += more
    assume(len(key.encode()) <= KEY_BYTES_MAX)
    for end in range(key.index("/") + 1, len(key) + 1):
        assert key.encode() < beyond_prefix(key[:end]).encode()
