"""What holds the promises is taken out of a copy of the tree, one thing at a time, and the programme has to notice.

    python -m tests.simulation.mutants [--only NAME] [--by failpoints,model,chaos,coherence] [--seconds 600]

Each mutant is run until the first of its instruments, or of those asked for, notices it; the table says which one,
after how many seconds, and what it said. The exit status is 1 where one lives on. That the tree without a mutation
passes is what these instruments' own runs say.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

from statecache.clock import monotonic
from statecache.settings import process_environment

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("statecache", "workers", "tests")
SECONDS = 600.0
INSTRUMENTS = {
    "failpoints": ("tests.simulation.failpoints", "--first", "--lanes", "2"),
    "model": ("tests.simulation.model", "--examples", "2000", "--seed", "1"),
    "chaos": ("tests.simulation.chaos", "--seconds", "60", "--seed", "1"),
    "coherence": ("tests.simulation.coherence", "--seconds", "30", "--seed", "1"),
}


class Mutant(NamedTuple):
    """This takes one thing out of one file: the text must stand there, once."""

    what: str
    path: str
    old: str
    new: str
    by: str = "failpoints,chaos"


MUTANTS = {
    "dedupe": Mutant(
        "a repeated commit is not known again",
        "statecache/lua/commit.lua",
        "if seen then\n",
        "if false then\n",
    ),
    "fence": Mutant(
        "a commit does not ask whether this server opened the epoch",
        "statecache/lua/commit.lua",
        "if not epoch or replid ~= server then\n",
        "if not epoch then\n",
    ),
    "watermark": Mutant(
        "a flush does not compare the row's watermark with where it read from",
        "workers/statecache_workers/flusher.py",
        "if row is not None and row.flushed == one.start.n and agree(row, one.head, server):",
        "if row is not None and agree(row, one.head, server):",
    ),
    "persist": Mutant(
        "a commit leaves a state its time to live",
        "statecache/lua/commit.lua",
        "    call('PERSIST', redis_key)\n",
        "",
    ),
    "hydration token": Mutant(
        "a reader installs what it has read whatever happened meanwhile",
        "statecache/lua/hydrate_install.lua",
        "if standing and string.sub(standing, 1, #mine) == mine and redis.call('EXISTS', KEYS[i]) == 0 then",
        "if redis.call('EXISTS', KEYS[i]) == 0 then",
    ),
    "trust window": Mutant(
        "what is near is believed however long nothing was heard of the server",
        "statecache/near.py",
        "age_s >= self._window_s or ",
        "",
        by="coherence",
    ),
    "invalidation": Mutant(
        "what somebody has written stays near",
        "statecache/near.py",
        "                self._invalidations += 1\n                self._take(key)\n",
        "                self._invalidations += 1\n",
        by="coherence",
    ),
    "drop": Mutant(
        "what was near over a connection that is gone stays near",
        "statecache/near.py",
        "            entries, self._entries, self._bytes = self._entries, OrderedDict(), 0\n",
        "            entries = self._entries\n",
        by="coherence",
    ),
    "own writes": Mutant(
        "what this process has written raises no floor",
        "statecache/near.py",
        "            self._saw(key, place)\n        return entry is not None",
        "        return entry is not None",
        by="coherence",
    ),
    "floor of a read": Mutant(
        "a read that was overtaken by a newer state fills the near cache",
        "statecache/near.py",
        " and (record.epoch, record.version) >= reading.floor",
        "",
        by="coherence",
    ),
    "version asked for": Mutant(
        "what is near is given below the version that was asked for",
        "statecache/_async/reads.py",
        "if entry is not None and (not min_version or entry.record.version >= min_version):",
        "if entry is not None:",
        by="coherence",
    ),
}


class Caught(NamedTuple):
    """This says what noticed a mutant, when, and what it said first."""

    by: str
    seconds: float
    said: str


def mutated(folder: Path, mutant: Mutant) -> Path:
    """This copies the tree, with what is not committed yet too, and takes the mutant's piece out."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard", "-z", "--", *FOLDERS,
         "pyproject.toml"], cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.decode().split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    path = folder / mutant.path
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.path} has changed: adapt this mutant to it: {mutant.what}")
    path.write_text(text.replace(mutant.old, mutant.new))
    return folder


def hunted(copy: Path, instrument: str, seconds: float) -> Caught | None:
    """This lets one instrument run on the copy, and gives what it noticed."""
    begun = monotonic()
    environment = process_environment() | {"PYTHONPATH": f"{copy}:{copy / 'workers'}"}
    command = [sys.executable, "-m", *INSTRUMENTS[instrument]]
    log = copy / f"{instrument}.log"
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
    """This picks the lines that say what was noticed."""
    for at, line in enumerate(lines):
        if "VIOLATED" in line:
            return " ".join(part.strip() for part in lines[at : at + 2])
    told = [
        line
        for line in lines
        if line.startswith(("AssertionError", "without any fault", "E ", "violation", "VIOLATION"))
    ]
    return (told or lines or [""])[0]


def main() -> int:
    """This runs from the command line."""
    parser = argparse.ArgumentParser(description="Take a promise's keeper out and see the programme notice.")
    parser.add_argument("--only", choices=MUTANTS, action="append")
    parser.add_argument("--by", help=f"instruments, in order, instead of the mutant's own: {', '.join(INSTRUMENTS)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each instrument and mutant")
    given = parser.parse_args()
    caught: dict[str, Caught | None] = {}
    for name in given.only or MUTANTS:
        with tempfile.TemporaryDirectory(prefix="mutant-") as temporary:
            folder = Path(temporary)
            folder.chmod(0o755)
            copy = mutated(folder, MUTANTS[name])
            found = None
            for instrument in (given.by or MUTANTS[name].by).split(","):
                found = found or hunted(copy, instrument, given.seconds)
        caught[name] = found
        told = f"by {found.by} after {found.seconds:.0f} s: {found.said}" if found else "LIVES ON"
        _say(f"{name:16} {told}")
    _say(
        msgspec.json.encode(
            {name: {"by": one.by, "seconds": round(one.seconds)} if one else None for name, one in caught.items()}
        ).decode()
    )
    return 0 if all(caught.values()) else 1


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
