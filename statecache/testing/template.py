"""Data folders of Postgres: initialised once per version and user, then copied.

The template lies under the user's cache folder. It is built elsewhere and put in place by one rename, behind a lock,
so that it is whole or absent however many processes start at once and wherever one of them dies. Without a usable
cache folder every start initialises its own.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from statecache.errors import PostgresUnavailable
from statecache.testing.binaries import PostgresInstall, run_to_its_end
from statecache.testing.folders import give_to, locked, user_folder
from statecache.testing.process import RunAs

FORMAT = 2
INITDB_S = 120.0
SCRAM_ITERATIONS = 128
"""They make it costly to guess a password; this one is random, and a connection takes 3 ms instead of 7."""
SUPERUSER = "postgres"


def copy_template(target: Path, *, install: PostgresInstall, run_as: RunAs | None, scratch: Path) -> str:
    """Make a fresh data folder at `target`, owned by `run_as`, and return the superuser's password."""
    template = _template(install, run_as, scratch)
    shutil.copytree(template / "data", target)
    give_to(target, run_as)
    return (template / "password").read_text()


def _template(install: PostgresInstall, run_as: RunAs | None, scratch: Path) -> Path:
    cache = user_folder("cache")
    if cache is None:
        return _built(install, run_as, scratch)
    template = cache / f"postgres-{install.version}-{FORMAT}-{os.geteuid()}"
    if not _is_whole(template):
        with locked(template.with_name(f"{template.name}.lock"), wait=True):
            if not _is_whole(template):
                _put(_built(install, run_as, scratch), template)
    return template


def _is_whole(template: Path) -> bool:
    return (template / "password").is_file() and (template / "data" / "global" / "pg_control").is_file()


def _put(built: Path, template: Path) -> None:
    shutil.rmtree(template, ignore_errors=True)
    for abandoned in template.parent.glob(f"{template.name}.new-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    fresh = template.with_name(f"{template.name}.new-{secrets.token_hex(4)}")
    shutil.copytree(built, fresh)
    try:
        fresh.rename(template)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not _is_whole(template):
            raise


def _built(install: PostgresInstall, run_as: RunAs | None, scratch: Path) -> Path:
    built = scratch / "template"
    if _is_whole(built):
        return built
    built.mkdir(mode=0o700)
    password = secrets.token_urlsafe(18)
    (built / "password").write_text(password)
    give_to(built, run_as)
    command: list[str | Path] = [install.program("initdb"), "--pgdata", built / "data", "--username", SUPERUSER]
    command += ["--pwfile", built / "password", "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"]
    command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions"]
    command += ["--set", f"scram_iterations={SCRAM_ITERATIONS}"]
    done = run_to_its_end(command, run_as=run_as, timeout_s=INITDB_S)
    if done.returncode:
        raise PostgresUnavailable("initdb", detail=done.stderr.strip())
    return built
