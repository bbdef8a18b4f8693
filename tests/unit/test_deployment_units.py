"""The systemd unit, the Kubernetes manifests and the example of settings: they fit the code and each other."""

from __future__ import annotations

import copy
import json
import re
from importlib.metadata import version
from typing import Any

import kubernetes_validate
import pytest
import yaml

from statecache import Settings
from statecache_workers import runner
from tests.support.deployment_files import (
    CONFIG,
    INSIDE,
    KUBERNETES,
    ROOT,
    assignments,
    manifests,
    seconds_of,
    services,
    worker_image,
    worker_unit,
)

EXAMPLE = (CONFIG / "statecache.env.example").read_text()
FILES = [
    ROOT / "docker-compose.yml",
    ROOT / "workers/Dockerfile",
    *(path for path in sorted(CONFIG.rglob("*")) if path.is_file() and path.suffix != ".json"),
]
MIGRATION = f"statecache-migrate-{version('statecache').replace('.', '-')}"
STOP_S = Settings().drain_s + 2 * runner.LEAVE_S
"""How long a worker may take to stop: the draining, counting what is left, giving the shards back."""


# Settings.


def test_the_example_names_every_setting_with_its_default() -> None:
    named = assignments(EXAMPLE, commented=True)
    wanted = {}
    for name, field in Settings.model_fields.items():
        default = field.get_default()
        wanted[f"STATECACHE_{name.upper()}"] = "" if default is None else str(default)
    assert named == wanted
    assert assignments(EXAMPLE) == {}


def test_the_example_names_no_setting_twice() -> None:
    named = re.findall(r"(?m)^#(STATECACHE_\w+)=", EXAMPLE)
    assert sorted(named) == sorted(set(named))


def test_the_example_says_something_about_every_setting() -> None:
    for block in EXAMPLE.split("\n\n")[1:]:
        assert re.match(r"# \w.*", block), block


def test_no_file_names_a_setting_that_is_none() -> None:
    known = {f"STATECACHE_{name.upper()}" for name in Settings.model_fields}
    named = {name for path in FILES for name in re.findall(r"\bSTATECACHE_[A-Z_]*[A-Z]", path.read_text())}
    assert len(named) > 20
    assert named - known == set()


# systemd.


def test_the_unit_gives_a_worker_the_time_that_it_needs_and_the_signal_that_it_knows() -> None:
    service = worker_unit()["Service"]
    assert service["Type"] == ["exec"]
    assert service["KillSignal"] == ["SIGTERM"]
    assert seconds_of(service["TimeoutStopSec"][0]) > STOP_S
    assert service["ExecStart"][0].endswith("/statecache worker")


def test_the_unit_starts_it_again_unless_somebody_must_look() -> None:
    service = worker_unit()["Service"]
    assert service["Restart"] == ["on-failure"]
    kept_down = {int(word) for word in service["RestartPreventExitStatus"][0].split()}
    assert runner.CONFIGURATION in kept_down
    assert kept_down.isdisjoint({runner.LEFT, runner.UNREACHABLE})
    assert worker_unit()["Unit"]["StartLimitIntervalSec"] == ["0"]


def test_the_unit_leaves_it_no_rights() -> None:
    service = worker_unit()["Service"]
    assert service["CapabilityBoundingSet"] == [""]
    for name in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "RestrictSUIDSGID"):
        assert service[name] == ["yes"], name
    assert service["ProtectSystem"] == ["strict"]
    assert service["EnvironmentFile"] == ["/etc/statecache/statecache.env"]
    assert not [value for value in service["Environment"] if "STATECACHE" in value or "PASSWORD" in value]
    assert worker_unit()["Install"]["WantedBy"] == ["multi-user.target"]


# Kubernetes.


def _pods() -> dict[str, dict[str, Any]]:
    return {
        name: one["spec"]["template"]["spec"]
        for (kind, name), one in manifests().items()
        if kind in ("Deployment", "Job")
    }


def _containers() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{name}/{one['name']}", one)
        for name, pod in _pods().items()
        for one in (*pod.get("initContainers", ()), *pod["containers"])
    ]


def test_the_manifests_are_what_they_should_be() -> None:
    assert {kind for kind, _ in manifests()} == {"ConfigMap", "Secret", "Job", "Deployment", "PodDisruptionBudget"}
    versions = {one["kind"]: one["apiVersion"] for one in manifests().values()}
    assert versions == {
        "ConfigMap": "v1",
        "Secret": "v1",
        "Job": "batch/v1",
        "Deployment": "apps/v1",
        "PodDisruptionBudget": "policy/v1",
    }


@pytest.mark.parametrize("release", ["1.29", "1.37"])
def test_kubernetes_takes_the_manifests(release: str) -> None:
    for one in manifests().values():
        kubernetes_validate.validate(one, release, strict=True)


def test_a_manifest_with_a_word_that_kubernetes_does_not_know_is_found() -> None:
    worker = copy.deepcopy(manifests()["Deployment", "statecache-worker"])
    worker["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(worker, "1.37", strict=True)


def test_they_may_be_applied_again() -> None:
    """No empty secret takes the place of a real one, and a new release's migration is another Job."""
    applied = [one for path in KUBERNETES.glob("*.yaml") for one in yaml.safe_load_all(path.read_text())]
    assert {one["kind"] for one in applied} == {"ConfigMap", "Job", "Deployment", "PodDisruptionBudget"}
    assert [one["metadata"]["name"] for one in applied if one["kind"] == "Job"] == [MIGRATION]
    assert MIGRATION in (KUBERNETES / "migrate.yaml").read_text().split("apiVersion")[0]


def test_a_worker_pod_is_probed_where_it_answers_and_stopped_in_time() -> None:
    pod = _pods()["statecache-worker"]
    assert pod["terminationGracePeriodSeconds"] > STOP_S
    (container,) = pod["containers"]
    assert "lifecycle" not in container
    (port,) = container["ports"]
    named = {one["name"]: one.get("value") for one in container["env"]}
    assert str(port["containerPort"]) == named["STATECACHE_HEALTH_PORT"] == worker_image().last("EXPOSE").text
    paths = {name: container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    assert paths == {"livenessProbe": "/healthz", "readinessProbe": "/readyz", "startupProbe": "/healthz"}
    assert {container[name]["httpGet"]["port"] for name in paths} == {port["name"]}


@pytest.mark.parametrize(("name", "container"), _containers(), ids=lambda value: value if type(value) is str else "")
def test_no_container_has_more_rights_than_it_needs(name: str, container: dict[str, Any]) -> None:
    rights = container["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}
    pod = _pods()[name.partition("/")[0]]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert (
        f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
        == worker_image().last("USER").text
    )
    assert pod["automountServiceAccountToken"] is False
    assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    known = {service["image"] for service in services().values()}
    assert container["image"] in known, "the same image as in docker-compose.yml"


def test_everything_that_is_referred_to_is_there() -> None:
    for name, container in _containers():
        for source in container["envFrom"]:
            ((how, what),) = source.items()
            assert ({"configMapRef": "ConfigMap", "secretRef": "Secret"}[how], what["name"]) in manifests(), name
    commands = dict(_containers())
    roles = commands[f"{MIGRATION}/roles"]
    assert {**roles, "name": "grants"} == commands[f"{MIGRATION}/grants"]
    assert services()["roles"]["entrypoint"] == ["sh", f"{INSIDE}with-secrets.sh", *roles["command"]]
    (mounted,) = (one for one in roles["volumeMounts"])
    assert f"{mounted['mountPath']}/" == INSIDE
    assert "--from-file=config/roles.sql" in (KUBERNETES / "migrate.yaml").read_text()


def test_the_secrets_are_empty_and_the_settings_are_settings() -> None:
    public = {"PGDATABASE", "PGUSER"}
    for (kind, name), one in manifests().items():
        if kind == "Secret":
            assert {k: v for k, v in one["stringData"].items() if v and k not in public} == {}, name
        if kind == "ConfigMap":
            given = {k.removeprefix("STATECACHE_").lower(): v for k, v in one["data"].items()}
            assert Settings(**given).drain_s == Settings().drain_s
    roles = manifests()["Secret", "statecache-roles"]["stringData"]
    by_compose = services()["roles"]
    assert roles.keys() == {*by_compose["environment"], *by_compose["secrets"]} - {"POSTGRES_PASSWORD"}


def test_workers_are_found_by_their_labels_and_one_is_always_left() -> None:
    deployment = manifests()["Deployment", "statecache-worker"]["spec"]
    budget = manifests()["PodDisruptionBudget", "statecache-worker"]["spec"]
    labels = deployment["template"]["metadata"]["labels"].items()
    assert deployment["selector"]["matchLabels"].items() <= labels
    assert budget["selector"]["matchLabels"].items() <= labels
    assert 0 < budget["minAvailable"] < deployment["replicas"]


def test_the_dashboards_are_json() -> None:
    found = sorted((CONFIG / "grafana/dashboards").glob("*.json"))
    assert found
    for path in found:
        assert json.loads(path.read_text())["title"], path
