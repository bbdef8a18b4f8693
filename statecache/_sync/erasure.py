# Generated from statecache/_async/erasure.py by tests/generators/unasync.py. Do not edit.

"""The verb that removes a subject everywhere."""

from __future__ import annotations

from typing import Generic, TypeVar

from statecache.clock import monotonic
from statecache.concurrency import run
from statecache.core.history.erasing import erase
from statecache.core.history.subjects import Subject
from statecache.core.view import VerbGroup, checked_text
from statecache.erasure import Erasure
from statecache.keys import checked_group, checked_key

D = TypeVar("D")


class Erasures(VerbGroup[D], Generic[D]):
    """The verb that removes a subject everywhere."""

    def erase(
        self, name: str, *, group: bool = False, actor: str = "", reason: str = "", timeout: float | None = None
    ) -> Erasure:
        """Delete a key and all that was ever kept of it, everywhere, for good, and return a proof of what went.

        With the key go the records that statecache keeps below it, of steps and checkpoints. With `group`, `name` is a
        group, and all its keys go. It deletes them by a commit with the reason `erased`, past locks, and waits until
        Postgres holds that. Then it blanks every earlier version, what was set aside as a conflict or in quarantine,
        and entries of the stream. What stays is the key itself, its version, and the change_ids: somebody may create
        it anew, which counts on from there. Keys that branched from it are not touched: the proof names them, and says
        which copies made before still hold it. What agents commit to a group meanwhile goes as a whole, or stays as a
        whole, and they need not pause. Interrupted, it may be called again.

        It takes a right that agents do not have unless it is granted. Raises NotFound where there was never anything,
        UsageError where an entry in quarantine holds some of it with changes of other keys, or where it is erased but
        others wrote so fast that one of their commits lost some of its keys alone, ConfigurationError where the role
        may not, Unavailable where Postgres holds less than it did, until a worker has compared it with Redis, and
        OutcomeUnknown where some of it is deleted by now and the rest could not be: call it again. `timeout` is for
        each of its steps, in seconds.
        """
        view = self._view
        full = view.full(name)
        key = checked_group(full) if group else checked_key(full)
        subject = Subject(key, group, checked_text(actor, "actor"), checked_text(reason, "reason"))
        return run(erase(self._runtime, subject, seconds=view.end_of(timeout) - monotonic()))
