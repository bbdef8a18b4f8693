"""What Postgres has recorded under a change_id, and what that says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from statecache.model import Write
from statecache.rules.outcomes import Fate, Recorded, another, content_of, fate_of

AT = datetime(2026, 11, 22, tzinfo=UTC)
A, B = "runs/1", "runs/1/plan"


def _row(found: str, key: str) -> Recorded:
    return Recorded(found, key, 1, "", 1, 1, "set", AT)


@pytest.mark.parametrize(
    ("there", "keys", "fate"),
    [
        ([], [A], ""),
        ([("shard", "")], [A], ""),
        ([("change", A)], [A], "change"),
        ([("change", A), ("change", B)], [A, B], "change"),
        ([("change", A)], [A, B], ""),
        ([("change", B)], [A], ""),
        ([("conflict", A)], [A], "conflict"),
        ([("conflict", B)], [A], ""),
        ([("quarantine", A)], [A], "quarantine"),
        ([("conflict", A), ("change", A)], [A], "change"),
        ([("quarantine", A), ("change", A)], [A], "change"),
        ([("change", A), ("conflict", B)], [A], "change"),
        ([("change", A), ("conflict", B)], [B], "conflict"),
        ([("change", A), ("conflict", B)], [A, B], "conflict"),
    ],
)
def test_a_change_is_known_by_its_key_too_and_the_lineage_counts_first(
    there: list[tuple[str, str]], keys: list[str], fate: Fate
) -> None:
    assert fate_of([_row(*one) for one in there], keys) == fate
    assert fate_of([_row(*one) for one in reversed(there)], keys) == fate


def test_writes_are_compared_with_what_was_found() -> None:
    writes = [Write(key=A, op="set", expected="*", value=b"1"), Write(key=B, op="delete", expected="*")]
    assert another(writes, [content_of("set", b"1"), content_of("delete", b"")], {}, {}) is None
    assert another(writes, [content_of("set", b"2"), content_of("delete", b"")], {}, {}) == 0
    assert another(writes, [content_of("set", b"1"), content_of("set", b"")], {}, {}) == 1
