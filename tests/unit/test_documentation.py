"""What the pages say of the code is so: verbs, errors, commands, exit codes, figures, names, links."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import statecache
from statecache import Settings, StateCacheError
from statecache.cli import exits as status
from statecache.cli.app import app
from tests.benchmarks.choices import SECTIONS
from tests.generators import generated, layers_drawing, settings_page, site
from tests.rules.house_rules import LAYERS
from tests.rules.tree import CODE, DATA, ROOT

README_LINES_MAX = 120
PICTURE_BYTES_MAX = 60_000
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*(ROOT / name for name in site.BESIDE), *sorted((ROOT / "docs").rglob("*.md")))
}
README, VERBS, COMMANDS, BENCHMARKS, ARCHITECTURE, CONTRIBUTING = (
    PAGES[name]
    for name in (
        "README.md", "docs/verbs.md", "docs/command-line.md", "docs/benchmarks.md", "docs/architecture.md",
        "CONTRIBUTING.md",
    )
)  # fmt: skip
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))


def _prose(page: str) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def _slugs(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken(path: str, text: str) -> Iterator[str]:
    """Yield the links of a page that lead nowhere; `path` is its own, below the root."""
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)", _prose(text)):
        file = (ROOT / path).parent / target if target else ROOT / path
        if not file.exists():
            yield f"{path}: {target} is not there"
        elif anchor and anchor not in _slugs(file.read_text(encoding="utf-8")):
            yield f"{path}: {target}#{anchor} is not there"


def _rows(page: str, columns: int) -> list[list[str]]:
    """Return the rows of a page's tables that have so many columns."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in lines if len(row) == columns]


@pytest.mark.parametrize("path", PAGES)
def test_links_between_pages_hold(path: str) -> None:
    assert list(_broken(path, PAGES[path])) == []


def _shown() -> dict[str, object]:
    """Return what a user holds in his hands, by the name that the reference has before its members."""
    client = statecache.StateCache(redis_url="redis://127.0.0.1:1", postgres_url="postgresql://127.0.0.1:1/none")
    return {
        "": client, "Namespace.": client.namespace("runs"), "Transaction.": client.transaction("runs/1"),
        "Changes.": client.changes(), "Watch.": client.watch(), "UntilStopped.": client.until_stopped(),
    }  # fmt: skip


@pytest.mark.parametrize("prefix", _shown())
def test_what_a_name_shows_at_a_prompt_is_in_the_reference(prefix: str) -> None:
    headings = set(re.findall(r"^### ([\w.]+)$", PAGES["docs/reference.md"], re.MULTILINE))
    names = {name for name in dir(_shown()[prefix]) if not name.startswith("_")}
    above = prefix if prefix != "Namespace." else ""
    assert {f"{above}{name}" for name in names} - headings == set()
    assert names


ADAPTERS = {
    "adk": ("StateCacheSessionService",),
    "langgraph": ("StateCacheSaver", "StateCacheStore"),
    "llama_index": ("StateCacheChatStore", "StateCacheKVStore"),
    "openai_agents": ("StateCacheSession",),
    "pydantic_ai": ("StateCacheConversationStore",),
}


BESIDE = {"crewai": ("docs/adapters/crewai.md", "persistence", "StateCacheFlowPersistence")}
"""Adapters that cannot be imported here, for what they are for is installed beside: their pages name what they have."""


def test_the_adapters_are_all_that_there_are() -> None:
    packages = {file.parent.name for file in (ROOT / "statecache/adapters").glob("*/__init__.py")}
    assert packages == ADAPTERS.keys() | BESIDE.keys()


@pytest.mark.parametrize("package", BESIDE)
def test_what_an_adapter_has_of_its_own_is_on_its_page(package: str) -> None:
    page, module, name = BESIDE[package]
    tree = ast.parse((ROOT / f"statecache/adapters/{package}/{module}.py").read_text())
    (kind,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    own = {node.name for node in kind.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}
    assert len(own) > 5
    assert {one for one in own if f"`{one}" not in PAGES[page] and f".{one}(" not in PAGES[page]} == set()


@pytest.mark.parametrize(("package", "name"), [(package, name) for package in ADAPTERS for name in ADAPTERS[package]])
def test_what_an_adapter_has_of_its_own_is_in_the_reference(package: str, name: str) -> None:
    """A method that does what its twin does, awaited or not, stands with that."""
    kind = getattr(importlib.import_module(f"statecache.adapters.{package}"), name)
    own = {
        method
        for base in kind.__mro__
        if base.__module__.startswith("statecache.")
        for method, member in vars(base).items()
        if not method.startswith("_") and (inspect.isroutine(member) or isinstance(member, property))
        and "Do what" not in (inspect.getdoc(getattr(base, method)) or "")
        and not method.startswith("model_")
    }  # fmt: skip
    headings = set(re.findall(rf"^### {name}\.(\w+)$", PAGES["docs/reference.md"], re.MULTILINE))
    assert len(own) > 5
    assert own - headings == {"class_name"} & own, "which is for what LlamaIndex writes of its components"


def test_a_link_that_leads_nowhere_is_found() -> None:
    page = "[a](LICENSE) [b](docs/verbs.md#errors) [c](nowhere.md) [d](#there) [e](docs/verbs.md#nothing)\n"
    assert list(_broken("README.md", page)) == [
        f"README.md: {target} is not there" for target in ("nowhere.md", "#there", "docs/verbs.md#nothing")
    ]


def test_the_readme_stays_short_and_its_picture_small() -> None:
    assert len(README.splitlines()) <= README_LINES_MAX
    assert (ROOT / "docs/demo.svg").stat().st_size <= PICTURE_BYTES_MAX
    assert "](docs/demo.svg)" in README


def test_every_page_stands_in_the_navigation_of_the_site() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def leaves(part: object) -> Iterator[str]:
        if isinstance(part, str):
            yield part
        else:
            assert isinstance(part, list | dict)
            yield from chain.from_iterable(map(leaves, part.values() if isinstance(part, dict) else part))

    assert sorted(leaves(config["nav"])) == sorted(map(site.site_path, PAGES))


def test_links_and_fences_are_made_to_hold_on_the_site() -> None:
    page = "[a](../README.md) [b](../config) [c](../config/redis.conf) [d](https://x.y) [e](verbs.md#errors)\n"
    fences = "```console background\n$ true\n```\n```ini config/redis.conf\n```\n"
    assert site.for_the_site("operations.md", page + fences) == (
        "[a](index.md) [b](source/config/index.md) [c](source/config/redis.conf) "
        "[d](https://x.y) [e](verbs.md#errors)\n"
        '```console\n$ true\n```\n```ini title="config/redis.conf"\n```\n'
    )
    assert site.for_the_site("index.md", "[a](docs/verbs.md)") == "[a](verbs.md)"
    assert site.for_the_site("concepts/near.md", "[a](../settings.md)") == "[a](../settings.md)"


def test_every_verb_and_public_name_stands_on_the_page_of_verbs() -> None:
    verbs = re.findall(r"^### (\w+)$", PAGES["docs/reference.md"].partition("## Values")[0], re.MULTILINE)
    assert len(verbs) > 15
    missing = [name for name in (*verbs, *statecache.__all__) if not re.search(rf"\b{name}\b", VERBS)]
    assert missing == []


def test_every_error_stands_in_the_readers_list_of_errors() -> None:
    errors = [
        name
        for name in statecache.__all__
        if isinstance(kind := getattr(statecache, name), type) and issubclass(kind, StateCacheError)
    ]
    listed = VERBS.partition("## Errors")[2]
    assert [name for name in errors if f"`{name}`" not in listed] == []


def test_every_setting_says_what_it_means() -> None:
    assert settings_page.undescribed() == []
    rows = {row[0].strip("`"): row for row in _rows(PAGES["docs/settings.md"], 4)[2:]}
    assert rows.keys() == Settings.model_fields.keys()
    assert rows["near_bytes_max"][1:3] == ["64 MiB", "whole number from 0"]
    assert rows["redis_ttl_s"][1] == "7 days"
    assert rows["shards"][1:3] == ["64", "whole number from 1 to 4,096"]
    assert rows["value_bytes_max"][2] == "whole number from 1 to 8 MiB"
    assert rows["fence"][2] == "`on`, `off`"


def test_every_command_stands_on_the_page_of_the_command_line() -> None:
    described = [row[0] for row in _rows(COMMANDS, 2)[2:]]
    named = {word for cell in described for word in re.findall(r"`(?:statecache )?([a-z]+)", cell)}
    assert named == set(getattr(get_command(app), "commands"))  # noqa: B009 - typer's own type has none


def test_the_exit_codes_are_those_of_the_code() -> None:
    codes = [status.OK, status.FINDING, status.USAGE, status.CONFIGURATION, status.UNREACHABLE, status.FULL_DISK]
    names = ["ok", "a finding", "usage", "configuration", "unreachable", "no room to write"]
    said = ", ".join(f"{code} {name}" for code, name in zip(codes, names, strict=True))
    assert f"Exit codes of every command: {said}." in COMMANDS


def test_every_section_of_the_benchmarks_is_explained_and_no_figure_is_invented() -> None:
    rows = [
        row for columns in (4, 5) for row in _rows(BENCHMARKS, columns) if row[0].startswith("`") and row[1] != "seen"
    ]
    sections = {row[0].strip("`") for row in rows} - {"ONLY="}
    assert sections == set(SECTIONS)
    figures = [row for row in _rows(README, 4) if "make bench" in row[3]]
    assert len(figures) == 4
    for _, seen, bound, command in figures:
        section = re.findall(r"`make bench ONLY=(\w+)`", command)[0]
        theirs = [row for row in rows if row[0] == f"`{section}`" and row[3] == bound]
        assert any(set(re.findall(r"[\d.]+", seen)) <= set(re.findall(r"[\d.]+", row[2])) for row in theirs), seen


def test_every_target_that_pages_name_is_there_and_the_other_way_round() -> None:
    named = set(re.findall(r"`make ([a-z-]+)", "".join(PAGES.values())))
    assert named <= TARGETS
    assert TARGETS - {"help"} <= set(re.findall(r"`make ([a-z-]+)", CONTRIBUTING))


def test_what_the_architecture_names_is_there() -> None:
    names = re.findall(r"`([\w.]+)`", ARCHITECTURE)
    files = {Path(path).name for path in DATA}
    scripts = [name for name in names if name.endswith((".lua", ".sql"))]
    assert [name for name in scripts if name not in files] == []
    defined = set(re.findall(r"^class (\w+)", "\n".join(CODE.values()), re.MULTILINE))
    classes = {name.partition(".")[0] for name in names if re.match(r"[A-Z][a-z]", name)}
    assert len(classes) > 30
    errors = {"OutcomeUnknown"}
    assert classes - errors <= defined


def test_the_drawing_has_every_layer() -> None:
    drawn = layers_drawing.drawing()
    assert drawn in ARCHITECTURE
    units = [unit.removeprefix("statecache.") for row in LAYERS for unit in row]
    assert [unit for unit in units if not re.search(rf"\b{unit}\b", drawn)] == []
    with pytest.raises(ValueError, match="lacks"):
        layers_drawing.drawn("# A page without the marks\n")


def test_what_is_out_of_date_is_told_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generated, "MADE", {"a.md": lambda: "new\n", "b.md": lambda: "b\n"})
    (tmp_path / "a.md").write_text("old\n")
    assert generated.main(["--check"], root=tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [f"{name} is old: run `make sync`" for name in ("a.md", "b.md")]
    assert generated.main([], root=tmp_path) == 0
    assert generated.main(["--check"], root=tmp_path) == 0
    assert (tmp_path / "a.md").read_text() == "new\n"
