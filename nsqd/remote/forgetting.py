"""Deletes a node from a store in an order that leaves no nsqd a chain to go on with.

    fence ──> for each run: its mark ──> its slots and all other objects, but no fence ──> hint ──> node

**The fence** ends the chain for good, and stays. An owner that lives stops there, and so does one that sleeps and wakes up
a week later. Without the fence it would create its next slot in a run that nothing reads any more, and answer OK. What it
had stored before the fence was in the store when you asked to forget it.

**The marks** stay as well. A claimant that has read the chain before, and sleeps, would take a deleted slot for one that
never existed, put its own fence there, and own a node without files.

**`node` goes last.** From then on the name is free for a new node. The writer of its first run is drawn for it, so none of
the names that stay is one of its own. If this is interrupted, the name can't be used until you run it again.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqcommon.remote.marks import encode_forgotten
from nsqcommon.remote.names import GONE, HINT, NODE, ROOTS, SLOTS, run_in, writer_name
from nsqd.remote.claim import Claim
from nsqd.remote.fsck import StoreExamination

if TYPE_CHECKING:
    from nsqcommon.remote.slot import Claimant
    from nsqd.remote.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Deletion:
    """How many objects were deleted, and how many fences stay."""

    deleted: int
    fences: int


class AnotherForget(Exception):
    """Another process has forgotten the node meanwhile, and the name may have a new one."""


def claim_to_forget(claimant: Claimant, time_ns: int) -> Claim:
    """Return a claim whose fence ends the chain for good."""
    writer = writer_name(secrets.randbits(64))
    return Claim(
        node="", writer=writer, first_writer=writer, claimant=claimant, time_ns=time_ns, may_leap=False, forgets=True
    )


def delete_node(store: ObjectStore) -> Deletion:
    """Delete everything but fences and marks. The chain must have its last fence. Raises StoreFault and AnotherForget."""
    examination = StoreExamination(store)
    node = store.get(NODE)
    deleted = kept = 0
    after = ""
    while names := store.list("", after):
        after = names[-1]
        if store.get(NODE) != node:
            raise AnotherForget  # after the list, so that no name in it is of the new node
        runs = {run for it in names if it.startswith((ROOTS, SLOTS)) and (run := run_in(it)) is not None}
        for run in sorted(runs):
            examination.mark(run, encode_forgotten(run))
        fences, _ = examination.fences_among([it for it in names if it.startswith(SLOTS)])
        unneeded = [it for it in names if it not in fences and it not in (NODE, HINT) and not it.startswith(GONE)]
        store.delete(unneeded)
        deleted, kept = deleted + len(unneeded), kept + len(fences)
    store.delete([HINT])
    store.delete([NODE])
    return Deletion(deleted, kept)
