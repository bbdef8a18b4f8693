"""What a merge begins from, in the plain history: found by going through what was committed, from the newest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.history_model.plain import PlainHistory, Row

Place = tuple[str, int]


class Bases:
    """What versions build on, and what both sides of a merge do."""

    def __init__(self, past: PlainHistory) -> None:
        self._past = past

    def base_of(self, ours: str, theirs: str) -> Place | bool | None:
        """Return the newest version that both build on; False where there are several that do not build on one another.

        None where there is none, or where one side has taken back what the base builds on, and the other one by itself.
        """
        tips = [(key, len(self._past.chain(key))) for key in (ours, theirs)]
        mine, others = map(self.built_on, tips)
        common = mine & others
        newest = {self._life(place): place for place in sorted(common)}.values()
        best = [one for one in newest if not any(one in self.built_on(other) for other in newest if other != one)]
        for base in best:
            for tip, reached in ((tips[0], others), (tips[1], mine)):
                if (self.built_on(base) & self.built_on(tip, without=self._life(base))) - reached:
                    return None
        return None if not best else best[0] if len(best) == 1 else False

    def built_on(self, tip: Place, *, without: Place | None = None) -> set[Place]:
        """Return all that a version builds on, itself included; with `without`, but for what another life leads to.

        What is committed later is looked at first. So of a key the newest version comes first, and says by which
        versions its value came: the merges among them count.
        """
        found, todo = set[Place](), {tip}
        newest: dict[Place, set[int]] = {}
        while todo:
            one = max(todo, key=self._past.order.__getitem__)
            todo.remove(one)
            found.add(one)
            key, version = one
            came_by = newest.setdefault(self._life(one), self._came_by(one))
            links = [link for link in self._past.origins if (link.key, link.version) == one]
            counted = [link for link in links if link.kind == "branch" or version in came_by]
            origins = {(link.origin, link.origin_version) for link in counted}
            todo |= {one for one in origins if without is None or self._life(one) != without} - found
            if version > 1 and not any(link.kind == "branch" for link in links):
                todo |= {(key, version - 1)} - found
        return found

    def _came_by(self, place: Place) -> set[int]:
        """Return the versions by which a version's value came: what was restored, and not what lies between."""
        key, version = place
        found = set[int]()
        while version:
            found.add(version)
            row = self._past.chain(key)[version - 1]
            said, version = row.said, version - 1
            if said is not None and said.kind in ("undo", "redo", "rollback"):
                version = said.version or 0
                if said.position is not None:
                    then = self._past.at(key, n=said.position.n)
                    version = 0 if then is None else then.version
        return found

    def _life(self, place: Place) -> Place:
        """Return a key and the version with which it began as a branch, 0 where it did not."""
        key, version = place
        begun = [one.version for one in self._past.origins if one.key == key and one.kind == "branch"]
        return key, max((one for one in begun if one <= version), default=0)

    def copies(self, base: Place) -> list[tuple[Row, bool]]:
        """Return the versions made from one, and from these, with its value; with each whether it is a branch of it."""
        row = self._past.chain(base[0])[base[1] - 1]
        places, found = [base], list["tuple[Row, bool]"]()
        for place in places:  # which grows
            for link in self._past.origins:
                made = (link.key, link.version)
                if (link.origin, link.origin_version) == place and made not in places:
                    places.append(made)
                    other = self._past.chain(link.key)[link.version - 1]
                    if other.lives and not row.erased and not other.erased and other.data == row.data:
                        found.append((other, place == base and link.kind == "branch"))
        return found
