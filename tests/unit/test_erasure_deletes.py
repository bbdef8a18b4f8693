"""What belongs to a deletion of many keys, as its commits and those of others stand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from statecache.core.history.deleting import Deleted, _Deletion
from statecache.core.history.subjects import Known, Subject
from statecache.core.read.listed import Watermark
from statecache.keys import KeySpace
from statecache.model import Position

HEAD, PAGE = "runs/1", "runs/1/page/1"


class Again:
    """A committer whose commit went with its Redis: it is made again in the next epoch, whose numbers begin lower."""

    async def endured(self, commit: Any, done: Any) -> Any:
        return SimpleNamespace(position=Position(2, 11), versions=done.versions)


async def test_what_comes_behind_a_delete_that_was_made_again_is_no_part_of_it() -> None:
    runtime: Any = SimpleNamespace(keys=KeySpace("sc", 4), committer=Again())
    known = Known(Watermark(1, 10), frozenset({HEAD}), (), frozenset())
    deletion = _Deletion(runtime, Subject(HEAD, True, "", ""), known, 1.0)
    commit: Any = SimpleNamespace(keys=(HEAD,), change_id="c" * 24, durability="memory", end=0.0)
    done: Any = SimpleNamespace(position=Position(1, 900), versions=(8,))
    deletion._note(commit, done)
    deletion._unheld.append((commit, done))
    deletion._commits[12] = {HEAD: 9, PAGE: 2}
    assert deletion._rest() == {HEAD, PAGE}, "it came before"
    await deletion.hold()
    assert deletion.deleted == {HEAD: Deleted(8, Position(2, 11))}
    assert deletion._rest() == set(), "it came behind"
