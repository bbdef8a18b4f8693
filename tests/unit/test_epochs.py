"""Who may open a gate, and what of a data set is stale when it opens."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statecache.rules.comparison import HeldChange, continues, parting
from statecache.rules.epochs import (
    EPOCH_MAX,
    Authority,
    Opening,
    Refusal,
    after_comparison,
    common_point,
    decide,
    head_totals,
    must_set_aside,
    pages,
    unproven,
)
from statecache.rules.looks import Look, Pin, ShardRow, Totals
from statecache.rules.replids import UNFENCED

PIN = Pin("64", "crc32", "a-cluster")
ROW = ShardRow(shard=7, epoch=5, replid="a")
REFUSED, WAIT = ("refused",) * 4, ("wait", "refused", "refused")
NOW_S = 1_800_000_000
DATED = msgspec.structs.replace(ROW, now_s=NOW_S)
FRESH = ShardRow(shard=7, epoch=0, replid="")
EMPTY = Look(
    epoch=None, replid="", continues=(), reservation="", reserved_until="", reserved_left_ms=0, last=(0, 0), n=0,
    totals=None, flushed=0, pin=Pin("", "", ""), server="s", role="master",
)  # fmt: skip
OURS = msgspec.structs.replace(EMPTY, epoch=5, replid="a", last=(5, 100), n=100, totals=Totals(100, 9000), pin=PIN)
OTHERS = Pin("64", "crc32", "other")
HALF_ADOPTED = msgspec.structs.replace(OURS, pin=OTHERS, replid="", continues=("a", "s"), reservation="x")
ASKERS: tuple[tuple[Authority, bool], ...] = (
    ("client", False), ("setup", False), ("worker", False), ("worker", True), ("operator", True)
)  # fmt: skip
"""Who asks, and whether with a word for the server that the row names: a worker has flushed from it, or not."""


def look(like: Look = OURS, **more: Any) -> Look:
    return msgspec.structs.replace(like, **more)


def verdicts(row: ShardRow, seen: Look, pin: Pin = PIN) -> list[str]:
    """Return the verdict on each asker in a word."""
    words = []
    for authority, vouches in ASKERS:
        verdict = decide(row, seen, authority, pin=pin, vouched=[row.replid] if vouches else [])
        if verdict is None:
            words.append("open")
        elif isinstance(verdict, Opening):
            words.append(f"{'if it holds the same, ' if verdict.doubtful else ''}above {verdict.seen}")
        else:
            words.append("wait" if verdict.wait else "refused")
    return words


@pytest.mark.parametrize(
    ("story", "seen", "row", "expected"),
    [
        ("it is open", look(server="a"), ROW, ["open"] * 5),
        ("Postgres went back, in this epoch", look(server="a", flushed=90),
         ShardRow(shard=7, epoch=5, replid="a", flushed=80), ["wait", "refused", *["above 5"] * 3]),
        ("it ends before what Postgres holds, on the same server", look(server="a"),
         ShardRow(shard=7, epoch=5, replid="a", flushed=101), ["above 5"] * 5),
        ("no fence, and it does not know of all that Postgres holds", look(replid="off", server="off"),
         ShardRow(shard=7, epoch=5, replid="off", flushed=100), ["above 5"] * 5),
        ("a restart", look(), ROW, ["above 5"] * 5),
        ("a restart that lost its tail", look(last=(5, 90), n=90), ROW, ["above 5"] * 5),
        ("a replica", look(server="a", role="slave"), ROW, ["wait"] * 5),
        ("somebody is opening it", look(replid="", continues=("a",), reservation="x", reserved_left_ms=9), ROW,
         ["wait"] * 5),
        ("whoever was opening it died", look(replid="", continues=("a", "s"), reservation="x"), ROW, ["above 5"] * 5),
        ("died after the row was raised", look(replid="", continues=("a", "s"), reservation="x"),
         ShardRow(shard=7, epoch=6, replid="s"), ["above 6"] * 5),
        ("died, and another server was opened", look(replid="", continues=("a", "s"), reservation="x"),
         ShardRow(shard=7, epoch=6, replid="b"), [*REFUSED, "above 6"]),
        ("an old primary", look(server="a"), ShardRow(shard=7, epoch=6, replid="b"), [*REFUSED, "above 6"]),
        ("an old primary, restarted", look(), ShardRow(shard=7, epoch=6, replid="b"), [*REFUSED, "above 6"]),
        ("nothing at all", EMPTY, ROW, [*WAIT, "above 5", "above 5"]),
        ("nothing at all: Postgres may have forgotten epochs, too", EMPTY, DATED, [*WAIT, *[f"above {NOW_S}"] * 2]),
        ("another server: Postgres and it may both have forgotten epochs", look(server="s"), DATED,
         [f"above {NOW_S}"] * 5),
        ("the clock is behind what both know", look(server="s"), msgspec.structs.replace(ROW, now_s=4),
         ["above 5"] * 5),
        ("nothing, and somebody died adopting it", look(EMPTY, reservation="x", continues=("s",)), ROW,
         [*WAIT, "above 5", "above 5"]),
        ("meta was deleted", look(EMPTY, last=(5, 100), n=100), ROW, [*WAIT, "above 5", "above 5"]),
        ("Postgres was made anew beside it", OURS, msgspec.structs.replace(FRESH, now_s=NOW_S),
         ["wait", "refused", *[f"if it holds the same, above {NOW_S}"] * 2, f"above {NOW_S}"]),
        ("nothing, and nobody was ever here, by the clock", EMPTY, msgspec.structs.replace(FRESH, now_s=NOW_S),
         ["wait", *["above 0"] * 4]),
        ("nothing, and nobody was ever here", EMPTY, FRESH, ["wait", *["above 0"] * 4]),
        ("another database of the server that the row names", look(EMPTY, server="a"), ROW,
         [*WAIT, "above 5", "above 5"]),
        ("died adopting it, after the row was raised", look(EMPTY, reservation="x", continues=("s",)),
         ShardRow(shard=7, epoch=6, replid="s"), ["above 6"] * 5),
        ("nothing, and no fence by which it could be told", look(EMPTY, server="off"),
         ShardRow(shard=7, epoch=5, replid="off"), [*WAIT, "above 5", "above 5"]),
        ("Postgres went back behind it", look(epoch=9, last=(9, 100)), ROW, ["wait", "refused", *["above 9"] * 3]),
        ("Postgres went back to another server", look(epoch=9, server="a"), ShardRow(shard=7, epoch=5, replid="z"),
         ["wait", "refused", *("if it holds the same, above 9",) * 2, "above 9"]),
        ("Postgres went back, and this is another cluster's", look(epoch=9, server="a", pin=Pin("", "", "")),
         ShardRow(shard=7, epoch=5, replid="z"), ["wait", *["refused"] * 3, "above 9"]),
        ("Postgres went back, others were opened since", look(server="a"), ShardRow(shard=7, epoch=5, replid="b"),
         [*REFUSED, "above 5"]),
        ("another program's entry", look(last=(1763640000000, 0)), ROW, ["above 1763640000000"] * 5),
        ("an id that nobody can count beyond", look(last=(2**64 - 1, 0)), ROW, ["refused"] * 5),
        ("an agent that does without the fence", look(server="off"), ROW, [*REFUSED, "above 5"]),
        ("an agent that has a fence, where there is none", look(replid="off"), ShardRow(shard=7, epoch=5, replid="off"),
         [*REFUSED, "above 5"]),
        ("no fence, as ever", look(replid="off", server="off"), ShardRow(shard=7, epoch=5, replid="off"), ["open"] * 5),
        ("no fence, for the first time", look(EMPTY, server="off"), FRESH,
         ["wait", *["above 0"] * 4]),
        ("another cluster's", look(pin=OTHERS), ROW, ["refused"] * 5),
        ("another cluster's, restarted since", look(pin=OTHERS, server="a"), ROW, ["refused"] * 5),
        ("another cluster's, of a later epoch", look(pin=OTHERS, epoch=9), ROW, ["refused"] * 5),
        ("another cluster's, in a database made anew", look(pin=OTHERS), FRESH, [*REFUSED, "above 5"]),
        ("another cluster's, and an operator died adopting it", HALF_ADOPTED, ShardRow(shard=7, epoch=6, replid="s"),
         [*REFUSED, "above 6"]),
        ("died adopting it, and another server was opened", HALF_ADOPTED, ShardRow(shard=7, epoch=6, replid="b"),
         ["refused"] * 5),
        ("another cluster's, whose own opener died, and data here", HALF_ADOPTED,
         ShardRow(shard=7, epoch=6, replid="s", flushed=1), ["refused"] * 5),
        ("another cluster's, whose own opener died, another database of our server", HALF_ADOPTED,
         ShardRow(shard=7, epoch=5, replid="s"), ["refused"] * 5),
        ("another number of shards", look(pin=Pin("32", "crc32", "a-cluster")), ROW, ["refused"] * 5),
    ],
)  # fmt: skip
def test_who_may_open(story: str, seen: Look, row: ShardRow, expected: list[str]) -> None:
    assert verdicts(row, seen) == expected


def test_a_refusal_names_both_servers_and_the_way_out() -> None:
    refusal = decide(ShardRow(shard=7, epoch=6, replid="b"), look(server="s"), "client", pin=PIN)
    assert isinstance(refusal, Refusal)
    assert "(s) holds epoch 5 of a" in refusal.why
    assert "epoch 6 of b" in refusal.why
    assert "`statecache epoch adopt all --from b --to s`" in refusal.why
    unnamed = decide(ShardRow(shard=7, epoch=6, replid="b"), look(server=UNFENCED), "client", pin=PIN)
    assert isinstance(unnamed, Refusal)
    assert "`statecache epoch adopt all --from b`" in unnamed.why


def test_an_operator_names_the_server_that_is_given_up() -> None:
    behind = ShardRow(shard=7, epoch=6, replid="b")
    for named in ([], ["s"], ["a"]):
        refusal = decide(behind, look(), "operator", pin=PIN, vouched=named)
        assert isinstance(refusal, Refusal)
        assert "say `--from b --to s`" in refusal.why
    assert isinstance(decide(behind, look(), "operator", pin=PIN, vouched=["a", "b"]), Opening)


def test_the_last_epoch_that_can_be_counted_is_refused_before_postgres_refuses_it() -> None:
    assert isinstance(decide(ROW, look(last=(EPOCH_MAX, 0)), "operator", pin=PIN, vouched=["a"]), Opening)
    assert isinstance(decide(ROW, look(last=(EPOCH_MAX + 1, 0)), "operator", pin=PIN, vouched=["a"]), Refusal)


@pytest.mark.parametrize(
    ("seen", "later", "common", "aside"),
    [
        (EMPTY, None, None, ""),
        (EMPTY, 0, None, ""),
        (OURS, None, 100, ""),
        (OURS, 100, 100, ""),
        (OURS, 120, 100, ""),
        (OURS, 80, 80, "changes of another branch"),
        (look(last=(5, 140)), None, 100, "entries of another program"),
        (look(EMPTY, last=(5, 100), n=100), None, 100, ""),
        (look(EMPTY, last=(5, 100), n=100), 80, 80, "changes of another branch"),
        (look(last=(0, 0)), None, 100, ""),
    ],
)
def test_the_common_point(seen: Look, later: int | None, common: int | None, aside: str) -> None:
    assert common_point(seen, later) == common
    assert must_set_aside(seen, common) == aside


@pytest.mark.parametrize(
    ("seen", "continues", "parted", "who_may"),
    [
        (OURS, True, None, "client worker operator"),
        (OURS, False, None, ""),
        (OURS, True, 61, "operator"),
        (look(last=(5, 140)), True, None, "worker operator"),
    ],
)
def test_who_may_open_what_was_compared(seen: Look, continues: bool, parted: int | None, who_may: str) -> None:
    """Another branch is nobody's, a parting an operator's; what has to be set aside a client leaves to a worker."""
    refusals: dict[Authority, Refusal | None] = {
        authority: after_comparison(ROW, seen, authority, continues=continues, parted=parted, common=100)
        for authority in ("client", "worker", "operator")
    }
    assert [authority for authority, refusal in refusals.items() if refusal is None] == who_may.split()
    client = refusals["client"]
    assert (client is not None and client.wait) == (who_may == "worker operator")
    assert all(refusal is None or refusal.branch == (not continues) for refusal in refusals.values())


@pytest.mark.parametrize(
    ("version", "ids", "holds"),
    [
        (3, ["c@5-30", "b@5-20"], True),
        (4, ["d@6-40", "c@5-30"], True),
        (4, ["d@6-40", "x@5-30"], False),
        (3, ["c@4-30"], False),
        (2, ["b@5-20"], False),
        (9, ["i@6-90", "h@6-80"], None),
    ],
)
def test_what_both_hold_tells_whether_a_data_set_continues_what_postgres_has(
    version: int, ids: list[str], holds: bool | None
) -> None:
    newest = [HeldChange("runs/1", 3, "c", 5, 30), HeldChange("runs/2", 1, "z", 5, 29)]
    recent = {"runs/1": (version, ids)}
    assert continues(newest, recent, {}) is bool(holds)
    assert continues(newest, recent | {"runs/2": (1, ["z@5-29"])}, {}) is (holds is not False)
    assert continues(newest, recent | {"runs/2": (1, ["y@5-29"])}, {}) is False
    assert continues(newest, recent, {(5, 29): "z"}) is (holds is not False)
    assert continues(newest, recent, {(5, 29): "y"}) is False
    assert continues(newest, {}, {}) is False
    assert continues(newest, {}, {(5, 30): "c"}) is True


@pytest.mark.parametrize(
    ("seen", "flushed", "span"),
    [
        (look(server="a", flushed=60), 80, (60, 80)),
        (look(server="a", flushed=60), 120, (60, 100)),
        (look(server="a", flushed=100), 120, None),
        (look(server="s", flushed=60), 80, None),  # it names the row's replid, not its own: a restart, fenced
        (look(replid="", continues=("off",), server="off", flushed=60), 80, (60, 80)),
        (look(EMPTY, server="off"), 80, None),
    ],
)
def test_what_nothing_but_a_comparison_can_tell(seen: Look, flushed: int, span: tuple[int, int] | None) -> None:
    row = ShardRow(shard=7, epoch=5, replid="a", flushed=flushed)
    assert unproven(row, seen) == span


@pytest.mark.parametrize(("flushed", "span"), [(80, (0, 80)), (120, (0, 100)), (0, None)])
def test_an_epoch_that_postgres_does_not_know_is_compared_from_the_beginning(
    flushed: int, span: tuple[int, int] | None
) -> None:
    row, seen = ShardRow(shard=7, epoch=5, replid="a", flushed=flushed), look(epoch=9, server="s", flushed=60)
    assert unproven(row, seen) == span


def test_a_data_set_parts_from_the_lineage_before_the_first_entry_that_postgres_does_not_know() -> None:
    assert parting([61, 62, 63], {61, 62, 63}) is None
    assert parting([63, 62, 61], {61}) == 61
    assert parting([], set()) is None
    assert common_point(OURS, None, 61) == 61
    assert common_point(OURS, 50, 61) == 50
    assert must_set_aside(OURS, 61) == "changes of another branch"


def test_totals_are_the_heads_only_while_something_is_to_be_flushed_and_never_below_the_rows() -> None:
    row, head = Totals(90, 800), Totals(100, 900)
    assert head_totals(row, head, behind=True) == head
    assert head_totals(row, head, behind=False) == row
    assert head_totals(row, None, behind=True) == row
    assert head_totals(row, Totals(0, 0), behind=True) == row


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), max_size=8),
    st.integers(1, 40),
)
def test_pages_cover_every_position_once_and_are_bounded(widths: list[tuple[int, int]], most: int) -> None:
    spans = [(shard, start, start + width) for shard, (start, width) in enumerate(widths)]
    cut = list(pages(spans, most))
    assert all(0 < sum(upto - after for _, after, upto in page) <= most for page in cut)
    found = [(shard, n) for page in cut for shard, after, upto in page for n in range(after, upto)]
    assert found == [(shard, n) for shard, start, end in spans for n in range(start, end)]


class Server:
    """A data set with its server, as a list of what its log holds: index n - 1."""

    def __init__(self, log: list[int], *, epoch: int | None, replid: str, server: str) -> None:
        self.log = log
        self.epoch = epoch
        self.replid = replid
        self.server = server
        self.continues: tuple[str, ...] = ()

    def look(self) -> Look:
        last = (self.epoch or 0, len(self.log))
        return look(
            EMPTY, epoch=self.epoch, replid=self.replid, continues=self.continues, last=last, n=len(self.log),
            server=self.server,
        )  # fmt: skip


class History:
    """A shard's life: what Postgres holds, and every data set that ever was."""

    def __init__(self) -> None:
        self.flushed: list[int] = []
        self.row = ShardRow(shard=0, epoch=0, replid="")
        self.starts: dict[int, int] = {}
        self.servers = [Server([], epoch=None, replid="", server="0")]
        self.current: list[int] = []
        self.abandoned = False
        self._changes = iter(range(10**6))

    def write(self, server: Server) -> None:
        if server.replid == server.server:
            server.log.append(next(self._changes))
            if server.server == self.row.replid and server.epoch == self.row.epoch:
                self.current = server.log

    def flush(self, server: Server, most: int) -> None:
        if (server.epoch, server.replid, server.server) == (self.row.epoch, self.row.replid, self.row.replid):
            self.flushed += server.log[len(self.flushed) : len(self.flushed) + most]

    def lose(self, server: Server, tail: int) -> None:
        """Promote a replica that lacks the tail, or restart a server that lost it; the old one may go on."""
        log = server.log[: max(0, len(server.log) - tail)]
        copy = Server(log, epoch=server.epoch, replid=server.replid, server=str(len(self.servers)))
        copy.continues = server.continues
        self.servers.append(copy)

    def open(self, server: Server, authority: Authority, *, dies: bool) -> None:
        seen = server.look()
        verdict = decide(self.row, seen, authority, pin=PIN, vouched=[self.row.replid])
        if not isinstance(verdict, Opening):
            return
        later = [start for epoch, start in self.starts.items() if epoch > seen.own]
        common = common_point(seen, min(later, default=None))
        at = common or 0
        assert server.log[: min(at, len(self.flushed))] == self.flushed[:at], "a state that is kept is stale"
        if server.log == self.current[: len(server.log)] and common is not None and not self.abandoned:
            assert common == len(server.log), "changes that continue the lineage are set aside"
        start = max(len(self.flushed), at)
        assert verdict.seen >= max(self.starts, default=0)
        self.row = ShardRow(shard=0, epoch=verdict.seen + 1, replid=server.server)
        self.starts[self.row.epoch] = start
        server.continues = (*server.continues, server.replid, server.server) if server.epoch is not None else ()
        server.replid = ""
        if dies:
            self.abandoned = True
            return
        server.log = self.flushed + server.log[len(self.flushed) : at]
        assert len(server.log) == start, "n has a hole"
        server.epoch, server.replid, server.continues = self.row.epoch, server.server, ()
        self.current = server.log


def live(history: History, rng: Random) -> None:
    """Put a shard through sixty random faults and moves."""
    history.open(history.servers[0], "worker", dies=False)
    for _ in range(60):
        server = history.servers[-1 - min(int(rng.expovariate(0.7)), len(history.servers) - 1)]
        what = rng.choice(["write", "write", "flush", "lose", "open", "open", "die"])
        many = rng.randint(0, 4)
        if what == "write":
            for _ in range(many):
                history.write(server)
        elif what == "flush":
            history.flush(server, many)
        elif what == "lose":
            history.lose(server, many)
        else:
            history.open(server, rng.choice(["worker", "operator"]), dies=what == "die" and many == 0)


def test_whatever_happened_what_is_kept_is_true_and_what_continues_the_lineage_is_kept() -> None:
    for seed in range(3000):
        try:
            live(History(), Random(seed))
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
