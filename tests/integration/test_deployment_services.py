"""The services of docker-compose.yml and the image of the workers, run here with their own commands and variables."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import errors as pg

from statecache import Settings, StateCache
from statecache.testing.ports import free_port
from tests.support.deployment_files import ROOT, stages, worker_image
from tests.support.deployment_world import Deployment, servers

WAIT_S = 60.0
BUILD_S = 120.0
TABLES = ("branch", "change", "cluster", "conflict", "consumer", "epoch", "erasure", "late_change", "lock_token",
          "lost", "lost_change", "migration", "namespace", "prune_pass", "quarantine", "retention", "shard", "state",
          "vector_index", "vector_pending", "worker")  # fmt: skip
WORKER_MAY = {
    ("change", "INSERT"), ("conflict", "INSERT"), ("lost", "INSERT"), ("quarantine", "INSERT"), ("state", "INSERT"),
    ("worker", "INSERT"), ("branch", "INSERT"),
    ("worker", "DELETE"), ("lock_token", "INSERT"), ("lock_token", "UPDATE epoch"), ("lock_token", "UPDATE count"),
    *(("shard", f"UPDATE {column}") for column in
      ("flushed", "entries", "bytes", "excepted", "flushed_at", "owner", "lease_until", "hashed", "moved_keyframes")),
    *(("change", f"UPDATE {column}") for column in ("value", "packed", "keyframe", "size", "digest", "hash")),
    ("prune_pass", "INSERT"), ("prune_pass", "UPDATE"),
    *(("state", f"UPDATE {column}") for column in
      ("op", "value", "version", "epoch", "n", "change_id", "parent_change_id", "encoding", "schema", "writer",
       "updated_at")),
    ("worker", "UPDATE beat_until"), ("worker", "UPDATE avoids"), ("worker", "UPDATE trouble"),
}  # fmt: skip
"""What workers may do beside reading: add, move tips and watermarks, and keep the list of themselves."""


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """A deployment that was set up by its own services, in their order."""
    with servers("embedded") as made:
        assert "run this again" in made.run("roles")
        assert "pinned 64 shards" in made.run("migrate")
        assert "run this again" not in made.run("grants")
        yield made


# Order, and what may be repeated.


def test_every_step_may_be_repeated(deployment: Deployment) -> None:
    before = _rights(deployment)
    deployment.run("roles")
    assert deployment.run("migrate").strip() == "nothing to do"
    deployment.run("grants")
    assert _rights(deployment) == before


def test_a_migration_before_the_roles_is_refused_and_nothing_is_half_done() -> None:
    with servers("embedded") as made:
        early = made.try_to_run("migrate")
        assert early.returncode == 3
        assert "authentication" in early.stderr
        assert made.sql("SELECT to_regnamespace('statecache')") == [(None,)]


def test_a_password_that_changes_takes_effect_and_one_that_is_not_given_stays(deployment: Deployment) -> None:
    changed = "0123456789abcdef0123456789abcdef"
    old = deployment.postgres_url_of("inspector")
    deployment.run("roles", POSTGRES_INSPECTOR_PASSWORD=changed)
    with pytest.raises(psycopg.OperationalError, match="authentication"):
        psycopg.connect(old)
    deployment.run("roles", POSTGRES_INSPECTOR_PASSWORD="")
    with psycopg.connect(old.replace(deployment.passwords["POSTGRES_INSPECTOR_PASSWORD"], changed)):
        deployment.run("roles")
    with psycopg.connect(old):
        pass
    assert changed not in (deployment.folder / "postgres.log").read_text()


def test_what_a_superuser_has_migrated_is_handed_over_and_rights_beside_the_file_are_taken_back(
    deployment: Deployment,
) -> None:
    deployment.sql("ALTER TABLE conflict OWNER TO postgres")
    deployment.sql("ALTER FUNCTION json_or_null OWNER TO postgres")
    deployment.sql("GRANT DELETE ON change TO statecache_agent")
    deployment.sql("GRANT UPDATE (epoch) ON shard TO statecache_worker")
    deployment.run("grants")
    assert deployment.sql(
        "SELECT count(*) FROM pg_tables WHERE schemaname = 'statecache' AND tableowner <> 'statecache_migrate'"
    ) == [(0,)]
    assert _rights(deployment) == {("worker", *right) for right in WORKER_MAY}


# Rights in Postgres.


def _rights(deployment: Deployment) -> set[tuple[str, str, str]]:
    """Return the rights besides reading: (role, table, right), with the column where it is one column's."""
    columns = deployment.sql(
        "SELECT grantee, table_name, privilege_type, column_name FROM information_schema.column_privileges"
        " WHERE table_schema = 'statecache' AND grantee LIKE 'statecache%' AND grantee <> 'statecache_migrate'"
        " AND privilege_type <> 'SELECT'"
    )
    tables = deployment.sql(
        "SELECT grantee, table_name, privilege_type FROM information_schema.table_privileges"
        " WHERE table_schema = 'statecache' AND grantee LIKE 'statecache%' AND grantee <> 'statecache_migrate'"
        " AND privilege_type <> 'SELECT'"
    )
    whole = {(role.removeprefix("statecache_"), table, what) for role, table, what in tables}
    single = {
        (role.removeprefix("statecache_"), table, f"{what} {column}")
        for role, table, what, column in columns
        if (role.removeprefix("statecache_"), table, what) not in whole
    }
    return whole | single


def _may_run(deployment: Deployment) -> list[tuple[str, str]]:
    """Return which functions each role may run, or everybody."""
    return deployment.sql(
        "SELECT p.proname::text, coalesce(nullif(a.grantee, 0)::regrole::text, 'public') FROM pg_proc p,"
        " aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        " WHERE p.pronamespace = 'statecache'::regnamespace ORDER BY 1, 2"
    )


def test_functions_that_everybody_may_run_after_a_restore_without_rights_are_taken_back(deployment: Deployment) -> None:
    before = _may_run(deployment)
    deployment.sql("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA statecache TO PUBLIC, statecache_inspector")
    assert _may_run(deployment) != before
    deployment.run("grants")
    everybodys = {name for name, role in before if role == "public"}
    assert [one for one in _may_run(deployment) if one[0] not in everybodys] == [
        one for one in before if one[0] not in everybodys
    ]
    assert everybodys == {"enforced_locks", "floats_of", "json_or_null", "vectors_of"}  # they only compute, or read


def test_only_workers_write_and_only_what_they_must(deployment: Deployment) -> None:
    assert _rights(deployment) == {("worker", *right) for right in WORKER_MAY}
    of_both = ("begin_epoch", "report_lost", "set_locking", "take_consumer", "keep_consumer", "declare_history")
    of_workers = ("set_history", "erase_history", "detach_branch")
    for function in (*of_both, *of_workers):
        may_run = deployment.sql(
            "SELECT rolname FROM pg_roles, pg_proc p WHERE rolname LIKE 'statecache%' AND"
            f" p.proname = '{function}' AND has_function_privilege(rolname, p.oid, 'EXECUTE') ORDER BY rolname"
        )
        users = ("agent", "migrate", "worker") if function in of_both else ("migrate", "worker")
        assert may_run == [(f"statecache_{user}",) for user in users]


def test_what_a_later_migration_makes_is_read_by_all_from_its_first_moment(deployment: Deployment) -> None:
    """Nobody can apply the file again in the same moment; agents ask for it at once."""
    deployment.sql("CREATE TABLE statecache.later (a int)", user="migrate")
    try:
        for user in ("agent", "inspector", "worker"):
            assert deployment.sql("SELECT * FROM later", user=user) == []
    finally:
        deployment.sql("DROP TABLE statecache.later", user="migrate")


@pytest.mark.parametrize("user", ["agent", "inspector", "worker"])
def test_each_role_reads_everything_and_owns_nothing(deployment: Deployment, user: str) -> None:
    for table in (*TABLES, "state_view", "change_view"):
        deployment.sql(f"SELECT * FROM {table} LIMIT 1", user=user)
    refused = ["CREATE TABLE statecache.mine (a int)", "DROP TABLE statecache.change", "TRUNCATE statecache.change",
                   "DELETE FROM change", "UPDATE change SET change_id = ''", "UPDATE shard SET epoch = 9",
                   "UPDATE shard SET replid = ''", "UPDATE cluster SET shards = 1", "DELETE FROM state",
                   "DELETE FROM conflict", "UPDATE conflict SET value = ''", "DELETE FROM quarantine",
                   "INSERT INTO epoch VALUES (0, 9, 0, '', '')", "CREATE ROLE more",
                   "ALTER ROLE CURRENT_USER SUPERUSER"]  # fmt: skip
    for statement in refused:
        with pytest.raises((pg.InsufficientPrivilege, pg.ReadOnlySqlTransaction)):
            deployment.sql(statement, user=user)


def test_the_tables_of_the_schema_are_the_ones_that_roles_were_thought_through_for(deployment: Deployment) -> None:
    found = deployment.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'statecache' ORDER BY 1")
    assert tuple(name for (name,) in found) == TABLES


def test_every_line_of_the_servers_files_is_in_force(deployment: Deployment) -> None:
    lines = deployment.sql("SELECT name, setting, applied, error FROM pg_file_settings")
    overridden = {"listen_addresses", "port", "max_connections", "timezone", "log_timezone"}  # by the tests' own start
    assert [line for line in lines if line[0] not in overridden and (line[3] or not line[2])] == []
    assert deployment.sql("SHOW fsync") + deployment.sql("SHOW synchronous_commit") == [("on",), ("on",)]
    with deployment.raw() as raw:
        shown = raw.config_get("*")
    asked = {"maxmemory-policy": "volatile-lru", "appendonly": "yes", "appendfsync": "everysec", "save": "",
             "no-appendfsync-on-rewrite": "no", "maxmemory": str(2 * 1024**3), "maxmemory-clients": str(1024**3),
             "protected-mode": "yes", "databases": "1", "enable-debug-command": "no"}  # fmt: skip
    assert {name: shown[name] for name in asked} == asked


def test_no_value_and_no_password_stands_in_a_log(deployment: Deployment) -> None:
    value = "a value that nobody may read in a log"
    with StateCache(settings=deployment.settings_of("agent")) as client:
        client.set("runs/secret", value)
    with psycopg.connect(deployment.postgres.url, autocommit=True) as connection:
        connection.execute("SET log_min_duration_statement = 0")
        connection.execute("SELECT length(%s) /* a slow one */", [value])
        with pytest.raises(pg.DivisionByZero):
            connection.execute("SELECT 1 / (length(%s) - length(%s))", [value, value])
    written = "".join(path.read_text(errors="replace") for path in deployment.folder.glob("*.log"))
    assert "a slow one" in written
    assert value not in written
    assert not [name for name, word in deployment.passwords.items() if word in written]


# The workers' image.


class Running(NamedTuple):
    """A running worker, with what it has logged as far as that was read."""

    process: subprocess.Popen[str]
    lines: list[dict[str, Any]]

    def until(self, event: str) -> dict[str, Any]:
        """Read the log up to the next line of that event."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == event:
                return self.lines[-1]
        raise AssertionError(f"it ended without {event}: {self.lines}")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which the wheel of this tree is installed, beside what it depends on."""
    folder = tmp_path_factory.mktemp("image")
    wheel = _wheel(folder)
    made = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=BUILD_S)
    (libraries,) = made.glob("lib/python*/site-packages")
    shutil.unpack_archive(wheel, libraries, "zip")
    # The dependencies of the tests' own environment: a plain path, so that no .pth file there is followed.
    (libraries / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = PathDistribution(next(libraries.glob("statecache-*.dist-info"))).entry_points
    (entry,) = found.select(group="console_scripts", name="statecache")
    script = f"#!{made}/bin/python\nimport sys\nfrom {entry.module} import {entry.attr} as run\nsys.exit(run())\n"
    (made / "bin/statecache").write_text(script)
    (made / "bin/statecache").chmod(0o755)
    return made


def _wheel(folder: Path) -> Path:
    """Build the wheel from what the image's build copies."""
    wheels = folder / "wheels"
    for *sources, target in _copied():
        for source in sources:
            place = folder / "source" / target / ("" if (ROOT / source).is_dir() else source)
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            place.parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / source, place)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)],
        cwd=folder / "source", capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("*.whl")
    return wheel


def _copied() -> list[list[str]]:
    """Return what the Dockerfile copies into its build: sources, then the target."""
    first = stages((ROOT / "workers/Dockerfile").read_text())[0]
    return [one.words for one in first.instructions if one.word == "COPY"]


@contextmanager
def _worker(deployment: Deployment, built: Path, **more: str) -> Iterator[Running]:
    """Run the image's entry point and command with its variables, and those of the service, during the block."""
    image = worker_image()
    inside = {name: value.replace("/opt/statecache", str(built)) for name, value in image.environment.items()}
    inside["PATH"] = inside["PATH"].replace("$PATH", "/usr/bin:/bin")
    given = deployment.environment_of("workers")
    service = {name: value for name, value in given.items() if name.startswith(("STATE", "SECRETS"))}
    program = [*image.last("ENTRYPOINT").words, *image.last("CMD").words]
    command = deployment.command_of("workers")
    assert command[-len(program) :] == program
    assert shutil.which(program[0], path=inside["PATH"]) == str(built / "bin/statecache")
    process = subprocess.Popen(command, env=inside | service | more, stderr=subprocess.PIPE, text=True, cwd="/")
    try:
        yield Running(process, [])
    finally:
        process.kill()
        process.wait(WAIT_S)
        if process.stderr is not None:
            process.stderr.close()


def test_what_runs_in_the_image_is_the_wheel(built: Path) -> None:
    look = "import statecache as s, statecache_workers as w; print(s.__file__, w.__file__)"
    command = [str(built / "bin/python"), "-I", "-c", look]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert all(path.startswith(str(built)) for path in shown.stdout.split()), shown.stdout


def test_the_images_worker_is_healthy_and_told_to_stop_it_drains(deployment: Deployment, built: Path) -> None:
    port = str(free_port())
    with _worker(deployment, built, STATECACHE_HEALTH_PORT=port) as worker:
        worker.until("ready")
        assert _healthy(built, port) == 0
        with StateCache(settings=deployment.settings_of("agent")) as client:
            for number in range(200):
                last = client.set(f"runs/{number % 9}", number)
        worker.process.send_signal(signal.SIGTERM)
        stopped = worker.until("stopped")
        assert (stopped["left"], stopped["given_back"]) == (0, True)
        assert worker.process.wait(WAIT_S) == 0
    assert deployment.sql("SELECT count(*) FROM change WHERE change_id = %s", last.change_id) == [(1,)]
    assert _healthy(built, port) != 0


def _healthy(built: Path, port: str) -> int:
    """Run the image's health check and return its status."""
    words = json.loads(worker_image().last("HEALTHCHECK").text.removeprefix("CMD "))
    environment = {"PATH": f"{built}/bin", "STATECACHE_HEALTH_PORT": port}
    return subprocess.run(
        [f"{built}/bin/{words[0]}", *words[1:]], env=environment, capture_output=True, timeout=WAIT_S, check=False
    ).returncode


def test_what_is_left_when_the_image_is_stopped_is_said(deployment: Deployment, built: Path) -> None:
    more = {"STATECACHE_HEALTH_PORT": str(free_port()), "STATECACHE_DRAIN_S": "0.5"}
    with _worker(deployment, built, **more) as worker:
        worker.until("ready")
        superuser = deployment.postgres.url.rpartition("/")[0] + "/statecache"
        with psycopg.connect(superuser) as holding, StateCache(settings=deployment.settings_of("agent")) as client:
            holding.execute("SELECT FROM statecache.shard FOR UPDATE")
            for number in range(3):
                client.set("runs/held", number)
            worker.process.send_signal(signal.SIGTERM)
            assert worker.until("stopped")["left"] == 3
            assert worker.process.wait(WAIT_S) == 1


def test_the_settings_of_the_services_are_settings(deployment: Deployment) -> None:
    for name in ("migrate", "workers"):
        environment = deployment.environment_of(name)
        given = {
            key.removeprefix("STATECACHE_").lower(): word
            for key, word in environment.items()
            if key.startswith("STATECACHE_")
        }
        assert Settings(**given).redis_url.startswith("redis://worker:")
    assert "statecache_migrate" in deployment.environment_of("migrate")["STATECACHE_POSTGRES_URL"]
    assert "statecache_worker" in deployment.environment_of("workers")["STATECACHE_POSTGRES_URL"]
