"""What two keys have in common, found from a few links, is what the whole graph of all versions says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from statecache.rules.ancestry import Ancestry, Life, Link, Place, Restore, Span, copies_of

START = datetime(2026, 1, 1, tzinfo=UTC)


class Graph:
    """Every version of every key, with what it was made from."""

    def __init__(self) -> None:
        self.parents: dict[Place, list[Place]] = {}
        self.tips: dict[str, int] = {}
        self.links: list[Link] = []

    def add(self, key: str, *origins: Place, begins: bool = False) -> Place:
        place = Place(key, self.tips.get(key, 0) + 1)
        before = [] if begins or place.version == 1 else [Place(key, place.version - 1)]
        self.parents[place] = [*before, *origins]
        self.tips[key] = place.version
        for origin in origins:
            at = START + timedelta(seconds=len(self.parents))
            self.links.append(Link(key, place.version, *origin, begins, at))
        return place

    def tip(self, key: str) -> Place:
        return Place(key, self.tips[key])

    def above(self, place: Place) -> set[Place]:
        found, todo = set[Place](), [place]
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += self.parents[one]
        return found


class RestoringGraph(Graph):
    """Every version of every key, in the order in which they were made, with what was restored."""

    def __init__(self) -> None:
        super().__init__()
        self.restores: dict[Place, Restore] = {}
        self.begun: dict[Place, int] = {}

    def add(self, key: str, *origins: Place, begins: bool = False) -> Place:
        place = super().add(key, *origins, begins=begins)
        self.begun[place] = place.version if begins else self.begun.get(Place(key, place.version - 1), 0)
        return place

    def restore(self, key: str, to: int) -> None:
        place = self.add(key)
        self.restores[place] = Restore(key, place.version, to)

    def lineage(self, place: Place) -> set[int]:
        """The versions through which the value of one came."""
        found, version = set[int](), place.version
        while version:
            found.add(version)
            restore = self.restores.get(Place(place.key, version))
            version = version - 1 if restore is None else restore.to
        return found

    def built_on(self, tip: Place) -> dict[Life, int]:
        """Go through all versions from the newest on: what leads to one was made after it."""
        newest = {Life(tip.key, self.begun[tip]): tip.version}
        links = {Place(link.key, link.version): link for link in self.links}
        for place in reversed(self.parents):
            life, link = Life(place.key, self.begun[place]), links.get(place)
            if link is None or newest.get(life, 0) < place.version:
                continue
            if link.begins or place.version in self.lineage(Place(place.key, newest[life])):
                origin = Place(link.origin, link.origin_version)
                above = Life(origin.key, self.begun[origin])
                newest[above] = max(origin.version, newest.get(above, 0))
        return newest


moves = st.lists(
    st.tuples(
        st.sampled_from(("edit", "branch", "merge", "again", "restore")), st.integers(0, 5), st.integers(0, 5),
        st.integers(0, 9),
    ),
    max_size=30,
)  # fmt: skip


@given(moves)
def test_it_is_what_the_graph_of_all_versions_says(moves: list[tuple[str, int, int, int]]) -> None:
    graph = Graph()
    graph.add("k0")
    for move, first, second, back in moves:
        one, other = f"k{first % len(graph.tips)}", f"k{second % len(graph.tips)}"
        if move == "edit":
            graph.add(one)
        elif move == "branch":
            origin = Place(one, max(1, graph.tips[one] - back))
            graph.add(f"k{len(graph.tips)}", origin, begins=True)
        elif move == "again" and one != other:  # it was deleted, and begins anew
            graph.add(one, graph.tip(other), begins=True)
        elif move == "merge" and one != other:
            graph.add(one, graph.tip(other))
    for ours in map(graph.tip, graph.tips):
        above = graph.above(ours)
        found = Ancestry(graph.links).reached(ours).items()
        assert {
            Place(life.key, version) for life, newest in found for version in range(life.begun or 1, newest + 1)
        } == above
        for theirs in map(graph.tip, graph.tips):
            common = above & graph.above(theirs)
            bases = Ancestry(graph.links).bases([ours], [theirs])
            assert {*bases} == {
                place for place in common if not any(place in graph.above(other) - {other} for other in common)
            }
            assert len({*bases}) == len(bases)


@given(moves)
def test_merges_count_through_which_the_value_of_the_newest_version_came(
    moves: list[tuple[str, int, int, int]],
) -> None:
    graph = RestoringGraph()
    graph.add("k0")
    for move, first, second, back in moves:
        one, other = f"k{first % len(graph.tips)}", f"k{second % len(graph.tips)}"
        if move == "edit":
            graph.add(one)
        elif move == "branch":
            graph.add(f"k{len(graph.tips)}", Place(one, max(1, graph.tips[one] - back)), begins=True)
        elif move == "again" and one != other:
            graph.add(one, graph.tip(other), begins=True)
        elif move == "merge" and one != other:
            graph.add(one, graph.tip(other))
        elif move == "restore":
            graph.restore(one, max(0, graph.tips[one] - back))
    ancestry = Ancestry(graph.links, graph.restores.values())
    for place in graph.parents:
        assert ancestry.reached(place) == graph.built_on(place)


def base_of(ours: Place, theirs: Place, links: list[Link]) -> Place | None:
    bases = Ancestry(links).bases([ours], [theirs])
    assert len(bases) <= 1
    return bases[0] if bases else None


def test_a_branch_is_merged_from_its_origin_and_then_from_where_it_was_merged() -> None:
    graph = Graph()
    for _ in range(7):
        graph.add("main")
    graph.add("branch", graph.tip("main"), begins=True)
    for key in ("main", "branch", "branch", "main"):
        graph.add(key)
    main, branch = graph.tip("main"), graph.tip("branch")
    assert base_of(main, branch, graph.links) == base_of(branch, main, graph.links) == Place("main", 7)
    graph.add("main", branch)
    assert base_of(graph.tip("main"), branch, graph.links) == branch
    graph.add("branch")
    graph.add("main")
    assert base_of(graph.tip("main"), graph.tip("branch"), graph.links) == branch
    graph.add("branch", graph.tip("main"))
    assert base_of(graph.tip("main"), graph.tip("branch"), graph.links) == graph.tip("main")


def test_branches_of_one_origin_have_the_older_of_their_beginnings_in_common() -> None:
    graph = Graph()
    for _ in range(5):
        graph.add("main")
    graph.add("one", Place("main", 2), begins=True)
    graph.add("other", Place("main", 4), begins=True)
    graph.add("stranger")
    assert base_of(graph.tip("one"), graph.tip("other"), graph.links) == Place("main", 2)
    assert base_of(graph.tip("one"), graph.tip("stranger"), graph.links) is None


def test_what_one_side_builds_on_alone_is_what_links_may_be_missing_from() -> None:
    ancestry = Ancestry([Link("b", 1, "a", 3, True, START), Link("a", 6, "b", 4, False, START)])
    assert ancestry.unshared([Place("a", 5)], [Place("b", 2)]) == [Span("a", 4, 5), Span("b", 1, 2)]
    assert ancestry.unshared([Place("a", 8)], [Place("b", 6)]) == [Span("a", 4, 8), Span("b", 5, 6)]
    assert ancestry.unshared([Place("a", 3)], [Place("b", 1)]) == [Span("b", 1, 1)]
    assert ancestry.unshared([Place("a", 3)], [Place("a", 3)]) == []


def test_a_merge_that_was_taken_back_does_not_count_until_it_is_brought_back() -> None:
    links = [Link("side", 1, "main", 1, True, START), Link("main", 3, "side", 2, False, START)]
    undone, redone = Restore("main", 4, 2), Restore("main", 5, 3)
    side = Place("side", 2)
    for ours, restores, base in (
        (Place("main", 3), [], side),
        (Place("main", 4), [undone], Place("main", 1)),
        (Place("main", 5), [undone, redone], side),
        (Place("main", 6), [undone, redone, Restore("main", 6, 1)], Place("main", 1)),
        (Place("main", 5), [undone], Place("main", 1)),
        (Place("main", 4), [Restore("main", 4, 0)], Place("main", 1)),
    ):
        assert Ancestry(links, restores).bases([ours], [side]) == [base]
        assert Ancestry(links, restores).bases([side], [ours]) == [base]
        assert Ancestry(links, restores).taken_back(ours, side) is None


def test_it_is_told_where_one_side_took_a_merge_back_that_the_other_one_builds_on() -> None:
    links = [
        Link("side", 1, "main", 1, True, START), Link("main", 3, "side", 2, False, START),
        Link("side", 3, "main", 3, False, START),
    ]  # fmt: skip
    ancestry = Ancestry(links, [Restore("main", 4, 2), Restore("main", 5, 3)])
    for one, other in ((Place("main", 4), Place("side", 4)), (Place("side", 4), Place("main", 4))):
        assert ancestry.bases([one], [other]) == [Place("main", 3)]
        assert ancestry.taken_back(one, other) == (Place("main", 4), Place("side", 2))
        assert ancestry.taken_back(one._replace(version=5), other._replace(version=5)) is None


def test_it_is_told_where_the_other_side_builds_on_what_was_taken_back_through_a_third_key() -> None:
    links = [
        Link("side", 1, "main", 1, True, START), Link("main", 3, "side", 2, False, START),
        Link("side", 3, "main", 3, False, START), Link("third", 1, "side", 4, True, START),
        Link("other", 1, "main", 3, True, START),
    ]  # fmt: skip
    ancestry, main = Ancestry(links, [Restore("main", 4, 2)]), Place("main", 4)
    assert ancestry.taken_back(main, Place("third", 2)) == (main, Place("side", 2))
    assert ancestry.taken_back(Place("third", 2), main) == (main, Place("side", 2))
    assert ancestry.taken_back(main, Place("other", 2)) is None, "it has nothing of it but by main"


def test_what_a_version_may_have_copies_in_is_what_was_made_of_it() -> None:
    links = [
        Link("b", 1, "a", 3, True, START), Link("c", 1, "b", 1, True, START), Link("d", 1, "a", 2, True, START),
        Link("e", 7, "a", 3, False, START),
    ]  # fmt: skip
    assert copies_of(Place("a", 3), links) == [Place("b", 1), Place("e", 7), Place("c", 1)]
    assert copies_of(Place("c", 1), links) == []
