"""What a committed root has made unnecessary, and the order in which that may go.

    1. the marks gone/R of all runs before the root, one after the other
    2. the hint, which names the root
    3. the slots and roots of these runs, but never a fence
    4. objects that the new root doesn't use, after an hour, because readers of the former root may be at them

A mark comes before the first delete and stays for ever, because a claimant that reads a swept run would take a deleted slot
for one that never existed. A fence stays for ever, because it is what an old owner finds, however late it wakes up: if its
fence were deleted, that owner would create the slot and believe it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from nsqcommon.remote.marks import encode_gone, encode_hint
from nsqcommon.remote.names import Run, gone_name, root_name, slot_name
from nsqcommon.remote.operations import Commit
from nsqd.remote.chain import MOST_UNCONFIRMED

if TYPE_CHECKING:
    from nsqcommon.remote.root import Root
    from nsqd.remote.claim import RunRead
from nsqd.remote.object_store import Created

MOST_NAMES: Final = 1000  # in one delete, as S3 has it
UNUSED_FOR: Final = 3600.0  # seconds until an object goes that no root uses any more
ROOT_BYTES: Final = 1 << 30  # of slots since the last root
ROOT_SLOTS: Final = 2000
ROOT_SECONDS: Final = 300.0


@dataclass(eq=False, slots=True)
class SetMark:
    """Create this mark."""

    name: str
    data: bytes


@dataclass(eq=False, slots=True)
class CheckMark:
    """Get this mark. "Exists" may have been a conflict that S3 would have had us repeat, and nothing is there."""

    name: str
    data: bytes


@dataclass(eq=False, slots=True)
class SetHint:
    """Overwrite `hint`."""

    data: bytes


@dataclass(eq=False, slots=True)
class Delete:
    names: tuple[str, ...]


Step: TypeAlias = SetMark | CheckMark | SetHint | Delete


class Sweep:
    """Removes what one commit has made unnecessary. Each step is repeated until it has succeeded."""

    def __init__(self, runs: Sequence[RunRead], root: Run, unused: Iterable[str], now: float) -> None:
        self._steps: deque[Step] = deque()
        self._steps += [SetMark(gone_name(it.run), encode_gone(it.run, root)) for it in runs]
        self._steps.append(SetHint(encode_hint(root)))
        self._steps += map(Delete, batches(name for it in runs for name in _objects_of(it)))
        self._unused = deque(map(Delete, batches(sorted(unused))))
        self._unused_due = now + UNUSED_FOR

    def next_step(self, now: float) -> Step | None:
        """Return what to do now; None: nothing. It stays the next step until its answer says that it is done."""
        if self._steps:
            return self._steps[0]
        return self._unused[0] if self._unused and now >= self._unused_due else None

    def done(self, step: Step) -> None:
        for steps in (self._steps, self._unused):
            if steps and steps[0] is step:
                steps.popleft()

    def exists(self, step: SetMark) -> None:
        """Note that a mark was said to exist. It doesn't matter who has set it, but it has to be there."""
        if self._steps and self._steps[0] is step:
            self._steps[0] = CheckMark(step.name, step.data)

    def is_missing(self, step: CheckMark) -> None:
        if self._steps and self._steps[0] is step:
            self._steps[0] = SetMark(step.name, step.data)

    @property
    def is_finished(self) -> bool:
        return not self._steps and not self._unused


def _objects_of(read: RunRead) -> Iterator[str]:
    """Yield the names of a run's root and slots, without the fence, and with what its owner may have sent ahead of it."""
    yield root_name(read.run)
    yield from (slot_name(read.run, number) for number in range(read.end))
    if read.is_fenced:
        yield from (slot_name(read.run, read.end + 1 + ahead) for ahead in range(MOST_UNCONFIRMED))
    else:
        yield slot_name(read.run, read.end)


def batches(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the names in pieces of which each may be deleted by one request."""
    rest = iter(names)
    while batch := tuple(islice(rest, MOST_NAMES)):
        yield batch


class Stage(Enum):
    """How far a root in the making has come."""

    FOLDING = auto()  # folds and the root are being stored
    STORED = auto()  # its commit has to be appended to the chain
    COMMITTING = auto()  # its commit is on its way into the chain


@dataclass(eq=False, slots=True)
class _NewRoot:
    run: Run
    needed_before: set[str]  # objects that were needed at its place
    objects: set[str] = field(default_factory=set)  # that it uses
    stage: Stage = Stage.FOLDING


class Roots:
    """When an owner makes a root, when the chain says so, and what its commit lets go.

    One root is in the making at a time:

        begin ──> folds and root are stored ──> `stored` ──> `take_commit` ──> the commit is confirmed ──> a sweep
    """

    def __init__(self, path: Sequence[RunRead], now: float) -> None:
        """Begin with the runs since the root that the claim has read."""
        self._old = list(path)
        self._new: _NewRoot | None = None
        self._left: set[str] = set()  # objects of roots that were given up, and what these would have let go
        self._last = now
        self._sweeps: deque[Sweep] = deque()

    @property
    def is_busy(self) -> bool:
        return self._new is not None

    def is_due(self, now: float, *, slots: int, size: int) -> bool:
        """Return whether the slots since the last root, of this size in bytes, are enough for a new one."""
        if self._new is not None or not slots:
            return False
        return slots >= ROOT_SLOTS or size >= ROOT_BYTES or now - self._last >= ROOT_SECONDS

    def begin(self, ended: RunRead, following: Run, needed: Iterable[str]) -> None:
        """Note that a run was ended, and that the next one's root is in the making.

        `needed`: the objects that the catalog names at this place.
        """
        assert self._new is None
        self._old.append(ended)
        self._new = _NewRoot(following, set(needed) | self._left)

    def give_up(self) -> None:
        """Forget the root in the making, because a file has vanished meanwhile. The next one has a later run."""
        if self._new is not None:
            self._left |= self._new.needed_before | self._new.objects
        self._new = None

    def leave(self, objects: Iterable[str]) -> None:
        """Note that these were stored for a root that is given up. They may go when the next one is committed."""
        self._left |= set(objects)

    def stored(self, root: Root) -> None:
        """Note that the root and all its objects are stored. It doesn't matter any more if it was given up meanwhile."""
        new = self._new
        if new is None or new.run != root.run:
            return
        new.objects = root.objects()
        new.stage = Stage.STORED

    def take_commit(self) -> Commit | None:
        """Return the operation that has to be recorded now, once; None: there is none."""
        new = self._new
        if new is None or new.stage is not Stage.STORED:
            return None
        new.stage = Stage.COMMITTING
        return Commit(new.run)

    def confirmed(self, commit: Commit, now: float) -> None:
        """Note that the chain has this commit. Now claimants may begin at the root, and what it replaces may go."""
        new = self._new
        if new is None or new.run != commit.run:
            return
        self._new, self._last = None, now
        self._left.clear()
        self._let_go(new, now)

    def _let_go(self, new: _NewRoot, now: float) -> None:
        swept = [it for it in self._old if it.run.number < new.run.number]
        self._old = [it for it in self._old if it.run.number >= new.run.number]
        self._sweeps.append(Sweep(swept, new.run, new.needed_before - new.objects, now))

    # Sweeping

    def next_step(self, now: float) -> Step | None:
        """Return the next step of any sweep; None: there is nothing to do now."""
        for sweep in self._sweeps:
            if (step := sweep.next_step(now)) is not None:
                return step
        return None

    def marked(self, step: SetMark, answer: Created) -> None:
        """Take the answer to the create of a mark."""
        for sweep in self._sweeps:
            if answer is Created.CREATED:
                sweep.done(step)
            elif answer is Created.EXISTS:
                sweep.exists(step)

    def checked(self, step: CheckMark, found: bytes | None) -> None:
        """Take the answer to the get of a mark."""
        for sweep in self._sweeps:
            if found is None:
                sweep.is_missing(step)
            else:
                sweep.done(step)

    def done(self, step: SetHint | Delete) -> None:
        """Note that the store has done a step."""
        for sweep in self._sweeps:
            sweep.done(step)
        while self._sweeps and self._sweeps[0].is_finished:
            self._sweeps.popleft()
