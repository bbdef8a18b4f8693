"""Branches as a drawing: in the order of time, each lane from where its key began."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from statecache.inspector.family import drawing
from statecache.inspector.source import Member

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: int) -> datetime:
    return BEGUN + timedelta(minutes=minutes)


def root(key: str = "runs/1", newest: int = 9, until: int = 90) -> Member:
    return Member(key, newest, "set", at(until), None, None, None, None, None)


def branch(key: str, origin: str, version: int, *, begun: int, newest: int = 3, until: int = 95) -> Member:
    return Member(key, newest, "set", at(until), 1, origin, version, at(begun), at(begun - 5))


def test_a_key_without_branches_has_no_drawing() -> None:
    assert drawing([root()], "runs/1") is None
    assert drawing([], "runs/1") is None


def test_a_branch_begins_behind_the_version_that_it_began_from() -> None:
    found = drawing([root(), branch("runs/2", "runs/1", 4, begun=50)], "runs/2")
    assert found is not None
    assert [(lane.key, lane.current) for lane in found.lanes] == [("runs/1", False), ("runs/2", True)]
    dots = {(dot.key, dot.version): dot for dot in found.dots}
    origin, begun, tip = dots["runs/1", 4], dots["runs/2", 1], dots["runs/1", 9]
    assert (origin.what, begun.what, tip.what) == ("origin", "begin", "tip")
    assert origin.x < begun.x < tip.x
    assert origin.y == tip.y < begun.y
    assert found.lanes[1].x1 == begun.x
    (curve,) = found.curves
    assert curve.path.startswith(f"M{origin.x} {origin.y}C")
    assert curve.path.endswith(f" {begun.x} {begun.y}")
    assert all(0 <= dot.x <= found.width and 0 <= dot.y <= found.height for dot in found.dots)


def test_a_branch_of_a_branch_from_its_first_version_keeps_its_own_beginning() -> None:
    members = [root(), branch("runs/2", "runs/1", 4, begun=50), branch("runs/3", "runs/2", 1, begun=55)]
    found = drawing(members, "runs/1")
    assert found is not None
    dots = {(dot.key, dot.version): dot for dot in found.dots}
    assert dots["runs/2", 1].what == "begin"
    assert found.lanes[1].x1 == dots["runs/2", 1].x
    assert len(found.curves) == 2


def test_a_merge_is_a_curve_back() -> None:
    merge = Member("runs/1", 9, "set", at(90), 8, "runs/2", 3, at(80), at(75), merged=True)
    found = drawing([merge, branch("runs/2", "runs/1", 4, begun=50, until=76)], "runs/1")
    assert found is not None
    assert [curve.merged for curve in found.curves] == [True, False]
    dots = {(dot.key, dot.version): dot for dot in found.dots}
    assert dots["runs/1", 8].what == "merge"
    assert [lane.key for lane in found.lanes] == ["runs/1", "runs/2"]
    assert found.lanes[0].x1 < dots["runs/1", 4].x


def test_an_origin_that_is_no_longer_there_has_a_lane() -> None:
    gone = Member("runs/1", 0, "absent", None, None, None, None, None, None)
    lone = Member("runs/2", 3, "delete", at(60), 1, "runs/1", 4, at(50), None)
    found = drawing([gone, lone], "runs/2")
    assert found is not None
    assert [(lane.key, lane.newest, lane.deleted) for lane in found.lanes] == [
        ("runs/1", 0, False), ("runs/2", 3, True),
    ]  # fmt: skip
    assert sorted((dot.key, dot.version) for dot in found.dots) == [("runs/1", 4), ("runs/2", 1), ("runs/2", 3)]
