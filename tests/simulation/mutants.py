"""What holds the promises is taken out of a copy of the tree, one thing at a time, and the programme has to notice.

    python -m tests.simulation.mutants [--only NAME] [--by failpoints,model,chaos,roles …] [--times 5] [--seconds 600]

Each mutant is run, with another seed each time, until the first of its instruments, or of those asked for, notices it;
the table says which one, after how many seconds, and what it said. With `--times` it has to be noticed so often; the
table then says how many runs that takes in the mean. What no instrument notices in `RUNS_MAX` runs lives on, and the
exit status is 1. That the tree without a mutation passes is what these instruments' own runs say.

An instrument is named by a word of `INSTRUMENTS`; kinds of faults may follow it, which are then the only ones, as in
`roles failover_kept left_kept`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from statecache.clock import monotonic
from statecache.settings import process_environment
from tests.simulation.mutations import MUTANTS
from tests.simulation.mutations.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("statecache", "workers", "tests")
SECONDS = 600.0
RUNS_MAX = 4
"""So many runs, each with other faults drawn at other moments, may pass until a mutant is noticed."""
SEED = "{seed}"
INSTRUMENTS = {
    "failpoints": ("tests.simulation.failpoints", "--first", "--lanes", "2"),
    "model": ("tests.simulation.model", "--examples", "2000", "--seed", SEED),
    "coherence": ("tests.simulation.coherence", "--seconds", "30", "--seed", SEED),
    "steps": ("tests.acceptance.step_kills", "--times", "4", "--seed", SEED),
    "chaos": ("tests.simulation.chaos", "--seconds", "60", "--seed", SEED),
    "history": ("tests.simulation.history_model.__main__", "--seconds", "40", "--seed", SEED),
    "scenarios": ("tests.simulation.scenarios",),
} | {
    profile: ("tests.simulation.chaos", "--profile", profile, "--seconds", "60", "--seed", SEED)
    for profile in ("roles", "debian", "postgres", "locks", "threads", "deployments", "rights")
}
"""What a run of each is; `SEED` stands for another number in each run."""


class Caught(NamedTuple):
    """The instrument that noticed a mutant, after how many seconds, and what it said first."""

    by: str
    seconds: float
    said: str


def copied(folder: Path) -> Path:
    """Copy the tree, uncommitted files included, to the folder, and return it."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard", "-z", "--", *FOLDERS,
         "pyproject.toml"], cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.decode().split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return folder


def take_out(mutant: Mutant, copy: Path) -> None:
    """Take the mutant's pieces out of a copy of the tree."""
    for piece in mutant.pieces():
        path = copy / piece.path
        text = path.read_text()
        if text.count(piece.old) != 1:
            raise SystemExit(f"{piece.path} has changed: adapt this mutant to it: {mutant.what}")
        path.write_text(text.replace(piece.old, piece.new))


def hunted(copy: Path, instrument: str, seconds: float, seed: int = 1) -> Caught | None:
    """Let one instrument run on the copy, and return what it noticed."""
    begun = monotonic()
    environment = process_environment() | {"PYTHONPATH": f"{copy}:{copy / 'workers'}"}
    name, *kinds = instrument.split()
    command = [sys.executable, "-m", *(word.replace(SEED, str(seed)) for word in INSTRUMENTS[name])]
    command += ["--kinds", *kinds] if kinds else []
    log = copy / f"{name}.log"
    with log.open("wb") as out:
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, stdout=out, stderr=subprocess.STDOUT, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return None
    took, lines = monotonic() - begun, log.read_text(errors="replace").splitlines()
    if done.returncode == 0:
        return None
    if done.returncode != 1:
        raise SystemExit(f"{instrument} ended with {done.returncode}:\n" + "\n".join(lines[-30:]))
    return Caught(instrument, took, _first_finding(lines))


def _first_finding(lines: list[str]) -> str:
    """Return the line that says what was noticed."""
    for at, line in enumerate(lines):
        if "VIOLATED" in line:
            return " ".join(part.strip() for part in lines[at : at + 2])
        if at and line.startswith("Failing test case"):  # of the model: behind the end of a traceback
            return lines[at - 1]
    told = [
        line
        for line in lines
        if line.startswith(("AssertionError", "without any fault", "E ", "violation", "VIOLATION"))
    ]
    return (told or lines or [""])[0]


class Hunt(NamedTuple):
    """What came of hunting one mutant: in how many runs, who noticed it first, and how often it was noticed."""

    runs: int
    first: Caught | None
    noticed: int

    @property
    def mean(self) -> float | None:
        """How many runs it takes in the mean until it is noticed."""
        return round(self.runs / self.noticed, 2) if self.noticed else None


def hunt(mutant: Mutant, by: Sequence[str], *, times: int, seconds: float) -> Hunt:
    """Hunt a mutant with these instruments until it was noticed so often, each run with another seed."""
    first, noticed, runs, unnoticed = None, 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="mutant-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        copy = copied(folder)
        take_out(mutant, copy)
        while noticed < times and unnoticed < RUNS_MAX:
            runs += 1
            found = None
            for instrument in by:
                found = found or hunted(copy, instrument.strip(), seconds, seed=runs)
            first, noticed, unnoticed = first or found, noticed + bool(found), 0 if found else unnoticed + 1
    return Hunt(runs, first, noticed)


def main() -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Take a promise's keeper out and see the programme notice.")
    parser.add_argument("--only", choices=MUTANTS, action="append")
    parser.add_argument("--by", help=f"instruments, in order, instead of the mutant's own: {', '.join(INSTRUMENTS)}")
    parser.add_argument("--times", type=int, default=1, help="how often each mutant has to be noticed")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each instrument, mutant and run")
    given = parser.parse_args()
    hunts: dict[str, Hunt] = {}
    for name in given.only or MUTANTS:
        by = (given.by or MUTANTS[name].by).split(",")
        one = hunts[name] = hunt(MUTANTS[name], by, times=given.times, seconds=given.seconds)
        told = "LIVES ON"
        if one.first is not None:
            told = f"{one.mean:5.2f} runs  by {one.first.by} after {one.first.seconds:.0f} s: {one.first.said}"
        _say(f"{name:20} {told}")
    _say(msgspec.json.encode({name: _summary(one) for name, one in hunts.items()}).decode())
    return 0 if all(one.noticed for one in hunts.values()) else 1


def _summary(one: Hunt) -> dict[str, object] | None:
    if one.first is None:
        return None
    return {"by": one.first.by, "seconds": round(one.first.seconds), "runs": one.mean}


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
