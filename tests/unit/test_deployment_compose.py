"""docker-compose.yml: what it names exists, nothing is open or known beforehand, and things start in their order."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from statecache import Settings
from statecache_workers.runner import LEAVE_S
from tests.support.deployment_files import (
    CONFIG,
    ROOT,
    assignments,
    compose,
    fresh_passwords,
    interpolated,
    mounts,
    seconds_of,
    services,
    stages,
    variables_of,
    worker_image,
)

ONE_SHOT = {"roles", "migrate", "grants"}
LASTING = sorted(services().keys() - ONE_SHOT)
PASSWORDS = re.findall(r"(?m)^make (\w+)$", (CONFIG / "passwords.sh").read_text())
IMAGE = re.compile(r"[\w./-]+:v?\d+\.\d[\w.-]*")
"""An image with a tag that says at least a minor version."""


def bytes_of(size: str) -> int:
    """Return a size as Docker, Redis and Postgres write it, in bytes."""
    found = re.fullmatch(r"(\d+)([kmg])b?", size.lower())
    assert found, size
    return int(found[1]) << {"k": 10, "m": 20, "g": 30}[found[2]]


def _pinned(image: str) -> bool:
    return IMAGE.fullmatch(image) is not None


def test_whatever_is_mounted_exists() -> None:
    sources = {source for service in services().values() for source in mounts(service).values()}
    assert len(sources) >= 8
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_every_volume_that_is_named_is_declared_and_used() -> None:
    named = {mount.split(":")[0] for service in services().values() for mount in service.get("volumes", ())}
    assert {name for name in named if not name.startswith(".")} == set(compose()["volumes"])


@pytest.mark.parametrize("name", services())
def test_images_are_pinned_by_tag(name: str) -> None:
    assert _pinned(services()[name]["image"])


def test_an_image_that_is_not_pinned_is_found() -> None:
    assert not any(_pinned(image) for image in ("redis", "redis:latest", "redis:7", "grafana/grafana:main"))


def test_every_password_is_made_and_nothing_else_has_to_be_given() -> None:
    declared = {name: one["file"] for name, one in compose()["secrets"].items()}
    assert declared == {name: f"./config/secrets/{name}" for name in PASSWORDS}
    assert {name for service in services().values() for name in service.get("secrets", ())} == set(declared)
    assert dict(variables_of(compose())) == {"WORKERS": ":-"}


def test_passwords_are_made_once(tmp_path: Path) -> None:
    made = fresh_passwords(tmp_path)
    assert set(made) == set(PASSWORDS)
    assert all(re.fullmatch("[0-9a-f]{48}", password) for password in made.values())
    assert len(set(made.values())) == len(made)
    (tmp_path / "config/secrets/GRAFANA_ADMIN_PASSWORD").unlink()
    again = fresh_passwords(tmp_path)
    assert [name for name in made if made[name] != again[name]] == ["GRAFANA_ADMIN_PASSWORD"]


def test_no_secret_is_written_down_and_each_service_has_those_that_it_names() -> None:
    for name, service in services().items():
        given = service.get("secrets", [])
        for variable, text in service.get("environment", {}).items():
            value = str(interpolated(text, {}))
            if re.search("PASSWORD|URL", variable) and variable != "PROMETHEUS_URL":
                named = re.findall(r"\$\{(\w+)\}|^/run/secrets/(\w+)$", value)
                assert named, f"{name}: {variable}"
                assert {one or other for one, other in named} <= set(given), f"{name}: {variable}"
            assert not re.search(r"://[^$@]*:[^$@]+@", value), f"{name}: {variable}"
        probe = interpolated(service.get("healthcheck", {}).get("test", []), {})
        assert set(re.findall(r"/run/secrets/(\w+)", str(probe))) <= set(given), name


def test_secrets_become_variables_and_stand_in_the_urls_that_name_them(tmp_path: Path) -> None:
    (tmp_path / "REDIS_WORKER_PASSWORD").write_text("0123abcd\n")
    given = {
        "PATH": os.environ["PATH"], "SECRETS_DIR": str(tmp_path), "OTHER": "${REDIS_WORKER_PASSWORD}",
        "STATECACHE_REDIS_URL": "redis://worker:${REDIS_WORKER_PASSWORD}@redis:6379/0",
    }  # fmt: skip
    command = ["sh", str(CONFIG / "with-secrets.sh"), "env"]
    seen = assignments(subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout)
    assert seen["STATECACHE_REDIS_URL"] == "redis://worker:0123abcd@redis:6379/0"
    assert seen["REDIS_WORKER_PASSWORD"] == "0123abcd"
    assert seen["OTHER"] == given["OTHER"]
    assert "SECRETS_DIR" not in seen
    (tmp_path / "UNREADABLE").mkdir()
    assert subprocess.run(command, env=given, capture_output=True, check=False).returncode != 0


def test_ports_are_open_to_this_machine_alone() -> None:
    ports = [port for service in services().values() for port in service.get("ports", ())]
    assert len(ports) == 4
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", services())
def test_no_service_has_more_rights_than_it_needs(name: str) -> None:
    service = services()[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert "privileged" not in service
    assert service.get("user", worker_image().last("USER").text) != "root"


@pytest.mark.parametrize("name", services())
def test_no_service_can_take_the_whole_machine(name: str) -> None:
    assert bytes_of(services()[name]["mem_limit"]) > 0
    assert services()[name]["pids_limit"] > 0


def test_servers_have_the_room_that_their_settings_take() -> None:
    redis = dict(
        re.findall(r"^(maxmemory|maxmemory-clients) (\w+)$", (CONFIG / "redis.conf").read_text(), re.MULTILINE)
    )
    assert bytes_of(services()["redis"]["mem_limit"]) > 1.5 * sum(map(bytes_of, redis.values()))
    postgres = dict(re.findall(r"^(\w+) = '?([^'\n]+)", (CONFIG / "postgres.conf").read_text(), re.MULTILINE))
    sessions = int(postgres["max_connections"])
    room = bytes_of(postgres["shared_buffers"]) + sessions * bytes_of(postgres["work_mem"])
    assert bytes_of(services()["postgres"]["mem_limit"]) > room
    assert services()["postgres"]["pids_limit"] > 2 * sessions


@pytest.mark.parametrize("name", LASTING)
def test_whatever_lasts_is_asked_for_its_health_and_comes_back(name: str) -> None:
    service = services()[name]
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert service["restart"] == "unless-stopped"
    assert seconds_of(service["healthcheck"]["timeout"]) < seconds_of(service["healthcheck"]["interval"])


def test_things_start_in_their_order() -> None:
    waits = {
        name: {other: how["condition"] for other, how in service.get("depends_on", {}).items()}
        for name, service in services().items()
    }
    healthy, done = "service_healthy", "service_completed_successfully"
    assert waits["roles"] == {"postgres": healthy}
    assert waits["migrate"] == {"redis": healthy, "roles": done}
    assert waits["grants"] == {"migrate": done}
    assert waits["workers"] == {"redis": healthy, "grants": done}
    waited_for = {other for one in waits.values() for other, how in one.items() if how == done}
    assert waited_for == ONE_SHOT


def test_a_worker_has_the_time_to_drain_and_to_leave() -> None:
    needed = Settings().drain_s + 2 * LEAVE_S
    assert seconds_of(services()["workers"]["stop_grace_period"]) > needed


def test_workers_are_asked_at_the_port_that_they_serve() -> None:
    service = services()["workers"]
    port = str(service["environment"]["STATECACHE_HEALTH_PORT"])
    assert service["expose"] == [port]
    assert f":{port}/healthz" in service["healthcheck"]["test"][-1]
    assert worker_image().environment["STATECACHE_HEALTH_PORT"] == port
    assert int(interpolated(service, {})["deploy"]["replicas"]) == 2


def test_monitoring_is_a_profile_that_finds_the_workers() -> None:
    assert {name for name in services() if services()[name].get("profiles") == ["monitoring"]} == {
        "prometheus",
        "grafana",
    }
    scraped = _read("prometheus.compose.yml")["scrape_configs"]
    everywhere = {job["job_name"] for job in _read("prometheus.yml")["scrape_configs"]}
    for job in scraped:
        assert job["job_name"] in everywhere
        for found in job["dns_sd_configs"]:
            assert found["names"] == ["workers"]
            assert services()["workers"]["expose"] == [str(found["port"])]
    grafana = services()["grafana"]
    inside = mounts(grafana)
    (source,) = _read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert re.findall(r"\$\{(\w+)\}", source["url"]) == ["PROMETHEUS_URL"]
    assert grafana["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"
    for provider in _read("grafana/provisioning/dashboards/statecache.yml")["providers"]:
        assert (ROOT / inside[provider["options"]["path"]] / "statecache.json").exists()


def _read(path: str) -> Any:
    return yaml.safe_load((CONFIG / path).read_text())


def test_what_compose_builds_is_what_the_dockerfile_says() -> None:
    for name in ("migrate", "workers"):
        build = services()[name]["build"]
        assert build["context"] == "."
        assert stages((ROOT / build["dockerfile"]).read_text())[-1] == worker_image()
    assert services()["workers"]["image"].endswith(
        f":{worker_image().last('LABEL').pairs['org.opencontainers.image.version']}"
    )
