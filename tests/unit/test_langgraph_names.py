"""The names of a thread's states: one for each text, in the order of ids turned round, never too long for a key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from statecache import UsageError
from statecache.adapters.langgraph.documents import write_documents
from statecache.adapters.langgraph.names import (
    CHECKPOINT_BYTES_MAX,
    THREAD_BYTES_MAX,
    Place,
    checkpoint_segment,
    inverted,
    other_state_of,
)
from statecache.adapters.langgraph.values import Serde
from statecache.adapters.segments import segment
from statecache.keys import KEY_BYTES_MAX, checked_key, group_of

TEXT = some.text(some.characters(blacklist_characters="\0"), max_size=200)
HARD = ("", "-", "%2D", "%", "/", "a/b", "a%2Fb", " ", "é", "用户", "{7}", "..", "\n", "x" * 120, "x" * 121, "x" * 600)


def test_texts_that_are_hard_to_name_have_segments_of_their_own() -> None:
    segments = [segment(text, THREAD_BYTES_MAX) for text in HARD]
    assert len({*segments}) == len(HARD)
    assert segments[:6] == ["-", "%2D", "%252D", "%25", "%2F", "a%2Fb"]
    assert segment("用户", 100) == "用户"


@given(TEXT, TEXT)
def test_two_texts_never_have_one_segment(one: str, other: str) -> None:
    found = [segment(text, 40) for text in (one, other)]
    assert (found[0] == found[1]) is (one == other)
    for name in found:
        assert name
        assert "/" not in name
        assert len(name.encode()) <= 40


@given(
    some.lists(
        TEXT.filter(lambda text: len(text.encode("utf-8", "surrogatepass")) <= CHECKPOINT_BYTES_MAX), unique=True
    )
)
def test_a_later_id_is_listed_earlier(ids: list[str]) -> None:
    assert sorted(ids, key=lambda one: checkpoint_segment(one).encode()) == sorted(ids, reverse=True)


def test_an_id_keeps_its_length_and_stands_behind_it() -> None:
    made = str(uuid6())
    assert len(inverted(made)) == len(made) + 1
    assert checkpoint_segment(made).endswith(f"~{made}")


@pytest.mark.parametrize("channel", ["log", "beside", "x/beside", "1", ""])
def test_a_channel_has_two_states_of_each_piece_and_one_is_the_other_of_the_other(channel: str) -> None:
    for piece in (0, 1, 12):
        names = [Place("a/b", "ns").channel(channel, piece, beside=beside) for beside in (False, True)]
        assert [*map(other_state_of, names)] == names[::-1]


@given(TEXT, TEXT, TEXT, TEXT)
def test_every_name_is_a_key_of_the_threads_group(thread: str, ns: str, checkpoint_id: str, more: str) -> None:
    place, long = Place(thread * 20, ns * 20), (more + "/é") * 60
    names = [
        place.head, place.checkpoint(checkpoint_id * 20), place.channel(long, 2, beside=True),
        f"{place.writes_of_task(checkpoint_id * 20, long)}99",
    ]  # fmt: skip
    namespace = "n" * 64
    for name in names:
        key = checked_key(f"{namespace}/{name}")
        assert len(key.encode()) <= KEY_BYTES_MAX
        assert group_of(key) == f"{namespace}/{place.thread}"


def test_what_postgres_cannot_hold_is_refused() -> None:
    for make in (lambda: Place("a\0"), lambda: Place("a", "\0"), lambda: checkpoint_segment("\0")):
        with pytest.raises(UsageError, match="holds a NUL"):
            make()
    for wrong, told in (("a\0", "holds a NUL"), ("a\ud800", "holds half of a surrogate pair.* character 1")):
        for channel, task_id, task_path in ((wrong, "t", ""), ("a", wrong, ""), ("a", "t", wrong)):
            with pytest.raises(UsageError, match=told):
                write_documents([("b", 1), (channel, 1)], task_id, task_path, Serde(JsonPlusSerializer()))


def test_none_is_no_thread() -> None:
    """All who forgot theirs would share one, and that with the thread of that name."""
    with pytest.raises(UsageError, match="thread_id is None"):
        Place(None)
    assert Place("None").thread == "None"
