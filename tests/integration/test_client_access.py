"""Ways in: passwords, ACL users, TLS, sockets; what is refused is named, and no secret shows anywhere."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from statecache import (
    AsyncStateCache,
    ConfigurationError,
    PostgresUnavailable,
    RedisUnavailable,
    Settings,
    StateCacheError,
)
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, MakeSettings, every_redis
from tests.fixtures.tls import tls_files
from tests.support.fault_proxy import FaultProxy

KEY = "runs/42"
SECRET = "s3cr3t%p@ss"
_CLIENT_HELLO = b"\x16\x03\x01"
"""How a client's first TLS record begins."""

NEEDED = (
    "eval", "evalsha", "hmget", "hget", "hset", "hexists", "hlen", "hdel", "hincrby", "del", "unlink",
    "exists", "type", "persist", "pexpire", "xadd", "xrange", "xrevrange", "xdel", "xinfo|stream", "zadd", "zcard",
    "zscore", "zrange", "zrem", "time", "watch", "unwatch", "multi", "exec", "info",
)  # fmt: skip
"""The commands without which a client is not let in; `select` and the like need no right."""


def _with_user(url: str, user: str, password: str = SECRET) -> str:
    parts = urlsplit(url)
    netloc = f"{user}:{quote(password, safe='')}@{parts.netloc.rpartition('@')[2]}"
    return parts._replace(netloc=netloc).geturl()


def _everything_of(error: BaseException) -> str:
    """Return everything that a log, a report or a debugger would show of an error and of its causes."""
    shown = "".join(traceback.format_exception(error))
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        assert cause not in chain, "an error is its own cause"
        chain.append(cause)
    return shown + "".join(f"{one!r} {one!s} {one.args} {getattr(one, 'facts', '')}" for one in chain)


async def _refusal(client: AsyncStateCache, *, seconds: float = 10.0) -> StateCacheError:
    with pytest.raises(StateCacheError) as caught:
        await client.set(KEY, 1, timeout=seconds)
    for secret in (SECRET, quote(SECRET, safe=""), "s3cr3t"):
        assert secret not in _everything_of(caught.value)
        assert secret not in repr(client)
    return caught.value


# Passwords.


async def test_a_wrong_password_of_redis(make_client: MakeClient, settings: Settings) -> None:
    wrong = settings.model_copy(update={"redis_url": _with_user(settings.redis_url, "")})
    error = await _refusal(make_client(wrong))
    assert isinstance(error, RedisUnavailable)
    assert error.reason == "authentication"
    assert "redis://:***@127.0.0.1" in str(error)
    assert "Check user and password" in str(error)


@pytest.mark.own_servers("they ask for a password")
async def test_no_password_of_redis(make_client: MakeClient, settings: Settings) -> None:
    host = urlsplit(settings.redis_url).netloc.rpartition("@")[2]
    error = await _refusal(make_client(settings.model_copy(update={"redis_url": f"redis://{host}/0"})))
    assert isinstance(error, RedisUnavailable)
    assert error.reason == "authentication"


@pytest.mark.own_servers("they ask for a password")
async def test_a_wrong_password_of_postgres(make_client: MakeClient, settings: Settings) -> None:
    for url in (
        _with_user(settings.postgres_url, "postgres"),
        _with_user(settings.postgres_url, "nobody"),
        psycopg.conninfo.make_conninfo(_with_user(settings.postgres_url, "postgres")),
    ):
        error = await _refusal(make_client(settings.model_copy(update={"postgres_url": url})))
        assert isinstance(error, PostgresUnavailable)
        assert error.reason == "authentication"
        assert "***" in str(error)
        assert "Check user and password" in str(error)


@pytest.mark.own_servers("they ask for a password")
async def test_no_password_of_postgres(make_client: MakeClient, settings: Settings) -> None:
    parts = urlsplit(settings.postgres_url)
    without = parts._replace(netloc=f"postgres@{parts.netloc.rpartition('@')[2]}").geturl()
    error = await _refusal(make_client(settings.model_copy(update={"postgres_url": without})))
    assert isinstance(error, PostgresUnavailable)
    assert error.reason == "authentication"


async def test_a_postgres_that_lets_nobody_in_from_here(
    make_client: MakeClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise psycopg.OperationalError('FATAL:  no pg_hba.conf entry for host "192.0.2.1", user "x"')

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", refused)
    monkeypatch.setattr(psycopg.Connection, "connect", refused)
    error = await _refusal(make_client(settings))
    assert isinstance(error, PostgresUnavailable)
    assert (error.reason, "pg_hba.conf; sslmode=" in str(error)) == ("authentication", True)


async def test_a_conninfo_that_cannot_be_read_shows_no_piece_of_itself(
    make_client: MakeClient, settings: Settings
) -> None:
    wrong = settings.model_copy(update={"postgres_url": f"host=localhost password=a {SECRET} b"})
    error = await _refusal(make_client(wrong))
    assert isinstance(error, ConfigurationError)


async def test_a_password_of_odd_characters_works_when_it_is_encoded(
    make_client: MakeClient, settings: Settings, redis_raw: Any, psql: psycopg.Connection[Any]
) -> None:
    odd, name = "/?#[]@:%25 é\"'\\", f"odd_{settings.prefix}"
    redis_raw.execute_command("ACL", "SETUSER", name, "reset", "on", f">{odd}", "~*", "&*", "+@all")
    role = psycopg.sql.Identifier(name)
    psql.execute(psycopg.sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}").format(role, odd))
    urls = {"redis_url": settings.redis_url, "postgres_url": settings.postgres_url}
    changed = {one: _with_user(url, name, odd) for one, url in urls.items()}
    client = make_client(settings.model_copy(update=changed))
    assert (await client.set(KEY, 1)).version == 1
    redis_raw.acl_deluser(name)
    psql.execute(psycopg.sql.SQL("DROP ROLE {}").format(role))


# ACL users and roles.


@pytest.fixture
def grant(redis_raw: Any, settings: Settings) -> Iterator[Any]:
    """A maker of a user of the test's Redis, who may run these commands on the deployment's keys; it gives settings."""

    def make(*commands: str, keys: str = f"~{settings.prefix}:*") -> Settings:
        rules = [f"+{command}" for command in commands]
        redis_raw.execute_command(
            "ACL", "SETUSER", settings.prefix, "reset", "on", f">{SECRET}", keys, f"&{settings.prefix}:*", *rules
        )
        return settings.model_copy(update={"redis_url": _with_user(settings.redis_url, settings.prefix)})

    yield make
    redis_raw.acl_deluser(settings.prefix)


@every_redis
async def test_the_least_rights_are_enough(
    make_client: MakeClient, grant: Any, worker: Worker, redis_raw: Any, keys: KeySpace, settings: Settings
) -> None:
    client = make_client(grant(*NEEDED, "ssubscribe"))
    first = await client.set(KEY, 1)
    async with client.transaction(KEY, f"{KEY}/b") as tx:
        tx.set(f"{KEY}/b", 1)
    await client.delete(f"{KEY}/b")
    await flush(worker)
    assert await client.wait_durable(first) == first
    redis_raw.unlink(keys.state(KEY))
    assert await client.get(KEY) == first
    assert [state.key async for state in client.list("runs/")] == [KEY]
    meta = keys.meta(keys.shard(KEY))
    redis_raw.hset(meta, "replid", "a-restart", mapping={"continues": redis_raw.hget(meta, "replid")})
    assert (await client.set(KEY, 2)).version == 2


@every_redis
async def test_a_missing_right_is_refused_at_the_door_and_named(
    make_client: MakeClient, grant: Any, redis_raw: Any, settings: Settings
) -> None:
    before = {*redis_raw.scan_iter(f"{settings.prefix}:*")}
    for command in NEEDED:
        client = make_client(grant(*(one for one in NEEDED if one != command)))
        error = await _refusal(client)
        assert isinstance(error, ConfigurationError)
        assert command.partition("|")[0] in str(error).lower()
        await client.close()
    assert {*redis_raw.scan_iter(f"{settings.prefix}:*")} == before


@every_redis
async def test_whoever_may_not_be_called_updates_without_a_turn(
    make_client: MakeClient, grant: Any, redis_raw: Any, keys: KeySpace
) -> None:
    """Rights that were given before there were turns go on to be enough."""
    for more, takes in ((), 0), (("rpush",), 0), (("blmpop",), 0), (("rpush", "blmpop"), 1):
        client = make_client(grant(*NEEDED, *more))
        await client.set(KEY, 1)
        client._runtime.shared_queues.crowd(KEY)
        assert (await client.update(KEY, lambda value: value + 1)).value == 2
        assert redis_raw.exists(keys.turn(KEY)[0]) == takes
        assert client._runtime.shared_queues.is_crowded(KEY) == bool(takes), "it is not asked for again and again"


async def test_a_user_of_other_keys_is_refused(make_client: MakeClient, grant: Any, settings: Settings) -> None:
    error = await _refusal(make_client(grant("@all", keys="~other:*")))
    assert isinstance(error, ConfigurationError)
    assert f"may not use the keys ~{settings.prefix}:{{*}}:*. Grant" in str(error)


async def test_a_role_without_rights_is_told_what_it_lacks(
    make_client: MakeClient, settings: Settings, psql: psycopg.Connection[Any]
) -> None:
    name = settings.postgres_schema
    role, schema = psycopg.sql.Identifier(f"agent_{name}"), psycopg.sql.Identifier(name)
    psql.execute(psycopg.sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, SECRET))
    limited = settings.model_copy(update={"postgres_url": _with_user(settings.postgres_url, f"agent_{name}")})
    error = await _refusal(make_client(limited))
    assert isinstance(error, ConfigurationError)
    assert "permission denied" in str(error)
    psql.execute(psycopg.sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, role))
    psql.execute(psycopg.sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(schema, role))
    assert (await make_client(limited).set(KEY, 1)).version == 1
    psql.execute(psycopg.sql.SQL("DROP OWNED BY {}").format(role))
    psql.execute(psycopg.sql.SQL("DROP ROLE {}").format(role))


# Sockets and TLS.


@pytest.mark.own_servers("they have a socket file")
async def test_a_unix_socket_of_redis(make_client: MakeClient, settings: Settings, redis_raw: Any) -> None:
    path = redis_raw.config_get("unixsocket").get("unixsocket")
    if not path:
        pytest.fail("the embedded server has a socket file")
    password = urlsplit(settings.redis_url).password
    client = make_client(settings.model_copy(update={"redis_url": f"unix://:{password}@{path}?db=0"}))
    assert (await client.set(KEY, 1)).version == 1


@pytest.mark.own_servers("they have a socket file")
async def test_a_unix_socket_of_postgres(
    make_client: MakeClient, settings: Settings, psql: psycopg.Connection[Any]
) -> None:
    row = psql.execute("SHOW unix_socket_directories").fetchone()
    assert row is not None
    parts = urlsplit(settings.postgres_url)
    folder = quote(row[0].strip('"'), safe="")
    url = f"postgresql://{parts.username}:{parts.password}@{folder}:{parts.port}{parts.path}"
    client = make_client(settings.model_copy(update={"postgres_url": url}))
    assert await client.get(KEY) is None


async def test_tls_with_a_ca_and_a_client_certificate(
    make_client: MakeClient, make_settings: MakeSettings, tls: tuple[str, Path]
) -> None:
    url, folder = tls
    settings = make_settings(redis_url=url, **tls_files(folder))
    client = make_client(settings)
    assert (await client.set(KEY, "x" * 100_000)).version == 1
    assert (await client.get(KEY)).value == "x" * 100_000  # type: ignore[union-attr]
    async with client.transaction(KEY) as tx:
        tx.set(KEY, 2)
    assert tx.states[KEY].version == 2


async def test_tls_is_refused_where_either_side_is_not_known(
    make_client: MakeClient, settings: Settings, tls: tuple[str, Path]
) -> None:
    url, folder = tls
    there = {"redis_url": url}
    plainly, elsewhere = url.replace("rediss://", "redis://"), url.replace("127.0.0.1", "localhost")
    strangers: dict[str, dict[str, str]] = {
        "an unknown server": there | tls_files(folder, ca="other"),
        "the system's authorities alone": there | tls_files(folder, ca=""),
        "no certificate of the client": there | tls_files(folder, client=""),
        "another name of the server": {"redis_url": elsewhere} | tls_files(folder),
        "TLS to a plain port": {"redis_url": settings.redis_url.replace("redis://", "rediss://")} | tls_files(folder),
        "a plain connection": {"redis_url": plainly},
        "a plain connection with a password": {"redis_url": plainly.replace("redis://", "redis://:x@")},
        "a plain connection to a database": {"redis_url": plainly.replace("/0", "/3")},
    }
    for who, stranger in strangers.items():
        plain = "plain" in who  # which is tried again for as long as there is time
        error = await _refusal(make_client(settings.model_copy(update=stranger)), seconds=1.0 if plain else 10.0)
        assert isinstance(error, RedisUnavailable), who
        assert error.reason in (("connect", "connection") if plain else ("tls",)), who
        told = "redis_ca_file" if not plain else "A server without TLS" if "TLS" in who else "The port may speak TLS"
        assert told in error.remedy, who


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"redis_ca_file": "nowhere.pem"}, r"redis_ca_file .*nowhere\.pem: No such file"),
        ({"redis_ca_file": "ca.key"}, r"redis_ca_file .*ca\.key: it holds no certificate"),
        ({"redis_certificate_file": ""}, r"redis_key_file .*client\.key: there is no certificate"),
        ({"redis_key_file": "server.key"}, r"redis_certificate_file .*server\.key: they cannot be .* values mismatch"),
        ({"redis_certificate_file": "client.key"}, r"redis_certificate_file .* cannot be used together"),
        ({"redis_key_file": ""}, r"redis_certificate_file .* cannot be used together"),
    ],
    ids=str,
)
def test_tls_files_that_cannot_be_used_are_named_at_once(
    make_client: MakeClient, make_settings: MakeSettings, tls: tuple[str, Path], files: dict[str, str], told: str
) -> None:
    url, folder = tls
    given = tls_files(folder) | {name: f"{folder}/{file}" if file else "" for name, file in files.items()}
    with pytest.raises(ConfigurationError, match=told):
        make_client(make_settings(redis_url=url, **{name: file for name, file in given.items() if file}))


async def test_tls_files_that_are_being_replaced_are_waited_for(
    make_client: MakeClient, make_settings: MakeSettings, tls: tuple[str, Path], tmp_path: Path
) -> None:
    """The new key is there, and the certificate is still the old one."""
    url, folder = tls
    for name in ("client.pem", "client.key"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    settings = make_settings(redis_url=url, **tls_files(folder) | tls_files(tmp_path, ca=""))
    async with FaultProxy("127.0.0.1", urlsplit(url).port or 0) as proxy:
        client = make_client(through(settings, redis=proxy))
        await client.set(KEY, 1)
        (tmp_path / "client.key").write_bytes((folder / "server.key").read_bytes())
        proxy.cut_all()
        with pytest.raises(RedisUnavailable) as caught:
            await client.get(KEY, read="primary", timeout=1)
        assert caught.value.reason == "connect"
        (tmp_path / "client.key").write_bytes((folder / "client.key").read_bytes())
        assert (await client.set(KEY, 2)).version == 2


def test_an_option_of_tls_that_does_not_exist_is_named_at_once(
    make_client: MakeClient, make_settings: MakeSettings, tls: tuple[str, Path]
) -> None:
    with pytest.raises(ConfigurationError, match=r"redis_url .*bogus"):
        make_client(make_settings(redis_url=f"{tls[0]}?ssl_cert_reqs=bogus"))


@pytest.mark.parametrize(
    "wrong",
    [
        "sslmode=nonsense", "sslnegotiation=direct", "ssl_min_protocol_version=x", "port=99999", "keepalives=a",
        "service=nosuch", "options=-c nosuch=1", "options=-c work_mem=much",
    ],
)  # fmt: skip
async def test_a_value_in_the_url_of_postgres_that_cannot_be_is_named_at_once(
    make_client: MakeClient, settings: Settings, wrong: str
) -> None:
    url = psycopg.conninfo.make_conninfo(settings.postgres_url, **dict([wrong.split("=", 1)]))
    with pytest.raises(ConfigurationError, match=r"postgres_url .*(invalid|may not be used|nosuch)"):
        await make_client(settings.model_copy(update={"postgres_url": url})).get("no/thing", timeout=30)


async def test_a_postgres_without_tls_is_refused_at_once_where_tls_is_asked_for(
    make_client: MakeClient, settings: Settings
) -> None:
    url = psycopg.conninfo.make_conninfo(settings.postgres_url, sslmode="require")
    client = make_client(settings.model_copy(update={"postgres_url": url}))
    with pytest.raises(PostgresUnavailable, match="does not support SSL") as caught:
        await client.get("no/thing", timeout=10)
    assert caught.value.reason == "tls"
    assert "sslrootcert=" in caught.value.remedy
    assert not isinstance(caught.value.__cause__, PostgresUnavailable), "it was asked more than once"


@pytest.mark.parametrize("verb", ["set", "get", "update", "lock"])
async def test_a_connection_that_ends_in_the_tls_handshake_is_tried_again(
    make_client: MakeClient, make_settings: MakeSettings, tls: tuple[str, Path], verb: str
) -> None:
    """A balancer takes the connection although its server is just starting, and ends it at the ClientHello."""
    url, folder = tls
    settings = make_settings(redis_url=url, **tls_files(folder))
    async with FaultProxy("127.0.0.1", urlsplit(url).port or 0) as proxy:
        client = make_client(through(settings, redis=proxy))
        await client.set(KEY, 1)
        faults = [proxy.arm("drop_request", at=_CLIENT_HELLO) for _ in range(3)]
        proxy.cut_all()
        await _called(client, verb)
        assert all(fault.struck for fault in faults)


async def _called(client: AsyncStateCache, verb: str) -> None:
    if verb == "lock":
        async with client.lock(KEY, ttl=5, timeout=20):
            return
    if verb == "update":
        await client.update(KEY, lambda value: value + 1, timeout=20)
    elif verb == "set":
        await client.set(KEY, 2, timeout=20)
    else:
        await client.get(KEY, read="primary", timeout=20)
