"""Bugs that the tests have to find, each planted by changing a few lines of the product, and who has to find it.

There is at least one for each promise of docs/explanation/guarantees.md. `scripts/test-planted` runs the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Suites: what pytest is told to run. What proves that a suite finds planted bugs is left out, as it would run itself.
SUITES: Final[dict[str, tuple[str, ...]]] = {
    "simulation": (
        "tests/simulation/test_simulation.py",
        "--deselect=tests/simulation/test_simulation.py::test_a_planted_bug_is_found",
    ),
    "several machines": (
        "tests/simulation/test_several_machines.py",
        "--deselect=tests/simulation/test_several_machines.py::test_a_planted_bug_is_found",
    ),
    "lost machines": (
        "tests/simulation/test_lost_machines.py",
        "--deselect=tests/simulation/test_lost_machines.py::test_a_planted_bug_is_found",
    ),
    "confirmed lives": (
        "tests/simulation/test_confirmed_lives.py",
        "--deselect=tests/simulation/test_confirmed_lives.py::test_a_planted_bug_is_found",
    ),
    "broker model": ("tests/model/test_broker_model.py",),
    "groups model": ("tests/model/test_groups_model.py",),
    "groups simulation": (
        "tests/simulation/test_grouping.py",
        "--deselect=tests/simulation/test_grouping.py::test_a_planted_bug_is_found",
        "--deselect=tests/simulation/test_grouping.py::test_a_planted_bug_that_lets_it_starve_is_found",
    ),
    "group kills": (
        "tests/simulation/test_group_kills.py",
        "--deselect=tests/simulation/test_group_kills.py::test_a_planted_bug_is_found",
    ),
    "ledger model": ("tests/model/test_ledger_model.py",),
    "keys model": ("tests/model/test_keys_model.py",),
    "leases model": ("tests/model/test_leases_model.py",),
    "kills": ("tests/e2e/test_kill9.py",),
    "keyed kills": ("tests/e2e/test_keyed_publishes.py",),
    "failovers": (
        "tests/failover/test_failover.py",
        "--deselect=tests/failover/test_failover.py::test_a_planted_bug_is_found",
    ),
    "failovers under Spark": (
        "tests/spark/test_failovers.py",
        "--deselect=tests/spark/test_failovers.py::test_a_planted_bug_is_found",
    ),
    "burying kills": (
        "tests/simulation/test_bury_kills.py",
        "--deselect=tests/simulation/test_bury_kills.py::test_a_planted_bug_is_found",
    ),
    "disk faults": (
        "tests/simulation/test_io_errors.py",
        "tests/simulation/test_refusing_disk.py",
        "tests/simulation/test_full_disk.py",
    ),
    "power cuts": ("tests/simulation/test_power_cuts.py",),
    "damage": ("tests/simulation/test_damage_files.py", "tests/simulation/test_damage_flips.py"),
    "log": ("tests/nsqd/log",),
    "broker": ("tests/nsqd/broker",),
    "edit kills": (
        "tests/simulation/test_edit_kills.py",
        "--deselect=tests/simulation/test_edit_kills.py::test_a_planted_bug_is_found",
    ),
    "edits cut": (
        "tests/simulation/test_editing.py",
        "--deselect=tests/simulation/test_editing.py::test_a_planted_bug_is_found",
    ),
    "outbox": ("tests/nsqtools/whole/test_outbox.py",),
    "copy of the log": ("tests/nsqd/log/test_remote.py", "tests/nsqd/log/writing/test_unconfirmed.py"),
    "sending of slots": (
        "tests/nsqd/remote/test_chain.py",
        "tests/nsqd/remote/test_owner.py",
        "tests/nsqd/remote/test_recorder.py",
        "tests/nsqd/remote/test_slot_builder.py",
        "tests/nsqd/remote/test_confirmations.py",
        "tests/nsqd/remote/test_sender.py",
    ),
    "object stores": ("tests/nsqd/remote/stores", "tests/nsqd/remote/test_check.py"),
    "owners of names": (
        "tests/nsqd/remote/test_catalog.py",
        "tests/nsqd/remote/test_claiming.py",
        "tests/nsqd/remote/test_difference.py",
        "tests/nsqd/remote/test_node.py",
        "tests/nsqd/remote/test_opening.py",
        "tests/nsqd/remote/test_opening_after_restarts.py",
        "tests/nsqd/remote/test_owner_call.py",
        "tests/nsqd/remote/test_standby.py",
        "tests/nsqd/remote/test_vigil.py",
        "tests/nsqd/remote/test_operating.py",
        "tests/nsqd/remote/test_root_job.py",
    ),
    "spark kills": ("tests/spark/test_kill9.py", "tests/spark/test_nsqd_kills.py"),
}


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    promise: str  # the words of docs/explanation/guarantees.md that it breaks
    file: str
    edits: tuple[tuple[str, str], ...]  # what stands there once, and what stands there instead
    suites: tuple[str, ...]  # each of them has to find it


_BURIED: Final = "A buried message stays"
_NO_BOUND: Final = "No limit drops a message that a consumer has received or an operator has asked for."
_POLICY: Final = "says so (it has expired, or exceeds a limit), which is counted by its cause."
_ONE_PLACE: Final = "A message is in exactly one place"
_ANSWERED: Final = "a power cut does not bring it back once such a command was answered"
_OK: Final = "A message that was answered with `OK` is not lost"
_EVERY_CHANNEL: Final = "Every channel gets every message at least once."
_EDITED: Final = "Exactly one of an edited message and its copy runs"
_ONCE: Final = "A publish with a key is stored once"
_ATTEMPTS: Final = "Attempts never go down"
_EARLY: Final = "A delay never ends early"
_IN_FLIGHT: Final = "No more messages are in flight than `max_in_flight` allows"
_REFUSES: Final = "A message that the disk refuses to read is not given up."
_DAMAGE: Final = "Damage is found, reported and read around."
_POSITION: Final = "A position in a topic's history means the same message for ever."
_GROUPS: Final = "A group keeps its order and its limit"
_ORDER: Final = "One node delivers a topic in the order of publication to one consumer"
_FULL: Final = "Then publishing stops, with an error, and nothing is thrown away"
_SPARK: Final = "Spark reads and writes each message once"

BUGS: Final = (
    # Who waits for the store
    Bug(
        "a publisher that waits for the store is answered when its message is written",
        _OK,
        "nsqd/log/topic_log.py",
        (("if self._ack is Ack.REMOTE else ([], receipts)", "if False else ([], receipts)"),),
        ("copy of the log", "confirmed lives", "failovers"),
    ),
    Bug(
        "a repeat is answered as its publish was, although the topic waits for the store since",
        _OK,
        "nsqd/log/topic_log.py",
        (("        if self._ack is not Ack.REMOTE or (earlier", "        if True or (earlier"),),
        ("copy of the log",),
    ),
    Bug(
        "a clean stop closes publishers that wait for the store without an answer",
        _ONCE,
        "nsqd/remote/confirmations.py",
        (("            while self._waiting_publishes:", "            while False:"),),
        ("sending of slots",),
    ),
    Bug(
        "history shows what another machine may not have",
        _POSITION,
        "nsqd/log/topic_log.py",
        (
            (
                "        return self._unsynced.checkpoint if self._unconfirmed is None else self._unconfirmed.checkpoint\n",
                "        return self._unsynced.checkpoint\n",
            ),
        ),
        ("copy of the log", "confirmed lives", "failovers under Spark"),
    ),
    Bug(
        "a key is forgotten when its publisher has waited too long for the store",
        _ONCE,
        "nsqd/log/topic_log.py",
        (("            receipt.settle(reason, stays=True)\n", "            receipt.settle(reason)\n"),),
        ("copy of the log",),
    ),
    Bug(
        "a store that answers again ends the refusal before it has what has stayed",
        _OK,
        "nsqd/remote/confirmations.py",
        (("            self._refuses_until = self._owner.position\n", "            self._refuses_until = 0\n"),),
        ("sending of slots",),
    ),
    Bug(
        "a thread that has ended with a bug looks like a store that hangs",
        _OK,
        "nsqd/remote/sender.py",
        (("            self.bug = error\n", "            del error\n"),),
        ("sending of slots",),
    ),
    Bug(
        "a publisher that waits does not make the next slot earlier",
        _OK,
        "nsqd/remote/owner.py",
        (
            (
                "        is_awaited = self._awaited > self._builder.position\n",
                "        is_awaited = False\n",
            ),
        ),
        ("sending of slots",),
    ),
    Bug(
        "a run ends after changes that were dropped",
        _OK,
        "nsqd/remote/owner.py",
        (
            (
                "            return self._end_run() if not self.is_stopped else None\n",
                "            return self._end_run()\n",
            ),
        ),
        ("sending of slots",),
    ),
    # A start that claims a name, and roots
    Bug(
        "a start takes the name of an owner that answers",
        _OK,
        "nsqd/remote/claiming.py",
        (("        if owner is None or self._takes_over:\n", "        if True:\n"),),
        ("owners of names",),
    ),
    Bug(
        "a standby takes over while the chain moves",
        _OK,
        "nsqd/remote/standby.py",
        (("        if place != doubt.place:\n", "        if doubt.place is None:\n"),),
        ("owners of names",),
    ),
    Bug(
        "a standby takes over from an owner that answers",
        _OK,
        "nsqd/remote/standby.py",
        (("        if says is OwnerSays.WELL:\n", "        if False:\n"),),
        ("owners of names",),
    ),
    Bug(
        "a fence comes before what the takeover needs",
        _OK,
        "nsqd/remote/claiming.py",
        (("            self._prepare(read)\n", "            pass\n"),),
        ("owners of names",),
    ),
    Bug(
        "an adopted data path keeps what the store never got",
        _POSITION,
        "nsqd/remote/settling.py",
        (
            (
                "        if size < file.size or (fate is Fate.FETCH and size != file.size):\n",
                "        if size < file.size:\n",
            ),
        ),
        ("owners of names",),
    ),
    Bug(
        "an adopted node goes on with the message ids of its reservation",
        _ONE_PLACE,
        "nsqd/remote/settling.py",
        (("            self._move_ids_on(node)\n", "            pass\n"),),
        ("owners of names",),
    ),
    Bug(
        "a data path is its owner's before it has the store's files",
        _POSITION,
        "nsqd/remote/settling.py",
        (
            (
                "        settled = self.make_whole(claimed.node, claimed.decision, claimed.catalog)\n"
                "        save_mark(self._local, claimed.mark)\n",
                "        save_mark(self._local, claimed.mark)\n"
                "        settled = self.make_whole(claimed.node, claimed.decision, claimed.catalog)\n",
            ),
        ),
        ("owners of names",),
    ),
    Bug(
        "what was removed while the store was away comes back",
        _ANSWERED,
        "nsqd/remote/reconciliation.py",
        ((" and (path in local or not removals.has(path, file)):\n", ":\n"),),
        ("owners of names",),
    ),
    Bug(
        "a node serves before the store has what its data path has",
        _OK,
        "nsqd/remote/node.py",
        (("        self._wait_until_confirmed()\n", ""),),
        ("owners of names",),
    ),
    Bug(
        "a tail that was never sent is not sent by the next start",
        _OK,
        "nsqd/remote/difference.py",
        (
            (
                "        if file is None or same < file.size or same < size:\n",
                "        if file is None or same < file.size:\n",
            ),
        ),
        ("owners of names",),
    ),
    Bug(
        "a wrong bit of the local disk gets into a root",
        _DAMAGE,
        "nsqd/remote/root_making.py",
        (
            (
                "        if len(data) == piece.length and (not piece.is_whole or crc32c(data) == piece.part.crc):\n",
                "        if len(data) == piece.length:\n",
            ),
        ),
        ("owners of names",),
    ),
    Bug(
        "a name is free before its objects are deleted",
        _OK,
        "nsqd/remote/forgetting.py",
        (("    deleted = kept = 0\n", "    deleted = kept = 0\n    store.delete([NODE])\n"),),
        ("owners of names",),
    ),
    Bug(
        "a node is forgotten while its owner may go on",
        _OK,
        "nsqd/remote/forgetting.py",
        (
            (
                "        unneeded = [it for it in names if it not in fences and it",
                "        unneeded = [it for it in names if it",
            ),
        ),
        ("owners of names",),
    ),
    Bug(
        "a jump needs files that nsqd has removed meanwhile",
        _OK,
        "nsqd/remote/second_names.py",
        (
            (
                "        return self._local.read(self._names.get(path, path), start, stop)\n",
                "        return self._local.read(path, start, stop)\n",
            ),
        ),
        ("owners of names",),
    ),
    Bug(
        "folds of a root that is given up stay for ever",
        _OK,
        "nsqd/remote/sweep.py",
        (("        self._left |= set(objects)\n", "        pass\n"),),
        ("owners of names",),
    ),
    Bug(
        "publishers that are quicker than the store are not held back",
        _OK,
        "nsqd/remote/owner.py",
        (
            (
                "        return incoming + self._builder.waiting_memory",
                "        return 0 * self._builder.waiting_memory",
            ),
        ),
        ("sending of slots",),
    ),
    Bug(
        "a slow line gets all large slots at once",
        _OK,
        "nsqd/remote/pacing.py",
        (
            (
                "        return size < LARGE or not under_way or under_way + size <= self._rate * HORIZON\n",
                "        return True\n",
            ),
        ),
        ("sending of slots",),
    ),
    Bug(
        "a large slot is sent a second time as soon as a small one",
        _OK,
        "nsqd/remote/chain.py",
        (("        if slot.size >= LARGE and not slot.compares:\n", "        if False:\n"),),
        ("sending of slots",),
    ),
    Bug(
        "a refusal ends before everything is confirmed that publishers got an error for",
        _OK,
        "nsqd/remote/confirmations.py",
        (("        if self._refusal is None or is_awaited:\n", "        if self._refusal is None:\n"),),
        ("sending of slots",),
    ),
    # The chain in a store, and who owns it
    Bug(
        "an OK comes before those of the slots ahead of it",
        _OK,
        "nsqd/remote/chain.py",
        (
            (
                "        slot.data = ()\n",
                "        slot.data = ()\n        self.confirmed_position = max(self.confirmed_position, slot.position)\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "an OK does not wait for the end of the run before",
        _OK,
        "nsqd/remote/chain.py",
        (
            (
                "        slot.data = ()\n",
                "        slot.data = ()\n"
                "        rest = list(self._pending)\n"
                "        while rest and (rest[0].is_stored or rest[0].slot.ends_run):\n"
                "            self.confirmed_position = max(self.confirmed_position, rest.pop(0).position)\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a slot that exists counts as our own earlier try",
        _OK,
        "nsqd/remote/chain.py",
        (
            (
                "                slot.compares = True\n                slot.due = now\n",
                "                self._store(slot)\n",
            ),
        ),
        ("several machines", "failovers"),
    ),
    Bug(
        "a slot that timed out is given up",
        _OK,
        "nsqd/remote/chain.py",
        (
            (
                "                self._line.failed(slot.size, time)\n                self._put_off(slot, now)\n",
                "                self._store(slot)\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a repeated slot has other bytes",
        _OK,
        "nsqd/remote/chain.py",
        (
            (
                "        request = ChainRequest(",
                "        if slot.attempts and not slot.compares:\n"
                "            from dataclasses import replace\n"
                "            later = replace(slot.slot, time_ns=slot.slot.time_ns + slot.attempts)\n"
                "            slot.data = encode_slot(later, slot.data[1:])\n"
                "            slot.header = slot.data[0]\n"
                "        request = ChainRequest(",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a conflict is taken for another owner",
        _OK,
        "nsqd/remote/chain.py",
        (
            (
                '            slot.compares = False  # a store that answers "conflict, try again" has said EXISTS of nothing\n'
                "            self._put_off(slot, now)\n",
                '            self._lose(b"")\n',
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a slot that is not there was never stored, and is left out",
        _OK,
        "nsqd/remote/chain.py",
        (
            (
                '            slot.compares = False  # a store that answers "conflict, try again" has said EXISTS of nothing\n'
                "            self._put_off(slot, now)\n",
                "            self._pending.remove(slot)\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a fence is swept like a slot",
        _OK,
        "nsqd/remote/sweep.py",
        (("    else:\n        yield slot_name(read.run, read.end)\n", "    yield slot_name(read.run, read.end)\n"),),
        ("several machines",),
    ),
    Bug(
        "a claimant does not ask whether it has read on swept ground",
        _OK,
        "nsqd/remote/claim.py",
        (
            (
                "            elif answer is Created.CREATED:\n                self._verify()\n",
                "            elif answer is Created.CREATED:\n                self._become_owner()\n",
            ),
            (
                "        elif data == self._fences[self._slot]:\n            self._verify()\n",
                "        elif data == self._fences[self._slot]:\n            self._become_owner()\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a claimant asks that of its last run only",
        _OK,
        "nsqd/remote/claim.py",
        (("{gone_name(it.run) for it in self._path} | {gone_name(self._run)}", "{gone_name(self._run)}"),),
        ("several machines",),
    ),
    Bug(
        "a run is marked as gone after its slots are deleted",
        _OK,
        "nsqd/remote/sweep.py",
        (
            ("        self._steps += [SetMark(gone_name(it.run), encode_gone(it.run, root)) for it in runs]\n", ""),
            (
                "        self._unused = deque(",
                "        self._steps += [SetMark(gone_name(it.run), encode_gone(it.run, root)) for it in runs]\n"
                "        self._unused = deque(",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a sweep begins before the commit is confirmed",
        _OK,
        "nsqd/remote/sweep.py",
        (
            (
                "        new.stage = Stage.COMMITTING\n",
                "        new.stage = Stage.COMMITTING\n        self._let_go(new, self._last)\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a root is committed before it is stored",
        _OK,
        "nsqd/remote/sweep.py",
        (("new.stage is not Stage.STORED:", "new.stage is Stage.COMMITTING:"),),
        ("several machines",),
    ),
    Bug(
        "a hint names a root that was never committed",
        _OK,
        "nsqd/remote/sweep.py",
        (
            (
                "        new.stage = Stage.STORED\n",
                "        new.stage = Stage.STORED\n        self._sweeps.append(Sweep((), new.run, (), self._last))\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a claimant goes on from a root whose objects may go",
        _OK,
        "nsqd/remote/claim.py",
        (("committed.number > self._begun.number:", "committed.number < 0:"),),
        ("several machines",),
    ),
    Bug(
        "one writer is an owner twice",
        _OK,
        "nsqd/remote/claim.py",
        (("        self._first_writer = first_writer\n", "        self._first_writer = writer\n"),),
        ("several machines",),
    ),
    Bug(
        "a power cut is taken for a kill",
        _OK,
        "nsqd/remote/reconciliation.py",
        ((" if same_boot else _after_power_cut", " if True else _after_power_cut"),),
        ("several machines",),
    ),
    Bug(
        "a file that was cut since a root needs what this root has made unnecessary",
        _OK,
        "nsqd/remote/catalog.py",
        (("                file.pieces = list(_rebased(file.pieces, pieces, rooted))\n", "                pass\n"),),
        ("owners of names",),
    ),
    Bug(
        "writes to a file that was closed and opened again are left out",
        _OK,
        "nsqd/remote/recorder.py",
        (
            (
                "                self._record(Recorded(Closed(number)))\n",
                "                self._record(Recorded(Closed(self._opened)))\n",
            ),
        ),
        ("sending of slots",),
    ),
    Bug(
        "an adopted node hands out ids again if its disk has the node.json of the store",
        _OK,
        "nsqd/remote/settling.py",
        (("        if is_adopted or NODE_JSON in fetched:\n", "        if NODE_JSON in fetched:\n"),),
        ("owners of names",),
    ),
    Bug(
        "whatever has the address of an owner is taken for it",
        _OK,
        "nsqd/remote/owner_call.py",
        (('run.endswith(f"-{writer}")', "bool(run)"),),
        ("owners of names",),
    ),
    Bug(
        "requests that hang after their slots were stored take all threads",
        _OK,
        "nsqd/remote/sender.py",
        (("self._most_threads + hanging)", "self._most_threads)"),),
        ("sending of slots",),
    ),
    Bug(
        "a slot whose two requests hang waits until they are given up",
        _OK,
        "nsqd/remote/chain.py",
        (("if len(under_way) >= MOST_REQUESTS:", "if len(under_way) >= 2:"),),
        ("sending of slots",),
    ),
    Bug(
        "a store that is slow as a whole gets requests that are given up before it answers",
        _OK,
        "nsqd/remote/stores/time_limits.py",
        (
            ("self._slowest < _SLOW if size < LARGE", "True if size < LARGE"),
            ("is_quick and name not in self._failed", "is_quick"),
        ),
        ("object stores",),
    ),
    Bug(
        "publishers do not hear of changes that are left out of slots",
        _OK,
        "nsqd/remote/sender.py",
        (("        self._ring_if_confirmed()  # what", "        # what"),),
        ("sending of slots",),
    ),
    Bug(
        "a slot has more operations than readers take",
        _OK,
        "nsqd/remote/slot_builder.py",
        ((" and self.header < MOST_OPERATIONS", ""), (" and memory < MOST_BODY", "")),
        ("sending of slots",),
    ),
    Bug(
        "the deletion of a topic that is called like an index is not recorded",
        _POSITION,
        "nsqd/remote/recorder.py",
        (("    if is_log_folder(name):\n        return True\n", ""),),
        ("sending of slots",),
    ),
    Bug(
        "a topic that was created again is taken for the one that the store has",
        _OK,
        "nsqd/remote/other_logs.py",
        (("                found.add(folder)\n", "                pass\n"),),
        ("owners of names",),
    ),
    Bug(
        "a deleted log that a power cut brings back is taken for the one that was created after it",
        _OK,
        "nsqd/remote/catalog.py",
        (("            self.former_logs.setdefault(path, []).append(self.files[path])\n", "            pass\n"),),
        ("owners of names",),
    ),
    Bug(
        "a topic that was created again goes aside if the store knows that it was deleted",
        _OK,
        "nsqd/remote/reconciliation.py",
        (("(path in catalog.removed and is_older)", "path in catalog.removed"),),
        ("owners of names",),
    ),
    Bug(
        "what was written after a failed write is taken for an older copy of the disk",
        _OK,
        "nsqd/remote/reconciliation.py",
        (("certain = {*rewritten, *_", "certain = {*_"),),
        ("owners of names",),
    ),
    Bug(
        "a kill takes what was written after a failed write if another file is shorter than in the store",
        _OK,
        "nsqd/remote/reconciliation.py",
        ((" and path.endswith(_WHOLE)}\n", "}\n"),),
        ("owners of names",),
    ),
    Bug(
        "a copy of the disk from before hands out message ids again",
        _ONE_PLACE,
        "nsqd/remote/reconciliation.py",
        (("    if same_boot and Fate.FETCH in fates.values():\n", "    if False:\n"),),
        ("owners of names",),
    ),
    Bug(
        "the half of a compaction is taken for a file that is missing",
        _ONE_PLACE,
        "nsqd/remote/reconciliation.py",
        (("        if path.endswith(_NEW):\n            continue\n", ""),),
        ("owners of names",),
    ),
    Bug(
        "an adopted data path keeps what the store does not have",
        _POSITION,
        "nsqd/remote/reconciliation.py",
        (("return fates | {path: Fate.ASIDE for path in local if path not in fates}", "return fates"),),
        ("several machines",),
    ),
    Bug(
        "a continued data path loses what is ahead of the store",
        _OK,
        "nsqd/remote/reconciliation.py",
        (
            (
                "return Fate.KEEP if size is not None and (size >= file.size",
                "return Fate.KEEP if size is not None and (size == file.size",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a root has bytes that were not proved",
        _DAMAGE,
        "nsqd/remote/catalog.py",
        (
            (
                "        if piece.is_whole and piece.part.object and crc32c(found) != piece.part.crc:\n            return False\n",
                "",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "an OK does not wait for the store",
        _OK,
        "nsqd/remote/chain.py",
        (
            (
                "        self._pending.append(pending)\n",
                "        self._pending.append(pending)\n        self.confirmed_position = position\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a slot whose request has failed is never sent again",
        _OK,
        "nsqd/remote/chain.py",
        (
            (
                '        """Take the answer to a create."""\n',
                "        if answer is Created.UNKNOWN:\n            return\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a claimant goes on without a fence",
        _OK,
        "nsqd/remote/claim.py",
        (
            (
                "        if self._may_leap:\n            self._go(Phase.FENCE)\n",
                "        if self._may_leap:\n            self._fence_at(self._number)\n            self._verify()\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a claimant passes over the root that the chain goes on from",
        _OK,
        "nsqd/remote/claim.py",
        (("        if slot.reads_root:\n            self._go(Phase.ROOT)\n", ""),),
        ("several machines",),
    ),
    Bug(
        "a copy of the disk from before the root that the chain goes on from is continued",
        _OK,
        "nsqd/remote/claim.py",
        (("            self._begun = root.run\n", ""),),
        ("several machines",),
    ),
    Bug(
        "what was dropped counts as confirmed",
        _OK,
        "nsqd/remote/owner.py",
        (("        is_all = not (self._slots or self.is_stopped)\n", "        is_all = not self._slots\n"),),
        ("several machines",),
    ),
    Bug(
        "fsck deletes slots of a run that nobody has marked",
        _OK,
        "nsqd/remote/fsck.py",
        (("            self.mark(run, encode_gone(run, read.path[0].run))\n", "            pass\n"),),
        ("several machines",),
    ),
    Bug(
        "fsck deletes what an owner is about to need",
        _OK,
        "nsqd/remote/fsck.py",
        (
            (
                "        earlier = [it for it, run in runs.items() if run is not None and run.number < first.number]\n",
                "        earlier = [it for it, run in runs.items() if run is not None]\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "the mark is saved before the data path is settled",
        _OK,
        "nsqd/remote/claim.py",
        (
            (
                "            case Phase.FENCE:\n",
                "            case Phase.FENCE:\n"
                "                before = last_owner(self._whole_path)\n"
                "                early = LocalMark(self._node, (self._writer, before), self._begun, self._claimant.boot)\n"
                "                if self.__dict__.get('early') != early:\n"
                "                    self.__dict__['early'] = early\n"
                "                    return [ClaimRequest(Ask.SAVE, '', mark=early)]\n",
            ),
            (
                "                self._mark = request.mark\n",
                "                self._mark = request.mark if self._phase is Phase.NEW_NODE else self._mark\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a root refers to bytes that were never sent",
        _OK,
        "nsqd/remote/catalog.py",
        (
            (
                "        if not piece.is_whole or name.startswith(SLOTS) or name in dead:\n",
                "        if not piece.is_whole or (name.startswith(SLOTS) and name != UNSENT) or name in dead:\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a root is of a later place than its run",
        _OK,
        "nsqd/remote/catalog.py",
        (
            (
                "        return {path: (file, tuple(file.pieces)) for path, file in self.files.items()}\n",
                "        class Later(dict):  # type: ignore[type-arg]\n"
                "            def items(later):  # type: ignore[no-untyped-def]\n"
                "                if not later:\n"
                "                    later.update({path: (it, tuple(it.pieces)) for path, it in self.files.items()})\n"
                "                return dict.items(later)\n"
                "        return Later()\n",
            ),
        ),
        ("several machines",),
    ),
    Bug(
        "a change of the journal is recorded after that of the log",
        _EARLY,
        "nsqd/remote/recorder.py",
        (
            (
                "                self._record(Recorded(OpenFile(self._opened, self._name(path))))\n",
                "                self._record(Recorded(OpenFile(self._opened, self._name(path))))\n"
                '                self.__dict__.setdefault("late", set())\n'
                '                if path.name.startswith("journal"):\n'
                '                    self.__dict__["late"].add(self._opened)\n',
            ),
            (
                "                self._record(Recorded(Write(number, offset, written), data))\n",
                '                held = self.__dict__.setdefault("held", [])\n'
                "                change = Recorded(Write(number, offset, written), data)\n"
                '                if number in self.__dict__.get("late", ()):\n'
                "                    held.append(change)\n"
                "                else:\n"
                "                    for it in (change, *held):\n"
                "                        self._record(it)\n"
                "                    held.clear()\n",
            ),
        ),
        ("lost machines",),
    ),
    Bug(
        "a short write is recorded whole",
        _OK,
        "nsqd/remote/recorder.py",
        (
            (
                '                data = b"".join(buffers)[:written]\n',
                '                data = b"".join(buffers)\n                written = len(data)\n',
            ),
        ),
        ("lost machines",),
    ),
    Bug(
        "a new name is not recorded",
        _OK,
        "nsqd/remote/recorder.py",
        (
            (
                "                self._record(Recorded(Rename(self._name(source), self._name(target))))\n",
                "                pass\n",
            ),
        ),
        ("lost machines",),
    ),
    Bug(
        "small files are recorded in pieces",
        _OK,
        "nsqd/remote/recorder.py",
        (("    return path.name.removesuffix(_NEW).endswith(_WHOLE)\n", "    return False\n"),),
        ("lost machines",),
    ),
    Bug(
        "a removal is recorded before the journal that allows it",
        _OK,
        "nsqd/remote/recorder.py",
        (
            (
                "                self._record(Recorded(Write(number, offset, written), data))\n",
                '                self.__dict__.setdefault("held", []).append(Recorded(Write(number, offset, written), data))\n'
                '                if len(self.__dict__["held"]) > 3:\n'
                '                    for it in self.__dict__["held"]:\n'
                "                        self._record(it)\n"
                '                    self.__dict__["held"].clear()\n',
            ),
        ),
        ("lost machines",),
    ),
    # What is buried
    Bug(
        "the message is dropped instead of buried at the limit",
        _BURIED,
        "nsqd/broker/buried_queue.py",
        (
            (
                "        self._ledger.bury(burials)\n\n    def take(",
                '        if "attempts" in note.reason:\n'
                "            for burial in burials:\n"
                "                self._ledger.finish_unseen(burial.sequence, burial.sequence + 1)\n"
                "            return\n"
                "        self._ledger.bury(burials)\n"
                "\n"
                "    def take(",
            ),
        ),
        ("simulation", "broker model"),
    ),
    Bug(
        "a kick goes to all channels of the topic",
        _BURIED,
        "nsqd/broker/buried_queue.py",
        (
            (
                "            self._ledger.give_back(taken)\n",
                "            self._ledger.give_back(taken)\n"
                "            from nsqd.broker.operator_actions import redeliver\n"
                "            broker = self._turn.delete_topic.__self__\n"
                "            for other in broker.topics[self._ledger.feed.name].channels.values():\n"
                "                if other.ledger is not self._ledger and other.ledger.ephemeral_batches is None:\n"
                "                    redeliver(other, taken)\n",
            ),
        ),
        ("simulation", "broker model", "burying kills"),
    ),
    Bug(
        "the limit of attempts is off by one",
        _BURIED,
        "nsqd/broker/policy.py",
        (
            (
                "if most is None or attempts < most:",
                "if most is None or attempts <= most:",
            ),
        ),
        ("simulation", "broker model", "burying kills"),
    ),
    Bug(
        "a buried message does not pin the log",
        _BURIED,
        "nsqd/broker/ledger.py",
        (
            (
                "self.deferred.lowest(), self.buried.lowest()\n",
                "self.deferred.lowest()\n",
            ),
        ),
        ("simulation", "broker model", "ledger model"),
    ),
    Bug(
        "a crash forgets buried messages",
        _BURIED,
        "nsqd/broker/ledger.py",
        (
            (
                "self.buried = state.buried\n",
                "self.buried = type(state.buried)()\n",
            ),
        ),
        ("simulation", "broker model", "burying kills", "ledger model"),
    ),
    Bug(
        "a cursor that goes back does not pass over buried messages",
        _BURIED,
        "nsqd/broker/ledger.py",
        (
            (
                "        self.skips.cover(between(self.buried.all(), cursor, self.feed.high_watermark))\n",
                "",
            ),
        ),
        ("simulation", "broker model", "ledger model"),
    ),
    Bug(
        "a kick is not told to the journal",
        _BURIED,
        "nsqd/broker/buried_queue.py",
        (
            (
                "            self._ledger.give_back(taken)\n",
                "            for sequence in taken:\n                self._ledger.retry_unrecorded(sequence, 0)\n",
            ),
        ),
        ("simulation", "broker model"),
    ),
    # Groups
    Bug(
        "two messages of an ordered group are in flight",
        _GROUPS,
        "nsqd/broker/groups.py",
        (
            (
                "        return group.in_flight < group.limit\n",
                "        return group.in_flight <= group.limit\n",
            ),
        ),
        ("groups model", "groups simulation"),
    ),
    Bug(
        "an edit leaves what it replaces",
        _EDITED,
        "nsqd/broker/ledger.py",
        (("        if replaced >= 0:\n            self._forget_replaced(replaced)\n", ""),),
        ("edit kills", "edits cut", "broker", "ledger model"),
    ),
    Bug(
        "a crash brings back what an edit has replaced",
        _EDITED,
        "nsqd/broker/ledger.py",
        (
            ('("edit", topic, name, copy, replaced, due_ms)', '("edit", topic, name, copy, -1, due_ms)'),
            ("        if former is not None:\n            if replaced", "        if False:\n            if replaced"),
        ),
        ("edit kills", "edits cut", "broker", "ledger model"),
    ),
    Bug(
        "an edit that a crash has interrupted loses the message",
        _EDITED,
        "nsqd/broker/journal_replay.py",
        (
            (
                "        lost = [copy for copy in self.edited.unsynced if copy >= tail]\n",
                "        lost: list[int] = []\n",
            ),
        ),
        ("edits cut", "broker", "ledger model"),
    ),
    Bug(
        "a snapshot of the journal forgets how to undo an edit",
        _EDITED,
        "nsqd/broker/ledger.py",
        (("            changes += undo\n", ""),),
        ("broker", "ledger model"),
    ),
    Bug(
        "a copy runs in each channel that comes to it",
        _EDITED,
        "nsqd/broker/channel.py",
        (
            (
                "        if mark.channel == self.name and self.ledger.may_run_copy(",
                "        if self.ledger.may_run_copy(",
            ),
        ),
        ("edits cut", "broker"),
    ),
    Bug(
        "a copy counts in other channels",
        _EDITED,
        "nsqd/broker/topic.py",
        (("                channel.ledger.pass_copy(copy)\n", "                pass\n"),),
        ("broker",),
    ),
    Bug(
        "a channel that goes back runs what was replaced",
        _EDITED,
        "nsqd/broker/ledger.py",
        (
            (
                "            self.skips.cover(between(self.edited.replaced, cursor, self.feed.high_watermark))\n",
                "            pass\n",
            ),
        ),
        ("broker", "ledger model"),
    ),
    Bug(
        "a copy whose edit the journal has lost runs although the message has run",
        _EDITED,
        "nsqd/broker/ledger.py",
        (
            (
                "        elif not self.finish_waiting(BitMap64((replaces,))):\n            return False\n",
                "        else:\n            self.finish_waiting(BitMap64((replaces,)))\n",
            ),
        ),
        ("broker",),
    ),
    Bug(
        "nobody remembers the token of an edit",
        _EDITED,
        "nsqd/http/edit.py",
        (("        if token is None:\n", "        if token is not None:\n"),),
        ("edit kills",),
    ),
    Bug(
        "a restart loses the order of a group",
        _GROUPS,
        "nsqd/broker/groups.py",
        (
            (
                "            self._to_learn |= ledger.retries.members.sequences | ledger.deferred_after_delivery()\n",
                "            pass\n",
            ),
        ),
        ("groups model", "groups simulation", "group kills"),
    ),
    Bug(
        "a requeued message comes after the later ones of its group",
        _GROUPS,
        "nsqd/broker/groups.py",
        (
            (
                "if again >= 0 and (again < held or held < 0):",
                "if again >= 0 and held < 0:",
            ),
        ),
        ("groups model", "groups simulation"),
    ),
    Bug(
        "a message that waits for its backoff holds up nothing",
        _GROUPS,
        "nsqd/broker/groups.py",
        (
            (
                "return found if later < 0 or found < later else -1",
                "return found",
            ),
        ),
        ("groups model", "groups simulation"),
    ),
    Bug(
        "the place of a message that failed is not freed",
        _GROUPS,
        "nsqd/broker/groups.py",
        (
            (
                "            return\n        group.in_flight -= 1\n        if sequence not in self._known:",
                "            return\n        if sequence not in self._known:",
            ),
        ),
        ("groups model", "groups simulation"),
    ),
    Bug(
        "a group that has a free place again is not looked at",
        _EVERY_CHANNEL,
        "nsqd/broker/groups.py",
        (
            (
                "                group.in_flight -= 1\n                self._look_at(group)\n\n    def leave(",
                "                group.in_flight -= 1\n\n    def leave(",
            ),
        ),
        ("groups model", "groups simulation"),
    ),
    Bug(
        "a group is stopped by a message that was cancelled",
        _EVERY_CHANNEL,
        "nsqd/broker/groups.py",
        (
            (
                "            self._look_at(group)  # it may have been held up by this message\n",
                "",
            ),
        ),
        ("groups model", "groups simulation"),
    ),
    Bug(
        "a crash forgets held messages",
        _EVERY_CHANNEL,
        "nsqd/broker/ledger.py",
        (
            (
                "        self.held.fill(state.held)\n",
                "",
            ),
        ),
        ("groups model", "groups simulation", "group kills", "ledger model"),
    ),
    Bug(
        "a held message does not pin the log",
        _OK,
        "nsqd/broker/ledger.py",
        (("        return min(low, self.oldest_ahead) if self.held.total else low\n", "        return low\n"),),
        ("ledger model",),
    ),
    Bug(
        "the journal is not told that a held message was delivered",
        _ATTEMPTS,
        "nsqd/broker/ledger.py",
        (
            (
                '        if delivered:\n            self._journal.record(("try"',
                '        if delivered and not held:\n            self._journal.record(("try"',
            ),
        ),
        ("groups model", "groups simulation"),
    ),
    Bug(
        "held messages are forgotten when the rules change",
        _EVERY_CHANNEL,
        "nsqd/broker/groups.py",
        (
            (
                "        self.unsorted = ledger.held.all()\n",
                "        self.unsorted = BitMap64()\n",
            ),
        ),
        ("groups model", "groups simulation"),
    ),
    Bug(
        "groups share what consumers have room for, and not the places of the channel",
        _GROUPS,
        "nsqd/broker/channel.py",
        (
            (
                "        room = self._allowed(sum([max(0, consumer.room) for consumer in self.consumers]), now)\n",
                "        room = self.policy.allowed(sum([max(0, consumer.room) for consumer in self.consumers]), now)\n",
            ),
        ),
        ("broker",),
    ),
    Bug(
        "a channel with groups has no limit of its own",
        _IN_FLIGHT,
        "nsqd/broker/channel.py",
        (
            (
                "            more = self._distribute(self._allowed(available, now), now)\n",
                "            more = self._distribute(self.policy.allowed(available, now), now)\n",
            ),
        ),
        ("groups model", "broker"),
    ),
    # What operators do with a group
    Bug(
        "an action on a group is about all groups",
        _EVERY_CHANNEL,
        "nsqd/broker/group_actions.py",
        (("            if name == self._name:\n", "            if name is not None:\n"),),
        ("groups model", "broker"),
    ),
    Bug(
        "an action on a group passes over deferred messages",
        _BURIED,
        "nsqd/broker/group_actions.py",
        (("self._candidates = ledger.deferred.among(all_of_them)", "self._candidates = BitMap64()"),),
        ("groups model", "broker"),
    ),
    Bug(
        "a crash makes messages new again that were buried with their group",
        _ONE_PLACE,
        "nsqd/broker/operator_actions.py",
        (("        ledger.record_skip(start, end)\n    channel.schedule_delivery()\n", "        pass\n"),),
        ("groups model", "broker"),
    ),
    Bug(
        "a message is held and buried, if its group was buried",
        _ONE_PLACE,
        "nsqd/broker/ledger.py",
        (("        passed |= self.held.take_out(sequences)\n", "        passed |= self.held.among(sequences)\n"),),
        ("groups model", "broker"),
    ),
    Bug(
        "to list groups forgets one that has come back",
        _GROUPS,
        "nsqd/broker/groups.py",
        (
            (
                "        if self._groups.get(group.name) is group:  # it may be forgotten by now, and there may be a new one of its name\n"
                "            self._look_at(group)\n",
                "        self._look_at(group)\n",
            ),
        ),
        ("broker",),
    ),
    Bug(
        "a large group goes first although groups should share",
        _GROUPS,
        "nsqd/broker/groups.py",
        (
            ("            group.used += cost\n", ""),
            ("        group.used += self._cost_of(group)\n", ""),
        ),
        ("broker", "groups simulation"),
    ),
    Bug(
        "the place of a finished message is not freed",
        _GROUPS,
        "nsqd/broker/groups.py",
        (
            (
                "                group.in_flight -= 1\n                self._look_at(group)\n\n    def leave(",
                "                self._look_at(group)\n\n    def leave(",
            ),
        ),
        ("groups model", "groups simulation"),
    ),
    Bug(
        "new messages starve while groups have something waiting",
        _EVERY_CHANNEL,
        "nsqd/broker/channel.py",
        (
            (
                "            if self._retry_first and (taken := self._take_waiting(consumer, 1, now)):\n",
                "            if taken := self._take_waiting(consumer, 1, now):\n",
            ),
            (
                "        taken = self._take_waiting(consumer, limit - limit // 2, now)\n",
                "        taken = self._take_waiting(consumer, limit, now)\n",
            ),
        ),
        ("groups simulation",),
    ),
    Bug(
        "more messages are held than max_held allows",
        _FULL,
        "nsqd/broker/channel.py",
        (
            (
                "cursor + groups.room))",
                "cursor + groups.room + 1))",
            ),
        ),
        ("groups simulation",),
    ),
    # Limits
    Bug(
        "a bound that drops is off by one",
        _POLICY,
        "nsqd/broker/limits.py",
        (
            (
                "beyond = held.messages - rules.max_messages",
                "beyond = held.messages - rules.max_messages - 1",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "a bound that refuses is off by one",
        _POLICY,
        "nsqd/broker/limits.py",
        (("if messages > self._messages:", "if messages - 1 > self._messages:"),),
        ("simulation",),
    ),
    Bug(
        "drop-oldest drops one too many",
        _POLICY,
        "nsqd/broker/channel.py",
        (
            (
                "dropped = self._drop_next(count, end if",
                "dropped = self._drop_next(count + 1, end if",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "drop-oldest drops what is in flight",
        _NO_BOUND,
        "nsqd/broker/channel.py",
        (
            (
                "        end = self.feed.high_watermark\n        dropped = self._drop_next(count, end if",
                "        if len(in_flight := sorted(sequence for sequence, _ in self.in_flight.positions())) >= count:\n"
                "            self.in_flight.clear()\n"
                "            for consumer in self.consumers:\n"
                "                consumer.in_flight = 0\n"
                "            for sequence in in_flight:\n"
                "                self.ledger.finish_unseen(sequence, sequence + 1)\n"
                '            self._count("overflow, dropped", len(in_flight))\n'
                "            return\n"
                "        end = self.feed.high_watermark\n"
                "        dropped = self._drop_next(count, end if",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "drop-oldest drops what is to be tried again",
        _NO_BOUND,
        "nsqd/broker/channel.py",
        (
            (
                "        end = self.feed.high_watermark\n        dropped = self._drop_next(count, end if",
                "        while count and self.ledger.retries:\n"
                "            first, stop, _ = self.ledger.retries.pop_run(count, self.feed.high_watermark)\n"
                "            self.ledger.finish_unseen(first, stop)\n"
                '            self._count("overflow, dropped", stop - first)\n'
                "            count -= stop - first\n"
                "        end = self.feed.high_watermark\n"
                "        dropped = self._drop_next(count, end if",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "drop-oldest drops what was deferred before",
        _NO_BOUND,
        "nsqd/broker/channel.py",
        (
            (
                "        end = self.feed.high_watermark\n        dropped = self._drop_next(count, end if",
                "        for _, sequence, _ in sorted(self.ledger.deferred)[:count]:\n"
                "            self.ledger.deferred.take_out(self.ledger.deferred.among(type(self.ledger.buried.all())([sequence])))\n"
                "            self.ledger.finish_unseen(sequence, sequence + 1)\n"
                '            self._count("overflow, dropped", 1)\n'
                "            count -= 1\n"
                "        end = self.feed.high_watermark\n"
                "        dropped = self._drop_next(count, end if",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "a bound buries what is to be tried again",
        _NO_BOUND,
        "nsqd/broker/channel.py",
        (
            (
                "        ledger, buried = self.ledger, 0\n        while buried < count and (held",
                "        ledger, buried = self.ledger, 0\n"
                "        if ledger.retries and (known := ledger.batch_of(ledger.retries.peek()[0])) is not None:\n"
                "            first, stop, attempts = ledger.take_retries(count, known)\n"
                "            self._bury(places_in(known, first, stop, attempts), _OVERFLOWN, has_failed=False)\n"
                "            return stop - first\n"
                "        while buried < count and (held",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "the journal does not know what was delivered before a crash",
        _NO_BOUND,
        "nsqd/broker/topic.py",
        (
            (
                "channel.records_deliveries = self.policy.drops or channel.policy.drops",
                "channel.records_deliveries = False",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "what overflows is lost instead of buried",
        _POLICY,
        "nsqd/broker/channel.py",
        (
            (
                "        self.buried_queue.bury(places, note)\n        if self.ledger",
                "        if note is _OVERFLOWN:\n"
                "            for sequence, _, _ in places:\n"
                "                self.ledger.finish_unseen(sequence, sequence + 1)\n"
                "            return\n"
                "        self.buried_queue.bury(places, note)\n"
                "        if self.ledger",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "what overflows is buried without the journal",
        _BURIED,
        "nsqd/broker/channel.py",
        (
            (
                "        self.buried_queue.bury(places, note)\n        if self.ledger",
                "        if note is _OVERFLOWN and self.ledger.ephemeral_batches is None:\n"
                "            for sequence, message_id, attempts in places:\n"
                "                self.buried_queue.bury_count += 1\n"
                "                at = self.turn.timestamp // 1_000_000\n"
                "                self.ledger.buried._add(sequence, message_id, attempts, at, note)\n"
                "            return\n"
                "        self.buried_queue.bury(places, note)\n"
                "        if self.ledger",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "the time to live is judged by another clock",
        _POLICY,
        "nsqd/broker/channel.py",
        (
            (
                "        ledger, timestamp = self.ledger, self.turn.timestamp\n",
                "        ledger, timestamp = self.ledger, int(self.turn.now * 1_000_000_000)\n",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "messages expire after half of their time",
        _POLICY,
        "nsqd/broker/channel.py",
        (
            (
                "        ledger, timestamp = self.ledger, self.turn.timestamp\n",
                "        ledger, timestamp = self.ledger, self.turn.timestamp + ttl // 2\n",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "what is dropped is not counted",
        _POLICY,
        "nsqd/broker/limits.py",
        (
            (
                '    """Count what a rule has done to messages, or would have done."""\n    if count > 0:',
                '    """Count what a rule has done to messages, or would have done."""\n'
                '    if count > 0 and cause not in ("overflow, dropped", "full, dropped"):',
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "the breaker never trips",
        _POLICY,
        "nsqd/broker/policy.py",
        (("return delivered >= FEWEST and", "return delivered < 0 and"),),
        ("simulation",),
    ),
    Bug(
        "the breaker trips at each burial",
        _POLICY,
        "nsqd/broker/policy.py",
        (("return delivered >= FEWEST and", "return delivered >= 0 or"),),
        ("simulation",),
    ),
    # Taking back
    Bug(
        "what waits for its time is taken back without the journal",
        _ONE_PLACE,
        "nsqd/broker/ledger.py",
        (
            (
                "        self._finished += ranges_in(waiting)\n",
                "",
            ),
        ),
        ("simulation", "ledger model"),
    ),
    Bug(
        "the journal hears of a cancel later",
        _ONE_PLACE,
        "nsqd/broker/ledger.py",
        (
            (
                "        self.record_progress(urgent=True)\n"
                "        self._journal.unsaved[self] = None  # the log may be able to remove something\n"
                "        return waiting | ahead",
                "        self._journal.unsaved[self] = None  # the log may be able to remove something\n"
                "        return waiting | ahead",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "the neighbour of what is taken back goes as well",
        _ONE_PLACE,
        "nsqd/broker/ledger.py",
        (
            (
                "waiting = self.deferred.take_out(sequences) |",
                "waiting = self.deferred.take_out(sequences | self.deferred.among(sequences.shift(1))) |",
            ),
        ),
        ("simulation", "ledger model"),
    ),
    Bug(
        "a crash forgets that something was taken back which no channel had got yet",
        _ONE_PLACE,
        "nsqd/broker/topic.py",
        (
            (
                '"""Record a change of this topic in the journal."""\n        if not self.ephemeral:',
                '"""Record a change of this topic in the journal."""\n'
                '        if not self.ephemeral and change[0] != "cancel":',
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "what was taken back is handed over",
        _ONE_PLACE,
        "nsqd/broker/ledger.py",
        (("self.skips.cover(parked.deferred | parked.cancelled)", "self.skips.cover(parked.deferred)"),),
        ("simulation",),
    ),
    Bug(
        "what was taken back stays in the heap",
        _ONE_PLACE,
        "nsqd/broker/deferred_queue.py",
        (
            (
                'before their time, and return them."""\n        if here := self._members.take_out(wanted):',
                'before their time, and return them."""\n        if here := self.among(wanted):',
            ),
        ),
        ("simulation", "ledger model"),
    ),
    Bug(
        "a crash forgets that it was moved",
        _EARLY,
        "nsqd/broker/ledger.py",
        (
            (
                "        if entries:\n            self._tell_waiting(entries)\n        self.deferred.take_out(moved)",
                "        self.deferred.take_out(moved)",
            ),
        ),
        ("simulation", "ledger model"),
    ),
    # What the journal has to know at once
    Bug(
        "a discard is told to the journal later",
        _BURIED,
        "nsqd/broker/ledger.py",
        (
            (
                "for sequence in sequences])\n        self.record_progress(urgent=True)\n",
                "for sequence in sequences])\n",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "a redelivery is not told to the journal",
        _ONE_PLACE,
        "nsqd/broker/operator_actions.py",
        (
            (
                "        ledger.give_back(again)\n",
                "        for sequence in again:\n            ledger.retry_unrecorded(sequence, 0)\n",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "a crash forgets a delay that a consumer has asked for",
        _EARLY,
        "nsqd/broker/channel.py",
        (
            (
                "        if later:\n            ledger.retry_later(later)\n",
                "        if later and asked_ms > 0:\n"
                "            for sequence, attempts, due, _ in later:\n"
                "                ledger.deferred.add(due, sequence, attempts)\n"
                "        elif later:\n"
                "            ledger.retry_later(later)\n"
                "        if later:\n",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "a backlog that is noted does not know what is buried",
        _BURIED,
        "nsqd/broker/operator_actions.py",
        (
            (
                "buried=ledger.buried.ranges(0, end),",
                "buried=[],",
            ),
        ),
        ("broker",),
    ),
    # What kills find
    Bug(
        "one message of a hundred is dropped",
        _OK,
        "nsqd/broker/channel.py",
        (
            (
                "        ledger = self.ledger\n        if retry:\n",
                "        ledger = self.ledger\n"
                "        if first // 100 < stop // 100:\n"
                "            ledger.finish_unseen(first, first + 1)\n"
                "            first += 1\n"
                "            if first == stop:\n"
                "                return\n"
                "        if retry:\n",
            ),
        ),
        ("kills", "disk faults"),
    ),
    Bug(
        "deferred messages come early",
        _EARLY,
        "nsqd/broker/deferred_queue.py",
        (
            ("bound = (until + 1) << (", "bound = (until + 300_001) << ("),
            (
                "return packed >> (SEQUENCE_BITS + _REST_BITS) if packed is not None else None",
                "return (packed >> (SEQUENCE_BITS + _REST_BITS)) - 300_000 if packed is not None else None",
            ),
        ),
        ("kills", "simulation"),
    ),
    Bug(
        "finished messages are delivered again",
        _ONE_PLACE,
        "nsqd/broker/channel.py",
        (
            (
                "        done, failures = self.in_flight.finish(consumer, ids)\n",
                "        delivery = self.in_flight.find(consumer, ids[0])\n"
                "        if isinstance(delivery, Delivery) and (again := delivery.sequence_of(ids[0])) % 10 == 9:\n"
                "            self.ledger.retries.add(again, delivery.attempts)\n"
                "        done, failures = self.in_flight.finish(consumer, ids)\n",
            ),
        ),
        ("kills",),
    ),
    Bug(
        "some finishes are forgotten",
        _ONE_PLACE,
        "nsqd/broker/ledger.py",
        (
            (
                "finished = self.in_flight.take_finished()",
                "finished = self.in_flight.take_finished()[self.cursor % 2 :]",
            ),
        ),
        ("kills",),
    ),
    Bug(
        "attempts go down",
        _ATTEMPTS,
        "nsqd/broker/retry_queue.py",
        (
            (
                "        self._queue.append(self._add_member(sequence, attempts))\n",
                "        attempts = max(0, attempts - 2) if sequence % 10 == 9 else attempts\n"
                "        self._queue.append(self._add_member(sequence, attempts))\n",
            ),
        ),
        ("kills", "burying kills", "ledger model"),
    ),
    # The disk
    Bug(
        "OK comes before the write",
        _OK,
        "nsqd/log/topic_log.py",
        (
            (
                "if self._ack is Ack.MEMORY and self._fault.error is None:",
                "if self._ack is not Ack.SYNCED and self._fault.error is None:",
            ),
        ),
        ("simulation", "disk faults"),
    ),
    Bug(
        "OK comes before the sync, with --ack=synced",
        _OK,
        "nsqd/log/writing/unsynced.py",
        (
            (
                "        self._receipts.extend([",
                "        for receipt in receipts:\n            receipt.settle()\n        self._receipts.extend([",
            ),
        ),
        ("simulation", "power cuts"),
    ),
    Bug(
        "a new segment's folder is not synced",
        _OK,
        "nsqd/log/writing/unsynced.py",
        (
            (
                "        if self._folder not in self.folders:\n            self.folders.append(self._folder)\n",
                "",
            ),
        ),
        ("simulation",),
    ),
    Bug(
        "a failed sync counts as a sync",
        _OK,
        "nsqd/log/writing/unsynced.py",
        (('                self.error = DiskError.of("fsync", path, error)\n', ""),),
        ("simulation",),
    ),
    Bug(
        "a command is answered before its checkpoint is on disk",
        _ANSWERED,
        "nsqd/log/store.py",
        (("        if not self.journal.is_synced:\n            self.journal.needs_sync()\n", ""),),
        ("log",),
    ),
    Bug(
        "checksums are not compared",
        _DAMAGE,
        "nsqd/log/record.py",
        (("if verify and crc(buffer[position + 56 : following]) != fields[3]:", "if False:"),),
        ("damage", "log"),
    ),
    Bug(
        "the name that a power cut has left of a segment says that there were messages",
        _DAMAGE,
        "nsqd/log/recovery/torn_segments.py",
        (("    while place > start and not _has_record", "    while False and not _has_record"),),
        ("simulation", "log", "owners of names"),
    ),
    Bug(
        "a torn segment goes although messages before it were synced",
        _POSITION,
        "nsqd/log/recovery/torn_segments.py",
        (("if not checkpoint.sequence <= end < ", "if not end < "),),
        ("log",),
    ),
    Bug(
        "damage is not reported",
        _DAMAGE,
        "nsqd/log/recovery/topic_log.py",
        (
            (
                '            self._note(segment.path.name, hole.offset, hole.first, hole.end, kept, "damage is skipped")\n',
                "",
            ),
        ),
        ("log",),
    ),
    Bug(
        "a log that has lost its end keeps its identity",
        _POSITION,
        "nsqd/log/recovery/topic_log.py",
        (("        state.log_id = log_id\n        self.save_identity()\n", "        self.save_identity()\n"),),
        ("log",),
    ),
    Bug(
        "a read that the disk refuses passes for damage",
        _REFUSES,
        "nsqd/log/reading/refusals.py",
        (
            (
                "return any(start < end and offset < stop for start, stop in self._refused.items())",
                "return False",
            ),
        ),
        ("disk faults", "log"),
    ),
    Bug(
        "publishing goes on below the reserve",
        _FULL,
        "nsqd/log/disk_reserve.py",
        (
            ("self.is_open = self._room > 0", "self.is_open = True"),
            (
                "self.is_open = self._room >= self._margin\n            return False",
                "return True",
            ),
        ),
        ("log",),
    ),
    # How many are in flight
    Bug(
        "one message too many is in flight",
        _IN_FLIGHT,
        "nsqd/broker/policy.py",
        (("max(0, self.max_in_flight - in_flight)", "max(0, self.max_in_flight + 1 - in_flight)"),),
        ("broker model", "leases model", "groups simulation", "broker"),
    ),
    Bug(
        "the messages of a consumer that has left take no place",
        _IN_FLIGHT,
        "nsqd/broker/channel.py",
        (
            (
                "policy.places(len(self.in_flight))",
                "policy.places(sum(it.in_flight for it in self.consumers))",
            ),
        ),
        ("broker model", "broker"),
    ),
    Bug(
        "the place of a buried message is not freed",
        _EVERY_CHANNEL,
        "nsqd/broker/channel.py",
        (
            (
                "        self._bury([place], _note_by(reason, consumer))\n"
                "        consumer.in_flight -= 1\n"
                "        self.schedule_delivery()\n",
                "        self._bury([place], _note_by(reason, consumer))\n        consumer.in_flight -= 1\n",
            ),
        ),
        ("broker model", "broker"),
    ),
    Bug(
        "what a consumer samples out takes a place for ever",
        _EVERY_CHANNEL,
        "nsqd/broker/channel.py",
        (("            if more < available:\n", "            if True:\n"),),
        ("broker model", "broker"),
    ),
    # Who gets what, and in which order
    Bug(
        "the first channel of a topic misses what waited for it",
        _EVERY_CHANNEL,
        "nsqd/broker/topic.py",
        (
            (
                "begins = self.high_watermark if cursor is None else cursor",
                "begins = self._written_tail if cursor is None else cursor",
            ),
        ),
        ("broker model", "simulation"),
    ),
    Bug(
        "a crash forgets a channel",
        _EVERY_CHANNEL,
        "nsqd/broker/topic.py",
        (('            self._record_name(channel, ("channel", self.name, name, channel.ledger.cursor))\n', ""),),
        ("broker model", "simulation"),
    ),
    Bug(
        "what times out does not come again",
        _EVERY_CHANNEL,
        "nsqd/broker/channel.py",
        (
            (
                "                ledger.retry_unrecorded(sequence, attempts)\n",
                "                pass\n",
            ),
        ),
        ("broker model", "simulation"),
    ),
    Bug(
        "what is published in one turn is stored backwards",
        _ORDER,
        "nsqd/broker/publish_buffer.py",
        (
            (
                "drafts: Iterable[_Draft] = self._drafts\n",
                "drafts: Iterable[_Draft] = self._drafts[::-1]\n",
            ),
        ),
        ("broker", "broker model"),
    ),
    # Keys
    Bug(
        "a key is forgotten after half of the window",
        _ONCE,
        "nsqd/broker/keys.py",
        (("<= timestamp - self.window:", "<= timestamp - self.window // 2:"),),
        ("keys model",),
    ),
    Bug(
        "a start forgets keys",
        _ONCE,
        "nsqd/broker/topic.py",
        (("        self._keys.know(keys)\n", ""),),
        ("keys model", "keyed kills"),
    ),
    Bug(
        "the key of a deferred message is forgotten with the window",
        _ONCE,
        "nsqd/broker/keys.py",
        (("        if self.deferred.is_needed(key, timestamp, waits):\n            return True\n", ""),),
        ("keys model",),
    ),
    Bug(
        "a cancel does not free the key",
        _ONCE,
        "nsqd/broker/cancel_and_reschedule.py",
        (("            self._topic.forget_key(self._key, start, start + self.count)", "            return"),),
        ("keys model",),
    ),
    Bug(
        "keys of deferred messages go before the others",
        _ONCE,
        "nsqd/broker/keys.py",
        (
            (
                "            if others:\n",
                "            if others and not self._deferring:\n",
            ),
        ),
        ("broker",),
    ),
    # Leases
    Bug(
        "a holder may answer for another one",
        "A message is delivered again and again until a consumer answers `FIN`.",
        "nsqd/broker/leases.py",
        (
            (
                "elif not isinstance(owner, HttpConsumer) or owner.holder != holder:",
                "elif not isinstance(owner, HttpConsumer):",
            ),
        ),
        ("leases model",),
    ),
    # The relay of an outbox
    Bug(
        "the relay forgets to which node it has sent a row",
        _ONCE,
        "nsqtools/outbox_tables.py",
        (
            (
                "        self._link.run(self._statements.check)\n",
                "        self._link.run(self._statements.check)\n"
                "        for node in self.nodes_in_doubt():\n"
                "            self.release(self.in_doubt(node, 1000))\n"
                '        self._link.run("UPDATE outbox SET key = NULL WHERE sent_at IS NULL")\n',
            ),
        ),
        ("outbox",),
    ),
    # Spark
    Bug(
        "a table takes a batch that it has",
        _SPARK,
        "pyspark_nsq/tables/ends.py",
        (
            (
                "return span.begin if end is None else min(max(span.begin, end), span.end)",
                "return span.begin",
            ),
            ("for lane, end in after.items() if end != ends.get(lane)}", "for lane, end in after.items()}"),
        ),
        ("spark kills",),
    ),
    Bug(
        "a quarantine takes a batch that it has",
        _SPARK,
        "pyspark_nsq/tables/ends.py",
        (
            (
                'for it, id in ((table, of), (beside, "")) if it is not None]',
                'for it, id in ((beside or table, "" if beside else of),) if it is not None]',
            ),
        ),
        ("spark kills",),
    ),
    Bug(
        "a task that runs again has other keys",
        _SPARK,
        "pyspark_nsq/sink/publishing.py",
        (
            (
                'return _publish(iterator, self._options, f"{query}/{batch}")',
                'return _publish(iterator, self._options, f"{query}/{batch}/{time.time()}")',
            ),
        ),
        ("spark kills",),
    ),
    Bug(
        "a batch that is planned again is cut into other tasks",
        _SPARK,
        "pyspark_nsq/lanes.py",
        (
            (
                "    borders = sorted({whole.begin, *inner, whole.end})\n",
                '    shift = __import__("time").time_ns() // 1000 % 300\n'
                "    borders = sorted({whole.begin, *(min(it + shift, whole.end) for it in inner), whole.end})\n",
            ),
        ),
        ("spark kills",),
    ),
    Bug(
        "a node that dies while it is read counts as read",
        _SPARK,
        "pyspark_nsq/source/reading.py",
        (
            (
                "                self._pause(failure, PATIENCE, moved=self._look_elsewhere())\n",
                "                self._position = end\n",
            ),
        ),
        ("spark kills",),
    ),
    Bug(
        "a folder lets the last writer win",
        _OK,
        "nsqd/remote/stores/folder.py",
        (("self._files.link(aside, target)", "self._files.rename(aside, target)"),),
        ("object stores",),
    ),
    Bug(
        "a folder syncs no object",
        _OK,
        "nsqd/remote/stores/folder.py",
        (("            self._files.sync(descriptor)\n", ""),),
        ("object stores",),
    ),
    Bug(
        "a folder syncs no name",
        _OK,
        "nsqd/remote/stores/folder.py",
        (("            if created is Created.CREATED:\n", "            if created is None:\n"),),
        ("object stores",),
    ),
    Bug(
        "a folder shows what a power cut may take away",
        _OK,
        "nsqd/remote/stores/folder.py",
        (("                self._files.sync_folder(path.parent)\n", "                pass\n"),),
        ("object stores",),
    ),
    Bug(
        "a failed request to a store counts as done",
        _OK,
        "nsqd/remote/stores/obstore.py",
        (("            return Created.UNKNOWN\n", "            return Created.CREATED\n"),),
        ("object stores",),
    ),
    Bug(
        "the library repeats a create",
        _OK,
        "nsqd/remote/stores/obstore.py",
        (("retry_config=_NO_RETRIES", 'retry_config={"max_retries": 1}'),),
        ("object stores",),
    ),
    Bug(
        "any 404 counts as absence",
        _OK,
        "nsqd/remote/stores/answers.py",
        (("    return _ABSENT.search(text) is not None\n", "    return True\n"),),
        ("object stores",),
    ),
    Bug(
        "the check accepts several winners",
        _OK,
        "nsqd/remote/check.py",
        (("if len(winners) != 1:", "if not winners:"),),
        ("object stores",),
    ),
    Bug(
        "the check trusts an answer without reading",
        _OK,
        "nsqd/remote/check.py",
        (("        if found is None:\n", "        if found is None and self._rounds < 0:\n"),),
        ("object stores",),
    ),
)

# Not bugs, but a relay that dies where a test wants it. The tests of the outbox look at what it leaves.
_CLAIM: Final = "return _rows(self._link.run(self._statements.claim, node, due_within, count))"
_MARK: Final = "        self._for_all(self._statements.delete if delete else self._statements.sent, rows)\n"
DEATHS: Final = (
    Bug(
        "the relay dies after the claim",
        _ONCE,
        "nsqtools/outbox_tables.py",
        ((_CLAIM, f"{_CLAIM.removeprefix('return ')}\n        os._exit(137)"),),
        (),
    ),
    Bug(
        "the relay dies before the mark", _ONCE, "nsqtools/outbox_tables.py", ((_MARK, "        os._exit(137)\n"),), ()
    ),
    Bug(
        "the relay dies after the mark",
        _ONCE,
        "nsqtools/outbox_tables.py",
        ((_MARK, f"{_MARK}        os._exit(137)\n"),),
        (),
    ),
)

# Nor are these bugs. A worker of Spark stops itself by a signal where a test wants to kill Spark: halfway through the
# publishes of a task, between the commits of a quarantine and of its table, and between the table's commit and Spark's.
_STOP: Final = '__import__("os").kill(__import__("os").getpid(), 19)'  # SIGSTOP
_POSTED: Final = "                self._http.post(self._address, target, part.body)\n"
_QUARANTINED: Final = "                    quarantine.append(bad, batch, also_brought)\n"
_LANDED: Final = (
    "            table.append(good, replace(batch, marks=(SELECTS,) if self._landing.selects else ()), brought)\n"
)
STOPS: Final = (
    Bug(
        "Spark stops while it publishes",
        _SPARK,
        "pyspark_nsq/sink/publishing.py",
        ((_POSTED, f"{_POSTED}                if self._part == 2:\n                    {_STOP}\n"),),
        (),
    ),
    Bug(
        "Spark stops while it commits",
        _SPARK,
        "pyspark_nsq/tables/landing.py",
        (
            (_QUARANTINED, f"{_QUARANTINED}                    if batchId == 2:\n                        {_STOP}\n"),
            (_LANDED, f"{_LANDED}            if batchId == 2:\n                {_STOP}\n"),
        ),
        (),
    ),
)
