"""A short run of each profile of the chaos. For a long one: `make chaos PROFILE=…`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.chaos import run
from tests.simulation.profiles import PROFILES

SEED, SECONDS, FAULTS = 7, 24.0, 4
RUNS_MAX = 4  # of the short chaos, on a machine that stands still while it runs


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "chaos"])
async def test_a_short_chaos_of_a_profile_breaks_no_promise(name: str, tmp_path: Path) -> None:
    if lacking := PROFILES[name].arena.lacking():
        pytest.skip(lacking)
    faults = acknowledged = 0
    for number in range(RUNS_MAX):
        told: list[str] = []
        folder = tmp_path / str(number)
        folder.mkdir()
        result = await run(SEED + number, SECONDS, folder, told.append, profile=PROFILES[name], enough=FAULTS)
        assert result.violations == 0, "\n".join([*told, *result.findings, f"journals: {folder}"])
        faults, acknowledged = faults + result.faults, acknowledged + result.acknowledged
        if faults >= FAULTS and acknowledged > 100:
            return
    pytest.fail(f"{RUNS_MAX} runs: {faults} faults, {acknowledged} acknowledged: too little to judge")
