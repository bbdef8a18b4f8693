"""A redis-server that speaks TLS, with the certificates of both sides."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from statecache.testing.folders import Throwaway, ordinary_user
from statecache.testing.ports import free_port
from statecache.testing.valkey import Valkey


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def certificates(folder: Path) -> None:
    """Create a CA, another CA, and certificates of a server on loopback and of a client."""
    for name in ("ca", "other"):
        _openssl(
            folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.pem", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip
    (folder / "loopback.ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for name in ("server", "client"):
        request = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
        _openssl(folder, *request, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        sign = ["x509", "-req", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        _openssl(folder, *sign, "-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "loopback.ext")


@pytest.fixture(scope="module")
def tls() -> Iterator[tuple[str, Path]]:
    """The URL of a redis-server that speaks TLS with those whose certificate it knows, and the certificates."""
    program = shutil.which("redis-server")
    if program is None or shutil.which("openssl") is None:
        pytest.skip("TLS is not tested: there is no redis-server, or no openssl, on PATH")
    folder = Throwaway.create(ordinary_user())
    certificates(folder.path)
    port = free_port()
    config = {
        "port": "0", "tls-port": str(port), "tls-cert-file": f"{folder.path}/server.pem", "tls-auth-clients": "yes",
        "tls-key-file": f"{folder.path}/server.key", "tls-ca-cert-file": f"{folder.path}/ca.pem",
    }  # fmt: skip
    server = Valkey(folder.path, binary=Path(program), port=port, port_is_fixed=True, config=config)
    try:
        server.start()
        yield server.url.replace("redis://", "rediss://"), folder.path
    finally:
        server.discard()
        folder.remove()


def tls_files(folder: Path, *, ca: str = "ca", client: str = "client") -> dict[str, str]:
    """Return the settings that name a side's certificates."""
    files = {"redis_ca_file": f"{folder}/{ca}.pem"} if ca else {}
    if client:
        files |= {"redis_certificate_file": f"{folder}/{client}.pem", "redis_key_file": f"{folder}/{client}.key"}
    return files
