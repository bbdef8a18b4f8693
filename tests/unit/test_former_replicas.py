"""Who may open a former replica of the server that the row names, which has missed the opening there."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from statecache.rules.epochs import Authority, Opening, Refusal, decide, unproven
from statecache.rules.looks import CLAIM, Look, Pin, ShardRow, Totals, look_of
from statecache.rules.replids import UNFENCED

PIN = Pin("64", "crc32", "a-cluster")
ROW = ShardRow(shard=7, epoch=6, replid="b")
FORMER = Look(
    epoch=5, replid="a", continues=(), reservation="", reserved_until="", reserved_left_ms=0, last=(5, 100), n=100,
    totals=Totals(100, 9000), flushed=0, pin=PIN, server="s", role="master", former="b",
)  # fmt: skip
ASKERS: tuple[tuple[Authority, bool], ...] = (
    ("client", False), ("client", True), ("setup", True), ("worker", False), ("worker", True), ("operator", True)
)  # fmt: skip
"""Who asks, and whether with a word for the server that the row names."""
WITNESS = ["wait", "wait", "refused", "refused", "claims ~b", "above 6"]
OPERATOR = ["refused"] * 5 + ["above 6"]
ANYBODY = ["above 6"] * 6


def former(**more: Any) -> Look:
    return msgspec.structs.replace(FORMER, **more)


def reserved(*continues: str) -> Look:
    return former(replid="", continues=continues, reservation="x")


def verdicts(row: ShardRow, look: Look) -> list[str]:
    """Return the verdict on each asker in a word or two."""
    words = []
    for authority, vouches in ASKERS:
        verdict = decide(row, look, authority, pin=PIN, vouched=[row.replid] if vouches else [])
        if isinstance(verdict, Opening):
            words.append(f"claims {verdict.claims}" if verdict.claims else f"above {verdict.seen}")
        else:
            assert isinstance(verdict, Refusal)
            assert verdict.branch
            words.append("wait" if verdict.wait else "refused")
    return words


@pytest.mark.parametrize(
    ("story", "look", "row", "expected"),
    [
        ("it has missed the opening", FORMER, ROW, WITNESS),
        ("it was opened since, and given up", former(server="a"), ROW, OPERATOR),
        ("it was maybe opened since", reserved("a", "s"), ROW, OPERATOR),
        ("a worker died when it had reserved it", reserved("~b", "a", "s"), ROW, [*WITNESS[:4], *["above 6"] * 2]),
        ("a worker died when it had raised the row", reserved("~b", "a", "s"), ShardRow(shard=7, epoch=7, replid="s"),
         ["above 7"] * 6),
        ("a worker died, and another server was opened", reserved("~b", "a", "s"),
         ShardRow(shard=7, epoch=7, replid="c"), ["refused"] * 5 + ["above 7"]),
        ("it has the reservation of whoever died opening that server", reserved("a", "b"), ROW, ANYBODY),
        ("it has had the opening", former(epoch=6, replid="b"), ROW, ANYBODY),
        ("it was opened without a fence", former(replid=UNFENCED), ROW, OPERATOR),
        ("it was another server's replica", former(former="c"), ROW, OPERATOR),
        ("its server does not say whose replica it was", former(former=""), ROW, OPERATOR),
        ("neither does the row", former(former=""), ShardRow(shard=7, epoch=6, replid=""), OPERATOR),
        ("it was nobody's replica", former(former="0" * 40), ROW, OPERATOR),
    ],
)  # fmt: skip
def test_who_may_open_a_former_replica(story: str, look: Look, row: ShardRow, expected: list[str]) -> None:
    assert verdicts(row, look) == expected, story


def test_what_is_said_names_who_may() -> None:
    for authority, vouches in ASKERS[:4]:
        verdict = decide(ROW, FORMER, authority, pin=PIN, vouched=["b"] if vouches else [])
        assert isinstance(verdict, Refusal)
        assert "A worker that has flushed from that server, or opened it, and still runs opens it" in verdict.why
        assert "epoch adopt all --from b --to s" in verdict.why


def test_what_it_holds_of_an_epoch_that_postgres_has_not_begun_is_compared() -> None:
    """The row was raised above that epoch meanwhile, on the server whose replica it was."""
    elsewhere = msgspec.structs.replace(ROW, flushed=80, unknown_epoch=True)
    assert (unproven(elsewhere, FORMER), unproven(ROW, FORMER)) == ((0, 80), None)
    assert verdicts(elsewhere, FORMER) == WITNESS
    named = former(replid="b")
    for authority, wait in (("client", True), ("setup", False)):
        verdict = decide(elsewhere, named, cast("Authority", authority), pin=PIN)
        assert isinstance(verdict, Refusal)
        assert (verdict.wait, verdict.branch, "restored, or is a copy" in verdict.why) == (wait, False, True)
    assert isinstance(decide(elsewhere, named, "worker", pin=PIN), Opening)
    assert isinstance(decide(ROW, named, "client", pin=PIN), Opening)


def test_an_old_primary_stays_one_whatever_postgres_it_was_last_open_with() -> None:
    """A later server was opened since, and may be at work."""
    assert verdicts(msgspec.structs.replace(ROW, unknown_epoch=True), former(former="")) == OPERATOR


def test_what_redis_says_of_it_is_read() -> None:
    parts = ["5", "", "~b a s", "x", "", "0", "5-100", "100", "1", "2", "3", "0", *PIN, "s", "master"]
    look = look_of([*parts, "b"])
    assert (look.former, look.lineage, look.claimed) == ("b", frozenset("as"), frozenset("b"))
    assert look_of([*parts, ""]).former == ""
    assert CLAIM not in "0123456789abcdef"
