"""The house rules, decided purely: each takes a path and its text and gives what breaks the rule, a line a finding.

`test_tidy.py` runs them over the tree and shows that each of them can fail. A path is POSIX text below the
checkout's root. Names are resolved through the file's imports first, so `from time import sleep as nap` hides nothing.

The layers, from the bottom: imports point to the same row or down, inside functions too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import PurePosixPath


def _row(names: str) -> tuple[str, ...]:
    return tuple(f"statecache.{name}" for name in names.split())


LAYERS = (
    _row("model mutations changes checkpoints checkpoint_policy erasure retention agent_run")
    + _row("error_facts errors history_errors signal_errors"),
    _row("keys record_classes set_order value_loss unread_by_model unread tuple_slots schemas expiry codec upgrading")
    + _row("records entries resp near zstd history rules"),
    _row("lua sql settings clock disk_space backoff concurrency _process _signals _tls"),
    ("statecache.commit_protocol", "statecache.redis_errors", "statecache.call_notes"),
    ("statecache.core",),
    ("statecache._async", "statecache._sync"),
    ("statecache",),
    ("statecache_workers",),
    ("statecache.testing", "statecache.adapters"),
    ("statecache.dev", "statecache.replay"),
    ("statecache.cli", "statecache.inspector", "statecache.__main__"),
)
PURE = LAYERS[0] + LAYERS[1]
CLOCKS = ("statecache.clock", "statecache.concurrency")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400

_RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}
APART = (
    ("statecache._async", "statecache._sync"),
    ("statecache._sync", "statecache._async"),
    ("statecache_workers", "statecache._sync"),
)
"""Pairs that never meet although the layers would let them: the first must not import the second."""
ADAPTERS_IMPORT = ("statecache", "statecache._process")
"""What adapters stand on, which are written as users would: the public names, and what a forked child needs."""

_IMPURE_MODULES = re.compile(
    r"(aiohttp|asyncio|http|io|logging|multiprocessing|os|pathlib|psycopg|psycopg_pool|random|redis|secrets|select"
    r"|selectors|shutil|signal|socket|socketserver|ssl|subprocess|tempfile|threading|time|urllib)(\..*)?"
)
_NOW = r"datetime\.(datetime|date)\.(now|utcnow|today)"
_IMPURE_NAMES = re.compile(rf"uuid\.uuid[1-7]|{_NOW}|builtins\.(open|input|print)")
_ENVIRONMENT = re.compile(r"os\.(environb?|getenvb?|putenv|unsetenv)\b")
_TIME = re.compile(rf"time(\..*)?|asyncio\.sleep|sched(\..*)?|{_NOW}")
_SLEEP = re.compile(r"(time|asyncio|anyio|statecache\.clock)\.sleep|(TASKS|THREADS)\.sleep")
POLLING = "tests/support/polling.py"
_BLOCKS = (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try, ast.If)
_FIXED_KEYS = "meta|changes|unflushed|hydrating|leases|waiters|events|state"
_REDIS_KEY = re.compile(rf":state:|sc:\{{|:\{{$|\}}:({_FIXED_KEYS})\b|^:({_FIXED_KEYS})$")
_GROUPS = re.compile(r"(?i)\b(xgroup|xreadgroup|xack)(?![a-z])")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_VAGUE = frozenset({"helper", "helpers", "util", "utils", "manager", "misc"})
_FOR_TOOLS = re.compile(r"noqa(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*)?|type:\s*ignore(\[[^]]*\])?")

Findings = list[str]


def module(path: str) -> str:
    """Return the dotted name under which the file is imported."""
    parts = PurePosixPath(path.removeprefix("workers/")).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit(name: str) -> str | None:
    """Return the entry of LAYERS that a module belongs to, or None for a module of another package."""
    top, _, rest = name.partition(".")
    if top not in ("statecache", "statecache_workers"):
        return None
    return f"{top}.{rest.partition('.')[0]}" if rest and top == "statecache" else top


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(text)))


def imports(path: str, text: str) -> Iterator[tuple[str, int]]:
    """Yield every imported name in full, with its line: relative, inside functions and by `import_module` too."""
    package = module(path).split(".") if path.endswith("__init__.py") else module(path).split(".")[:-1]
    for node in nodes(text):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((f"{origin}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and _last_name(node.func) in ("import_module", "__import__"):
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value, node.lineno


def references(path: str, text: str) -> Iterator[tuple[str, ast.expr]]:
    """Yield every name or attribute chain as it was imported: `nap()` may give `time.sleep`.

    A name that was not imported counts as a builtin: `print` gives `builtins.print`.
    """
    origins: dict[str, str] = {}
    for node in nodes(text):
        if isinstance(node, ast.Import):
            origins |= {alias.asname or alias.name.split(".")[0]: _origin(alias) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            origins |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in nodes(text):
        chain = _chain(node)
        if chain and isinstance(node, ast.Attribute | ast.Name):
            first, *rest = chain
            yield ".".join([origins.get(first, f"builtins.{first}"), *rest]), node


def _touched(path: str, text: str) -> Iterator[tuple[str, int]]:
    yield from imports(path, text)
    yield from ((name, node.lineno) for name, node in references(path, text))


def _origin(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.split(".")[0]


def _chain(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        before = _chain(node.value)
        return [*before, node.attr] if before else []
    return []


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _docstrings(text: str) -> set[int]:
    """Return the identities of the constants that are prose: docstrings and strings standing by themselves."""
    return {id(node.value) for node in nodes(text) if isinstance(node, ast.Expr)}


def strings(text: str) -> Iterator[tuple[str, int]]:
    """Yield every string constant, the parts of f-strings too, but no docstrings."""
    prose = _docstrings(text)
    for node in nodes(text):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value, node.lineno


def layers(path: str, text: str) -> Findings:
    """Find imports that point up, and the pairs that must not meet."""
    here = unit(module(path))
    if here is None:
        return []
    if here not in _RANK:
        return [f"{path}: {here} stands in no layer: give it a row in LAYERS"]
    found = []
    for name, line in imports(path, text):
        there = unit(name)
        if there is None or there == here:
            continue
        if there not in _RANK:
            there = "statecache"  # a public name, not a module
        up = _RANK[there] > _RANK[here] or (here, there) in APART
        if up or (here == "statecache.adapters" and there not in ADAPTERS_IMPORT):
            found.append(f"{path}:{line}: {here} must not import {there}")
    return list(dict.fromkeys(found))


def pure(path: str, text: str) -> Findings:
    """Find I/O, clocks and chance in the modules that only decide."""
    if unit(module(path)) not in PURE:
        return []
    modules = [
        f"{path}:{line}: a pure module imports {name}"
        for name, line in imports(path, text)
        if _IMPURE_MODULES.fullmatch(name)
    ]
    used = [
        f"{path}:{node.lineno}: a pure module uses {name}"
        for name, node in references(path, text)
        if _IMPURE_NAMES.fullmatch(name)
    ]
    return modules + used


def environment(path: str, text: str) -> Findings:
    """Find readers of the environment beside settings.py."""
    if path == "statecache/settings.py":
        return []
    lines = sorted({line for name, line in _touched(path, text) if _ENVIRONMENT.match(name)})
    return [f"{path}:{line}: only settings.py reads the environment" for line in lines]


def writers(path: str, text: str) -> Findings:
    """Find code that takes the `writer` of settings for who commits: a forked child has its parent's settings."""
    lines = [
        node.lineno
        for node in nodes(text)
        if isinstance(node, ast.Attribute) and node.attr == "writer" and "settings" in _last_name(node.value)
    ]
    own = path == "statecache/settings.py"
    return [f"{path}:{line}: `writer_of(settings)` tells who commits" for line in lines if not own]


def redis_keys(path: str, text: str) -> Findings:
    """Find Redis keys that are spelled outside keys.py, in Python, Lua and SQL."""
    if path == "statecache/keys.py":
        return []
    if path.endswith(".py"):
        spelled = list(strings(text))
    else:
        spelled = [(line.partition("--")[0], number) for number, line in enumerate(text.splitlines(), 1)]
    return [f"{path}:{line}: only keys.py spells a Redis key" for part, line in spelled if _REDIS_KEY.search(part)]


def clocks(path: str, text: str) -> Findings:
    """Find sleeping and reading of time outside clock.py and concurrency."""
    if unit(module(path)) in CLOCKS:
        return []
    lines = {line for name, line in _touched(path, text) if _TIME.fullmatch(name)} | set(_loop_times(text))
    return [f"{path}:{line}: only clock.py and concurrency sleep or read time" for line in sorted(lines)]


def _loop_times(text: str) -> Iterator[int]:
    for node in nodes(text):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "time":
            owner = node.func.value
            if "loop" in _last_name(owner.func if isinstance(owner, ast.Call) else owner):
                yield node.lineno


def sleeps(path: str, text: str) -> Findings:
    """Find tests that sleep; one of 0 only gives way and is let through, but in a loop, which would spin."""
    if path == POLLING:
        return []
    gives_way = {id(node.func) for node in nodes(text) if isinstance(node, ast.Call) and _is_zero(node.args)}
    loops = [loop for loop in nodes(text) if isinstance(loop, ast.While)]
    steps = [part for loop in loops for part in loop.body if not isinstance(part, _BLOCKS)]
    spins = {id(node) for part in steps for node in ast.walk(part)}
    return [
        f"{path}:{node.lineno}: a test waits on a signal, it never sleeps; where there is none, {POLLING} looks again"
        for name, node in references(path, text)
        if _SLEEP.fullmatch(name) and (id(node) not in gives_way or id(node) in spins)
    ]


def _is_zero(arguments: Sequence[ast.expr]) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and arguments[0].value == 0


def function_sizes(path: str, text: str) -> Findings:
    """Find functions that are too long to be read at once."""
    return [
        f"{path}:{node.lineno}: {node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"
        for node in nodes(text)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


def file_size(path: str, text: str) -> Findings:
    """Find files that are too long to be about one thing."""
    lines = len(text.splitlines())
    return [f"{path}: {lines} lines, more than {FILE_LINES_MAX}"] if lines > FILE_LINES_MAX else []


def consumer_groups(path: str, text: str) -> Findings:
    """Find commands of consumer groups: their pending lists vanish, and positions are enough."""
    return [
        f"{path}:{number}: {match[0]}: no consumer groups"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := _GROUPS.search(line))
    ]


def prints(path: str, text: str) -> Findings:
    """Find `print` outside the command line."""
    if unit(module(path)) == "statecache.cli":
        return []
    names = references(path, text)
    return [f"{path}:{node.lineno}: only the command line prints" for name, node in names if name == "builtins.print"]


def broad_excepts(path: str, text: str) -> Findings:
    """Find handlers of everything whose line does not say why in a comment."""
    lines = text.splitlines()
    found = []
    for node in nodes(text):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            broad = any(kind is None or _last_name(kind) in ("Exception", "BaseException") for kind in kinds)
            comment = _FOR_TOOLS.sub("", lines[node.lineno - 1].partition("#")[2])
            if broad and len(re.findall(r"\w+", comment)) < 2:
                found.append(f"{path}:{node.lineno}: name the errors, or say on this line why all of them")
    return found


def vague_names(path: str, text: str) -> Findings:
    """Find names that say nothing about what is inside."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = [(part, 1) for part in module(path).split(".")]
    names += [(node.name, node.lineno) for node in nodes(text) if isinstance(node, kinds)]
    return [f"{path}:{line}: {name} could hold anything" for name, line in names if not _VAGUE.isdisjoint(_words(name))]


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def moods(path: str, text: str) -> Findings:
    """Find docstrings that describe ("This gives …") where the imperative, or a noun, would do."""
    found = []
    for node in nodes(text):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first = node.value.value.split(" ", 1)[0]
            if first in ("This", "These"):
                found.append(f"{path}:{node.lineno}: a docstring begins with {first!r}")
    return found


def borrowed(path: str, text: str) -> Findings:
    """Find tests that take something from another test, or a name with an underscore from anywhere in the tests."""
    found = []
    for name, line in imports(path, text):
        _, *parts = name.split(".")
        if name.startswith("tests.") and (parts[-1].startswith("_") or any(part.startswith("test_") for part in parts)):
            found.append(f"{path}:{line}: {name} belongs into tests/support, or tests/fixtures")
    return found


def unused_files(data: dict[str, str], sources: dict[str, str]) -> Findings:
    """Find scripts and statements whose name no code spells, and no script includes."""
    spelled = {part for text in sources.values() for part, _ in strings(text)}
    spelled |= {name for text in data.values() for name in re.findall(r"^-- include (\w+)$", text, re.MULTILINE)}
    return [f"{path}: nothing asks for it" for path in data if PurePosixPath(path).stem not in spelled]


def undocumented(names: list[str], pages: str) -> Findings:
    """Find public names that no page for users mentions."""
    return [f"{name}: not in README.md or docs" for name in names if not re.search(rf"\b{re.escape(name)}\b", pages)]


def python_blocks(page: str) -> list[str]:
    """Return the Python blocks of a Markdown page."""
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def broken_blocks(page: str) -> Findings:
    """Find examples that do not compile; `await` may stand at the top of one."""
    found = []
    for block in python_blocks(page):
        try:
            compile(block, "README", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        except SyntaxError as error:
            found.append(f"{error.msg}: {error.text or block.splitlines()[0]}")
    return found


def invented_names(page: str, names: list[str]) -> Findings:
    """Find names that an example takes from the package and that are not public."""
    found = []
    for block in python_blocks(page):
        taken = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
        used = [alias.name for node in taken if node.module == "statecache" for alias in node.names]
        found += [f"{name}: an example imports it, __all__ does not have it" for name in used if name not in names]
    return found


def loose_pins(constraints: str, requirements: list[str]) -> Findings:
    """Find lines that are not plain `name==version`, and requirements without one."""
    lines = constraints.splitlines()
    found = [f"{line!r} is not name==version" for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+!]+", line)]
    pinned = {_project(line) for line in lines}
    return found + [f"{name}: not pinned" for name in map(_project, requirements) if name not in pinned]


def _project(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0] if match else "").lower()
