"""What an adapter says where the library that it is for is missing, or is of a release that it was not tested with."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from statecache import ConfigurationError
from statecache.adapters.versions import require

BESIDE = Path(__file__).parents[1] / "crewai" / "requirements.txt"
"""What is installed into an environment beside, for CrewAI."""
ADAPTERS = {
    "adk": ("google-adk", "a session service for ADK", "2.13", "2.14", "adk"),
    "crewai": ("crewai", "persistence for flows of CrewAI", "1.15", "2", "crewai"),
    "langgraph": ("langgraph-checkpoint", "a checkpointer or a store for LangGraph", "4.3", "5", "langgraph"),
    "openai_agents": ("openai-agents", "a session for the OpenAI Agents SDK", "0.24", "0.25", "openai-agents"),
    "pydantic_ai": ("pydantic-ai-slim", "a conversation store for Pydantic AI", "2.68", "3", "pydantic-ai"),
    "llama_index": ("llama-index-core", "a store for LlamaIndex", "0.14.25", "0.15", "llama-index"),
}


@pytest.mark.parametrize("there", ["2.68", "2.68.0", "2.70.1rc1", "2.999"])
def test_a_release_within_the_bounds_will_do(monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    monkeypatch.setattr("statecache.adapters.versions.version", lambda package: there)
    require("some", (2, 68), (3,), what="x", extra="y")


@pytest.mark.parametrize("there", ["2.67.9", "1.0", "3.0.0", "3", "strange", ""])
def test_any_other_is_refused(monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    monkeypatch.setattr("statecache.adapters.versions.version", lambda package: there)
    with pytest.raises(ConfigurationError, match=r"x needs the package some, 2\.68 or newer, below 3"):
        require("some", (2, 68), (3,), what="x", extra="y")


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("there", ["0.1", "99.0", None])
def test_a_line_says_which_releases_an_adapter_needs_and_which_one_is_there(name: str, there: str | None) -> None:
    package, what, since, before, extra = ADAPTERS[name]
    code = (
        "import importlib.metadata as metadata\n"
        "def version(name):\n"
        f"    if {there!r} is None: raise metadata.PackageNotFoundError(name)\n"
        f"    return {there!r}\n"
        "metadata.version = version\n"
        "from statecache import ConfigurationError\n"
        f"try: import statecache.adapters.{name}\n"
        "except ConfigurationError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    needs = f"{what} needs the package {package}, {since} or newer, below {before}"
    found = "" if there is None else f", and {there} is installed"
    hint = f"pip install 'statecache[{extra}]' ('.[{extra}]' in a checkout)"
    assert done.stdout == f"The configuration does not fit: {needs}{found}. {hint}\n"


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_release_that_is_tested_with_is_within_the_bounds(name: str) -> None:
    package, _, since, before, _ = ADAPTERS[name]
    tested = [int(part) for part in _version(name, package).split(".")]
    assert [int(part) for part in since.split(".")] <= tested < [int(part) for part in before.split(".")]


def _version(name: str, package: str) -> str:
    if name != "crewai":
        return metadata.version(package)
    return dict(line.split("==") for line in BESIDE.read_text().splitlines())[package]
