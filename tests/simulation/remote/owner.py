"""An owner of the name: it serves clients, cuts slots, makes roots and sweeps, by the product's cores."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.names import Run
from nsqcommon.remote.operations import Commit, Cut, OpenFile, Operation, Remove, Rename, Write
from nsqcommon.remote.root import Root
from nsqcommon.remote.slot import decode_slot
from nsqd.remote.catalog import Catalog
from nsqd.remote.chain import Chain, Request, Verb
from nsqd.remote.claim import Claimed, RunRead
from nsqd.remote.local_mark import encode_mark
from nsqd.remote.object_store import Created
from nsqd.remote.pacing import Pacing
from nsqd.remote.reconciliation import first_difference
from nsqd.remote.recorder import Recorded
from nsqd.remote.slot_builder import SlotBuilder
from nsqd.remote.sweep import CheckMark, Delete, Roots, SetHint, SetMark, Step
from tests.simulation.remote.files import (
    COPY,
    JOURNAL,
    PER_SEGMENT,
    State,
    compacted_path,
    journal_record,
    log_record,
    paths_of,
    read_state,
    segment_of,
    segment_path,
    torn_tails,
)
from tests.simulation.remote.root_making import RootMaking
from tests.simulation.remote.store import Call

if TYPE_CHECKING:
    from tests.simulation.remote.process import Process

DEPTH: Final = 4  # slots under way
FULL: Final = 200  # bytes that leave at once
SLOT_SIZES: Final = (5, 9, 30, FULL)  # bytes at which a slot may be cut, so that any change may be torn


@dataclass(slots=True)
class Waiting:
    position: int
    message: int
    sequence: int
    is_remote: bool


class Owner:
    def __init__(self, process: Process, claimed: Claimed) -> None:
        self.process = process
        self.life = process.life
        self.random = process.life.random
        self.disk = process.disk
        self.catalog: Catalog = claimed.catalog
        self.mark = claimed.mark
        self.chain = Chain(claimed.node, claimed.run, chance=self.random.random, depth=DEPTH)
        self.pacing = Pacing(interval=self.life.interval, delay=self.life.delay, depth=DEPTH, full=FULL)
        self.roots = Roots(claimed.path, self.life.now)
        self.builder = SlotBuilder(FULL)
        self.waiting: deque[Waiting] = deque()
        self._recorded = 0  # changes
        self._numbers: dict[str, int] = {}  # of open files
        self._opened = itertools.count(1)
        self._slots = 0  # since the last root
        self.making: RootMaking | None = None
        self._has_gap = False  # something that was recorded is in no slot, and has to be in a root
        self._newest_run = claimed.run  # that a root was begun for
        self._step_under_way: Step | None = None
        self._started = 0.0  # when the last slot was
        for path, size in torn_tails(self.disk.files).items():
            del self.disk.files[path][size:]
        self._remove_leftovers()
        self.state: State = read_state(self.disk.files)
        self.life.check_takeover(process, claimed, self.state)
        self._ship_difference()

    def _remove_leftovers(self) -> None:
        """Remove a copy that isn't complete, and segments that were compacted and came back."""
        files = self.disk.files
        files.pop(COPY, None)
        for path in [it for it in files if compacted_path(segment_of(it)) in files]:
            files.pop(segment_path(segment_of(path)), None)

    # What clients and the node itself do

    def publish(self, *, is_remote: bool) -> None:
        message = next(self.life.messages)
        segment = self.state.last_segment
        is_full = len(self.disk.files.get(segment_path(segment), b"")) >= PER_SEGMENT * len(log_record(0))
        if is_full or compacted_path(segment) in self.disk.files:
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
        segments = self.state.segments
        if len(segments) < 2:
            return
        first = segments[0]
        self._append(JOURNAL, journal_record(b"f", first))
        self.disk.sync()  # as nsqd does before it removes a file
        for path in paths_of(first):
            self._remove(path)
        self.state.finished.add(first)
        for sequence in [it for it in self.state.messages if it // PER_SEGMENT == first]:
            del self.state.messages[sequence]

    def compact(self) -> None:
        """Copy a segment into another file, which gets its name when it is complete, and remove the segment."""
        segment = next((it for it in self.state.segments[:-1] if self.disk.files.get(segment_path(it))), None)
        if segment is None:
            return
        data = bytes(self.disk.files[segment_path(segment)])
        size = len(log_record(0))
        for start in range(0, len(data), size):
            self._append(COPY, data[start : start + size])
        self.disk.sync()
        target = compacted_path(segment)
        self.disk.files[target] = self.disk.files.pop(COPY)
        self._numbers[target] = self._numbers.pop(COPY)
        self._record(Rename(COPY, target))
        self.disk.sync()
        self._remove(segment_path(segment))
        self.life.counts["compactions"] += 1

    def _append(self, path: str, data: bytes) -> None:
        file = self.disk.files.setdefault(path, bytearray())
        self._write(path, len(file), data)
        file += data

    def _write(self, path: str, offset: int, data: bytes) -> None:
        self._record(Write(self._number_of(path), offset, len(data)), data)

    def _number_of(self, path: str) -> int:
        if path not in self._numbers:
            self._numbers[path] = next(self._opened)
            self._record(OpenFile(self._numbers[path], path))
        return self._numbers[path]

    def _remove(self, path: str) -> None:
        if self.disk.files.pop(path, None) is not None:
            self._numbers.pop(path, None)
            self._record(Remove(path))

    def _record(self, operation: Operation, data: bytes = b"") -> None:
        self.builder.add(Recorded(operation, data))
        self._recorded += 1

    def _ship_difference(self) -> None:
        """Record what this data path has and the store hasn't, and the other way round.

        Half of it is no state of the files, so it goes into one slot, or into a root if it is too much. Before it is
        confirmed, nothing is served: what is answered OK must not lie beyond bytes that the store has otherwise.
        """
        for path, data in sorted(self.disk.files.items()):
            file = self.catalog.files.get(path)
            same = first_difference(file.pieces, bytes(data)) if file is not None else 0
            if file is not None and same < file.size:
                self._record(Cut(self._number_of(path), same))
            if same < len(data) or file is None:
                self._write(path, same, bytes(data[same:]))
        for path in sorted(self.catalog.files.keys() - self.disk.files.keys()):
            self._record(Remove(path))
        self._difference = self._recorded
        if self.builder.waiting_bytes >= self.builder.most:
            self._drop()

    # One step

    def step(self) -> None:
        if self.chain.fenced is not None:
            self.life.check_fenced(self.process, self.chain)
            self.process.end(self.chain.fenced)
            self.life.perhaps_restart(self.process.machine)
            return
        self._take_confirmed()
        weights, steps = zip(*self._choices(), strict=True)
        self.random.choices(steps, weights)[0]()

    def _choices(self) -> list[tuple[int, Callable[[], None]]]:
        choices: list[tuple[int, Callable[[], None]]] = [(1, self.disk.sync)]
        if not self.life.is_calm:
            choices += self._what_clients_do()
        if self.chain.next_due() <= self.life.now or self.random.random() < 0.05:
            choices.append((40, self._send))
        if self._may_cut:
            choices.append((10, self._cut_slot))
        if self._has_gap and not self._is_jumping and not any(self.chain.unconfirmed()):
            choices.append((40, self._begin_jump))
        if self.making is not None:
            choices.append((self.life.haste, self._go_on_with_root))
        if self._step_under_way is None:
            choices.append((20, self._sweep))
        return choices

    def _what_clients_do(self) -> list[tuple[int, Callable[[], None]]]:
        choices: list[tuple[int, Callable[[], None]]] = []
        if self.chain.confirmed_position >= self._difference:
            choices += [
                (8, partial(self.publish, is_remote=True)),
                (3, partial(self.publish, is_remote=False)),
                (1, self.finish_segment),
                (3, self.compact),
            ]
        is_free = not (self.roots.is_busy or self._is_jumping or self._has_gap)
        if self._slots and is_free and self.chain.may_append:
            choices.append((self.life.roots, self._end_run))
        if self.life.drops and self.builder.waiting_bytes and self.random.random() < 0.1:
            choices.append((self.life.drops, self._drop))
        return choices

    # Slots

    @property
    def _may_cut(self) -> bool:
        if self._has_gap or self._is_jumping or not self.chain.may_append:
            return False
        start = self.pacing.next_start(
            self.life.now,
            waiting_bytes=self.builder.waiting_bytes,
            is_awaited=any(it.is_remote for it in self.waiting),
            under_way=self.chain.under_way,
        )
        return start <= self.life.now

    def _cut_slot(self) -> None:
        is_difference = self.builder.position < self._difference
        self.life.check_start(self, is_full=self.builder.waiting_bytes >= FULL)
        self._started = self.life.now
        self.pacing.started(self.life.now)
        self.builder.most = FULL if is_difference else self.random.choice(SLOT_SIZES)
        content = self.builder.next_content()
        slot = self.chain.append(content.operations, content.body, self.builder.position, 1)
        decoded, body = decode_slot(b"".join(slot.data))
        self.catalog.apply(decoded, body, len(slot.header))
        self._slots += 1
        self.life.counts["slots"] += 1

    @property
    def started(self) -> float:
        return self._started

    def _drop(self) -> None:
        """Keep what waits in the files only, because it is too much. A root has to have it then."""
        while self.builder.waiting_bytes:
            content = self.builder.next_content()
            if any(isinstance(it, Commit) for it in content.operations):
                self.give_up_root()
            self.catalog.apply_unsent(content.operations, content.body)
        self._has_gap = True

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
        if self.random.random() < 0.3:  # there was an answer: the store asks for fewer requests
            self.pacing.slow_down(self.life.now)
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

    @property
    def is_idle(self) -> bool:
        """Whether everything that was recorded is confirmed, and nothing is under way."""
        return not (self.waiting or self.builder.waiting_bytes or self._has_gap or any(self.chain.unconfirmed()))

    # Roots

    def _end_run(self) -> None:
        ended = RunRead(self.chain.run, self.chain.next_number, is_fenced=False)
        following = self._next_run()
        self.chain.end_run(self.builder.position, 1, following)
        self.roots.begin(ended, following, self.catalog.objects)
        self.making = RootMaking(self, following)
        self._begin_run()

    def _next_run(self) -> Run:
        """Return a run that no root was begun for, so that each name is written once."""
        self._newest_run = self._newest_run.following(self.process.writer)
        return self._newest_run

    def _begin_run(self) -> None:
        self.catalog.begin_run()
        self.builder.begin_run()
        self._slots = 0

    @property
    def _is_jumping(self) -> bool:
        return self.making is not None and self.making.is_jump

    def _begin_jump(self) -> None:
        """Make a root that has to be stored before anything else, because some of what was recorded is in no slot."""
        self._drop()
        self.roots.give_up()
        self.making = RootMaking(self, self._next_run(), position=self.builder.position)
        self._begin_run()
        self._has_gap = False

    def jump(self, root: Root, position: int) -> None:
        """Go on in the run of a stored root, which has everything up to a position that isn't in slots."""
        self._prove(root)
        ended = RunRead(self.chain.run, self.chain.next_number, is_fenced=False)
        self.chain.end_run(position, 1, root.run, reads_root=True)
        self.life.counts["jumps"] += 1
        assert self.making is not None
        self.roots.begin(ended, root.run, self.catalog.objects)
        self.catalog.rebase(self.making.snapshot, root)
        self.making = None
        self.roots.stored(root)

    def _go_on_with_root(self) -> None:
        if self.making is not None:
            self.making.step()
        if (commit := self.roots.take_commit()) is not None:
            self._record(commit)

    def give_up_root(self) -> None:
        self._has_gap = self._has_gap or self._is_jumping
        self.roots.give_up()
        self.making = None

    def root_stored(self, root: Root) -> None:
        self._prove(root)
        self.roots.stored(root)

    def _prove(self, root: Root) -> None:
        """Note durably that everything the root has is on this disk as well, before the chain says that it counts."""
        self.disk.sync()
        self.mark = self.mark.proved(root.run)
        self.life.proved(root.run)
        self.disk.save_mark(encode_mark(self.mark))

    def _committed(self, commit: Commit) -> None:
        self.life.counts["roots"] += 1
        self.roots.confirmed(commit, self.life.now)
        making = self.making
        if making is not None and making.root is not None and making.root.run == commit.run:
            self.catalog.rebase(making.snapshot, making.root)
            self.making = None

    # Sweeping

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
