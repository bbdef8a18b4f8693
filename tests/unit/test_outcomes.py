"""What Postgres has recorded under a change_id, and what that says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from statecache.model import Write
from statecache.rules.modifiers import Made, modifier_of
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
    one, nothing = content_of("set", b"1", "json"), content_of("delete", b"", "json")
    writes = [Write(key=A, op="set", expected="*", value=b"1"), Write(key=B, op="delete", expected="*")]
    assert another(writes, [one, nothing], AT, {}, {}) is None
    assert another(writes, [content_of("set", b"2", "json"), nothing], AT, {}, {}) == 0
    assert another(writes, [one, content_of("set", b"", "json")], AT, {}, {}) == 1


@pytest.mark.parametrize(("asked", "ms"), [("json", None), ("json in 5", 5), ("json in 7", 7)])
@pytest.mark.parametrize("kept_ms", [None, 5, 7])
def test_writes_that_end_otherwise_are_others(asked: str, ms: int | None, kept_ms: int | None) -> None:
    kept = "json" if kept_ms is None else f"json until {round(AT.timestamp() * 1000) + kept_ms}"
    write = Write(key=A, op="set", expected="*", value=b"1", encoding=asked)
    assert another([write], [content_of("set", b"1", kept)], AT, {}, {}) == (None if ms == kept_ms else 0)


@pytest.mark.parametrize("asked_ms", [None, 5, 7])
@pytest.mark.parametrize("kept_ms", [5, 7])
@pytest.mark.parametrize("base", ["unknown", "nothing", "lasts", "ends"])
def test_modifiers_that_end_otherwise_are_others(asked_ms: int | None, kept_ms: int, base: str) -> None:
    """One that is told no end keeps that of what was there before, if that is known."""
    kept = f"json until {round(AT.timestamp() * 1000) + kept_ms}"
    modifier = modifier_of("increment", b"1", bytes_max=9, keeps_end=asked_ms is None)
    encoding = "json" if asked_ms is None else f"json in {asked_ms}"
    write = Write(key=A, op="set", expected="*", value=b"1", encoding=encoding, modifier=modifier)
    value = b"1" if base == "nothing" else b"3"
    known = {"nothing": None, "lasts": Made(b"2", "json", ""), "ends": Made(b"2", kept, "")}
    bases = {} if base == "unknown" else {0: known[base]}
    same = base in ("unknown", "ends") if asked_ms is None else asked_ms == kept_ms
    found = another([write], [content_of("set", value, kept)], AT, {0: Made(value, kept, "")}, bases)
    assert found == (None if same else 0)
