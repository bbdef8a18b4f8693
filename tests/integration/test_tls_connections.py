"""Connections that speak TLS share what they trust and who they are, for as long as the files say the same."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statecache import Settings
from statecache.concurrency import TASKS, THREADS, Concurrency, run
from statecache.core.redis.tier import RedisTier
from statecache.errors import RedisUnavailable
from statecache.keys import KeySpace
from tests.fixtures.servers import MakeSettings
from tests.fixtures.tls import tls_files

TOGETHER = 8


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each time that the system's authorities were read."""
    read: list[None] = []
    whole: Any = ssl.SSLContext.load_default_certs

    def counted(context: ssl.SSLContext, *purpose: Any) -> None:
        read.append(None)
        whole(context, *purpose)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", counted)
    return read


def _tier(settings: Settings) -> RedisTier:
    return RedisTier(settings, KeySpace(settings.prefix, settings.shards))


async def _linked(tier: RedisTier) -> None:
    link = await tier.link()
    await link.end()


async def test_connections_that_are_opened_together_and_later_read_the_authorities_once(
    make_settings: MakeSettings, tls: tuple[str, Path], read: list[None]
) -> None:
    url, folder = tls
    tier = _tier(make_settings(redis_url=url, **tls_files(folder)))
    read.clear()
    await asyncio.gather(*(_linked(tier) for _ in range(TOGETHER)))
    await _linked(tier)
    assert len(read) == 1


@pytest.mark.parametrize("replaced", [("ca.pem", "other.pem"), ("client.pem", "other.pem")], ids=str)
async def test_a_file_that_is_replaced_counts_from_the_next_connection_on(
    make_settings: MakeSettings, tls: tuple[str, Path], tmp_path: Path, read: list[None], replaced: tuple[str, str]
) -> None:
    url, folder = tls
    for name in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    tier = _tier(make_settings(redis_url=url, **tls_files(tmp_path)))
    await _linked(tier)
    there, another = replaced
    (tmp_path / there).write_bytes((folder / another).read_bytes())
    if there == "client.pem":
        key = another.replace(".pem", ".key")
        (tmp_path / "client.key").write_bytes((folder / key).read_bytes())
    with pytest.raises(RedisUnavailable) as caught:
        await tier.link()
    behind = ("connect", "connection")  # TLS 1.3's handshake is over for the client when the server refuses it
    refused = ("tls",) if there == "ca.pem" else ("tls", *behind)
    assert caught.value.reason in refused
    for name in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    read.clear()
    await _linked(tier)
    await _linked(tier)
    assert len(read) == 1


@pytest.mark.parametrize("io", [TASKS, THREADS], ids=["tasks", "threads"])
@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("ca.pem", None, r"redis_ca_file \S+/ca\.pem: No such file or directory\. The file could be used when"),
        ("ca.pem", "", r"redis_ca_file \S+/ca\.pem: it holds no certificate"),
        ("client.pem", None, r"redis_certificate_file \S+/client\.pem: No such file"),
        ("client.key", None, r"redis_key_file \S+/client\.key: No such file"),
        ("client.key", "torn", r"redis_certificate_file \S+ with redis_key_file \S+: they cannot be used together"),
    ],
)
async def test_a_file_that_cannot_be_used_any_more_is_named(
    make_settings: MakeSettings, tls: tuple[str, Path], tmp_path: Path, name: str, text: str | None, told: str,
    io: Concurrency,
) -> None:  # fmt: skip
    url, folder = tls
    for one in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / one).write_bytes((folder / one).read_bytes())
    settings = make_settings(redis_url=url, **tls_files(tmp_path))
    tier = RedisTier(settings, KeySpace(settings.prefix, settings.shards), io=io)
    call = _linked if io is TASKS else lambda one: asyncio.to_thread(run, _linked(one))
    await call(tier)
    if text is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(text)
    with pytest.raises(RedisUnavailable, match=told):
        await call(tier)
    (tmp_path / name).write_bytes((folder / name).read_bytes())
    await call(tier)


def _another_link(file: Path, another: Path) -> None:
    """Have the name lead to another file, as a mounted secret that is renewed does."""
    link = file.with_name("fresh")
    link.symlink_to(another)
    link.replace(file)


def _written_over(file: Path, another: Path) -> None:
    """Write into the file, and give it the time that it had, and its length."""
    times, length = file.stat(), len(file.read_bytes())
    file.write_bytes(another.read_bytes().ljust(length, b"\n")[:length])
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("replace", [_another_link, _written_over])
async def test_a_file_that_is_named_in_the_url_counts_however_it_is_replaced(
    make_settings: MakeSettings, tls: tuple[str, Path], tmp_path: Path, replace: Callable[[Path, Path], None]
) -> None:
    url, folder = tls
    (tmp_path / "ca.pem").write_bytes((folder / "ca.pem").read_bytes() + b"\n" * 100)
    named = f"{url}?ssl_ca_certs={tmp_path}/ca.pem&ssl_certfile={folder}/client.pem&ssl_keyfile={folder}/client.key"
    tier = _tier(make_settings(redis_url=named))
    await _linked(tier)
    replace(tmp_path / "ca.pem", folder / "other.pem")
    with pytest.raises(RedisUnavailable) as caught:
        await tier.link()
    assert caught.value.reason == "tls"


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
async def test_an_authority_of_the_systems_that_appears_or_goes_counts_from_the_next_connection_on(
    make_settings: MakeSettings, tls: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    url, folder = tls
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    file = first / (f"{_hashed(folder / 'ca.pem')}.0" if variable == "SSL_CERT_DIR" else "authorities.pem")
    monkeypatch.setenv(variable, f"{first}{os.pathsep}{second}" if variable == "SSL_CERT_DIR" else str(file))
    file.write_bytes((folder / "ca.pem").read_bytes())
    settings = make_settings(redis_url=url, **tls_files(folder, ca=""))
    file.unlink()
    tier = _tier(settings)
    for _ in range(2):
        await _refused(tier)
        file.write_bytes((folder / "ca.pem").read_bytes())
        await _linked(tier)
        file.unlink()
    await _refused(tier)


async def test_a_folder_of_authorities_is_read_for_each_connection(
    make_settings: MakeSettings, tls: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = tls
    file = tmp_path / f"{_hashed(folder / 'ca.pem')}.0"
    file.write_bytes((folder / "ca.pem").read_bytes())
    of_client = f"ssl_certfile={folder}/client.pem&ssl_keyfile={folder}/client.key"
    tier = _tier(make_settings(redis_url=f"{url}?ssl_ca_path={tmp_path}&{of_client}"))
    await _linked(tier)
    file.write_bytes((folder / "other.pem").read_bytes())
    await _refused(tier)


@pytest.mark.parametrize("io", [TASKS, THREADS], ids=["async", "sync"])
async def test_nobody_is_asked_for_the_password_of_a_key_that_is_encrypted_now(
    make_settings: MakeSettings, tls: tuple[str, Path], tmp_path: Path, io: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    url, folder = tls
    for name in ("client.pem", "client.key"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    settings = make_settings(redis_url=url, **tls_files(folder) | tls_files(tmp_path, ca=""))
    tier = RedisTier(settings, KeySpace(settings.prefix, settings.shards), io=io)
    await _linked(tier)
    _openssl("rsa", "-aes256", "-passout", "pass:secret", "-in", folder / "client.key", "-out", tmp_path / "client.key")
    with pytest.raises(RedisUnavailable):
        await tier.link()
    assert "pass phrase" not in "".join(capfd.readouterr())


def _hashed(certificate: Path) -> str:
    """Return the name under which OpenSSL looks for an authority in a folder."""
    return _openssl("x509", "-hash", "-noout", "-in", certificate).strip()


def _openssl(*words: str | Path) -> str:
    return subprocess.run(["openssl", *words], check=True, capture_output=True, text=True).stdout


async def _refused(tier: RedisTier) -> None:
    with pytest.raises(RedisUnavailable) as caught:
        await tier.link()
    assert caught.value.reason == "tls"
