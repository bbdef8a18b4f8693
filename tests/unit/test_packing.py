"""What an earlier release kept whole is packed as the flusher would have, with the hashes that it would have."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256

import msgspec
import pytest

from statecache.history import Damage, Parent, begins_anew, is_delta, keep, link, unpacked
from statecache.model import ChangeRecord, ChangeSet, Position
from statecache.rules import packing
from statecache.rules.packing import Unpacked, pack

AT = datetime(2026, 11, 20, tzinfo=UTC)
VALUES = [msgspec.json.encode({"log": ["x" * 300, *range(many)]}) for many in range(40, 50)]


def nobody(_: str) -> None:
    return None


def row(version: int, value: bytes, *, gap: bool = False, op: str = "set", reason: str = "") -> Unpacked:
    parent = f"c{version - 1}" if version > 1 else ""
    change = ChangeRecord(
        change_id=f"c{version}", key="runs/1", op=op, version=version, parent_change_id=parent, value=value,
        encoding="json", schema="",
    )  # fmt: skip
    commit = ChangeSet(
        position=Position(1, version), change_id=f"c{version}", at=AT, writer="w", actor="", reason=reason, entries=1,
        bytes=1, changes=(change,),
    )  # fmt: skip
    return Unpacked(commit, change, gap, None, parent or None, None)


def test_a_run_of_versions_is_kept_as_the_flusher_keeps_it() -> None:
    rows = [row(version, value) for version, value in enumerate(VALUES, 1)]
    packed, parents = pack(rows, nobody)
    parent: Parent | None = None
    before = b""
    for one, mine in zip(rows, packed, strict=True):
        kept, parent = keep(one.change, parent)
        before = link(before, one.change, one.change_set, kept.digest)
        assert (mine.kept, mine.hash) == (kept, before)
    assert parents == {"runs/1": parent}
    assert [is_delta(one.kept.packed) for one in packed if one.kept] == [False] + [True] * 9


def test_another_page_goes_on_from_what_is_remembered_and_from_the_hash_that_is_there() -> None:
    rows = [row(version, value) for version, value in enumerate(VALUES, 1)]
    whole, _ = pack(rows, nobody)
    first, parents = pack(rows[:4], nobody)
    behind = [rows[4]._replace(before_hash=first[-1].hash), *rows[5:]]
    second, _ = pack(behind, parents.get)
    assert [one[1:] for one in (*first, *second)] == [one[1:] for one in whole]
    forgotten, _ = pack(behind, nobody)
    assert [one.hash for one in forgotten] == [one.hash for one in second]
    assert forgotten[0].kept is not None
    assert unpacked(forgotten[0].kept.packed or b"", None) == VALUES[4]


def test_what_was_written_since_keeps_its_form_and_nothing_is_a_delta_to_it() -> None:
    since = row(2, b"")._replace(digest=sha256(VALUES[1]).digest())
    packed, parents = pack([row(1, VALUES[0]), since, row(3, VALUES[2])], nobody)
    assert packed[1].kept is None
    assert packed[1].hash == link(packed[0].hash, since.change, since.change_set, since.digest or b"")
    assert packed[2].kept is not None
    assert packed[2].kept.keyframe is None
    assert parents["runs/1"].keyframe == 3


@pytest.mark.parametrize(
    ("second", "anew"),
    [
        (row(2, VALUES[1]), False),
        (row(2, VALUES[1], gap=True), True),
        (row(2, b"", op="delete"), False),
        (row(2, b"", op="delete", reason="erased"), True),
        (row(2, b"", op="delete", reason="erased: asked for"), True),
        (row(2, b"", op="delete", reason="erased by hand"), False),
        (row(2, VALUES[1], reason="erased"), False),
    ],
)
def test_a_chain_of_hashes_begins_anew_behind_a_gap_and_with_an_erasure(second: Unpacked, anew: bool) -> None:
    packed, _ = pack([row(1, VALUES[0]), second], nobody)
    before = b"" if anew else packed[0].hash
    digest = sha256(second.change.value).digest()
    assert packed[1].hash == link(before, second.change, second.change_set, digest)
    assert begins_anew(second.change_set, second.change) == (anew and not second.gap)
    if anew and packed[1].kept is not None:
        assert packed[1].kept.keyframe is None


def test_nothing_is_given_up_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "unpacked", lambda packed, parent: b"other")
    with pytest.raises(Damage, match="version 1 of 'runs/1' does not come back"):
        pack([row(1, VALUES[0])], nobody)
