"""Generates `statecache/_sync/` from `statecache/_async/`, so that both clients are one text.

    python -m tests.generators.unasync            writes the mirror
    python -m tests.generators.unasync --check    compares only: exit status 1 and a diff where the mirror is stale

The verbs are mirrored, for their signatures are what the two clients differ in. What they stand on is written once, as
coroutines (see `statecache.concurrency`); a verb of the mirror runs them to their end.

The rules below are all there is. They work on tokens, so layout and comments survive; the same words are rewritten in
strings and comments, and there `await` and `async` go only where code follows, so that prose keeps its verbs.

It refuses rather than guesses:

* a rule that was never used is an error: drop it from its table;
* a name that is still asynchronous after all rules is an error: it belongs into the bridge;
* a new name that its file uses for something else already is an error: `async_timeout` beside an argument `timeout`.
"""

from __future__ import annotations

import difflib
import io
import re
import subprocess
import sys
import tempfile
import token
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "statecache/_async"
TARGET = "statecache/_sync"

NAME_RULES = {
    "AsyncName -> Name": (re.compile(r"Async(?=[A-Z])"), ""),
    "__aenter__ -> __enter__": (re.compile(r"^__a(enter|exit|iter|next)__$"), r"__\1__"),
    "statecache._async -> statecache._sync": (re.compile(r"^_async$"), "_sync"),
    "TASKS -> THREADS": (re.compile(r"^TASKS$"), "THREADS"),
}
"""Rules that rewrite one name, wherever it stands."""

TOKEN_RULES = {
    "await x -> run(x)": "_await",
    "async def, with x, for … in x -> def, with entered(x), for … in iterated(x)": "_async",
    "Awaitable[X] -> X": "_awaitable",
}
"""Rules that look at the tokens around a name; each names a method of `_File`."""

SHARED_NAMES = frozenset({"Iterator", "Iterable", "Generator", "ContextManager", "AbstractContextManager", "ExitStack"})
"""Library names whose synchronous twin may stand beside them."""

_CODE_IN_TEXT = (
    (re.compile(r"\b([Aa])n (?=`*Async[B-DF-HJ-NP-TV-Z])"), r"\1 "),
    (re.compile(r"\bawait (?=\w[\w.]*[(\[])"), ""),
    (re.compile(r"\basync (?=(?:def|with|for)\b)"), ""),
)
_FUTURE = "from __future__ import annotations\n"
_BRIDGE = "from statecache.concurrency import entered, iterated, run\n"
_STILL_ASYNC = re.compile(r"async|await|^__a(enter|exit|iter|next)__$", re.IGNORECASE)
_AWAIT_IN_FSTRING = re.compile(r"(?is)r?f.*\{[^}]*\bawait\b")
_MIDDLES = {"FSTRING_START": "FSTRING_END", "TSTRING_START": "TSTRING_END"}


class UnasyncError(Exception):
    """The file, the line and the rule that could not be kept."""


class Mirror(NamedTuple):
    """The generated files by their path below the root, and the names of the rules never used."""

    texts: dict[str, str]
    unused: list[str]


class _Token(NamedTuple):
    kind: int
    text: str
    start: int
    end: int
    line: int


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


def rewrite(source: str, *, path: str = "<text>", used: Counter[str] | None = None) -> str:
    """Return the synchronous twin of one file, unformatted; `used` counts the rules that did something."""
    return _File(source, path, Counter() if used is None else used).rewritten()


def _tokens(source: str) -> Iterator[_Token]:
    """Yield tokens with offsets; an f-string is one token on every Python."""
    starts = [0, *accumulate(len(line) for line in io.StringIO(source))]
    depth, begin = 0, 0
    for found in tokenize.generate_tokens(io.StringIO(source).readline):
        start = starts[found.start[0] - 1] + found.start[1]
        end = starts[found.end[0] - 1] + found.end[1]
        name = token.tok_name[found.type]
        if name in _MIDDLES:
            begin, depth = (begin if depth else start), depth + 1
        elif name in _MIDDLES.values():
            depth -= 1
            if not depth:
                line = source.count("\n", 0, begin) + 1
                yield _Token(token.STRING, source[begin:end], begin, end, line)
        elif not depth and found.type not in (token.INDENT, token.DEDENT):
            yield _Token(found.type, found.string, start, end, found.start[0])


class _File:
    """One file on its way through the rules."""

    def __init__(self, source: str, path: str, used: Counter[str]) -> None:
        self.source, self.path, self.used = source, path, used
        self.tokens = list(_tokens(source))
        self.edits: list[_Edit] = []
        self.resume = 0

    def rewritten(self) -> str:
        renamed: dict[str, str] = {}
        for at, found in enumerate(self.tokens):
            if at < self.resume:
                continue
            if found.kind == token.STRING and _AWAIT_IN_FSTRING.match(found.text):
                raise UnasyncError(f"{self.path}:{found.line}: await in an f-string: give its value a name first")
            if found.kind in (token.STRING, token.COMMENT):
                self._replace(found, _text(found.text))
            elif found.kind == token.NAME and not self._structural(at):
                new = self._name(found.text)
                if new != found.text:
                    renamed[new] = found.text
                    self._replace(found, new)
        self._refuse_collisions(renamed)
        result = self.source
        for edit in sorted(self.edits, reverse=True):
            result = result[: edit.start] + edit.text + result[edit.end :]
        return result

    def _replace(self, found: _Token, text: str) -> None:
        if text != found.text:
            self.edits.append(_Edit(found.start, found.end, text))

    def _name(self, name: str) -> str:
        for rule, (pattern, new) in NAME_RULES.items():
            name, times = pattern.subn(new, name)
            self.used[rule] += times
        return name

    def _structural(self, at: int) -> bool:
        for rule, method in TOKEN_RULES.items():
            if getattr(self, method)(at):
                self.used[rule] += 1
                return True
        return False

    def _drop(self, first: int, last: int) -> None:
        """Delete the tokens from first up to, but without, last."""
        self.edits.append(_Edit(self.tokens[first].start, self.tokens[last].start, ""))

    def _is(self, at: int, *texts: str) -> bool:
        return 0 <= at < len(self.tokens) and self.tokens[at].text in texts

    def _await(self, at: int) -> bool:
        if not self._is(at, "await"):
            return False
        self.edits.append(_Edit(self.tokens[at].start, self.tokens[at + 1].start, "run("))
        self._insert(")", after=self._operand_end(at + 1))
        return True

    def _operand_end(self, at: int) -> int:
        """Return the last token of the operand that begins there: a name or brackets, and all that follows closely."""
        while True:
            at = self._matching(at) if self._is(at, "(", "[", "{") else at
            if self._is(at + 1, "."):
                at += 2
            elif self._is(at + 1, "(", "["):
                at += 1
            else:
                return at

    def _insert(self, text: str, *, after: int) -> None:
        end = self.tokens[after].end
        self.edits.append(_Edit(end, end, text))

    def _async(self, at: int) -> bool:
        if not (self._is(at, "async") and self._is(at + 1, "def", "with", "for")):
            return False
        self._drop(at, at + 1)
        if self._is(at + 1, "with"):
            self._wrap_items(at + 2)
        elif self._is(at + 1, "for"):
            first = next(here for here in range(at, len(self.tokens)) if self._is(here, "in")) + 1
            self._wrap("iterated", first, self._end_of_expression(first, ":", "if", "for", "async"))
        return True

    def _wrap_items(self, first: int) -> None:
        while True:
            last = self._end_of_expression(first, "as", ",", ":")
            self._wrap("entered", first, last)
            after = self._end_of_expression(last + 1, ",", ":") + 1
            if self._is(after, ":"):
                return
            first = after + 1

    def _wrap(self, name: str, first: int, last: int) -> None:
        start = self.tokens[first].start
        self.edits.append(_Edit(start, start, f"{name}("))
        self._insert(")", after=last)

    def _end_of_expression(self, at: int, *ends: str) -> int:
        """Return the last token before one of the ends, or before a bracket that was opened earlier."""
        while not self._is(at, *ends, ")", "]", "}"):
            at = self._matching(at) + 1
        return at - 1

    def _awaitable(self, at: int) -> bool:
        if not (self._is(at, "Awaitable") and self._is(at + 1, "[")):
            return False
        close = self._matching(at + 1)
        inner = [found.text for found in self.tokens[at + 2 : close]]
        if [found.text for found in self.tokens[at - 1 - len(inner) : at]] == [*inner, "|"]:
            # X | Awaitable[X] is one X
            self.edits.append(_Edit(self.tokens[at - 2].end, self.tokens[close].end, ""))
            self.resume = close + 1
        else:
            self._drop(at, at + 2)
            self.edits.append(_Edit(self.tokens[close].start, self.tokens[close].end, ""))
        return True

    def _matching(self, at: int) -> int:
        depth = 0
        for here in range(at, len(self.tokens)):
            depth += self._is(here, "(", "[", "{") - self._is(here, ")", "]", "}")
            if not depth:
                return here
        raise UnasyncError(f"{self.path}:{self.tokens[at].line}: this bracket is never closed")

    def _refuse_collisions(self, renamed: dict[str, str]) -> None:
        for at, found in enumerate(self.tokens):
            free = found.kind == token.NAME and not self._is(at - 1, ".") and not self._is(at + 1, "=")
            if free and found.text in renamed and found.text not in SHARED_NAMES:
                old = renamed[found.text]
                raise UnasyncError(f"{self.path}:{found.line}: {old} would become {found.text}, which is taken here")


def _text(text: str) -> str:
    """Rewrite the names in a string or comment, and `await` where code follows it."""
    for pattern, new in _CODE_IN_TEXT:
        text = pattern.sub(new, text)
    return re.sub(r"\b[A-Za-z_]\w*", lambda word: _word(word.group()), text)


def _word(word: str) -> str:
    for pattern, new in NAME_RULES.values():
        word = pattern.sub(new, word)
    return word


def mirror(root: Path = ROOT) -> Mirror:
    """Return the mirror as it should be, and the rules that it did not need."""
    used: Counter[str] = Counter()
    texts = {}
    for path in sorted((root / SOURCE).glob("**/*.py")):
        source = f"{SOURCE}/{path.relative_to(root / SOURCE).as_posix()}"
        twin = rewrite(path.read_text(encoding="utf-8"), path=source, used=used)
        header = f"# Generated from {source} by tests/generators/unasync.py. Do not edit.\n\n"
        texts[source.replace(SOURCE, TARGET)] = header + twin.replace(_FUTURE, _FUTURE + _BRIDGE, 1)
    unused = [rule for rule in (*NAME_RULES, *TOKEN_RULES) if texts and not used[rule]]
    texts = _formatted(texts, root)
    for name, text in texts.items():
        _refuse_leftovers(name, text)
    return Mirror(texts, unused)


def _refuse_leftovers(path: str, text: str) -> None:
    for found in _tokens(text):
        if found.kind == token.NAME and _STILL_ASYNC.search(found.text):
            place = f"{path}:{found.line} (never written)"
            raise UnasyncError(f"{place}: {found.text} is still asynchronous: it belongs into the bridge, as a pair")


def _formatted(texts: dict[str, str], root: Path) -> dict[str, str]:
    """Return the texts as ruff would leave them: imports sorted, unused ones gone, laid out."""
    if not texts:
        return {}
    config = root / "pyproject.toml"
    options = ["--no-cache", "--quiet", *(["--config", str(config)] if config.exists() else [])]
    known = ["--config", 'lint.isort.known-first-party=["statecache"]']
    with tempfile.TemporaryDirectory() as folder:
        for path, text in texts.items():
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(text, encoding="utf-8")
        _ruff("check", *options, *known, "--select", "I,F401", "--fix", folder)
        _ruff("format", *options, folder)
        return {path: (Path(folder) / path).read_text(encoding="utf-8") for path in texts}


def _ruff(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ruff", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnasyncError(f"ruff {arguments[0]} refuses the mirror:\n{done.stdout}{done.stderr}")


def _present(root: Path) -> dict[str, str]:
    paths = (root / TARGET).glob("**/*.py")
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def _unused(rules: list[str]) -> list[str]:
    return [f"the rule {rule!r} was never used: drop it from tests/generators/unasync.py\n" for rule in rules]


def differences(root: Path = ROOT) -> list[str]:
    """Return a diff for every file that is stale, missing or orphaned, and a line for every idle rule."""
    (wanted, unused), present = mirror(root), _present(root)
    diffs = []
    for path in sorted({*wanted, *present}):
        old, new = present.get(path, ""), wanted.get(path, "")
        if old != new or (path in wanted) != (path in present):
            lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), path, f"{path} (generated)")
            diffs.append("".join(lines) or f"{path}: only one of source and twin is there\n")
    return diffs + _unused(unused)


def write(root: Path = ROOT) -> list[str]:
    """Bring the mirror up to date, and return a line for every rule that was never used."""
    (wanted, unused), present = mirror(root), _present(root)
    for path in present.keys() - wanted.keys():
        (root / path).unlink()
    for path in wanted:
        if present.get(path) != wanted[path]:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(wanted[path], encoding="utf-8")
    return _unused(unused)


def main(arguments: list[str]) -> int:
    """Write or compare; return the exit status: 0 up to date, 1 stale or refused, 2 wrongly called."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m tests.generators.unasync [--check]\n")
        return 2
    try:
        found = differences() if arguments else write()
    except UnasyncError as error:
        found = [f"{error}\n"]
    sys.stderr.write("".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
