"""An owner of the name: it serves clients and makes roots around the product's owner, which records, sends and confirms."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.operations import Cut, OpenFile, Operation, Remove, Rename, Write
from nsqcommon.remote.root import Root
from nsqd.remote import owner as product
from nsqd.remote.catalog import FileToFold, plan_fold, unsent_files
from nsqd.remote.chain import ChainRequest, RequestVerb
from nsqd.remote.claim import Claimed
from nsqd.remote.local_mark import encode_mark
from nsqd.remote.object_store import Created
from nsqd.remote.pacing import Pacing
from nsqd.remote.reconciliation import first_difference
from nsqd.remote.recorder import Recorded
from nsqd.remote.slot_builder import SlotBuilder
from nsqd.remote.sweep import CheckMark, Delete, Roots, SetHint, SetMark, Step
from tests.simulation.promise import Violation
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
NUMBERS_FROM: Final = 1 << 40  # of files in the difference


@dataclass(slots=True)
class Waiting:
    position: int
    message: int
    sequence: int
    is_remote: bool


class WatchedPacing(Pacing):
    """Notices slots that start too often."""

    def __init__(self, process: Process) -> None:
        self._life = process.life
        self._process = process
        self._started = float("-inf")
        self._is_full = False
        super().__init__(interval=process.life.interval, delay=process.life.delay, depth=DEPTH, full=3 * FULL)

    def next_start(self, now: float, *, waiting_bytes: int, is_awaited: bool, under_way: int) -> float:
        self._is_full = waiting_bytes >= self.full
        return super().next_start(now, waiting_bytes=waiting_bytes, is_awaited=is_awaited, under_way=under_way)

    def started(self, now: float) -> None:
        super().started(now)
        self._life.counts["slots"] += 1
        if not self._is_full and now < self._started + self.interval:
            raise Violation(f"{self._process} starts two slots within {now - self._started:.3f} s")
        self._started = now


class Owner:
    def __init__(self, process: Process, claimed: Claimed) -> None:
        self.process = process
        self.life = process.life
        self.random = process.life.random
        self.disk = process.disk
        self.mark = claimed.mark
        self.builder = SlotBuilder(FULL)
        self.core = product.Owner(
            claimed, WatchedPacing(process), chance=self.random.random, wall=lambda: 1, builder=self.builder
        )
        self.roots = Roots(claimed.path, self.life.now)
        self.waiting: deque[Waiting] = deque()
        self.serves = False
        self._numbers: dict[str, int] = {}  # of open files
        self._opened = itertools.count(1)
        self.making: RootMaking | None = None
        self._step_under_way: Step | None = None
        for path, size in torn_tails(self.disk.files).items():
            del self.disk.files[path][size:]
        self._remove_leftovers()
        self.state: State = read_state(self.disk.files)
        self.life.check_takeover(process, claimed, self.state)
        self._begin(claimed)

    def _remove_leftovers(self) -> None:
        """Remove a copy that isn't complete, and segments that were compacted and came back."""
        files = self.disk.files
        files.pop(COPY, None)
        for path in [it for it in files if compacted_path(segment_of(it)) in files]:
            files.pop(segment_path(segment_of(path)), None)

    # How the chain begins

    def _begin(self, claimed: Claimed) -> None:
        """Ship the difference, which goes into one slot, or into a root if it is too much: half of it is no state of files.

        Before it is confirmed, nothing is served: what is answered OK must not lie beyond bytes that the store has
        otherwise.
        """
        changes = list(self._difference(claimed))
        if sum(len(it.data) or 1 for it in changes) < FULL:
            self.core.begin(changes)
            return
        files = [FileToFold(path, (), 0, len(data), ()) for path, data in sorted(self.disk.files.items())]
        run = claimed.run.following(claimed.run.writer)
        stored = partial(self._begin_with_root, frozenset(claimed.catalog.objects))
        self.making = RootMaking(self, run, lambda: files, stored)

    def _difference(self, claimed: Claimed) -> Iterator[Recorded]:
        """Yield what this data path has and the store hasn't, and the other way round."""
        files = claimed.catalog.files
        for number, (path, data) in enumerate(sorted(self.disk.files.items()), NUMBERS_FROM):
            file = files.get(path)
            same = first_difference(file.pieces, bytes(data)) if file is not None else 0
            if file is not None and same == file.size == len(data):
                continue
            yield Recorded(OpenFile(number, path))
            if file is not None and same < file.size:
                yield Recorded(Cut(number, same))
            if same < len(data):
                yield Recorded(Write(number, same, len(data) - same), bytes(data[same:]))
        for path in sorted(files.keys() - self.disk.files.keys()):
            yield Recorded(Remove(path))

    def _begin_with_root(self, objects: frozenset[str], root: Root) -> None:
        self._prove(root)
        ended = self.core.begin((), root)
        assert ended is not None
        self.making = None
        self.roots.begin(ended.run, root.run, objects)
        self.life.counts["jumps"] += 1
        self.roots.stored(root)
        self._commit()

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
        self.waiting.append(Waiting(self.core.position, message, sequence, is_remote))
        if is_remote:
            self.core.expect_confirmation()
        else:
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
        data, size = bytes(self.disk.files[segment_path(segment)]), len(log_record(0))
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
        self._record(Write(self._number_of(path), len(file), len(data)), data)
        file += data

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
        self.core.record(Recorded(operation, data))

    # One step

    def step(self) -> None:
        if self.core.fenced is not None:
            self.life.check_fenced(self.process, self.core)
            self.process.end(self.core.fenced)
            self.life.perhaps_restart(self.process.machine)
            return
        self._take_confirmed()
        weights, steps = zip(*self._choices(), strict=True)
        self.random.choices(steps, weights)[0]()

    def _choices(self) -> list[tuple[int, Callable[[], None]]]:
        choices: list[tuple[int, Callable[[], None]]] = [(1, self.disk.sync), (20, self._send)]
        if not self.life.is_calm:
            choices += self._what_clients_do()
        if self.core.may_jump:
            choices.append((40, self._begin_jump))
        if self.making is not None:
            choices.append((self.life.haste, self._go_on_with_root))
        if self._step_under_way is None:
            choices.append((20, self._sweep))
        return choices

    def _what_clients_do(self) -> list[tuple[int, Callable[[], None]]]:
        choices: list[tuple[int, Callable[[], None]]] = []
        if not self.serves:
            return choices
        choices += [
            (8, partial(self.publish, is_remote=True)),
            (3, partial(self.publish, is_remote=False)),
            (1, self.finish_segment),
            (3, self.compact),
        ]
        if self.core.slots_since_root and not self.roots.is_busy and not self.core.is_stopped:
            choices.append((self.life.roots, self._begin_root))
        if self.life.drops and self.random.random() < 0.1:
            choices.append((self.life.drops, self.core.drop))
        return choices

    def _send(self) -> None:
        self.builder.most = self.random.choice(SLOT_SIZES) if self.serves else FULL  # the difference is cut as a whole
        request = self.core.next_request(self.life.now)
        if not isinstance(request, ChainRequest):
            return
        lost = partial(self._lost, request)
        if request.verb is RequestVerb.CREATE:
            self.process.send(
                "create", request.name, partial(self._created, request), lost, data=b"".join(request.data)
            )
        else:
            self.process.send("get", request.name, partial(self._got, request), lost, size=request.size)

    def _created(self, request: ChainRequest, call: Call) -> None:
        assert isinstance(call.result, Created)
        self.core.created(request, call.result, self.life.now)

    def _got(self, request: ChainRequest, call: Call) -> None:
        assert not isinstance(call.result, Created)
        self.core.got(request, call.result, self.life.now)

    def _lost(self, request: ChainRequest) -> None:
        if self.random.random() < 0.3:  # there was an answer: the store asks for fewer requests
            self.core.slow_down(self.life.now)
        if request.verb is RequestVerb.CREATE:
            self.core.created(request, Created.UNKNOWN, self.life.now)
        else:
            self.core.failed(request, self.life.now)

    def _take_confirmed(self) -> None:
        if not self.serves and self.making is None:
            self.serves = self.core.is_settled
        for commit in self.core.take_commits():
            self.roots.confirmed(commit, self.life.now)
            self.life.counts["roots"] += 1
            making = self.making
            if making is not None and making.root is not None and making.root.run == commit.run:
                self.core.rebase(making.snapshot or {}, making.root)
                self.making = None
        while self.waiting and self.waiting[0].position <= self.core.confirmed:
            self.life.confirmed(self.waiting.popleft())

    @property
    def is_idle(self) -> bool:
        """Whether everything that was recorded is confirmed, and nothing is under way."""
        return self.serves and not self.waiting and self.core.is_settled

    # Roots

    def _begin_root(self) -> None:
        ended = self.core.end_run()
        assert ended is not None
        self.roots.begin(ended.run, ended.following, ended.objects)
        plan = partial(plan_fold, ended.snapshot)
        self.making = RootMaking(self, ended.following, plan, self._stored, self._give_up, ended.snapshot)

    def _go_on_with_root(self) -> None:
        assert self.making is not None
        self.making.step()
        self._commit()

    def _commit(self) -> None:
        if (commit := self.roots.take_commit()) is not None:
            self.core.commit(commit)

    def _stored(self, root: Root) -> None:
        self._prove(root)
        self.roots.stored(root)

    def _give_up(self) -> None:
        self.roots.give_up()
        self.making = None

    def _begin_jump(self) -> None:
        """Make a root that has to be stored before anything else, because some of what was recorded is in no slot."""
        self.roots.give_up()
        jump = self.core.begin_jump()
        plan = partial(plan_fold, jump.snapshot)
        second_names = {it: self.disk.files[it] for it in unsent_files(jump.snapshot)}
        self.making = RootMaking(self, jump.run, plan, self._jump, self._give_up_jump, second_names=second_names)

    def _give_up_jump(self) -> None:
        self.core.give_up_jump()
        self.making = None

    def _jump(self, root: Root) -> None:
        self._prove(root)
        ended = self.core.jump(root)
        self.making = None
        self.roots.begin(ended.run, root.run, ended.objects)
        self.life.counts["jumps"] += 1
        self.roots.stored(root)
        self._commit()

    def _prove(self, root: Root) -> None:
        """Note durably that everything the root has is on this disk as well, before the chain says that it counts."""
        self.disk.sync()
        self.mark = self.mark.proved(root.run)
        self.life.proved(root.run)
        self.disk.save_mark(encode_mark(self.mark))

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
