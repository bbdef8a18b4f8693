"""The workers' Dockerfile and what goes into its build."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import statecache
from statecache import Settings
from tests.support.deployment_files import ROOT, ignored, stages, worker_image

TEXT = (ROOT / "workers/Dockerfile").read_text()
PATTERNS = (ROOT / ".dockerignore").read_text()
BUILD_TOOLS = re.compile(r"\b(apt-get|apk|gcc|make|curl|wget|git|uv|pip3? (install|wheel|download))\b|pip install")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _copies() -> list[str]:
    first = stages(TEXT)[0]
    return [source for one in first.instructions if one.word == "COPY" for source in one.words[:-1]]


def test_whatever_is_copied_exists_and_is_let_into_the_build() -> None:
    assert len(_copies()) >= 6
    assert [path for path in _copies() if not (ROOT / path).exists() or ignored(path, PATTERNS)] == []


def test_the_build_has_everything_that_the_wheel_is_made_of() -> None:
    project = PROJECT["project"]
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {project["readme"], *project["license-files"], *packages, "pyproject.toml"} <= set(_copies())


@pytest.mark.parametrize("path", [".git/config", "config/secrets/POSTGRES_PASSWORD", ".venv/bin/python",
                                  "tests/conftest.py", ".env",
                                  "statecache/__pycache__/model.cpython-313.pyc", "workers/Dockerfile"])  # fmt: skip
def test_nothing_else_gets_into_the_build(path: str) -> None:
    assert ignored(path, PATTERNS)


def test_the_final_stage_builds_and_installs_nothing() -> None:
    *building, final = stages(TEXT)
    assert [one.name for one in building] == ["environment"]
    assert building[0].image == final.image
    runs = [one.text for one in final.instructions if one.word == "RUN"]
    assert [run for run in runs if BUILD_TOOLS.search(run)] == []
    assert runs == ["python -m pip uninstall --yes pip"]
    copies = [one for one in final.instructions if one.word == "COPY"]
    assert [one.flags for one in copies] == [{"from": "environment"}]
    assert BUILD_TOOLS.search(building[0].last("RUN").text), "the pattern finds what it is to find"


def test_versions_are_those_of_the_constraints() -> None:
    building = stages(TEXT)[0]
    install = building.last("RUN").text
    assert "--constraint constraints.txt" in install
    assert "--only-binary :all:" in install
    assert "[cli,metrics]" in install
    assert {"cli", "metrics"} <= PROJECT["project"]["optional-dependencies"].keys()


def test_it_is_not_root_and_the_worker_is_process_1() -> None:
    image = worker_image()
    user, _, group = image.last("USER").text.partition(":")
    assert int(user) > 0
    assert int(group) > 0
    last = [one.word for one in image.instructions].index("USER")
    assert not any(one.word in ("RUN", "COPY", "ADD") for one in image.instructions[last:])
    assert image.last("ENTRYPOINT").is_exec_form
    assert image.last("CMD").is_exec_form
    assert image.last("ENTRYPOINT").words[0] in PROJECT["project"]["scripts"]
    assert image.last("STOPSIGNAL").text == "SIGTERM"


def test_its_variables_are_settings_and_its_lines_are_not_held_back() -> None:
    environment = worker_image().environment
    assert environment["PYTHONUNBUFFERED"] == "1"
    given = {k.removeprefix("STATECACHE_").lower(): v for k, v in environment.items() if k.startswith("STATECACHE_")}
    assert (Settings(**given).health_host, Settings(**given).health_port) == ("0.0.0.0", 9464)
    health = worker_image().last("HEALTHCHECK")
    assert health.text.startswith('CMD ["python", "-I", "-c"')
    assert "STATECACHE_HEALTH_PORT" in health.text
    assert worker_image().last("EXPOSE").text == environment["STATECACHE_HEALTH_PORT"]


def test_its_labels_say_what_it_is() -> None:
    labels = worker_image().last("LABEL").pairs
    prefix = "org.opencontainers.image."
    assert labels[f"{prefix}version"] == statecache.__version__ == PROJECT["project"]["version"]
    assert labels[f"{prefix}licenses"] == PROJECT["project"]["license"]
    assert {f"{prefix}title", f"{prefix}description"} <= labels.keys()


@pytest.mark.parametrize("stage", stages(TEXT), ids=lambda stage: stage.name or "final")
def test_base_images_are_pinned_by_tag(stage: object) -> None:
    assert re.search(r"FROM python:3\.\d+\.\d+-slim-\w+", TEXT)
    assert not re.search(r"FROM \S+:latest|FROM [^:\s]+\s", TEXT)


def test_a_dockerfile_is_taken_apart_as_docker_does(tmp_path: Path) -> None:
    text = (
        '# a\nFROM a:1 AS b\nRUN x \\\n  && y\nFROM c:2\nCOPY --from=b /x /y\nENV A=1 \\\n  B="2 3"\nCMD ["d", "e f"]\n'
    )
    one, two = stages(text)
    assert (one.image, one.name, one.last("RUN").text) == ("a:1", "b", "x && y")
    assert (two.image, two.environment, two.last("CMD").words) == ("c:2", {"A": "1", "B": "2 3"}, ["d", "e f"])
    assert (two.last("COPY").flags, two.last("COPY").words) == ({"from": "b"}, ["/x", "/y"])
    assert not stages("FROM a\nENTRYPOINT d e")[0].last("ENTRYPOINT").is_exec_form
