"""A process that claims a name, and then owns it: a shell around the product's cores, one step at a time.

It may be killed or frozen between any two steps. What it does to its disk happens at once, what it asks of the store
happens sometime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import root_name, slot_name
from nsqcommon.remote.operations import Commit, Cut, OpenFile, Operation, Remove, Write
from nsqcommon.remote.root import Part, Root, encode_root, prove
from nsqcommon.remote.slot import Claimant, decode_slot
from nsqd.remote.catalog import Catalog, FileToFold, FoldWriter, Snapshot, plan_fold, prove_range
from nsqd.remote.chain import Chain, Request, Verb
from nsqd.remote.claim import Ask, Claim, Claimed, ClaimRequest, RunRead
from nsqd.remote.local_mark import Decision, decode_mark, encode_mark
from nsqd.remote.object_store import Created
from nsqd.remote.reconciliation import Fate, first_difference, plan
from nsqd.remote.sweep import CheckMark, Delete, Roots, SetHint, SetMark, Step
from tests.simulation.promise import Violation
from tests.simulation.remote.files import (
    JOURNAL,
    PER_SEGMENT,
    State,
    journal_record,
    log_record,
    read_state,
    segment_path,
    torn_tails,
)
from tests.simulation.remote.store import Call

if TYPE_CHECKING:
    from tests.simulation.remote.life import RemoteLife
    from tests.simulation.remote.machine import Machine

DEPTH: Final = 4  # slots under way
SLOTS_AHEAD: Final = 3
MOST_PARTS: Final = 2  # of a read


@dataclass(slots=True)
class Change:
    """A change of a file that was recorded, and isn't in a slot yet."""

    path: str
    data: bytes = b""
    offset: int = 0
    size: int | None = None  # the file was cut
    is_removal: bool = False
    commit: Commit | None = None


@dataclass(slots=True)
class Waiting:
    position: int
    message: int
    sequence: int
    is_remote: bool


class Process:
    def __init__(self, life: RemoteLife, machine: Machine, number: int, *, may_leap: bool) -> None:
        self.life = life
        self.machine = machine
        self.disk = machine.disk
        self.number = number
        self.writer = f"{number:016x}"
        self.is_alive = True
        self.is_frozen = False
        self.thaws_at = 0  # a step of the life
        self.owner: Owner | None = None
        self._calls: dict[Call, tuple[Callable[[Call], None], Callable[[], None]]] = {}
        self._local: ClaimRequest | None = None  # the mark that it is about to save
        self._settling: Settling | None = None
        mark = decode_mark(self.disk.mark) if self.disk.mark is not None else None
        self.found = mark
        self.claim = Claim(
            node="node",
            writer=self.writer,
            first_writer=f"{number:08x}{0:08x}",
            claimant=Claimant(f"machine-{machine.number}", number, machine.boot),
            time_ns=number,
            mark=mark,
            may_leap=may_leap,
            slots_ahead=SLOTS_AHEAD,
        )

    def __str__(self) -> str:
        return f"process {self.number} on {self.machine}"

    @property
    def is_cut_off(self) -> bool:
        return self.machine.is_cut_off

    def end(self, why: str) -> None:
        self.is_alive = False
        self.machine.process = None
        self.life.note(f"{self} ends: {why}")

    # The store

    def send(
        self, verb: str, name: str, answered: Callable[[Call], None], lost: Callable[[], None], **details: object
    ) -> None:
        call = Call(self, verb, name, **details)  # type: ignore[arg-type]  # the fields of a call
        self._calls[call] = (answered, lost)
        self.life.store.send(call)

    def answered(self, call: Call) -> None:
        self._calls.pop(call)[0](call)

    def lost(self, call: Call) -> None:
        self._calls.pop(call)[1]()

    # One step

    def step(self) -> None:
        if self.owner is not None:
            self.owner.step()
        elif self._settling is not None:
            self._settling.step()
        elif self._local is not None:
            self._save_mark(self._local)
        else:
            self._claim()

    def _claim(self) -> None:
        claim = self.claim
        if claim.is_looking:
            (claim.leap if self.life.random.random() < 0.1 else claim.look_again)()
        requests = claim.next_requests()
        if not requests:
            self.life.store.step_for(self)
        for request in requests:
            if request.ask is Ask.SAVE:
                self._local = request
                return
            data = {"data": request.data} if request.ask is Ask.CREATE else {}
            lost = partial(claim.failed, request)
            self.send(request.ask.value, request.name, partial(self._claim_answered, request), lost, **data)

    def _save_mark(self, request: ClaimRequest) -> None:
        assert request.mark is not None
        self._local = None
        self.disk.mark = encode_mark(request.mark)
        self.claim.answered(request, None)

    def _claim_answered(self, request: ClaimRequest, call: Call) -> None:
        self.claim.answered(request, call.result)
        if self.claim.fault is not None:
            raise Violation(f"{self} can't claim the name: {self.claim.fault}")
        if (claimed := self.claim.claimed) is not None:
            self.life.note(f"{self} owns {claimed.run}, {claimed.decision.value}")
            self.life.check_decision(self, claimed)
            self._settling = Settling(
                self, claimed, same_boot=self.found is not None and self.found.boot == self.machine.boot
            )

    def settled(self, claimed: Claimed) -> None:
        self._settling = None
        self.owner = Owner(self, claimed)


class Settling:
    """Makes the data path what it has to be: fetches what it lacks, and puts aside what it must not have."""

    def __init__(self, process: Process, claimed: Claimed, *, same_boot: bool) -> None:
        self.process = process
        self.claimed = claimed
        self._parts: dict[Part, bytes] = {}
        local = {path: len(data) for path, data in process.disk.files.items()}
        self._fates = plan(claimed.decision, claimed.catalog, local, same_boot=same_boot)
        needed = [path for path, fate in self._fates.items() if fate in (Fate.COMPARE, Fate.FETCH)]
        pieces = [piece for path in needed for piece in claimed.catalog.files[path].pieces]
        self._missing = list({piece.part: None for piece in pieces if piece.part.object})
        self._is_reading = False
        self._left = list(self._fates)

    def step(self) -> None:
        if self._missing:
            if self._is_reading:
                self.process.life.store.step_for(self.process)
            else:
                self._is_reading = True
                self.process.send("read", "parts", self._read, self._lost, parts=tuple(self._missing[:MOST_PARTS]))
        elif self._left:
            self._settle(self._left.pop())
        else:
            disk = self.process.disk
            disk.sync()
            disk.mark = encode_mark(self.claimed.mark)
            self.process.settled(self.claimed)

    def _read(self, call: Call) -> None:
        self._is_reading = False
        for part, data in call.found.items():
            try:
                self._parts[part] = prove(part, data or b"")
            except BadObject as error:
                self._find_out_why(error)
                return
            self._missing.remove(part)

    def _find_out_why(self, error: BadObject) -> None:
        """End if another process has taken the name while this one slept. Then it may have made a root, and swept.

        The name of a slot that was swept may even have a fence now, of a claimant that slept as well.
        """
        if slot_name(self.claimed.run, 0) not in self.process.life.store.objects:
            raise Violation(f"{self.process} needs what was deleted: {error}")
        self.process.end("the name was taken over before the data path was settled")

    def _lost(self) -> None:
        self._is_reading = False

    def _settle(self, path: str) -> None:
        files, fate = self.process.disk.files, self._fates[path]
        if fate is Fate.ASIDE:
            files.pop(path, None)
        elif fate in (Fate.FETCH, Fate.COMPARE):
            content = self._content(path)
            if fate is Fate.FETCH or files.get(path, b"")[: len(content)] != content:
                files[path] = bytearray(content)
        if self.claimed.decision is Decision.ADOPT:
            self.process.disk.written.clear()
        self.process.life.perhaps_disturb(self.process)

    def _content(self, path: str) -> bytes:
        found = b""
        for piece in self.claimed.catalog.files[path].pieces:
            data = self._parts[piece.part] if piece.part.object else bytes(piece.part.length)
            found += data[piece.start : piece.stop]
        return found


class Owner:
    def __init__(self, process: Process, claimed: Claimed) -> None:
        self.process = process
        self.life = process.life
        self.random = process.life.random
        self.disk = process.disk
        self.catalog: Catalog = claimed.catalog
        self.mark = claimed.mark
        self.chain = Chain(claimed.node, claimed.run, chance=self.random.random, depth=DEPTH)
        self.roots = Roots(claimed.path, self.life.now)
        self.queue: deque[Change] = deque()
        self.waiting: deque[Waiting] = deque()
        self._recorded = 0  # changes
        self._cut = 0  # of these, how many are in slots as a whole
        self._is_torn = False  # a beginning of the next change is in a slot
        self._numbers: dict[str, int] = {}  # of open files, in this run
        self._slots = 0  # since the last root
        self._making: RootMaking | None = None
        self._step_under_way: Step | None = None
        for path, size in torn_tails(self.disk.files).items():
            del self.disk.files[path][size:]
        self.state: State = read_state(self.disk.files)
        self.life.check_takeover(process, claimed, self.state)
        self._ship_difference()
        # These go into one slot, because half of a difference is no state of the files. Before it is confirmed, nothing
        # is served: what is answered OK must not lie behind bytes that the store has otherwise.
        self._atomic = self._difference = len(self.queue)

    # What clients and the node itself do

    def publish(self, *, is_remote: bool) -> None:
        message = next(self.life.messages)
        segment = self.state.last_segment
        path = segment_path(segment)
        if len(self.disk.files.get(path, b"")) >= PER_SEGMENT * len(log_record(0)):
            segment += 1
            path = segment_path(segment)
        sequence = segment * PER_SEGMENT + len(self.disk.files.get(path, b"")) // len(log_record(0))
        self._append(JOURNAL, journal_record(b"m", message))
        self._append(path, log_record(message))
        self.state.messages[sequence] = message
        self.waiting.append(Waiting(self._recorded, message, sequence, is_remote))
        if not is_remote:
            self.disk.written[sequence] = message

    def finish_segment(self) -> None:
        segments = sorted({it // PER_SEGMENT for it in self.state.messages})
        if len(segments) < 2:
            return
        first = segments[0]
        self._append(JOURNAL, journal_record(b"f", first))
        self.disk.sync()  # as nsqd does before it removes a file
        path = segment_path(first)
        self.disk.files.pop(path, None)
        self._record(Change(path, is_removal=True))
        self.state.finished.add(first)
        for sequence in [it for it in self.state.messages if it // PER_SEGMENT == first]:
            del self.state.messages[sequence]

    def _append(self, path: str, data: bytes) -> None:
        file = self.disk.files.setdefault(path, bytearray())
        self._record(Change(path, data, len(file)))
        file += data

    def _record(self, change: Change) -> None:
        self.queue.append(change)
        self._recorded += 1

    def _ship_difference(self) -> None:
        """Record what this data path has and the store hasn't, and the other way round."""
        for path, data in sorted(self.disk.files.items()):
            file = self.catalog.files.get(path)
            same = first_difference(file.pieces, bytes(data)) if file is not None else 0
            if file is not None and same < file.size:
                self._record(Change(path, size=same))
            if same < len(data) or file is None:
                self._record(Change(path, bytes(data[same:]), same))
        for path in sorted(self.catalog.files.keys() - self.disk.files.keys()):
            self._record(Change(path, is_removal=True))

    # One step

    def step(self) -> None:
        if self.chain.fenced is not None:
            self.life.check_fenced(self.process, self.chain)
            self.process.end(self.chain.fenced)
            self.life.perhaps_restart(self.process.machine)
            return
        self._take_confirmed()
        choices: list[tuple[int, Callable[[], None]]] = [(1, self.disk.sync)]
        if self.chain.confirmed_position >= self._difference:
            choices += [
                (8, partial(self.publish, is_remote=True)),
                (3, partial(self.publish, is_remote=False)),
                (1, self.finish_segment),
            ]
        if self.chain.next_due() <= self.life.now or self.random.random() < 0.05:
            choices.append((40, self._send))
        if self.chain.may_append:
            choices += [(10 if self.queue else 0, self._cut_slot), (3, self._end_run)]
        if self._making is not None:
            choices.append((40, self._go_on_with_root))
        if self._step_under_way is None:
            choices.append((20, self._sweep))
        weights, steps = zip(*choices, strict=True)
        self.random.choices(steps, weights)[0]()

    def _cut_slot(self) -> None:
        most = max(self._atomic, self.random.randint(1, len(self.queue)))
        is_difference, self._atomic = self._atomic > 0, 0
        operations: list[Operation] = []
        body: list[bytes] = []
        for _ in range(min(most, len(self.queue))):
            change = self.queue.popleft()
            if len(change.data) > 1 and not is_difference and self.random.random() < 0.05:
                self._tear(change, operations, body)
                break
            self._add(change, operations, body)
            self._cut += 1
        slot = self.chain.append(operations, body, self._cut, 1)
        decoded, content = decode_slot(b"".join(slot.data))
        self.catalog.apply(decoded, content, len(slot.header))
        self._slots += 1

    def _tear(self, change: Change, operations: list[Operation], body: list[bytes]) -> None:
        """Put a beginning of a write into this slot, and leave the rest for the next."""
        size = self.random.randrange(1, len(change.data))
        self._add(Change(change.path, change.data[:size], change.offset), operations, body)
        self.queue.appendleft(Change(change.path, change.data[size:], change.offset + size))

    def _add(self, change: Change, operations: list[Operation], body: list[bytes]) -> None:
        if change.commit is not None:
            operations.append(change.commit)
        elif change.is_removal:
            self._numbers.pop(change.path, None)
            operations.append(Remove(change.path))
        else:
            number = self._numbers.get(change.path)
            if number is None:
                number = self._numbers[change.path] = len(self._numbers) + self._cut * 100
                operations.append(OpenFile(number, change.path))
            if change.size is not None:
                operations.append(Cut(number, change.size))
            else:
                operations.append(Write(number, change.offset, len(change.data)))
                body.append(change.data)

    def _send(self) -> None:
        chain, now = self.chain, self.life.now
        request = chain.next_request(now) or (chain.probe(now) if self.random.random() < 0.3 else None)
        if request is None:
            return
        lost = partial(self._lost, request)
        if request.verb is Verb.CREATE:
            assert request.slot is not None
            data = b"".join(request.slot.data)
            self.process.send("create", request.name, partial(self._created, request), lost, data=data)
        else:
            self.process.send("get", request.name, partial(self._got, request), lost, size=request.size)

    def _created(self, request: Request, call: Call) -> None:
        assert isinstance(call.result, Created)
        self.chain.created(request, call.result, self.life.now)

    def _got(self, request: Request, call: Call) -> None:
        assert not isinstance(call.result, Created)
        self.chain.got(request, call.result, self.life.now)

    def _lost(self, request: Request) -> None:
        if request.verb is Verb.CREATE:
            self.chain.created(request, Created.UNKNOWN, self.life.now)
        else:
            self.chain.failed(request, self.life.now)

    def _take_confirmed(self) -> None:
        for slot in self.chain.take_confirmed():
            for operation in slot.slot.operations:
                if isinstance(operation, Commit):
                    self._committed(operation)
        while self.waiting and self.waiting[0].position <= self.chain.confirmed_position:
            self.life.confirmed(self.waiting.popleft())

    # Roots

    def _end_run(self) -> None:
        if self.roots.is_busy or not self._slots:
            return
        ended = RunRead(self.chain.run, self.chain.next_number, is_fenced=False)
        following = self.chain.end_run(self._cut, 1)
        self.roots.begin(ended, following, self.catalog.objects)
        self._making = RootMaking(self, following)
        self.catalog.begin_run()
        self._numbers.clear()
        self._slots = 0

    def _go_on_with_root(self) -> None:
        if self._making is not None:
            self._making.step()
        if (commit := self.roots.take_commit()) is not None:
            self._record(Change("", commit=commit))

    def give_up_root(self) -> None:
        self.roots.give_up()
        self._making = None

    def root_stored(self, root: Root) -> None:
        self.disk.sync()
        self.mark = self.mark.proved(root.run)
        self.disk.mark = encode_mark(self.mark)
        self.roots.stored(root)

    def _committed(self, commit: Commit) -> None:
        self.roots.confirmed(commit, self.life.now)
        making, self._making = self._making, None
        if making is not None and making.root is not None:
            self.catalog.rebase(making.snapshot, making.root)

    def _sweep(self) -> None:
        step = self.roots.next_step(self.life.now)
        if step is None:
            return
        self._step_under_way = step
        answered, lost = partial(self._swept, step), self._sweep_lost
        match step:
            case SetMark(name, data):
                self.process.send("create", name, answered, lost, data=data)
            case CheckMark(name):
                self.process.send("get", name, answered, lost)
            case SetHint(data):
                self.process.send("overwrite", "hint", answered, lost, data=data)
            case Delete(names):
                self.process.send("delete", " ".join(names), answered, lost)

    def _swept(self, step: Step, call: Call) -> None:
        self._step_under_way = None
        if isinstance(step, SetMark):
            assert isinstance(call.result, Created)
            self.roots.marked(step, call.result)
        elif isinstance(step, CheckMark):
            assert not isinstance(call.result, Created)
            self.roots.checked(step, call.result)
        else:
            self.roots.done(step)

    def _sweep_lost(self) -> None:
        self._step_under_way = None


class RootMaking:
    """Folds what only slots have, stores the folds and then the root."""

    def __init__(self, owner: Owner, run: object) -> None:
        self.owner = owner
        self.snapshot: Snapshot = owner.catalog.snapshot()
        self.root: Root | None = None
        self._plan: list[FileToFold] = plan_fold(self.snapshot)
        self._writer = FoldWriter(owner.chain.node, owner.chain.run, owner.catalog.sealed)
        self._to_store: deque[tuple[str, bytes]] = deque()
        self._is_sending = False

    def step(self) -> None:
        if self.root is None:
            self._fold()
        elif self._to_store and not self._is_sending:
            name, data = self._to_store[0]
            self._is_sending = True
            self.owner.process.send("create", name, self._answered, self._lost, data=data)

    def _fold(self) -> None:
        for file in self._plan:
            data = self._read(file)
            if len(data) < file.size - file.start or not prove_range(file.pieces, data):
                self.owner.give_up_root()  # it has vanished or is damaged: a later root reads it again
                return
            self._writer.add(file, data)
        self.root = self._writer.finish()
        self._to_store += [(name, b"".join(buffers)) for name, buffers in self._writer.full]
        self._to_store.append((root_name(self.root.run), encode_root(self.root)))

    def _read(self, file: FileToFold) -> bytes:
        data = bytes(self.owner.disk.files.get(file.path, b"")[file.start : file.size])
        if data and self.owner.random.random() < 0.02:  # the disk returns a wrong bit
            place = self.owner.random.randrange(len(data))
            data = data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :]
        return data

    def _answered(self, call: Call) -> None:
        self._is_sending = False
        if call.result is Created.CREATED or self._is_ours(call):
            self._to_store.popleft()
            if not self._to_store and self.root is not None:
                self.owner.root_stored(self.root)

    def _is_ours(self, call: Call) -> bool:
        """Return whether the object is there: its name is ours alone, so it is an earlier try."""
        return call.name in self.owner.life.store.objects

    def _lost(self) -> None:
        self._is_sending = False
