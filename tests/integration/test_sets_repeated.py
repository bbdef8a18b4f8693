"""Writes whose values hold sets, repeated by a process whose sets have another order."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from statecache import Settings
from tests.rules.tree import ROOT

PROGRAM = """
import sys
from statecache import StateCache
with StateCache() as cache:
    tags = cache.namespace("tags", type=set[str], encoding=sys.argv[1])
    said = [tags.set("a", {*"abcdefgh"}, change_id="1" * 24).version]
    plain = cache.namespace("plain", encoding=sys.argv[1])
    said.append(plain.set("a", {"tags": {*"abcdefgh"}}, change_id="2" * 24).version)
    print(*said, "".join(list({*"abcdefgh"})))
"""


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_repeat_by_another_process_answers_as_the_first_one_did(settings: Settings, encoding: str) -> None:
    named = {"redis_url": settings.redis_url, "postgres_url": settings.postgres_url, "prefix": settings.prefix,
             "postgres_schema": settings.postgres_schema, "shards": settings.shards}  # fmt: skip
    deployed = {f"STATECACHE_{name.upper()}": str(value) for name, value in named.items()}
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, encoding], cwd=ROOT, env=os.environ | deployed | {"PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout.split()
        for seed in ("1", "2")
    ]  # fmt: skip
    assert [one[:2] for one in said] == [["1", "1"], ["1", "1"]]
    assert said[0][2] != said[1][2], "the order of a set is its process's own"
