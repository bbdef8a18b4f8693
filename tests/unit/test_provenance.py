"""What a change's reason says of where it came from: what is written is read again, and nobody can forge it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statecache import AsyncStateCache, Create, Position, Set, Settings, UsageError
from statecache.errors import InvalidKey
from statecache.keys import checked_key
from statecache.rules.provenance import Kind, Provenance, provenance_of, refuse_provenance


def _is_key(text: str) -> bool:
    try:
        checked_key(text)
    except InvalidKey:
        return False
    return True


keys = st.lists(st.text("ab@%:04 7-é", min_size=1, max_size=6), min_size=1, max_size=3).map(
    lambda parts: "/".join(["runs", *parts])
)
versions = st.integers(1, 10**17)
positions = st.builds(Position, st.integers(0, 10**9), st.integers(1, 10**17))
reasons = st.one_of(st.just(""), st.text(max_size=20), st.just("undo to 3"), st.just("x@7: y"))


@st.composite
def provenances(draw: st.DrawFn) -> Provenance:
    kind: Kind = draw(st.sampled_from(("rollback", "undo", "redo", "branch", "merge", "expired", "erased")))
    reason = draw(reasons)
    if kind in ("expired", "erased"):
        return Provenance(kind=kind, reason=reason)
    origin = draw(keys.filter(_is_key)) if kind in ("branch", "merge") else ""
    if draw(st.booleans()):
        return Provenance(kind=kind, position=draw(positions), origin=origin, reason=reason)
    return Provenance(kind=kind, version=draw(versions), origin=origin, reason=reason)


@given(provenances())
def test_what_is_written_is_read_again(one: Provenance) -> None:
    assert provenance_of(str(one)) == one
    with pytest.raises(UsageError, match="reads like what statecache itself says"):
        refuse_provenance(str(one))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rollback to 7", Provenance(kind="rollback", version=7)),
        ("rollback to 5-1144", Provenance(kind="rollback", position=Position(5, 1144))),
        ("rollback to 0-3", Provenance(kind="rollback", position=Position(0, 3))),
        ("undo to 6: a slip", Provenance(kind="undo", version=6, reason="a slip")),
        ("redo to 7", Provenance(kind="redo", version=7)),
        ("branch of runs/42@7", Provenance(kind="branch", version=7, origin="runs/42")),
        ("branch of runs/a%40b@7: x@3", Provenance(kind="branch", version=7, origin="runs/a@b", reason="x@3")),
        ("merge of runs/42-b@5", Provenance(kind="merge", version=5, origin="runs/42-b")),
        ("merge of a/b@5: two\nlines", Provenance(kind="merge", version=5, origin="a/b", reason="two\nlines")),
        ("expired", Provenance(kind="expired")),
        ("erased: asked for", Provenance(kind="erased", reason="asked for")),
    ],
)  # fmt: skip
def test_the_grammar(text: str, found: Provenance) -> None:
    assert provenance_of(text) == found
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "rollback", "rollback to", "rollback to x", "rollback to 0", "rollback to 07", "rollback to 7 ",
        " undo to 6", "Rollback to 7", "rollback to 7:why", "rollback to 7, I said", "undo to -6", "redo to 7.0",
        "branch of runs@7",
        "branch of /42@7", "branch of runs/42", "branch of runs/42@", "branch of runs/42@7x", "branch of @7",
        "merge of runs//42@5", "expired!", "it expired", "rollback to 5-0", "undo to 1\N{FULLWIDTH DIGIT NINE}",
    ],
)  # fmt: skip
def test_anything_else_is_a_users_own(text: str) -> None:
    assert provenance_of(text) is None
    assert refuse_provenance(text) == text


def test_a_key_of_a_group_came_from_that_of_its_name() -> None:
    of_key = Provenance(kind="branch", version=7, origin="runs/42/plan")
    assert of_key.origin_of("runs/43/anything") == "runs/42/plan"
    of_group = Provenance(kind="branch", position=Position(5, 9), origin="runs/42")
    assert [of_group.origin_of(key) for key in ("runs/43", "runs/43/plan/a")] == ["runs/42", "runs/42/plan/a"]


async def test_no_verb_takes_it_as_a_reason() -> None:
    settings = Settings(redis_url="redis://127.0.0.1:1/0", postgres_url="postgresql://127.0.0.1:1/x", timeout_s=5.0)
    client = AsyncStateCache(settings=settings)
    reason = "branch of runs/42@7: mine"
    calls = [
        client.set("runs/42", 1, reason=reason),
        client.create("runs/42", 1, reason=reason),
        client.update("runs/42", lambda value: value, default=1, reason=reason),
        client.delete("runs/42", reason="expired"),
        client.commit([Set("runs/42", 1), Create("runs/42/a", 2)], reason=reason),
        client.set_many({"runs/42": 1}, reason=reason),
        client.delete_many(["runs/42"], reason=reason),
        client.copy("runs/42", "runs/43", reason=reason),
        client.touch("runs/42", ttl=1, reason=reason),
        client.transact(["runs/42"], lambda tx: None, reason=reason),
        client.step("runs/42", "charge", lambda step: 1, reason=reason),
        client.checkpoint("runs/42", reason=reason),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="reads like"):
            await call
