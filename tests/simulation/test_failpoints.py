"""The enumeration of failpoints leaves nothing out, and a slice of them is visited in every run of the tests.

`make failpoints` visits all of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from statecache import lua, sql
from tests.rules.house_rules import strings
from tests.simulation.boundaries import KINDS
from tests.simulation.failpoints import Told, a_slice, all_failpoints, table, unreached

ROOT = Path(__file__).resolve().parents[2]
LANES = 2
VISITS = 24
UNREACHED_MAX = 2
RUN_S = 600.0
NOT_VISITED = {
    "local_limits": "it goes with the BEGIN of every transaction of a worker, in the same exchange",
    "read_committed": "it goes first in every exchange of a client, with its limits",
    "owner_limits": "it goes before the statements of who migrates or makes indexes, in their transactions",
    "read_limits": "it goes before every statement of a client, in the same exchange",
    "look_limits": "it goes before the statements that look for keys, in the same exchange",
    "session_probe": "asked only where an answer does not come: test_flusher_silence",
    "row_holders": "asked only while another session holds a shard's row: test_flusher_patience",
    "hydrate_forget": "asked only by a client that is hindered while it hydrates: visits of `states` come by it",
    "rescue_branch": "asked only when a branch of an earlier epoch comes back: test_failover_old_primary",
    "entries_known": "asked only without a fence, and of a data set that ends too early: test_flusher_unfenced",
    "newest_changes": "asked only where Postgres went back behind a restart of Redis: test_failover_postgres",
    "record_gap": "asked only in the COMMIT that passes a gap which nothing filled: test_flusher_gap",
    "confirm": "asked only at `replica` and `disk`, where a repeat finds its change: test_commit_copies",
    "set_locking": "asked only where a view enforces locks for the first time: test_policies",
    "set_policy": "asked only where a view enforces locks for the first time: test_policies",
    "namespaces": "asked only where a view enforces locks for the first time: test_policies",
    "standing": "asked only while a client goes down: test_client_closing",
    "measure": "asked only where entries were deleted by hand before they were flushed: test_flusher_gap",
    "detach_branch": "asked only while a subject is erased: test_erasure_races stops at each step",
    "erase_flushed_entries": "asked only while a subject is erased: test_erasure_races stops at each step",
    "erase_history": "asked only while a subject is erased: test_erasure_races stops at each step",
    "erase_between": "asked only while a subject is erased: test_erasure_races stops at each step",
    "erase_left": "asked only while a subject is erased: test_erasure_races stops at each step",
    "erase_look": "asked only while a subject is erased: test_erasure_races stops at each step",
    "declare_history": "asked only where a view has a policy of history: test_history_policies",
    "ancestry": "it only reads what is never changed, and its errors are those of every read: test_branches",
    "origins_now": "asked only where a branch was flushed before its origin: test_branch_storage",
    "branches": "it only reads what is never changed, and its errors are those of every read: test_branches",
    "history_gaps": "it only reads, where versions are missing, as every read of history does: test_history_gaps",
    "restores": "asked only where a key was merged before, and it only reads: test_merge_bases",
    "history_missing": "it only reads, as the read of links just before it does: test_branch_merges",
    "history_nearest": "it only reads what is never changed, and its errors are those of every read: test_time_travel",
    "history_range": "it only reads what is never changed, and its errors are those of every read: test_time_travel",
    "position_lineage": "it only reads, as every read of history does: test_history_failover",
    "keep_tips": "asked only where a checkpoint names values that stand in states alone: test_history_policies",
    "pack_page": "asked only of a schema that an earlier release has filled: test_packing",
    "pack_write": "asked only of a schema that an earlier release has filled: test_packing",
    "index_vectors": "asked only where vectors are indexed, beside the flush: test_vector_troubles",
    "list_nearest": "asked only where vectors are indexed, and only reads: test_vectors",
    "vector_index": "asked only by a search, and only reads: test_vectors",
    "prune_begin": "asked only where values leave the history, between flushes: test_pruning",
    "prune_grown": "asked only where values leave the history, between flushes: test_pruning",
    "prune_keep": "asked only where values leave the history, between flushes: test_pruning",
    "prune_lock": "asked only where values leave the history, between flushes: test_pruning",
    "prune_moved": "asked only where values leave the history, between flushes: test_pruning",
    "prune_page": "asked only where values leave the history, between flushes: test_pruning",
    "prune_pins": "asked only where values leave the history, between flushes: test_pruning",
    "prune_runs": "asked only where values leave the history, between flushes: test_pruning",
    "prune_take": "asked only where values leave the history, between flushes: test_pruning",
    "prune_values": "asked only where values leave the history, between flushes: test_pruning",
    "prune_write": "asked only where values leave the history, between flushes: test_pruning",
}
"""Scripts and statements of client and worker that are no failpoints of their own, and why."""
SELDOM_VISITED = {
    "epochs_unknown": "asked only where others have just raised the row, or data are older: test_missed_repairs"
}
"""Those of which that depends on who comes first."""
USERS = """
import sys
from statecache import AsyncStateCache
import statecache._async.client, statecache_workers.runner
for name, module in sys.modules.items():
    if name.startswith("statecache") and "._sync" not in name and getattr(module, "__file__", None):
        print(module.__file__)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What a run of its own process came to: it forks, which a process of tests with its threads should not."""
    path = tmp_path_factory.mktemp("failpoints") / "told.json"
    given = ["--slice", VISITS, "--lanes", LANES, "--recordings", 1, "--report", path]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.failpoints", *map(str, given)], cwd=ROOT, capture_output=True,
        text=True, check=False, timeout=RUN_S,
    )  # fmt: skip
    assert path.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    return msgspec.json.decode(path.read_bytes(), type=Told)


def _asked_for() -> set[str]:
    """Return the names of all scripts and statements that occur in the modules of client and worker."""
    done = subprocess.run([sys.executable, "-c", USERS], capture_output=True, text=True, check=True)
    spelled = {part for path in done.stdout.split() for part, _ in strings(Path(path).read_text())}
    return spelled & {*lua.names(), *sql.names()}


def test_every_script_and_statement_of_client_and_worker_is_a_failpoint(told: Told) -> None:
    visited = {word for place in told.places for word in re.split(r"[\s:#]+", place.boundary)}
    asked = _asked_for()
    assert {"commit", "ack", "flush_lock", "begin_epoch", "states"} <= asked
    missing = asked - visited
    assert sorted(missing - NOT_VISITED.keys() - SELDOM_VISITED.keys()) == []
    assert NOT_VISITED.keys() - missing == set()


def test_every_boundary_has_every_fault(told: Told) -> None:
    every = all_failpoints(told.places)
    assert len(every) == len(told.places) * len(KINDS) == len(set(every))
    assert {one.kind for one in a_slice(told.places, VISITS)} == {*KINDS}
    assert a_slice(told.places, VISITS) == a_slice(told.places, VISITS)


def test_no_promise_is_broken_at_a_slice_of_the_failpoints(told: Told) -> None:
    visited = [one for one in told.visited if one.failpoint is not None]
    wrong = [f"{one.failpoint or one.situation}: {line}" for one in told.visited for line in one.violations]
    assert not wrong, "\n".join([*wrong, table(visited)])
    assert len(visited) == VISITS
    assert len(unreached(visited)) <= UNREACHED_MAX, unreached(visited)
