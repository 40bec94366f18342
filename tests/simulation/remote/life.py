"""Random lives of one name: machines, the processes that want it, and a store between them. All chance is the seed's.

What has to be true:

- A message that was answered OK, because the chain had confirmed it, is there for every later owner.
- A sequence that a reader of history has seen means the same message for ever.
- The files of each new owner are a state that `kill -9` could have left.
- An owner that goes on with its own disk has what it had answered OK before it was shipped.
- A process gives the name up only if another one has taken it.
- Slots start as seldom as was asked for.
- When the faults are over, one process owns the name, and everything it has recorded gets confirmed.
- Whatever has happened, another machine can take over at the end, and fsck finds nothing damaged.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import NODE, Run, slot_name, slots_prefix
from nsqcommon.remote.operations import Commit
from nsqcommon.remote.slot import SlotKind, decode_slot
from nsqd.remote.claim import Claimed, last_owner
from nsqd.remote.local_mark import Decision
from nsqd.remote.owner import Owner
from nsqd.remote.standby import OwnerSays
from tests.simulation.promise import Violation
from tests.simulation.remote.disk import MachineDisk
from tests.simulation.remote.files import State
from tests.simulation.remote.machine import Machine
from tests.simulation.remote.operator import Operator
from tests.simulation.remote.owner import Waiting
from tests.simulation.remote.process import Process
from tests.simulation.remote.store import Call, FaultyStore

STEPS: Final = 6000
DISTURBANCES: Final = ("freeze", "takeover", "cut off", "away", "kill", "power", "wipe", "copy", "older", "clone")
EMPHASES: Final = {  # what happens how often in a life
    "anything": (20, 8, 8, 3, 16, 12, 5, 8, 6, 6),
    "sleepers": (50, 40, 8, 3, 4, 1, 1, 1, 1, 1),
    "one machine": (4, 1, 3, 2, 25, 50, 1, 1, 4, 1),
    "operators": (8, 3, 5, 2, 25, 3, 3, 10, 20, 30),
}
MACHINES: Final = 4
INTERVALS: Final = (0.0, 0.05, 0.3)  # seconds between two slots while a publisher waits
DELAYS: Final = (0.3, 2.0)  # while none does
CALM_STEPS: Final = 5000
LAST_STEPS: Final = 20_000


def ignore(text: str) -> None:
    """Do nothing with what happens in a life."""


class RemoteLife:
    def __init__(self, seed: int, note: Callable[[str], None] = ignore, *, has_standbys: bool = False) -> None:
        """Live with this chance. With `has_standbys`, processes that look before they leap decide as standbys do."""
        self.has_standbys = has_standbys
        self.random = Random(seed)
        self.note = note
        self.now = 0.0
        self.disturbances = self.random.choice((0.001, 0.003, 0.006))  # in each step
        self.emphasis = self.random.choice(list(EMPHASES))
        self.most_processes = self.random.choice((2, 3, 4, 6, 12))  # at the same time
        self.interval, self.delay = self.random.choice(INTERVALS), self.random.choice(DELAYS)
        self.drops = self.random.choice((0, 0, 1, 10))  # how often too much waits to be kept in memory
        self.roots = self.random.choice((3, 20))  # how often a root is made
        self.settling_pace = self.random.choice((1.0, 0.1))  # how often a claimant goes on that settles its data path
        self.haste = self.random.choice((2, 40))  # of the thread that makes roots
        self.standby_after = self.random.choice((0.5, 5.0, 60.0)) if has_standbys else 0.0
        self.is_calm = False  # no more faults, starts and publishes
        self.time = 0  # steps
        self.store = FaultyStore(self.random)
        self.store.on_create = self._created
        self.operator = Operator(self) if self.random.random() < 0.5 else None
        self.machines: list[Machine] = []
        self.processes: list[Process] = []
        self.messages = itertools.count(1)
        self.acknowledged: dict[int, tuple[int, int]] = {}  # message: sequence, and at which step
        self.seen: dict[int, tuple[int, int]] = {}  # sequence: message, and at which step
        self.counts: Counter[str] = Counter()
        self._fenced_at: dict[str, int] = {}
        self._by_writer: dict[str, Process] = {}
        self._undeclared: set[int] = set()
        self._gaps: set[int] = set()
        self._disks: dict[str, MachineDisk] = {}  # the disk of each writer
        self._proved_at: dict[Run, int] = {}
        self._settled_at: dict[str, int] = {}  # of each writer

    # Running

    def run(self, steps: int = STEPS) -> None:
        for self.time in range(1, steps):
            self._step()
        self._finish()

    def _step(self) -> None:
        random, roll = self.random, self.random.random()
        self.now += random.expovariate(20.0)
        alive = [it for it in self.processes if it.is_alive]
        if not alive or (roll < 0.003 and len(alive) < self.most_processes):
            self._start()
        elif roll < 0.003 + self.disturbances:
            owners = [it for it in alive if it.owner is not None]
            self._disturb(random.choice(owners if owners and random.random() < 0.5 else alive))
        elif roll < 0.0045 + self.disturbances:
            self.now += random.choice((1.0, 60.0, 4000.0, 90_000.0))
        elif roll < 0.01 + self.disturbances and self.operator is not None:
            self.operator.step()
        elif roll < 0.55 and self.store.calls:
            self.store.step()
        elif roll < 0.58 and self.store.calls:
            self.store.give_up()
        else:
            self._let_one_go_on(alive)

    def _let_one_go_on(self, alive: list[Process]) -> None:
        for process in alive:
            if process.is_frozen and process.thaws_at <= self.time:
                process.is_frozen = False
                self.note(f"{process} thaws")
        awake = [it for it in alive if not it.is_frozen]
        owners = [it for it in awake if it.owner is not None]
        if awake:
            self.random.choice(owners if owners and self.random.random() < 0.8 else awake).step()

    def _start(self, *, may_leap: bool | None = None) -> None:
        """Start a process on a machine that has none, or on a new one."""
        free = [it for it in self.machines if it.process is None]
        if free and (self.random.random() < 0.7 or len(self.machines) >= MACHINES):
            machine = self.random.choice(free)
        else:
            machine = Machine(len(self.machines) + 1)
            self.machines.append(machine)
        self._start_on(machine, may_leap=self.random.random() < 0.5 if may_leap is None else may_leap)

    def _start_on(self, machine: Machine, *, may_leap: bool) -> Process:
        process = Process(self, machine, len(self._by_writer) + 1, may_leap=may_leap)
        self.note(f"{process} starts")
        machine.process = process
        self.processes = [it for it in self.processes if it.is_alive] + [process]
        self._by_writer[process.writer] = process
        self._disks[process.writer] = machine.disk
        return process

    def _disturb(self, process: Process) -> None:
        machine = process.machine
        match self.random.choices(DISTURBANCES, EMPHASES[self.emphasis])[0]:
            case "freeze":
                self._freeze(process, self.random.choice((50, 300, 1000)))
            case "takeover":
                self._sleep_through_takeover(process)
            case "cut off":
                machine.is_cut_off = not machine.is_cut_off
            case "away":
                self.store.is_away = not self.store.is_away
            case "kill":
                process.end("killed")
                self.perhaps_restart(machine)
            case "power":
                process.end("power cut")
                machine.disk.cut_power(self.random)
                machine.boots += 1
                self.perhaps_restart(machine)
            case "wipe":
                process.end("disk wiped")
                machine.disk = MachineDisk()
            case "copy":
                machine.copies = [*machine.copies[-1:], machine.disk.copy(self.time)]
            case "older" if machine.copies:
                process.end("disk replaced by an older copy")
                machine.disk = self.random.choice(machine.copies).copy(self.time)
                self.perhaps_restart(machine)
            case "clone" if len(self.machines) < MACHINES + 2:
                self._clone(machine)

    def _freeze(self, process: Process, steps: int) -> None:
        process.is_frozen, process.thaws_at = True, self.time + steps
        if self.random.random() < 0.5:
            self.store.sever(process)
        self.note(f"{process} freezes until {process.thaws_at}")

    def _sleep_through_takeover(self, process: Process) -> None:
        self._freeze(process, 1000)
        self._start(may_leap=True)

    def perhaps_thaw(self) -> None:
        """Let those who sleep wake up right when another process has taken the name."""
        if self.random.random() < 0.4:
            for process in self.processes:
                process.thaws_at = min(process.thaws_at, self.time)

    def _clone(self, machine: Machine) -> None:
        """Start the same node on a copy of its disk, as an operator does who has copied a virtual machine."""
        clone = Machine(len(self.machines) + 1)
        clone.disk = machine.disk.copy(self.time)
        self.machines.append(clone)
        self._start_on(clone, may_leap=True)

    def perhaps_restart(self, machine: Machine) -> None:
        if not self.is_calm and self.random.random() < 0.6:
            self._start_on(machine, may_leap=True)

    def _calm_down(self) -> None:
        """Let everyone go on without faults, until one process owns the name and has had everything confirmed."""
        self.is_calm = True
        self.store.is_away = False
        for machine in self.machines:
            machine.is_cut_off = False
        for process in self.processes:
            process.is_frozen = False
        for _ in range(CALM_STEPS):
            alive = [it for it in self.processes if it.is_alive]
            if len(alive) <= 1 and all(it.owner is not None and it.owner.is_idle for it in alive):
                return
            self.now += 0.1
            for process in alive:
                process.step()
            self.store.answer_all()
        raise Violation("publishers wait for ever, although the store answers")

    def _finish(self) -> None:
        """Let the faults end, have most calls of dead processes happen, and let one more process take over."""
        self._calm_down()
        for process in self.processes:
            if process.is_alive:
                process.end("the end")
        self.store.finish()
        last = self._start_on(Machine(99), may_leap=True)
        self.time += 1
        for _ in range(LAST_STEPS):
            if last.owner is not None:
                break
            last.step()
            for call in list(self.store.calls):
                self.store.calls.remove(call)
                self.store.happen(call)
                last.answered(call)
        else:
            raise Violation("no process can take over any more")
        Operator(self).examine()
        self.counts["acknowledged"] = len(self.acknowledged)

    # What happened

    def _created(self, call: Call) -> None:
        slot = decode_slot(call.data)[0] if call.name.startswith("wal/") else None
        if slot is not None and slot.kind is SlotKind.FENCE:
            self._fenced_at[call.name] = self.time
        if call.name == NODE and isinstance(call.sender, Process) and self.random.random() < 0.3 and not self.is_calm:
            self._clone(call.sender.machine)
        is_commit = slot is not None and any(isinstance(it, Commit) for it in slot.operations)
        is_decisive = slot is None or slot.ends_run or is_commit
        if not isinstance(call.sender, Process) or not is_decisive:
            return
        may_sleep = call.sender.is_alive and self.emphasis == "sleepers" and not self.is_calm
        if is_commit and may_sleep and self.random.random() < 0.5:
            self._sleep_through_takeover(call.sender)
        else:
            self.perhaps_disturb(call.sender)

    def perhaps_disturb(self, process: Process) -> None:
        """Disturb a process right after something decisive, where it hurts most."""
        often = 0.1 if self.emphasis == "anything" else 0.2
        if process.is_alive and not self.is_calm and self.random.random() < often:
            self._disturb(process)

    def confirmed(self, waiting: Waiting) -> None:
        """Note that an owner's chain has confirmed a message: it is answered OK, and history may show it."""
        if waiting.is_remote:
            self.acknowledged[waiting.message] = (waiting.sequence, self.time)
        before = self.seen.setdefault(waiting.sequence, (waiting.message, self.time))
        if before[0] != waiting.message:
            raise Violation(f"sequence {waiting.sequence} was shown as {before[0]}, now it is {waiting.message}")

    def settled(self, process: Process) -> None:
        """Note that a process has made its data path what it begins with."""
        self._settled_at[process.writer] = self.time

    def proved(self, root: Run) -> None:
        """Note that an owner has all bytes of a root on its disk."""
        self._proved_at[root] = self.time

    def owner_says(self, writer: str) -> OwnerSays:
        """Return what a standby gets for an answer: the truth, if the network doesn't lose it."""
        process = self._by_writer.get(writer)
        if process is None or not process.is_alive or process.owner is None:
            return OwnerSays.GONE
        if process.is_frozen or (self.random.random() < 0.2 and not self.is_calm):
            return OwnerSays.NOTHING
        return OwnerSays.CUT_OFF if process.is_cut_off or self.store.is_away else OwnerSays.WELL

    # What has to be true

    def check_decision(self, process: Process, claimed: Claimed) -> None:
        """Check that a data path is continued if it is the last owner's, and not if it is a copy from before the root."""
        self.counts["takeovers"] += 1
        self.counts[claimed.decision.value] += 1
        before = last_owner(claimed.path)
        if self._disks.get(before) is process.disk and claimed.decision is not Decision.CONTINUE:
            raise Violation(f"{process} puts aside what {self._by_writer[before]} has written to this disk")
        copied_at, root = process.disk.copied_at, claimed.catalog.root.run
        if copied_at is None or claimed.decision is not Decision.CONTINUE:
            return
        if copied_at < self._proved_at.get(root, 0):
            raise Violation(f"{process} continues with a copy of a disk from before the root of {root}")
        if copied_at < self._settled_at.get(before, 0):
            raise Violation(f"{process} continues with a copy of a disk from before {before} owned the name")

    def check_takeover(self, process: Process, claimed: Claimed, state: State) -> None:
        fence = claimed.path[-1]
        fenced_at = self._fenced_at.get(slot_name(fence.run, fence.end))
        if fenced_at is None:
            raise Violation(f"{process} goes on in {claimed.run}, which no fence names")
        for message, (sequence, time) in self.acknowledged.items():
            if time < fenced_at and not state.has(sequence, message):
                found = state.messages.get(sequence)
                raise Violation(f"{process} lacks message {message}, {found} has its sequence {sequence}")
        for sequence, (message, time) in self.seen.items():
            if time < fenced_at and not state.has(sequence, message):
                found = state.messages.get(sequence)
                raise Violation(f"{process}: sequence {sequence} was shown as {message}, now it is {found}")
        if claimed.decision is Decision.CONTINUE:
            for sequence, message in process.disk.written.items():
                if not state.has(sequence, message):
                    raise Violation(f"{process} has lost message {message}, which was written to its disk")
        undeclared, gaps = set(state.messages.values()) - state.declared, set(state.unfinished_gaps())
        if claimed.decision is Decision.CONTINUE:  # a power cut may leave that, and then it is what the next ones find
            self._undeclared |= undeclared
            self._gaps |= gaps
        if undeclared - self._undeclared:
            raise Violation(f"{process}: the log has {sorted(undeclared)}, and the journal doesn't know them")
        if gaps - self._gaps:
            raise Violation(f"{process}: segments {sorted(gaps)} are gone, and the journal doesn't know why")

    def check_fenced(self, process: Process, owner: Owner) -> None:
        """Check that somebody else has written to this owner's run."""
        prefix = slots_prefix(owner.run)[: -len("/")].rpartition("-")[2]
        for name, data in self.store.objects.items():
            if name.startswith("wal/") and name.split("/")[1].endswith(prefix):
                try:
                    slot, _ = decode_slot(data)
                except BadObject as error:
                    raise Violation(f"{name}: {error}") from error
                if slot.writer != process.writer:
                    return
        raise Violation(f"{process} gives up, but no other process has taken the name: {owner.fenced}")


def live(seed: int, note: Callable[[str], None] = ignore, *, has_standbys: bool = False) -> tuple[str, Counter[str]]:
    """Live one life. Return what it has found, and what has happened in it."""
    life = RemoteLife(seed, note, has_standbys=has_standbys)
    try:
        life.run()
    except Violation as violation:
        return str(violation), life.counts
    return "", life.counts


def live_with_standbys(seed: int, note: Callable[[str], None] = ignore) -> tuple[str, Counter[str]]:
    return live(seed, note, has_standbys=True)
