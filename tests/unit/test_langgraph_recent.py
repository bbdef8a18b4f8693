"""What a saver remembers of its own puts: how much of it, for whom, and what of it is older than something else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from statecache import State
from statecache.adapters.langgraph import recent as module
from statecache.adapters.langgraph.documents import head_document, is_first, next_head
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.recent import CHANNELS_MAX, PLACES_MAX, Latest, PieceName, Recent

PLACE = Place("42")


def state(value: dict[str, Any], *, version: int = 1, epoch: int = 1) -> State[Any]:
    """Return a state that a commit might have made, over the version before."""
    return State(
        key="langgraph/42/x", value=value, epoch=epoch, version=version, change_id=f"c{version}",
        parent_change_id=f"c{version - 1}" if version > 1 else "", position=None,
        updated_at=datetime(2026, 1, 1, tzinfo=UTC), writer="",
    )  # fmt: skip


def latest(checkpoint_id: str = "1", *, version: int = 1, epoch: int = 1, channels: int = 1) -> Latest:
    """Return what might have been committed last."""
    values: dict[str, Any] = {str(number): {} for number in range(channels)}
    checkpoint = state({"checkpoint_id": checkpoint_id, "channel_values": values})
    return Latest(state({"checkpoint_id": checkpoint_id}, version=version, epoch=epoch), checkpoint, {})


def test_the_checkpoint_is_for_one_caller_until_it_is_given_back() -> None:
    recent, one = Recent(), latest()
    recent.put(PLACE, one)
    assert recent.take(PLACE, "2") is None
    assert recent.take(PLACE, "1") is one
    assert recent.take(PLACE, "1") is None
    recent.put(PLACE, one)
    assert recent.latest(PLACE) is one
    recent.forget(PLACE)
    assert recent.latest(PLACE) is None


def test_what_is_older_does_not_take_the_place_of_what_is_newer() -> None:
    recent, newer = Recent(), latest("2", version=2)
    recent.put(PLACE, newer)
    recent.put(PLACE, latest("1", version=1))
    assert recent.latest(PLACE) is newer
    recent.put(PLACE, again := latest("1", version=1, epoch=2))
    assert recent.latest(PLACE) is again


def test_few_threads_and_no_checkpoint_of_many_channels_are_remembered() -> None:
    recent = Recent()
    for number in range(PLACES_MAX + 1):
        recent.put(Place(number), latest())
    assert recent.latest(Place(0)) is None
    assert recent.latest(Place(1)) is not None
    recent.put(Place(1), latest("2", version=2, channels=CHANNELS_MAX + 1))
    assert recent.latest(Place(1)) is None


def test_pieces_go_that_were_used_least_recently_and_large_ones_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECES_BYTES_MAX", 30)
    monkeypatch.setattr(module, "_PIECE_BYTES_MAX", 10)
    recent = Recent()
    recent.add({PieceName(name, 1, "of", ""): name.encode() * 10 for name in "abc"})
    asked = PieceName("a", 1, "of", ""), PieceName("b", 2, "of", ""), PieceName("c", 1, "other", "")
    assert recent.pieces(asked) == {asked[0]: b"a" * 10}
    recent.add({PieceName("d", 1, "of", ""): b"d" * 10, PieceName("e", 1, "of", ""): b"e" * 11})
    assert {one.name for one in recent.pieces(PieceName(name, 1, "of", "") for name in "abcde")} == {"a", "c", "d"}


def test_a_version_is_known_as_long_as_a_piece_of_it_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECES_BYTES_MAX", 20)
    recent = Recent()
    first, second = PieceName("a", 1, "one", ""), PieceName("a", 1, "another", "")
    recent.add({first: bytes(10), second: bytes(10)})
    assert (recent.has_version("a", 1), recent.has_version("a", 2)) == (True, False)
    recent.pieces([first])
    recent.add({PieceName("b", 1, "of", ""): bytes(10), PieceName("c", 1, "of", ""): bytes(10)})
    assert [recent.has_version(name, 1) for name in "abc"] == [False, True, True]


def test_a_head_proves_nothing_once_something_else_has_written_it() -> None:
    first = state(next_head(PLACE, None, "5", "5"), version=1)
    assert is_first(first, "6")
    assert not is_first(first, "5")
    assert not is_first(None, "6")
    second = state(next_head(PLACE, first, "5", "7"), version=2)
    assert second.value["checkpoint_id"] == "5"
    assert [is_first(second, one) for one in "678"] == [False, False, True]
    back = state(first.value, version=3)
    assert not is_first(back, "8")
    after = state(next_head(PLACE, back, "8", "8"), version=4)
    assert not is_first(after, "9")
    assert not is_first(state(next_head(PLACE, None, "5", "5"), version=3), "9")
    assert not is_first(state(head_document(PLACE, "5"), version=1), "9")
