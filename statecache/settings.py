"""The only place that reads the environment. Every limit is named noun first, with its unit.

`Settings()` reads `STATECACHE_*` variables; keyword arguments win over them. Secrets inside URLs never show in
`repr()`, logs or errors: use `masked()`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from statecache import _process
from statecache.errors import ConfigurationError
from statecache.model import COMMIT_BYTES_MAX, STATES_PER_COMMIT_MAX, VALUE_BYTES_MAX, Durability, ReadMode

_PREFIX = "STATECACHE_"
_NOT_MEANT_FOR_US = re.compile(r"STATECACHE_(TEST_.*|(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_.*)?))")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,32})?")


def process_environment() -> dict[str, str]:
    """Return a copy of this process's environment, for child processes."""
    return dict(os.environ)


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{_PREFIX}{name.upper()}"


def unknown_variables() -> dict[str, str]:
    """Return the variables that look like settings and are none, each with the one perhaps meant, or ''.

    `STATECACHE_DEBUG` is the command line's, `STATECACHE_TEST_…` are the test suite's, and some are Kubernetes' own: it
    tells every container of services that are called like us.
    """
    known = [name.upper() for name in (*Settings.model_fields, "debug")]
    names = sorted(name for name in os.environ if name.startswith(_PREFIX) and not _NOT_MEANT_FOR_US.fullmatch(name))
    unknown = [name for name in names if name.removeprefix(_PREFIX) not in known]
    meant = {name: get_close_matches(name.removeprefix(_PREFIX), known, 1) for name in unknown}
    return {name: variable_of(found[0]) if found else "" for name, found in meant.items()}


def writer_of(settings: Settings) -> str:
    """Return who commits: the writer that was named, or this process, which a fork may have made since."""
    return settings.writer if "writer" in settings.model_fields_set else _process.name


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return the settings with other values, checked anew; who named no writer has still named none."""
    unnamed = {"writer"} - settings.model_fields_set
    return Settings(**{**settings.model_dump(exclude=unnamed), **values})


def pin_difference(found: Mapping[str, object], ours: Mapping[str, object]) -> tuple[str, str]:
    """Return how a data set's pin differs from ours, and what to do about it; empty texts where it does not.

    What is no setting, like the hash, belongs to the release that made the data set.
    """
    differ = [name for name in found if found[name] != ours[name]]
    told = ", ".join(f"{name} {found[name]}" for name in differ)
    said = ", ".join(f"{'the settings say' if name in Settings.model_fields else 'this release'} {ours[name]}"
                     for name in differ)  # fmt: skip
    mend = [f"{variable_of(name)}={found[name]}" for name in differ if name in Settings.model_fields]
    parts = [f"use the same settings everywhere, here {' '.join(mend)}, or the servers that were meant"] if mend else []
    if len(mend) < len(differ):
        parts.append("use the release of statecache that made it")
    if "shards" in differ:
        parts.append("the shard count changes only by an offline migration")
    return (f"pinned to {told}; {said}", "; ".join(parts)) if differ else ("", "")


def renaming(schema: str, named: str | None) -> tuple[str, str]:
    """Return how a schema is another than its functions name, and what to do; empty texts where it is not."""
    if named in (None, schema):
        return "", ""
    back = f'ALTER SCHEMA "{schema}" RENAME TO "{named}"'
    copied = (
        "where that one is there too, this is a copy: restore the backup, under its name, into a database of its own"
    )
    what = f"the functions of schema {schema} were made in schema {named}, and write there: it was renamed"
    return what, f"rename it back: {back}; {copied}"


_SHOWN = re.compile(
    r"application_name|channel_binding|client_encoding|connect_timeout|dbname|fallback_application_name"
    r"|gssdelegation|gssencmode|gsslib|host|hostaddr|keepalives|keepalives_count|keepalives_idle"
    r"|keepalives_interval|krbsrvname|load_balance_hosts|max_protocol_version|min_protocol_version|options"
    r"|passfile|port|replication|require_auth|requirepeer|service|ssl_max_protocol_version"
    r"|ssl_min_protocol_version|sslcert|sslcertmode|sslcompression|sslcrl|sslcrldir|sslkey|sslmode"
    r"|sslnegotiation|sslrootcert|sslsni|target_session_attrs|tcp_user_timeout|user|client_name|db"
    r"|health_check_interval|max_connections|protocol|retry|retry_on_error|retry_on_timeout"
    r"|socket_connect_timeout|socket_keepalive|socket_timeout|ssl_ca_certs|ssl_ca_path|ssl_cert_reqs"
    r"|ssl_certfile|ssl_check_hostname|ssl_keyfile|ssl_min_version|timeout|username",
    re.IGNORECASE,
)
"""The options of URLs and keyword strings whose values are no secrets: any other may be a password's, misspelt."""


def masked(url: str) -> str:
    """Return the URL or keyword string without its password, or what may be one; never raise.

    All that stands between the user's name and the last `@` counts as password: rather too much is hidden than a part
    of one that was not percent-encoded.
    """
    scheme, _, rest = url.partition("://")
    if not re.fullmatch(r"\w+", scheme):
        words = r"(?is)\b(password|sslpassword)\s*=\s*(?:'(?:[^'\\]|\\.)*(?:'|$)|.*?(?=\s+\w+\s*=|$))"
        words_of_any = words.replace("password|sslpassword", r"\w+")
        return re.sub(words_of_any, _shown, re.sub(words, r"\1=***", url))
    before, at, after = rest.rpartition("@")
    user, colon, _ = before.partition(":")
    if not at:
        after = re.sub(r"^([^:/?#\[]*):(?!\d+(?:[,/?#]|$))[^/?#]*", r"\1:***", after)
    after = re.sub(r"(?<=[?&])([^=&#]+)=[^&#]*", _shown, after)
    return f"{scheme}://{user}{colon and ':***'}{at}{after}"


def _shown(option: re.Match[str]) -> str:
    """Return an option as it may be shown: all of it, or its name, where more stands there than one plain value.

    A database may be given as a whole URL or keyword string of its own, and `options` hold any setting.
    """
    torn = re.search(r"=\s*(?:'(?:[^'\\]|\\.)*$|(?!')(?:\\.|\S)*\s+\S)", option[0], re.DOTALL)
    within = re.search(r"pass|secret|token|;|(:|%3a)(/|%2f){2}.*(@|%40)", option[0].partition("=")[2], re.IGNORECASE)
    return option[0] if _SHOWN.fullmatch(option[1]) and not torn and not within else f"{option[1]}=***"


def _check_url(url: str) -> str:
    """Return the URL, or raise ValueError where libraries might split it otherwise than was meant."""
    rest = url.partition("://")[2]
    authority, _, path = re.match(r"([^/?#]*)(/?)([^?]*)", rest).groups()  # type: ignore[union-attr]
    user, _, hosts = authority.rpartition("@")
    ports = [re.fullmatch(r"(?:\[[^]]*\]|[^:\[\]]*)(?::(\d*))?", host) for host in hosts.split(",")]
    torn = "@" in user or (authority and "@" in path) or re.search(r"%(?![0-9A-Fa-f]{2})", user)
    if not torn and not all(ports) and "@" not in rest[len(authority) :] and _ports_are_words(hosts):
        # It is not shown: it may be a password that no host follows.
        raise ValueError("cannot be taken apart: the port is not a number")
    if torn or not all(ports):
        raise ValueError("cannot be taken apart: percent-encode what is not a letter or digit in user and password")
    return url


def _ports_are_words(hosts: str) -> bool:
    """Return whether every host stands as it should, but for what follows its colon."""
    return all(re.fullmatch(r"(?:\[[^]]*\]|[^:\[\]]*)(?::[^:\[\]]*)?", host) for host in hosts.split(","))


class Settings(BaseSettings):
    """All settings of a deployment, checked, with defaults that fit one machine."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        repr=False,
        description="where Redis is: `redis://`, `rediss://` (TLS) or `unix://`, with user and password of an ACL user",
    )
    postgres_url: str = Field(
        "postgresql://127.0.0.1:5432/postgres",
        repr=False,
        description="where Postgres is: a URL or libpq keywords; TLS by `sslmode`, `sslrootcert`, `sslcert`, `sslkey`",
    )
    prefix: str = Field(
        "sc", description="of the Redis keys; recorded with `postgres_schema` as a pair and compared at every connect"
    )
    postgres_schema: str = Field("statecache", description="of the tables; recorded and compared with `prefix`")
    shards: int = Field(
        64, ge=1, le=4096, description="how many there are; pinned at first use, changes only by an offline migration"
    )
    fence: Literal["on", "off"] = Field(
        "on", description="`off` only for servers that do not show their replid; refuses `postgres` durability"
    )
    writer: str = Field("", description="who commits; stands in every change; without it host:pid of the process")
    application_version: str = Field(
        "", description="of the program that uses the client, for its checkpoints to say: a release, or a commit's hash"
    )
    durability: Durability = Field(
        "memory", description="what a write waits for where neither call nor namespace says otherwise"
    )
    replicas: int = Field(1, ge=1, le=16, description="how many must acknowledge at `replica`")
    read: ReadMode = Field("local", description="where `get` reads where neither call nor namespace says otherwise")
    stale_reads: bool = Field(
        False,
        description="whether reads take what Redis holds, which may be lost, "
        "while a failover waits for a Postgres that is down",
    )

    timeout_s: float = Field(10.0, gt=0, le=10**9, description="of a verb")
    connect_timeout_s: float = Field(5.0, gt=0, description="of opening a connection")
    redis_connections_max: int = Field(16, ge=1, description="of one client; transactions hold at most half of them")
    postgres_connections_max: int = Field(8, ge=1, description="of one client")
    redis_ca_file: str | None = Field(None, description="TLS to Redis: the authority's certificate")
    redis_certificate_file: str | None = Field(None, description="TLS to Redis: the client's certificate")
    redis_key_file: str | None = Field(None, description="TLS to Redis: the key of the client's certificate")

    near_bytes_max: int = Field(
        64 * 1024 * 1024, ge=0, description="kept of what was read, in one client; 0 keeps nothing"
    )
    near_entries_max: int = Field(50_000, ge=0, description="states kept of what was read; 0 keeps nothing")
    near_window_s: float = Field(
        2.0, gt=0, description="how long what is kept is believed without hearing from the server"
    )

    redis_ttl_s: float = Field(7 * 86400.0, gt=0, description="when a clean state may leave Redis")
    absent_ttl_s: float = Field(3600.0, gt=0, description="when a known absence may leave Redis; at most `redis_ttl_s`")
    value_bytes_max: int = Field(
        VALUE_BYTES_MAX,
        ge=1,
        le=VALUE_BYTES_MAX,
        description=f"of one value; a commit takes {STATES_PER_COMMIT_MAX} states and {COMMIT_BYTES_MAX >> 20} MiB",
    )
    backlog_entries_max: int = Field(100_000, ge=1, description="not yet flushed, of a shard; then `Backpressure`")
    backlog_bytes_max: int = Field(
        256 * 1024 * 1024, ge=1, description="not yet flushed, of a shard; then `Backpressure`"
    )
    hydrate_token_s: float = Field(
        3.0, gt=0, description="how long a loader that died holds others up; at most `timeout_s`"
    )
    reservation_s: float = Field(3.0, gt=0, description="how long an opener that died holds others up")
    step_claim_s: float = Field(
        10.0, ge=0.2, le=3600, description="how long a step is believed to be running without a word from its agent"
    )

    lease_s: float = Field(5.0, gt=0, le=86_400, description="worker: how long it owns a shard without a sign of life")
    lease_renew_s: float = Field(1.25, gt=0, description="worker: how often it gives one; at most a third of `lease_s`")
    flush_batch_max: int = Field(1000, ge=1, le=10_000, description="worker: entries of one transaction")
    flush_bytes_max: int = Field(32 * 1024 * 1024, ge=1, description="worker: bytes of one transaction")
    retention_s: float = Field(60.0, ge=0, description="worker: how long flushed changes stay in the streams")
    retention_bytes_max: int = Field(
        256 * 1024 * 1024, ge=0, description="worker: how much of flushed changes stays in the streams, of all shards"
    )
    drain_s: float = Field(20.0, ge=0, description="worker: what SIGTERM leaves for flushing")
    tips_max: int = Field(50_000, ge=1, description="worker: keys whose last version it remembers")
    history_values_bytes_max: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="worker: of values that it remembers, so that the next ones become deltas",
    )
    prune_interval_s: float = Field(
        21_600.0,
        ge=1,
        description="worker: how long after a pass through a namespace whose policy lets values go the next one begins",
    )
    health_host: str = Field(
        "127.0.0.1", description="worker: the address at which `/healthz`, `/readyz` and `/metrics` are served"
    )
    health_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="worker: the port of these; without it they are not served; 0 takes any, logged",
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _not_settings(error, values) from None

    @field_validator("prefix")
    @classmethod
    def _prefix_is_a_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("must match [A-Za-z0-9_.-]{1,64}")
        return value

    @field_validator("postgres_schema")
    @classmethod
    def _schema_is_a_name(cls, value: str) -> str:
        if not _SCHEMA.fullmatch(value):
            raise ValueError("must match [a-z_][a-z0-9_]{0,62}")
        return value

    @field_validator("writer", "application_version")
    @classmethod
    def _name_is_text(cls, value: str) -> str:
        if "\0" in value or len(value.encode("utf-8", "surrogatepass")) > 256 or re.search("[\ud800-\udfff]", value):
            raise ValueError("must be at most 256 UTF-8 bytes without NUL and lone surrogates")
        return value

    @field_validator("health_host")
    @classmethod
    def _health_host_is_a_name_or_an_address(cls, value: str) -> str:
        if not _HOST.fullmatch(value):
            raise ValueError("must be a host name or an address, like 127.0.0.1, 0.0.0.0 or ::1, without a port")
        return value

    @field_validator("redis_url")
    @classmethod
    def _redis_url_is_one(cls, value: str) -> str:
        if not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must start with redis://, rediss:// or unix://")
        if not value.startswith("unix://") and not re.fullmatch(r"\w+://[^/?#]*(/\d*)?(\?.*)?", _check_url(value)):
            raise ValueError("must name a database by its number, like redis://localhost:6379/0")
        return _check_url(value)

    @field_validator("postgres_url")
    @classmethod
    def _postgres_url_is_one(cls, value: str) -> str:
        if value.startswith(("postgresql://", "postgres://")):
            return _check_url(value)
        if "://" in value.partition("=")[0] or "=" not in value:
            raise ValueError("must start with postgresql:// or be made of keywords, like host=… dbname=…")
        return value

    @model_validator(mode="after")
    def _relations_hold(self) -> Self:
        for small, times, large, why in (
            ("lease_renew_s", 3, "lease_s", "two lost renewals must not lose a lease"),
            ("absent_ttl_s", 1, "redis_ttl_s", "an absence is worth less than a state"),
            ("hydrate_token_s", 1, "timeout_s", "a waiter must outlive a dead reader's token"),
        ):
            less, more = getattr(self, small), getattr(self, large)
            if less * times > more:
                product = f"{small} * {times}" if times > 1 else small
                raise ValueError(f"{product} must be <= {large}, and they are {less:g} and {more:g}: {why}")
        return self

    @model_validator(mode="after")
    def _writer_is_somebody(self) -> Self:
        if not self.writer:
            self.__dict__["writer"] = _process.name
            self.model_fields_set.discard("writer")
        return self

    def __repr__(self) -> str:
        redis, postgres = masked(self.redis_url), masked(self.postgres_url)
        return f"Settings(redis_url={redis!r}, postgres_url={postgres!r}, prefix={self.prefix!r})"

    __str__ = __repr__


_WORDS = {
    "int_parsing": "must be a whole number", "int_type": "must be a whole number",
    "int_from_float": "must be a whole number", "float_parsing": "must be a number", "float_type": "must be a number",
    "finite_number": "must be a finite number", "string_type": "must be text", "literal_error": "must be {expected}",
    "greater_than": "must be more than {gt:g}", "greater_than_equal": "must be at least {ge:,}",
    "less_than_equal": "must be at most {le:,}", "extra_forbidden": "there is no such setting",
}  # fmt: skip
"""What is wrong with a value, by pydantic's name for the error."""


def _not_settings(error: ValidationError, given: Mapping[str, object]) -> ConfigurationError:
    """Return the error that names each wrong setting: by its variable, unless it was given as an argument."""
    what: list[str] = []
    variables: set[str] = set()
    for one in error.errors():
        name = ".".join(str(part) for part in one["loc"])
        text = one["msg"].removeprefix("Value error, ")
        known = [field for field in Settings.model_fields if re.search(rf"\b{field}\b", name or text)]
        variables.update(map(variable_of, known))
        if one["type"] in _WORDS:
            text = _WORDS[one["type"]].format_map(one.get("ctx", {}))
            number = re.fullmatch(r"-?[\d.]{1,20}", str(one["input"]))  # whatever else was put there may be a secret
            if number and one["type"] not in ("string_type", "extra_forbidden"):
                text += f", not {one['input']}"
        if one["type"] == "extra_forbidden" and (near := get_close_matches(name, Settings.model_fields, n=1)):
            text += f" (did you mean {near[0] if name in given else variable_of(near[0])}?)"
        label = name if name in given else variable_of(name)
        what.append(f"{label}: {text}" if name else text)
    where = f", here {', '.join(sorted(variables))}" if variables else ""
    return ConfigurationError("; ".join(what), hint=f"Settings come from arguments or STATECACHE_* variables{where}.")
