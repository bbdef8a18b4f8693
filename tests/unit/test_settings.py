"""Settings: checked when they are made, named when they are wrong, and silent about secrets."""

from __future__ import annotations

import logging
import math
import os
import pickle
import pprint
from typing import Any

import pytest

from statecache import AsyncStateCache, ConfigurationError, Settings, StateCache, _process
from statecache.core.redis.connection import dialer
from statecache.settings import masked, pin_difference, process_environment, variable_of, writer_of

SECRET = "s3cr3t"


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("STATECACHE_"):
            monkeypatch.delenv(name)


def _refusal(**values: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Settings(**values)
    return caught.value.reason


def test_the_environment_is_read_and_arguments_win_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_SHARDS", "8")
    monkeypatch.setenv("STATECACHE_PREFIX", "from-environment")
    settings = Settings(prefix="given")
    assert (settings.shards, settings.prefix) == (8, "given")


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_SHARDS", "many")
    assert _refusal() == "STATECACHE_SHARDS: must be a whole number"
    monkeypatch.setenv("STATECACHE_SHARDS", "8")
    monkeypatch.setenv("STATECACHE_POSTGRES_URL", f"mysql://me:{SECRET}@h/d")
    with pytest.raises(ConfigurationError) as caught:
        Settings(replicas=0)
    assert "STATECACHE_POSTGRES_URL: must start with postgresql://" in str(caught.value)
    assert "replicas: must be at least 1, not 0" in str(caught.value)
    assert "here STATECACHE_POSTGRES_URL, STATECACHE_REPLICAS." in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("shards", "4097", "must be at most 4,096, not 4097"),
        ("timeout_s", "0", "must be more than 0, not 0"),
        ("timeout_s", "soon", "must be a number"),
        ("timeout_s", math.nan, "must be a finite number"),
        ("fence", "maybe", "must be 'on' or 'off'"),
        ("no_such_setting", 1, "there is no such setting"),
        ("durabilty", "replica", "there is no such setting (did you mean durability?)"),
        ("writer", 1, "must be text"),
        ("redis_url", 1, "must be text"),
        ("prefix", ["x" * 100], "must be text"),
    ],
)
def test_what_is_wrong_with_a_value_is_said_in_words_of_ours(name: str, value: object, words: str) -> None:
    assert _refusal(**{name: value}) == f"{name}: {words}"


def test_only_what_differs_of_a_pin_is_named_with_its_remedy() -> None:
    ours = {"shards": 8, "hash": "crc32", "prefix": "sc"}
    assert pin_difference(ours, ours) == ("", "")
    what, remedy = pin_difference({"shards": 64, "hash": "crc32", "prefix": "sc"}, ours)
    assert what == "pinned to shards 64; the settings say 8"
    assert "here STATECACHE_SHARDS=64, or" in remedy
    assert remedy.endswith("; the shard count changes only by an offline migration")
    what, remedy = pin_difference({"shards": 8, "hash": "md5", "prefix": "other"}, ours)
    assert what == "pinned to hash md5, prefix other; this release crc32, the settings say sc"
    assert "here STATECACHE_PREFIX=other, or" in remedy
    assert remedy.endswith("; use the release of statecache that made it")


def test_the_health_port_is_off_and_on_this_machine_alone_where_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (Settings().health_host, Settings().health_port) == ("127.0.0.1", None)
    monkeypatch.setenv("STATECACHE_HEALTH_PORT", "0")
    monkeypatch.setenv("STATECACHE_HEALTH_HOST", "::1")
    assert (Settings().health_host, Settings().health_port) == ("::1", 0)


@pytest.mark.parametrize("value", ["", "localhost:9464", "a b", "http://localhost", "[::1]", "h" * 254])
def test_a_health_host_that_is_none_is_named(value: str) -> None:
    assert _refusal(health_host=value).startswith("health_host: must be a host name or an address")


@pytest.mark.parametrize("value", [-1, 65536, "all"])
def test_a_health_port_that_is_none_is_named(value: object) -> None:
    assert _refusal(health_port=value).startswith("health_port:")


def test_a_child_gets_a_copy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_PREFIX", "p")
    copy = process_environment()
    copy["STATECACHE_PREFIX"] = "changed"
    assert os.environ["STATECACHE_PREFIX"] == "p"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prefix", "a:b"),
        ("prefix", "a{b"),
        ("prefix", ""),
        ("prefix", "p" * 65),
        ("postgres_schema", "State"),
        ("postgres_schema", 'x"; drop'),
        ("postgres_schema", "s" * 64),
        ("shards", 0),
        ("shards", 4097),
        ("shards", 1.5),
        ("fence", "maybe"),
        ("durability", "forever"),
        ("replicas", 0),
        ("timeout_s", 0),
        ("timeout_s", -1),
        ("timeout_s", math.nan),
        ("timeout_s", math.inf),
        ("connect_timeout_s", 0),
        ("redis_connections_max", 0),
        ("postgres_connections_max", 0),
        ("redis_ttl_s", 0),
        ("value_bytes_max", 8 * 1024 * 1024 + 1),
        ("value_bytes_max", 0),
        ("backlog_entries_max", 0),
        ("flush_batch_max", 10_001),
        ("writer", "a\0b"),
        ("writer", "\ud800"),
        ("writer", "é" * 129),
        ("redis_url", "http://localhost"),
        ("redis_url", "localhost:6379"),
        ("redis_url", "redis://localhost/main"),
        ("redis_url", "redis://localhost:port/0"),
        ("redis_url", "redis://[::1/0"),
        ("postgres_url", "mysql://localhost"),
        ("postgres_url", "localhost"),
        ("postgres_url", ""),
        ("no_such_setting", 1),
        ("lease_s", 1e300),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(name: str, value: object) -> None:
    assert _refusal(**{name: value}).startswith(f"{name}:")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"lease_s": 3.0, "lease_renew_s": 1.1}, "two lost renewals must not lose a lease"),
        ({"redis_ttl_s": 10.0, "absent_ttl_s": 11.0}, "an absence is worth less than a state"),
        ({"timeout_s": 1.0, "hydrate_token_s": 1.5}, "a waiter must outlive a dead reader's token"),
    ],
)
def test_relations_between_settings_are_kept_and_say_why(values: dict[str, float], why: str) -> None:
    refusal = _refusal(**values)
    assert why in refusal
    assert all(f"{name}" in refusal and f"{value:g}" in refusal for name, value in values.items())


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://localhost:6379/3",
        "redis://user:p%40ss@[::1]:6379/0",
        "rediss://localhost/0?ssl_check_hostname=false",
        "unix:///tmp/redis.sock?db=2",
        "unix:///tmp/a@b.sock",
    ],
)
def test_redis_urls_of_every_kind_are_taken(url: str) -> None:
    assert dialer(Settings(redis_url=url))() is not None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://localhost/db",
        "postgres://user:p%40ss@h1:5432,h2:5433/db?target_session_attrs=read-write",
        "postgresql:///db?host=/tmp",
        "host=localhost dbname=db password='a b'",
    ],
)
def test_postgres_urls_and_keywords_are_taken(url: str) -> None:
    assert Settings(postgres_url=url).postgres_url == url


def test_an_option_in_the_url_that_is_not_for_a_connection_is_refused() -> None:
    settings = Settings(redis_url=f"redis://:{SECRET}@localhost/0?max_connections=5")
    with pytest.raises(ConfigurationError, match="max_connections") as caught:
        dialer(settings)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["redis_ca_file", "redis_certificate_file", "redis_key_file"])
@pytest.mark.parametrize("url", ["redis://localhost/0", "unix:///tmp/redis.sock"])
def test_files_for_tls_beside_a_url_without_tls_are_refused(name: str, url: str) -> None:
    """The connection would be a plain one, and nobody would be told."""
    with pytest.raises(ConfigurationError, match=f"{url} is without TLS, so nothing would use {name}") as caught:
        dialer(Settings(redis_url=url, **{name: "/nowhere.pem"}))
    assert "rediss://" in caught.value.hint
    assert variable_of(name) in caught.value.hint
    assert dialer(Settings(redis_url=url, **{name: ""}))() is not None


def test_the_url_cannot_turn_repeating_back_on() -> None:
    again = "retry=3&retry_on_timeout=yes&retry_on_error=TimeoutError"
    dial = dialer(Settings(redis_url=f"redis://localhost/0?{again}&health_check_interval=5&protocol=3"))
    connection = dial()
    assert connection.retry.get_retries() == 0
    assert not connection.retry_on_timeout
    assert connection.retry_on_error == []
    assert (connection.health_check_interval, connection.protocol) == (0, 2)


def test_they_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().shards = 8


def test_the_writer_is_this_process_unless_it_is_named() -> None:
    assert Settings().writer == writer_of(Settings()) == writer_of(Settings(writer=""))
    assert Settings().writer.endswith(f":{os.getpid()}")
    assert Settings(writer="me").writer == writer_of(Settings(writer="me")) == "me"
    assert writer_of(Settings().model_copy(update={"writer": "me"})) == "me"


def test_settings_that_came_from_another_process_name_who_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [Settings(), Settings(writer=""), pickle.loads(pickle.dumps(Settings()))]
    monkeypatch.setattr(_process, "name", "host:1")
    assert {writer_of(one) for one in sent} == {"host:1"}
    assert writer_of(Settings(writer="me")) == "me"


def test_a_writer_that_the_environment_leaves_empty_is_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECACHE_WRITER", "")
    settings = Settings()
    assert settings.writer == _process.name
    monkeypatch.setattr(_process, "name", "host:1")
    assert writer_of(settings) == "host:1"


URLS = [
    (f"redis://:{SECRET}@localhost:6379/0", "redis://:***@localhost:6379/0"),
    (f"redis://user:{SECRET}@localhost/0", "redis://user:***@localhost/0"),
    (f"redis://localhost/0?password={SECRET}&db=1", "redis://localhost/0?password=***&db=1"),
    (f"rediss://localhost/0?ssl_password={SECRET}#x", "rediss://localhost/0?ssl_password=***#x"),
    (f"unix://:{SECRET}@/tmp/redis.sock", "unix://:***@/tmp/redis.sock"),
    (f"redis://:{SECRET}", "redis://:***"),
    (f"postgresql://user:{SECRET}@localhost/db", "postgresql://user:***@localhost/db"),
    (f"postgresql://localhost/db?sslpassword={SECRET}", "postgresql://localhost/db?sslpassword=***"),
    (f"host=localhost password={SECRET} dbname=db", "host=localhost password=*** dbname=db"),
    (f"password = 'a \\' {SECRET}' host=h", "password=*** host=h"),
    (f"host=h password='{SECRET} unterminated {SECRET}", "host=h password=***"),
    (f"host=h password=a {SECRET} b port=1", "host=h password=*** port=1"),
    (f"password={SECRET} options='-c x=http://y'", "password=*** options='-c x=http://y'"),
    (f"host=h passwrd={SECRET} port=1", "host=h passwrd=*** port=1"),
    (f"host=h pass word={SECRET}", "host=*** word=***"),
    (f"host=h password {SECRET} port=1", "host=*** port=1"),
    (f"host='h passwrd={SECRET}", "host=***"),
    (f"host='h password='{SECRET}'", "host=***"),
    (f"user=a oauth_client_secret={SECRET} options='-c a=b'", "user=a oauth_client_secret=*** options='-c a=b'"),
    (f"postgresql://localhost/db?passwrd={SECRET}&sslmode=x", "postgresql://localhost/db?passwrd=***&sslmode=x"),
    (f"redis://localhost/0?pasword={SECRET}&db=1", "redis://localhost/0?pasword=***&db=1"),
    (f"host=::1 user=me@there dbname=postgresql://me:{SECRET}@h/db", "host=::1 user=me@there dbname=***"),
    (f"postgresql:///?dbname=postgresql%3A%2F%2Fme:{SECRET}%40h", "postgresql:///?dbname=***"),
    (f"host=h options='-c app.passphrase={SECRET}'", "host=h options=***"),
    (f"redis://localhost/0?db=1;password={SECRET}", "redis://localhost/0?db=***"),
    ("postgresql://localhost/db", "postgresql://localhost/db"),
    ("redis://localhost:6379/0", "redis://localhost:6379/0"),
    ("", ""),
]


@pytest.mark.parametrize(("url", "shown"), URLS)
def test_a_password_is_masked_wherever_it_may_stand(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize("odd", ["/", "#", "?", "@", ":", "%", "[", "%zz", " ", "\\", "'"])
@pytest.mark.parametrize("form", ["redis://:{}@localhost/0", "postgresql://user:{}@localhost/db"])
def test_a_password_that_was_not_encoded_shows_nowhere(form: str, odd: str) -> None:
    url = form.format(f"{SECRET}{odd}{SECRET}")
    assert SECRET not in masked(url)
    name = "redis_url" if form.startswith("redis") else "postgres_url"
    refused: ConfigurationError | None = None
    try:
        shown = repr(Settings(**{name: url}))
    except ConfigurationError as error:
        shown, refused = str(error), error
    assert SECRET not in shown
    assert refused is None or ("percent-encode" in refused.reason and refused.__cause__ is None)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("redis_url", f"redis://localhost:{SECRET}/0"),
        ("redis_url", f"redis://user:word@localhost:{SECRET}"),
        ("postgres_url", f"postgresql://user:word@[::1]:{SECRET}/db?sslmode=require"),
        ("postgres_url", f"postgresql://one:5432,two:{SECRET}/db"),
    ],
)
def test_a_port_that_is_no_number_is_named_as_that_and_not_shown(name: str, url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings(**{name: url})
    assert "the port is not a number" in caught.value.reason
    assert "percent-encode" not in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://::1:6379/0", "redis://user:a/b@localhost/0", "redis://:a?b:c@localhost:x/0"])
def test_a_url_that_is_torn_elsewhere_is_told_to_encode(url: str) -> None:
    with pytest.raises(ConfigurationError, match="percent-encode"):
        Settings(redis_url=url)


def test_what_is_shown_of_settings_and_clients_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(redis_url=URLS[0][0], postgres_url=URLS[6][0])
    shown = [repr(settings), str(settings), f"{settings}", pprint.pformat(settings)]
    shown += [repr(StateCache(settings=settings)), repr(AsyncStateCache(settings=settings).namespace("runs"))]
    logging.getLogger("statecache").warning("%s %r", settings, StateCache(settings=settings))
    shown.append(caplog.text)
    assert [text for text in shown if SECRET in text] == []
    assert "redis://:***@localhost" in caplog.text


def test_a_wrong_value_of_a_secret_setting_is_not_repeated() -> None:
    text = _refusal(redis_url=f"http://:{SECRET}@localhost", postgres_url=f"x://u:{SECRET}@localhost", shards=SECRET)
    assert SECRET not in text
    assert [part.split(":")[0] for part in text.split("; ")] == ["redis_url", "postgres_url", "shards"]
