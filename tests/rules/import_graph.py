"""Which module imports which, type-only imports included, and where they go in circles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.rules.house_rules import imports, module

Graph = Mapping[str, set[str]]


def import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return for each module, given by the paths and texts of all, the others of them that it imports."""
    names = {module(path) for path in sources}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for path, text in sources.items():
        for imported, _ in imports(path, text):
            name = imported
            while name and name not in names:
                name = name.rpartition(".")[0]
            if name and name != module(path):
                graph[module(path)].add(name)
    return graph


def circles(graph: Graph) -> list[str]:
    """Return, for each module that imports itself through others, such a way."""
    found = []
    for name in sorted(graph):
        way = next(_ways_back(graph, name), None)
        if way:
            found.append(" -> ".join(way))
    return found


def _ways_back(graph: Graph, start: str) -> Iterator[list[str]]:
    """Yield a shortest way from a module back to itself, if there is one."""
    ways = [[start]]
    seen: set[str] = set()
    for way in ways:
        for other in sorted(graph.get(way[-1], ())):
            if other == start:
                yield [*way, start]
                return
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
