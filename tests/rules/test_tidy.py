"""The house keeps its own rules, and every rule is shown to bite on a bad example."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import statecache
from tests.generators import generated, unasync
from tests.rules import house_rules, import_graph, statements, vocabulary
from tests.rules.tree import BY_HAND, CODE, DATA, DOCS, EVERYTHING, PAGES, PROJECT, README, ROOT, TESTS

RULES_THEMSELVES = ("tests/rules/house_rules.py", "tests/rules/test_tidy.py", "tests/rules/vocabulary.py")
HEAVY = (
    "prometheus_client", "pydantic", "typer", "rich", "pytest", "langgraph", "langchain_core", "openai", "agents",
    "pydantic_ai", "pydantic_graph", "llama_index", "numpy", "starlette", "uvicorn", "jinja2", "google.adk",
    "google.genai", "crewai",
)  # fmt: skip
NOT_THE_RULES = {path: text for path, text in (CODE | TESTS | DATA).items() if path not in RULES_THEMSELVES}

Rule = Callable[[str, str], list[str]]

SCOPES: dict[Rule, dict[str, str]] = {
    house_rules.layers: CODE,
    house_rules.pure: CODE,
    house_rules.environment: CODE,
    house_rules.writers: CODE,
    house_rules.redis_keys: CODE | DATA,
    house_rules.clocks: CODE,
    house_rules.sleeps: TESTS,
    house_rules.function_sizes: BY_HAND | TESTS,
    house_rules.file_size: EVERYTHING,
    house_rules.consumer_groups: NOT_THE_RULES,
    house_rules.prints: CODE,
    house_rules.broad_excepts: CODE,
    house_rules.vague_names: BY_HAND | TESTS,
    house_rules.moods: BY_HAND | TESTS,
    house_rules.borrowed: TESTS,
    statements.begun: CODE,
    vocabulary.given_way: {path: text for path, text in (EVERYTHING | DOCS).items() if path not in RULES_THEMSELVES},
}

BAD = [
    (house_rules.layers, "statecache/keys.py", "from statecache.clock import wall"),
    (house_rules.layers, "statecache/keys.py", "from statecache import clock"),
    (house_rules.layers, "statecache/model.py", "def f():\n    import statecache.codec"),
    (house_rules.layers, "statecache/core/pool.py", "from ..testing import servers"),
    (house_rules.layers, "statecache/core/pool.py", "from statecache import State"),
    (house_rules.layers, "statecache/core/pool.py", "from .. import _sync"),
    (
        house_rules.layers,
        "statecache/sql/__init__.py",
        "import importlib as i\ni.import_module('statecache.core.pool')",
    ),
    (house_rules.layers, "statecache/__init__.py", "from statecache_workers import flusher"),
    (house_rules.layers, "statecache/adapters/graph.py", "from statecache._async.client import AsyncStateCache"),
    (house_rules.layers, "workers/statecache_workers/flusher.py", "import statecache._sync.client"),
    (house_rules.layers, "workers/statecache_workers/flusher.py", "from statecache.cli import main"),
    (house_rules.layers, "statecache/novelty.py", ""),
    (house_rules.pure, "statecache/keys.py", "import random"),
    (house_rules.pure, "statecache/codec.py", "from os.path import join"),
    (house_rules.pure, "statecache/model.py", "from datetime import datetime as d\nx = d.now()"),
    (house_rules.pure, "statecache/errors.py", "import datetime\nx = datetime.date.today"),
    (house_rules.pure, "statecache/rules/reconcile.py", "from uuid import uuid4\nx = uuid4()"),
    (house_rules.pure, "statecache/rules/reconcile.py", "x = open('a')"),
    (house_rules.environment, "statecache/testing/ports.py", "import os as o\nx = o.environ['A']"),
    (house_rules.environment, "statecache/testing/ports.py", "from os import getenv"),
    (house_rules.writers, "statecache/core/view.py", "def by(self):\n    return self.runtime.settings.writer"),
    (house_rules.writers, "workers/statecache_workers/worker.py", "def by(settings):\n    return settings.writer"),
    (house_rules.redis_keys, "statecache/cli/states/where.py", "x = f'{prefix}:{{{shard:02d}}}:meta'"),
    (house_rules.redis_keys, "statecache/cli/states/where.py", "x = 'sc:{07}'"),
    (house_rules.redis_keys, "statecache/cli/states/where.py", "x = tag + ':changes'"),
    (house_rules.redis_keys, "statecache/lua/a.lua", "local x = KEYS[1] .. ':state:'  -- adds a name"),
    (house_rules.clocks, "statecache/core/pool.py", "import time as t"),
    (house_rules.clocks, "statecache/core/pool.py", "from asyncio import sleep as nap"),
    (house_rules.clocks, "statecache/core/pool.py", "import asyncio\nx = asyncio.get_running_loop().time()"),
    (house_rules.clocks, "statecache/dev.py", "from datetime import datetime, UTC\nx = datetime.now(UTC)"),
    (house_rules.sleeps, "tests/unit/test_a.py", "from time import sleep as nap\nnap(1)"),
    (house_rules.sleeps, "tests/unit/test_a.py", "import asyncio\nasync def f():\n    await asyncio.sleep (0.1)"),
    (house_rules.sleeps, "tests/unit/test_a.py", "from statecache import clock\nclock.sleep(1)"),
    (
        house_rules.sleeps,
        "tests/unit/test_a.py",
        "from asyncio import sleep\nasync def f():\n while g():\n  await sleep(0)",
    ),
    (house_rules.function_sizes, "statecache/codec.py", "def f():\n" + "    x = 1\n" * 70),
    (house_rules.function_sizes, "tests/a.py", "class A:\n  async def f():\n" + "    x = 1\n" * 70),
    (house_rules.file_size, "statecache/lua/a.lua", "\n" * 401),
    (house_rules.consumer_groups, "statecache/lua/a.lua", "redis.call('xAck', KEYS[1])"),
    (house_rules.consumer_groups, "statecache/core/redis/tier.py", "link.xgroup_create('a')"),
    (house_rules.consumer_groups, "workers/statecache_workers/flusher.py", "x = ('XREADGROUP', 'GROUP')"),
    (house_rules.prints, "statecache/replay/audit.py", "print('lost')"),
    (house_rules.broad_excepts, "statecache/codec.py", "try:\n    x\nexcept Exception:\n    pass"),
    (house_rules.broad_excepts, "statecache/codec.py", "try:\n    x\nexcept:  # noqa: E722, S110\n    pass"),
    (house_rules.broad_excepts, "statecache/codec.py", "try:\n    x\nexcept (OSError, BaseException):\n    pass"),
    (house_rules.vague_names, "statecache/codec_utils.py", ""),
    (house_rules.vague_names, "statecache/codec.py", "class PoolManager: ..."),
    (house_rules.moods, "statecache/codec.py", 'def f():\n    """This gives one."""'),
    (house_rules.moods, "statecache/codec.py", 'A = 1\n"""These are two."""'),
    (house_rules.borrowed, "tests/unit/test_a.py", "from tests.unit.test_b import sample"),
    (house_rules.borrowed, "tests/unit/test_a.py", "from tests.support.polling import _pause"),
    (statements.begun, "statecache/cli/doctor/postgres.py", "from statecache.sql import CODE, statement"),
    (vocabulary.given_way, "workers/statecache_workers/flusher.py", "self._tally = Counters()"),
    (vocabulary.given_way, "docs/metrics.md", "the greeted"),
]

GOOD = [
    (
        house_rules.layers,
        "statecache/cli/main.py",
        "from statecache import State\nfrom statecache_workers import flusher",
    ),
    (house_rules.layers, "statecache/concurrency/tasks.py", "import time\nfrom statecache.clock import wall"),
    (house_rules.layers, "statecache/adapters/graph.py", "from statecache import AsyncStateCache"),
    (house_rules.layers, "statecache/adapters/graph.py", "from statecache._process import mutex"),
    (house_rules.pure, "statecache/codec.py", "from uuid import UUID\nfrom datetime import datetime\nx = datetime.max"),
    (house_rules.environment, "statecache/settings.py", "import os\nx = os.environ"),
    (house_rules.writers, "statecache/settings.py", "def writer_of(settings):\n    return settings.writer"),
    (house_rules.writers, "statecache/core/view.py", "def by(self):\n    return self._state.writer"),
    (house_rules.redis_keys, "statecache/keys.py", "x = f'{prefix}:{{{shard:02d}}}:meta'"),
    (house_rules.redis_keys, "statecache/lua/a.lua", "-- a state is sc:{07}:state:runs/42"),
    (house_rules.redis_keys, "statecache/errors.py", "def f():\n    'This writes sc:{07}:meta.'"),
    (house_rules.clocks, "statecache/core/pool.py", "def f(time, when):\n    return time.hour, when.time()"),
    (
        house_rules.sleeps,
        "tests/a.py",
        "from asyncio import sleep\nasync def f(clock):\n    await sleep(0)\n    clock.sleep(1)",
    ),
    (house_rules.function_sizes, "statecache/codec.py", "def f():\n" + "    x = 1\n" * 69),
    (house_rules.prints, "statecache/cli/main.py", "print('here')"),
    (statements.begun, "statecache/core/epoch/rescue.py", "from statecache.sql import statement"),
    (statements.begun, "statecache/cli/doctor/postgres.py", "from statecache.sql import CODE"),
    (vocabulary.given_way, "docs/metrics.md", "horizontally, totally"),
    (
        house_rules.broad_excepts,
        "statecache/a.py",
        "try:\n    x\nexcept Exception:  # noqa: B902 any agent may fail\n    y",
    ),
    (house_rules.vague_names, "statecache/codec.py", "def contextmanager(): ..."),
    (house_rules.borrowed, "tests/unit/test_a.py", "from tests.support.polling import pause\nfrom a import _b"),
    (house_rules.moods, "statecache/codec.py", 'def f():\n    """Return one. This is not two."""'),
]


def _name(value: object) -> str | None:
    return value.__name__ if inspect.isfunction(value) else None


@pytest.mark.parametrize("rule", SCOPES, ids=_name)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    found = [finding for path, text in SCOPES[rule].items() for finding in rule(path, text)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(("rule", "path", "text"), BAD, ids=_name)
def test_a_bad_example_is_found(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text)


@pytest.mark.parametrize(("rule", "path", "text"), GOOD, ids=_name)
def test_a_good_example_passes(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text) == []


def test_every_rule_has_a_bad_example_and_files_to_run_over() -> None:
    assert {rule for rule, _, _ in BAD} == set(SCOPES)
    assert all(SCOPES.values())


def test_no_module_imports_itself_through_others() -> None:
    assert import_graph.circles(import_graph.import_graph(CODE)) == []


def test_a_circle_of_imports_is_found_by_its_shortest_way() -> None:
    sources = {
        "statecache/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from statecache.b import B",
        "statecache/b.py": "from statecache import c",
        "statecache/c.py": "def f():\n    from statecache.a import A",
        "statecache/d.py": "import statecache.a",
    }
    graph = import_graph.import_graph(sources)
    assert graph["statecache.d"] == {"statecache.a"}
    assert import_graph.circles(graph)[0] == "statecache.a -> statecache.b -> statecache.c -> statecache.a"
    assert len(import_graph.circles(graph)) == 3


def test_the_generated_mirror_is_fresh() -> None:
    stale = unasync.differences()
    assert not stale, "run `make sync`:\n" + "".join(stale)


def test_every_script_and_statement_is_asked_for() -> None:
    named = {path: text for path, text in DATA.items() if "/migrations/" not in path}
    assert house_rules.unused_files(named, CODE) == []


@pytest.mark.parametrize("suffix", [".lua", ".sql"])
def test_a_script_or_statement_has_a_name_of_its_own_among_all_folders(suffix: str) -> None:
    names = [Path(path).name for path in DATA if path.endswith(suffix)]
    assert len(names) > 20
    assert len({*names}) == len(names)


def test_statements_name_the_columns_of_a_table() -> None:
    """One that an operator has added may have the name of something in the statement."""
    starred = re.compile(r"SELECT (?:\w+\.)?\*(?:(?!SELECT|;).)*?FROM \{schema\}\.\w+\b(?!\()", re.DOTALL)
    assert starred.search("SELECT h.*, 1 AS age FROM {schema}.change h")
    written = {path: text for path, text in DATA.items() if path.endswith(".sql") and "/migrations/" not in path}
    assert [path for path, text in written.items() if starred.search(text)] == []


def test_an_unused_script_is_found() -> None:
    sources = {"a.py": "def f():\n    'This runs purge.'\n    run('commit')"}
    data = {"lua/commit.lua": "-- include fence\n", "lua/fence.lua": "", "lua/purge.lua": ""}
    found = house_rules.unused_files(data, sources)
    assert found == ["lua/purge.lua: nothing asks for it"]


def _loaded_by(code: str) -> list[str]:
    """Return the heavy packages that a fresh interpreter has loaded after running the code."""
    report = f"{code}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", report], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in HEAVY if name in done.stdout.split()]


def test_what_is_generated_is_what_the_code_says() -> None:
    assert generated.main(["--check"]) == 0


def test_importing_statecache_stays_light() -> None:
    assert _loaded_by("import statecache") == []


def test_a_heavy_import_is_found() -> None:
    assert _loaded_by("import statecache, prometheus_client") == ["prometheus_client"]


def test_public_names_and_documented_names_are_the_same() -> None:
    assert house_rules.undocumented(statecache.__all__, PAGES) == []
    assert house_rules.invented_names(PAGES, statecache.__all__) == []


def test_an_undocumented_name_and_an_invented_one_are_found() -> None:
    page = "Use `AsyncStateCache`.\n```python\nfrom statecache import Magic\n```\n"
    assert house_rules.undocumented(["StateCache", "AsyncStateCache"], page) == ["StateCache: not in README.md or docs"]
    assert [line.split(":")[0] for line in house_rules.invented_names(page, ["StateCache"])] == ["Magic"]


def test_public_classes_say_what_they_are() -> None:
    public = [getattr(statecache, name) for name in statecache.__all__]
    assert [item.__name__ for item in public if inspect.isclass(item) and not item.__doc__] == []


def test_the_examples_on_the_pages_are_python() -> None:
    assert house_rules.python_blocks(README)
    assert house_rules.broken_blocks(PAGES) == []


def test_an_example_that_is_not_python_is_found() -> None:
    assert house_rules.broken_blocks("```python\nawait f()\n```\n") == []
    assert house_rules.broken_blocks("```python\nawait f(\n```\n") != []


def test_every_dependency_is_pinned_by_name_and_version_alone() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    wanted = [name for group in groups for name in group if not name.startswith("statecache")]
    beside = [name for name in wanted if name.startswith("crewai")]
    for file, names in (("constraints.txt", set(wanted) - {*beside}), ("tests/crewai/requirements.txt", beside)):
        assert house_rules.loose_pins((ROOT / file).read_text(encoding="utf-8"), sorted(names)) == []
    assert not (ROOT / "uv.lock").exists()


def test_a_loose_pin_and_a_missing_one_are_found() -> None:
    assert house_rules.loose_pins("redis==8.1.0\n", ["redis[hiredis]>=8.1"]) == []
    assert house_rules.loose_pins("redis>=8\n", []) == ["'redis>=8' is not name==version"]
    assert house_rules.loose_pins("", ["redis[hiredis]>=8.1"]) == ["redis: not pinned"]


def test_every_verb_is_told_of_both_clients() -> None:
    """The fixture `client` is either; what waits in the middle of a story is told of each by itself."""
    public = {name for name in dir(statecache.AsyncStateCache) if not name.startswith("_")}
    verbs = {name for name in public if callable(getattr(statecache.AsyncStateCache, name))}
    told = "".join(text for path, text in TESTS.items() if path.startswith("tests/integration/"))
    missing = {verb for verb in verbs if not re.search(rf"\b(client|sync_cache)\.{verb}\(", told)}
    assert missing == {"until_stopped"}, "it ends a process: test_client_stopping starts one of each kind"


def test_the_continuous_build_runs_what_the_readme_names() -> None:
    commands = (ROOT / ".ci/run").read_text(encoding="utf-8").split("\n")
    assert commands[-2:] == ["make test", ""]
    assert "make test" in README
