"""A deployment on real servers that are started with the files of config/, as docker-compose.yml has it.

There is no container: a service's own command is run here with its own variables, its hosts and paths put in place.
What cannot be shown that way is what the images themselves bring.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from statecache import AsyncStateCache, Settings
from statecache.testing.binaries import plain_environment, postgres_install, valkey_server
from statecache.testing.folders import Throwaway, ordinary_user
from statecache.testing.postgres import Postgres
from statecache.testing.process import Process, spawn
from statecache.testing.valkey import Valkey
from statecache_workers.worker import Worker
from tests.fixtures.servers import found
from tests.support.deployment_files import CONFIG, INSIDE, fresh_passwords, interpolated, services, worker_image

SERVICE_S = 60.0
SHARDS = 4
KINDS = [kind for kind in found().kinds if kind in ("embedded", "debian")] or ["embedded"]


class DeployedRedis(Valkey):
    """A Redis with config/redis.conf and config/users.acl, started by config/start-redis.sh."""

    def __init__(self, folder: Path, *, passwords: Mapping[str, str], **more: Any) -> None:
        super().__init__(folder, password=passwords["REDIS_OPERATOR_PASSWORD"], **more)
        self._passwords = passwords

    def url_of(self, user: str) -> str:
        """Return the server's URL for one of its users."""
        return f"redis://{user}:{self._passwords[f'REDIS_{user.upper()}_PASSWORD']}@127.0.0.1:{self.port}/0"

    @property
    def url(self) -> str:
        """The server's URL for its operator."""
        return self.url_of("operator")

    @property
    def _credentials(self) -> str:
        """The arguments of AUTH."""
        return f"operator {self.password}"

    def follower(self, name: str) -> DeployedRedis:
        """Return another server, not started yet, that will be a replica of this one."""
        config = {"replicaof": f"127.0.0.1 {self.port}", "masteruser": "operator", "masterauth": self.password}
        return DeployedRedis(
            self.folder, passwords=self._passwords, binary=self._binary, name=name, config=self._config | config
        )

    def _spawn(self) -> Process:
        self._data.mkdir(mode=0o700, exist_ok=True)
        here = {
            "port": str(self.port), "dir": str(self._data), "unixsocket": str(self.socket), "unixsocketperm": "600",
            "repl-diskless-sync-delay": "0",
        }  # fmt: skip
        here |= {name: value for name, value in self._config.items() if name != "appendfsync"}
        options = [part for name, value in here.items() for part in (f"--{name}", *value.split(" "))]
        acl = {"REDIS_ACL_TEMPLATE": CONFIG / "users.acl", "REDIS_ACL_FILE": self.folder / f"{self.name}.acl"}
        return spawn(
            [shutil.which("sh") or "", CONFIG / "start-redis.sh", self._binary, CONFIG / "redis.conf", *options],
            name=self.name,
            folder=self.folder,
            environment=plain_environment()
            | {name: value for name, value in self._passwords.items() if name.startswith("REDIS_")}
            | {name: str(path) for name, path in acl.items()},
            cwd=Path("/"),
        )


class DeployedPostgres(Postgres):
    """A Postgres with config/postgres.conf."""

    def program(self, name: str) -> Path:
        """Return the path of one of the installation's programs."""
        return self._install.program(name)


class Deployment:
    """The servers of a deployment, and its services, run here."""

    def __init__(
        self, folder: Path, passwords: Mapping[str, str], redis: DeployedRedis, postgres: DeployedPostgres
    ) -> None:
        self.folder = folder
        self.passwords = passwords
        self.redis = redis
        self.postgres = postgres

    def environment_of(self, name: str, **more: str) -> dict[str, str]:
        """Return the variables of a service, with the hosts and ports of the test's servers; `more` are secrets too."""
        given = interpolated(services()[name].get("environment", {}), {})
        made = {variable: str(value) for variable, value in given.items()}
        made["SECRETS_DIR"] = str(self._secrets_of(name, more))
        for variable, value in made.items():
            made[variable] = value.replace("@redis:6379", f"@127.0.0.1:{self.redis.port}").replace(
                "@postgres:5432", f"@127.0.0.1:{self.postgres.port}"
            )
        if "PGHOST" in made:
            made |= {"PGHOST": "127.0.0.1", "PGPORT": str(self.postgres.port)}
        programs = [str(Path(sys.executable).parent), str(self.postgres.program("psql").parent)]
        path = ":".join([*programs, plain_environment().get("PATH", "")])
        return {**plain_environment(), **made, **more, "PATH": path}

    def _secrets_of(self, name: str, changed: Mapping[str, str]) -> Path:
        """Return a folder with the secrets that a service is given, and no others."""
        folder = self.folder / f"secrets-{name}"
        folder.mkdir(exist_ok=True)
        given = {**self.passwords, "POSTGRES_PASSWORD": self.postgres.password, **changed}
        for secret in services()[name].get("secrets", ()):
            (folder / secret).write_text(given[secret])
        return folder

    def command_of(self, name: str, *arguments: str) -> list[str]:
        """Return the command line of a service, with the image's entry point where it names none, or of another one."""
        service = services()[name]
        entry = service.get("entrypoint") or worker_image().last("ENTRYPOINT").words
        words = [*entry, *(arguments or service.get("command", ()))]
        return [word.replace(INSIDE, f"{CONFIG}/") for word in words]

    def run(self, name: str, **more: str) -> str:
        """Run a service to its end and return its output; fail unless its status is 0."""
        done = self.try_to_run(name, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def try_to_run(self, name: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a service, or another command of its image, to its end."""
        environment = self.environment_of(name, **more)
        command = self.command_of(name, *arguments)
        program = shutil.which(command[0], path=environment["PATH"])
        assert program is not None, command
        return subprocess.run(
            [program, *command[1:]], env=environment, capture_output=True, text=True, timeout=SERVICE_S, check=False
        )

    def settings_of(self, user: str, **more: Any) -> Settings:
        """Return the settings of an agent, a worker, or whoever migrates, with their own rights."""
        role = user if user in ("agent", "inspector") else "worker"
        given = {"redis_url": self.redis.url_of(role), "postgres_url": self.postgres_url_of(user)}
        return Settings(**given, **more)

    def postgres_url_of(self, user: str) -> str:
        """Return the URL of the database for one of the roles."""
        password = self.passwords[f"POSTGRES_{user.upper()}_PASSWORD"]
        return f"postgresql://statecache_{user}:{password}@127.0.0.1:{self.postgres.port}/statecache"

    def raw(self, user: str = "operator", **more: Any) -> Any:
        """Return a plain client, without retries, for one of the users of Redis."""
        return redis.Redis.from_url(self.redis.url_of(user), retry=Retry(NoBackoff(), 0), driver_info=None, **more)

    def sql(self, query: str, *parameters: Any, user: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement in the deployment's schema, as the superuser or the given role; return its rows."""
        superuser = self.postgres.url.rpartition("/")[0] + "/statecache"
        url = superuser if user == "postgres" else self.postgres_url_of(user)
        path = "-c search_path=statecache,pg_catalog"
        with psycopg.connect(url, autocommit=True, options=path) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def servers(kind: str) -> Iterator[Deployment]:
    """Start an empty Redis and an empty Postgres with the files of config/, and passwords made as the example says."""
    run_as = ordinary_user()
    with ExitStack() as ending:
        folder = Throwaway.create(run_as)
        ending.callback(folder.remove)
        passwords = fresh_passwords(folder.path)
        binary = Path(shutil.which("redis-server") or "") if kind == "debian" else valkey_server()
        redis_server = DeployedRedis(folder.path, passwords=passwords, binary=binary)
        readable = folder.path / "postgres.conf"
        readable.write_text((CONFIG / "postgres.conf").read_text())
        readable.chmod(0o644)
        postgres = DeployedPostgres(
            folder.path,
            install=postgres_install(run_as, scratch=folder.path),
            run_as=run_as,
            scratch=folder.path,
            config={"config_file": str(readable)},
        )
        for server in (redis_server, postgres):
            ending.callback(server.discard)
            server.start()
        deployment = Deployment(folder.path, passwords, redis_server, postgres)
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE statecache")
        yield deployment


@asynccontextmanager
async def at_work(deployment: Deployment, **more: Any) -> AsyncIterator[Worker]:
    """Open a worker, turned by hand, with a worker's rights and no retention, and close it at the end."""
    tidy = {"retention_s": 0, "retention_bytes_max": 0, "health_port": 0}
    worker = Worker(deployment.settings_of("worker", shards=SHARDS, **tidy, **more))
    try:
        yield worker
        await worker.leave()
    finally:
        await worker.close()


def agent(deployment: Deployment, **more: Any) -> AsyncStateCache:
    """Return an agent's client with an agent's rights."""
    return AsyncStateCache(settings=deployment.settings_of("agent", shards=SHARDS, reservation_s=0.2, **more))


class Ran:
    """The commands that a server has run, those of scripts too."""

    def __init__(self) -> None:
        self.commands: set[str] = set()

    @contextmanager
    def noting(self, raw: Any) -> Iterator[None]:
        """Note what is run during the block."""
        raw.execute_command("CONFIG", "RESETSTAT")
        yield
        lines = raw.execute_command("INFO", "commandstats")
        text = lines if isinstance(lines, dict) else {}
        self.commands |= {name.removeprefix("cmdstat_") for name in text}


def granted(deployment: Deployment, user: str) -> set[str]:
    """Return the commands that a user was granted on this server, as its rendered file has them."""
    rules = (deployment.folder / "redis.acl").read_text().splitlines()
    (rule,) = (line for line in rules if line.startswith(f"user {user} "))
    return {word[1:] for word in rule.split() if word.startswith("+")}


def denied(raw: Any, user: str) -> list[str]:
    """Return the commands that a user was refused, as the server has logged them."""
    return [entry["object"] for entry in raw.acl_log() if entry["username"] == user]


def plainly(client: Any, *words: str) -> Any:
    """Run a command and return the unparsed reply."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*words)
        return connection.read_response()
    finally:
        client.connection_pool.release(connection)
