"""What an owner has recorded, sent and got confirmed: the state that its threads share.

    any thread ── record ──> incoming ──┐  under the lock, in whichever thread of the sender comes first
                                        v
              SlotBuilder ── Pacing: a slot is due ──> Chain ── next_request ──> a thread asks the store
                                │                        ^
                                v                        └── created, got, failed
                             Catalog: where each byte is now

A thread that records never waits for the lock, because building a slot of 8 MiB takes milliseconds and the event loop
records as well. It appends to a queue, and the next thread that looks for work empties it.

**The buffer.** What isn't in a slot yet may take up to `buffer` bytes of memory.

    up to half   everybody may publish
    from half    publishes that would wait for the store are held back, so the other half is for the rest, and for
                 the ones that have arrived meanwhile. So a store that is slower than the publishers makes them wait.
    beyond       all that waits is dropped: it is on the disk, and a root brings it to the store. See `drop`.

Publishes that don't wait for the store are never held back. A burst of them may fill the buffer, and until the root has
what was dropped, it counts as if it were still here.

Nothing here waits, and times are handed in. `wake` is called when there may be work for a thread that sleeps.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from threading import Lock
from time import time_ns
from typing import TYPE_CHECKING, Final

from nsqcommon.durations import seconds
from nsqcommon.prometheus import Histogram
from nsqcommon.remote.operations import Commit
from nsqd.remote.catalog import Catalog
from nsqd.remote.chain import Chain, ChainRequest
from nsqd.remote.claim import RunRead
from nsqd.remote.cost import HEARTBEAT
from nsqd.remote.object_store import Created
from nsqd.remote.pacing import FULL_SLOT, Pacing
from nsqd.remote.recorder import Recorded
from nsqd.remote.slot_builder import OBJECTS, SlotBuilder

if TYPE_CHECKING:
    from nsqcommon.remote.names import Run
    from nsqcommon.remote.root import Root
    from nsqcommon.remote.slot import Slot
    from nsqd.remote.catalog import Snapshot
    from nsqd.remote.claim import Claimed

MOST_LOOKS: Final = 64
LINGER: Final = 0.005  # seconds from the first change to its slot, if no publisher waits, to have the rest of the turn
SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # of histograms
_HEARTBEAT: Final = seconds(HEARTBEAT)


def _nothing_sleeps() -> None: ...


@dataclass(frozen=True, slots=True)
class OwnerSnapshot:
    run: str
    recorded: int
    confirmed: int
    behind_seconds: float
    behind_bytes: int
    silent_seconds: float  # since the last answer of whatever kind, if the store owes one
    slots: int
    slot_bytes: int
    files: int
    confirm_seconds: Histogram


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that its owner has ended, and what a root of the next one has to have."""

    run: RunRead
    following: Run
    snapshot: Snapshot  # of the files, as of all slots up to this end
    objects: frozenset[str]  # that the catalog names at this place


@dataclass(frozen=True, slots=True)
class Jump:
    """A run that can begin when there is a root with all that was recorded up to `position`."""

    run: Run
    position: int
    snapshot: Snapshot
    objects: frozenset[str]
    size: int  # of the changes that it stands for, in bytes


class Owner:
    """The chain of a process that owns a name. Any thread may call its methods."""

    def __init__(
        self,
        claimed: Claimed,
        pacing: Pacing,
        *,
        chance: Callable[[], float] = random.random,
        wall: Callable[[], int] = time_ns,
        builder: SlotBuilder | None = None,
        buffer: float = inf,
    ) -> None:
        """Own the name. If more than `buffer` bytes wait, their rest is read from the data path later."""
        self.node = claimed.node
        self.wake: Callable[[], object] = _nothing_sleeps
        # These change in one step each, so you may read them without the lock.
        self.position = 0  # the number of the last change that was recorded; they count from 1
        self.confirmed = 0  # the number of the last change that is certainly in the chain
        self.fenced: str | None = None  # why this process doesn't own the name any more
        self.fence: Slot | None = None  # who has taken it, if it says so
        self.slots_since_root = 0
        self.bytes_since_root = 0  # in the bodies of these slots
        # Since when the store has taken nothing of what it was asked to, even if it answers; inf: it has all of that.
        self.stalled_since = inf
        self.behind_since = inf  # when the oldest change was noticed that isn't confirmed

        self._recording = Lock()
        self._incoming: deque[Recorded] = deque()
        self._recorded_memory = 0  # of all changes that were ever appended to it
        self._taken_memory = 0  # of changes that were taken from it
        self._unnoticed = 0  # bytes of memory that it has taken since a thread was woken
        self._is_idle = True  # no thread knows that something waits
        self._awaited = 0  # the number of the last change that a publisher waits for
        self._knows_of_wait = False  # some thread does, so it begins the next slot in time

        self._lock = Lock()
        self._pacing = pacing
        self._builder = builder or SlotBuilder()
        self._buffer = buffer
        self._chain = Chain(claimed.node, claimed.run, chance=chance, depth=pacing.depth, claimant=claimed.claimant)
        self._catalog: Catalog = claimed.catalog
        self._newest = claimed.run  # that a root was begun for
        self._has_gap = False  # what was recorded last is in no slot, see `drop`
        self._gap_since = inf  # when the first of it was noticed
        self._gap_bytes = 0  # of it, and of what a jump is about to store
        self._jump: Jump | None = None  # that waits for its root
        self._wall = wall
        self._waiting = WaitingChanges()
        self._slots: deque[_CutSlot] = deque()  # that aren't confirmed, in order
        self._took_last = -inf  # when the store has last taken a slot, or a part of what a jump waits for
        self._commits: list[Commit] = []
        self._quiet_since = -inf  # when the store last said something
        self._answered_at = -inf  # the same, but for a heartbeat that has got no answer
        self._now = -inf  # the last time that was handed in
        self._slots_cut = 0
        self._slot_bytes = 0
        self._confirm_seconds = Histogram(SECONDS)

    # How it begins and ends

    def begin(self, changes: Iterable[Recorded], root: Root | None = None) -> EndedRun | None:
        """Forget what was recorded during the recovery, and begin the chain with these changes, in one slot.

        Call this once, before there is a sender. `changes` are the difference between the data path and the store, and
        fit into a slot. If they don't, a stored `root` has all files instead. Then this returns the run that it ends.
        """
        with self._lock:
            self._take_incoming()
            while self._builder.waiting_bytes:  # the builder has to know the files that are open now
                self._builder.next_content()
            self._builder.begin_run()
            self._waiting.cut(self._builder.position)
            for change in changes:
                self.position += 1
                self._builder.add(change)
            self._settle()
            if root is None:
                return None
            ended = self._end_run(reads_root=True)
            self._catalog = Catalog(root)
            return replace(ended, snapshot={})

    @property
    def is_settled(self) -> bool:
        """Whether the chain has everything that was recorded, and each end of a run."""
        with self._lock:
            self._settle()
            return not (self._incoming or self._builder.waiting_bytes or self._slots or self.is_stopped)

    # Recording

    def record(self, change: Recorded) -> None:
        """Take the next change of the data path. If several threads change files, their order is the one that counts."""
        with self._recording:
            self.position += 1
            if self.fenced is not None:
                return
            self._incoming.append(change)
            memory = OBJECTS + change.size
            self._recorded_memory += memory
            self._unnoticed += memory
            must_wake = self._is_idle or self._unnoticed >= FULL_SLOT
            if must_wake:
                self._is_idle = False
                self._unnoticed = 0
        if must_wake:
            self.wake()

    def commit(self, commit: Commit) -> None:
        """Have the chain say that this root counts."""
        self.record(Recorded(commit))

    def expect_confirmation(self) -> None:
        """Note that a publisher waits for everything recorded so far. Only the event loop calls this, and `hurry`."""
        self._awaited = self.position

    def hurry(self) -> None:
        """Wake a thread if a publisher waits and no thread knows. Call this at the end of a turn, when all is written."""
        if not self._knows_of_wait and self._awaited > self._builder.position:
            self._knows_of_wait = True
            self.wake()

    def holds_back(self, size: int) -> bool:
        """Return whether publishes of this many bytes, which would wait for the store, should first wait for room here.

        See the beginning of this module. You may ask at any time without the lock.
        """
        incoming = self._recorded_memory - self._taken_memory
        return incoming + self._builder.waiting_memory + self._gap_bytes > self._buffer / 2 >= size

    # What threads do

    def next_request(self, now: float) -> ChainRequest | float:
        """Return the next request for the store, or when to ask again unless `wake` is called before."""
        with self._lock:
            self._now = now
            self._notice(now)
            if self._next_start(now) <= now:
                self._cut(now)
            request = self._chain.next_request(now) or self._heartbeat(now)
            if request is not None:
                return request
            return min(self._next_start(now), self._chain.next_due(), self._next_heartbeat)

    def created(self, request: ChainRequest, answer: Created, now: float) -> None:
        """Take the answer to a create."""
        with self._lock:
            self._now = now
            self._chain.created(request, answer, now)
            if answer is not Created.UNKNOWN:
                self._quiet_since = self._answered_at = now
            self._settle()

    def got(self, request: ChainRequest, found: bytes | None, now: float) -> None:
        """Take the answer to a get. None: nothing is there."""
        with self._lock:
            self._now = now
            self._chain.got(request, found, now)
            self._quiet_since = self._answered_at = now
            self._settle()

    def failed(self, request: ChainRequest, now: float) -> None:
        """Note that the store hasn't answered a get."""
        with self._lock:
            self._chain.failed(request, now)

    def slow_down(self, now: float) -> None:
        """Start fewer slots for a while, because the store has asked for fewer requests."""
        with self._lock:
            self._pacing.slow_down(now)

    def _notice(self, now: float) -> None:
        incoming = self._incoming
        if not incoming:
            with self._recording:
                self._is_idle = not incoming and not self._builder.waiting_bytes
        self._take_incoming()
        if self._builder.waiting_bytes:
            self._waiting.notice(self._builder.position + self._builder.waiting, now)
            self.behind_since = min(self.behind_since, now)
        if self._builder.waiting_memory > self._buffer:
            self._drop_all()

    def _take_incoming(self) -> None:
        while self._incoming:
            change = self._incoming.popleft()
            self._builder.add(change)
            self._taken_memory += OBJECTS + change.size

    def _next_start(self, now: float) -> float:
        waiting = self._builder.waiting_bytes
        if not waiting or self.is_stopped or not self._chain.may_append:
            return inf
        is_awaited = self._awaited > self._builder.position
        if is_awaited:
            self._knows_of_wait = True
        start = self._pacing.next_start(
            now, waiting_bytes=waiting, is_awaited=is_awaited, under_way=self._chain.under_way
        )
        return start if is_awaited or waiting >= self._pacing.full else max(start, self._waiting.since + LINGER)

    def _cut(self, now: float) -> None:
        """Put what waits into the next slot, as much as it may have."""
        self._knows_of_wait = False  # before the next look at `_awaited`, which may be of a later change by then
        since = self._waiting.since
        content = self._builder.next_content()
        self._waiting.cut(self._builder.position)
        if content.operations:
            self._pacing.started(now)
            position, body, crc = self._builder.position, content.buffers(), content.crc()
            slot = self._chain.append(content.operations, body, position, self._wall(), crc=crc)
            self._catalog.apply_sent(slot.slot, content.crcs, len(slot.header))
            self._slots.append(_CutSlot(since, now, content.size))
            self._slots_cut += 1
            self._slot_bytes += content.size
            if any(
                not isinstance(it, Commit) for it in content.operations
            ):  # or each root would be followed by another
                self.slots_since_root += 1
                self.bytes_since_root += content.size
        self._settle()

    def _heartbeat(self, now: float) -> ChainRequest | None:
        """Return a request that finds out whether the name is still ours, if there was no other answer for a while."""
        if now < self._next_heartbeat:
            return None
        self._quiet_since = now
        return self._chain.probe(now)

    @property
    def _next_heartbeat(self) -> float:
        return inf if self._slots or self.fenced is not None else self._quiet_since + _HEARTBEAT

    def _settle(self) -> None:
        for slot in self._chain.take_confirmed():
            self._took_last = self._now
            cut = self._slots.popleft()
            if cut.size:
                self._confirm_seconds.observe(self._now - cut.since)
            self._commits += [it for it in slot.slot.operations if isinstance(it, Commit)]
        # What was left out of slots, as writes to removed files are, is confirmed with all that came before.
        is_all = not (self._slots or self.is_stopped)
        confirmed = self._builder.position if is_all else self._chain.confirmed_position
        self.confirmed = max(self.confirmed, confirmed)
        self.stalled_since = max(self._slots[0].begun if self._slots else self._gap_since, self._took_last)
        self.behind_since = self._slots[0].since if self._slots else min(self._gap_since, self._waiting.since)
        self.fence, self.fenced = self._chain.fence, self._chain.fenced
        if self.fenced is not None:
            self._incoming.clear()

    def snapshot(self, now: float) -> OwnerSnapshot:
        with self._lock:
            self._notice(now)
            return OwnerSnapshot(
                str(self._chain.run),
                recorded=self.position,
                confirmed=self.confirmed,
                behind_seconds=max(0.0, now - self.behind_since),
                behind_bytes=self._builder.waiting_bytes + self._gap_bytes + sum(it.size for it in self._slots),
                silent_seconds=max(0.0, now - max(self._answered_at, self._slots[0].begun)) if self._slots else 0.0,
                slots=self._slots_cut,
                slot_bytes=self._slot_bytes,
                files=len(self._catalog.files),
                confirm_seconds=self._confirm_seconds.copy(),
            )

    # Roots

    @property
    def run(self) -> Run:
        return self._chain.run

    def end_run(self) -> EndedRun | None:
        """End the run after the slots of now, and go on in the next one without a pause. None: see `is_stopped`."""
        with self._lock:
            return self._end_run() if not self.is_stopped else None

    def _end_run(self, *, reads_root: bool = False) -> EndedRun:
        ended = self._put_end(self._next_run(), self._builder.position, reads_root=reads_root)
        self._begin_run()
        return EndedRun(ended, self._chain.run, self._catalog.snapshot(), frozenset(self._catalog.objects))

    def _put_end(self, following: Run, position: int, *, reads_root: bool) -> RunRead:
        ended = RunRead(self._chain.run, self._chain.next_number, is_fenced=False)
        self._chain.end_run(position, self._wall(), following, reads_root=reads_root)
        self._slots.append(_CutSlot(self._waiting.since, self._now, 0))
        self._settle()
        return ended

    def _begin_run(self) -> None:
        self._builder.begin_run()
        self._catalog.begin_run()
        self.slots_since_root = self.bytes_since_root = 0

    def _next_run(self) -> Run:
        """Return a run that no root was begun for, because the names of a root and its folds are written once."""
        self._newest = self._newest.following(self._newest.writer)
        return self._newest

    def rebase(self, snapshot: Snapshot, root: Root) -> None:
        """Refer to this root, whose commit is confirmed, instead of the slots and folds that it replaces."""
        with self._lock:
            self._catalog.rebase(snapshot, root)

    def take_commits(self) -> list[Commit]:
        """Return the commits that were confirmed since the last call."""
        with self._lock:
            commits, self._commits = self._commits, []
            return commits

    # When too much waits

    @property
    def is_stopped(self) -> bool:
        """Whether no slot may be cut, and no run ended, before there is a root."""
        return self._has_gap or self._jump is not None

    def drop(self) -> None:
        """Forget the bytes of what waits, because the store is away and they would fill the memory.

        They are in the data path, and the catalog knows their checksums. So nothing can be sent before a root has them:
        when `may_jump`, make one of `begin_jump`, and go on by `jump`. If a commit waits, it is forgotten with its root.
        """
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._notice(self._now)
        self._drop_all()

    def _drop_all(self) -> None:
        while self._builder.waiting_bytes:
            content = self._builder.next_content()
            self._gap_bytes += content.size
            sent = [
                (it, crc)
                for it, crc in zip(content.operations, content.crcs, strict=True)
                if not isinstance(it, Commit)
            ]
            self._catalog.apply_unsent([it for it, _ in sent], [crc for _, crc in sent])
        self._gap_since = min(self._gap_since, self._waiting.since)
        self._waiting.cut(self._builder.position)
        self._has_gap = True
        self._settle()

    @property
    def may_jump(self) -> bool:
        """Whether a root is needed, and the store has confirmed all that was sent before."""
        with self._lock:
            return self._has_gap and self._jump is None and not self._slots and self.fenced is None

    def begin_jump(self) -> Jump:
        """Return what the root has to have: everything that was recorded so far. What comes later waits for its `jump`."""
        with self._lock:
            self._drop()
            snapshot, objects = self._catalog.snapshot(), frozenset(self._catalog.objects)
            self._jump = Jump(self._next_run(), self._builder.position, snapshot, objects, self._gap_bytes)
            self._begin_run()
            self._has_gap = False
            return self._jump

    def give_up_jump(self) -> None:
        """Note that there will be no root, because the disk refuses to read something for example. Begin another one."""
        with self._lock:
            self._jump = None
            self._has_gap = True

    def took(self, now: float) -> None:
        """Note that the store has taken a part of the root that a jump waits for. So it isn't silent."""
        with self._lock:
            self._now = self._took_last = now
            self._settle()

    def jump(self, root: Root) -> EndedRun:
        """End the run, and go on in that of the root, which is stored."""
        with self._lock:
            jump, self._jump = self._jump, None
            assert jump is not None
            assert jump.run == root.run
            self._gap_since = inf if not self._has_gap else self._now
            self._gap_bytes -= jump.size
            ended = self._put_end(jump.run, jump.position, reads_root=True)
            self._catalog.rebase(jump.snapshot, root)
        self.wake()
        return EndedRun(ended, jump.run, {}, jump.objects)


class WaitingChanges:
    """Since when the changes wait that aren't in a slot.

    Changes have no times of their own. Each look notes how many there are by then, so that, if a slot takes only some of
    them, we know how old the others are. Above MOST_LOOKS, a look counts for the last one before it.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[int, float]] = deque()  # number of the last change, and when it was first seen

    @property
    def since(self) -> float:
        """When the first of them was noticed; `inf` if none waits."""
        return self._looks[0][1] if self._looks else inf

    def notice(self, position: int, now: float) -> None:
        """Note that all changes up to this one are there."""
        looks = self._looks
        if not looks:
            looks.append((position, now))
        elif position > looks[-1][0]:
            if len(looks) >= MOST_LOOKS:
                _, now = looks.pop()
            looks.append((position, now))

    def cut(self, position: int) -> None:
        """Note that the changes up to this one are in slots."""
        while self._looks and self._looks[0][0] <= position:
            self._looks.popleft()


@dataclass(frozen=True, slots=True)
class _CutSlot:
    since: float  # when its first change was noticed
    begun: float
    size: int
