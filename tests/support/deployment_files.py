"""The files that operators start statecache with, read as their programs read them.

Nothing is started here: `deployment_world` runs servers and workers with them.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config"
KUBERNETES = CONFIG / "kubernetes"
INSIDE = "/etc/statecache/"
"""Where containers find the files of config/."""

_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?:(:[?-])([^}]*))?\})")


class Instruction(NamedTuple):
    """One instruction of a Dockerfile, with its flags apart."""

    word: str
    flags: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments: of the exec form, or as a shell splits them."""
        if self.text.startswith("["):
            return msgspec.json.decode(self.text, type=list[str])
        return shlex.split(self.text)

    @property
    def is_exec_form(self) -> bool:
        """Whether the program is run without a shell before it."""
        return self.text.startswith("[")

    @property
    def pairs(self) -> dict[str, str]:
        """The assignments of an ENV or a LABEL."""
        return dict(word.split("=", 1) for word in self.words)


class Stage(NamedTuple):
    """One stage of a Dockerfile."""

    image: str
    name: str
    instructions: list[Instruction]

    def last(self, word: str) -> Instruction:
        """Return the last instruction of that word, the one in force at the end."""
        return [one for one in self.instructions if one.word == word][-1]

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its ENV instructions."""
        return {k: v for one in self.instructions if one.word == "ENV" for k, v in one.pairs.items()}


def stages(text: str) -> list[Stage]:
    """Return the stages of a Dockerfile."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found: list[Stage] = []
    for line in re.sub(r"\s*\\\n\s*", " ", kept).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        flags: dict[str, str] = {}
        while match := re.match(r"--([\w-]+)=(\S+)\s*", rest):
            flags[match[1]] = match[2]
            rest = rest[match.end() :]
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            found.append(Stage(image, name, []))
        else:
            found[-1].instructions.append(Instruction(word, flags, rest.strip()))
    return found


@cache
def worker_image() -> Stage:
    """Return the last stage of the workers' Dockerfile."""
    return stages((ROOT / "workers/Dockerfile").read_text())[-1]


def ignored(path: str, patterns: str) -> bool:
    """Return whether a .dockerignore keeps a path of the checkout out of the build; the last match decides."""
    parts = path.split("/")
    candidates = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    out = False
    for line in patterns.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        back = pattern.startswith("!")
        pattern = pattern.removeprefix("!").strip("/")
        names = [candidate.rpartition("/")[2] for candidate in candidates] if pattern.startswith("**/") else candidates
        if any(fnmatchcase(name, pattern.removeprefix("**/")) for name in names):
            out = not back
    return out


@cache
def compose() -> dict[str, Any]:
    """Return docker-compose.yml with its anchors resolved and its variables not yet interpolated."""
    read: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return read


def services() -> dict[str, dict[str, Any]]:
    """Return the services of docker-compose.yml."""
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


class Unset(Exception):
    """A required variable that is not set, or empty."""


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """Interpolate variables as Compose does, `${A:?why}` and `${A:-else}` included."""
    if isinstance(value, dict):
        return {name: interpolated(one, variables) for name, one in value.items()}
    if isinstance(value, list):
        return [interpolated(one, variables) for one in value]
    if not isinstance(value, str):
        return value

    def put(match: re.Match[str]) -> str:
        dollar, name, kind, rest = match.groups()
        if dollar:
            return "$"
        if kind == ":?" and not variables.get(name):
            raise Unset(f"{name}: {rest}")
        return variables.get(name) or (rest if kind == ":-" else "")

    return _VARIABLE.sub(put, value)


def variables_of(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each variable that would be interpolated, with `:?`, `:-` or nothing behind its name."""
    if isinstance(value, dict):
        for one in value.values():
            yield from variables_of(one)
    elif isinstance(value, list):
        for one in value:
            yield from variables_of(one)
    elif isinstance(value, str):
        yield from ((match[2], match[3] or "") for match in _VARIABLE.finditer(value) if match[2])


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """Return which of the checkout's files are mounted in a container, by their path there."""
    pairs = (mount.split(":")[:2] for mount in service.get("volumes", ()))
    return {inside: outside for outside, inside in pairs if outside.startswith(".")}


def seconds_of(duration: str) -> float:
    """Return the seconds of a duration such as `45s` or `5min`."""
    match = re.fullmatch(r"(\d+)(s|m|min)", duration)
    assert match is not None, duration
    return int(match[1]) * (1 if match[2] == "s" else 60)


@cache
def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the Kubernetes objects, those of the example of secrets too, by kind and name."""
    read = [one for path in sorted(KUBERNETES.glob("*.yaml*")) for one in yaml.safe_load_all(path.read_text())]
    return {(one["kind"], one["metadata"]["name"]): one for one in read}


def unit(text: str) -> dict[str, dict[str, list[str]]]:
    """Return the sections of a systemd unit, with all values of each name, in order."""
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = sections.setdefault(match[1], {})
        elif line and not line.startswith(("#", ";")):
            name, equals, value = line.partition("=")
            assert equals, line
            section.setdefault(name, []).append(value)
    return sections


def worker_unit() -> dict[str, dict[str, list[str]]]:
    """Return the workers' systemd unit."""
    return unit((CONFIG / "statecache-worker.service").read_text())


def assignments(text: str, *, commented: bool = False) -> dict[str, str]:
    """Return the `NAME=value` lines of an environment file, or those that stand there as comments."""
    return dict(re.findall(r"(?m)^#([A-Z_]+)=(.*)$" if commented else r"(?m)^([A-Z_]+)=(.*)$", text))


def fresh_passwords(folder: Path) -> dict[str, str]:
    """Make passwords in a folder, by a copy of the script that makes them, and return them by name."""
    script = folder / "config/passwords.sh"
    script.parent.mkdir(exist_ok=True)
    shutil.copyfile(CONFIG / script.name, script)
    subprocess.run(["sh", script], cwd="/", check=True)
    made = script.parent / "secrets"
    assert made.stat().st_mode & 0o777 == 0o700
    return {path.name: path.read_text() for path in sorted(made.iterdir())}


def grants() -> dict[str, list[str]]:
    """Return the commands that users.acl grants to each user, as they stand there."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in (CONFIG / "users.acl").read_text().splitlines():
        if line.startswith("user "):
            name = line.split()[1]
            found[name] = []
        if not line.startswith("#"):
            found.setdefault(name, []).extend(word[1:] for word in line.split() if word.startswith("+"))
    return found
