"""What an owner sends, what the store's answers mean, and how far the store has confirmed it.

The life of a slot, from the moment that its bytes are fixed:

                        ┌───────────── UNKNOWN: later, the same bytes ──────────────┐
                        v                                                           │
    append ──────> to be created ── create ──┬── CREATED ──> stored ──> confirmed, when all slots before it are
                        ^                    └── EXISTS ──> to be compared
                        │                                        │ get
                        └────── nothing is there ────────────────┼── our header ──> stored
                                                                 └── another one ──> fenced: we don't own the name any more

Several slots are under way at the same time, so they are stored in any order. They are *confirmed* in the order of the
chain. That order is what makes a takeover safe: the next owner puts its fence into the first slot that doesn't exist, and
we could confirm a slot beyond only after creating that one, which the store has given to the fence.

Repeating is always right. A create whose answer was lost may have happened, or happen in an hour. The second create of
the same bytes then finds them, and the comparison says that they are ours. What must never happen is that a slot gets
other bytes, or that we go on without it.

A small slot is sent a second time if its answer takes longer than usual, because confirmations are in order, and one slow
server would hold up all that come after. It is sent up to four times, each after twice the pause. For example, if one of
five servers hangs, the requests for one slot in 25 hang twice, but only those for one in 600 hang four times. Large slots
share the line, which a second request would only make slower. So they wait until the line has had time for them.

How long is longer than usual? The second request for three times the median helps only if an answer takes more than four
times as long. It can leave much earlier without a bill that grows, if only few slots may have that: each slot earns a
fiftieth of an early request. For example, if one create in a hundred takes 20 ms instead of 5, all of those are sent again
after 7 ms, and are stored after 12 ms. If every third answer takes twice as long as the median, as in a store that is busy,
2 % of the slots are sent twice, and the others have to wait for three times the median.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import Run, slot_name
from nsqcommon.remote.slot import Slot, SlotKind, decode_slot_header, encode_slot
from nsqd.remote.object_store import Created
from nsqd.remote.pacing import DEPTH, LARGE, LineRate, pause_before

if TYPE_CHECKING:
    from nsqcommon.remote.operations import Operation
    from nsqcommon.remote.slot import Claimant

MOST_UNCONFIRMED: Final = 8 * DEPTH  # slots that may be stored while an earlier one isn't
SHORTEST_PATIENCE: Final = 0.05  # seconds until an unanswered create is sent a second time, on another connection
MOST_REQUESTS: Final = 4  # of one kind under way for a slot
PATIENCE: Final = 3  # times the median of the last creates, or the time that the line needs for a large slot
EARLY: Final = 1.3  # times the median: when a slot is sent a second time, if that is one of few
SHORTEST_EARLY: Final = 0.005  # seconds; a store that is quicker is held up by our own threads more than by its servers
EARLY_SHARE: Final = 0.02  # of slots
_MOST_EARLY: Final = DEPTH  # at once, after a while without any
_MEDIAN_OF: Final = 31
HEADER_OF_A_FENCE: Final = 4096  # bytes; more than any has


class RequestVerb(Enum):
    CREATE = "create"
    COMPARE = "compare"  # get the first `size` bytes of the slot
    PROBE = "probe"  # the same of the next slot, which should not exist


@dataclass(eq=False, slots=True)
class PendingSlot:
    """A slot whose bytes are fixed, and that isn't confirmed yet."""

    slot: Slot
    name: str
    header: bytes
    data: Sequence[bytes]  # with the header; empty once it is stored, to free the memory
    position: int  # number of the last recorded operation in it
    size: int  # of the object, in bytes
    is_stored: bool = False
    compares: bool = False
    attempts: int = 0
    due: float = 0.0  # when to send it, if no request is under way
    requests: list[ChainRequest] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class ChainRequest:
    """One request that a thread has to make. Its answer goes to `Chain.created` or `Chain.got`."""

    verb: RequestVerb
    name: str
    sent_at: float
    slot: PendingSlot | None  # None: of a probe
    data: Sequence[bytes] = ()  # to create; the slot gives its own up as soon as another request has stored it

    @property
    def size(self) -> int:
        """How many bytes a get should ask for: enough to recognize our own slot, or somebody's fence."""
        return max(HEADER_OF_A_FENCE, 0 if self.slot is None else len(self.slot.header))


class Chain:
    """The slots of one owner, through as many runs as it has.

    Not thread-safe: if you share it among threads, hold a lock around each call.
    """

    def __init__(
        self,
        node: str,
        run: Run,
        *,
        chance: Callable[[], float],
        depth: int = DEPTH,
        claimant: Claimant | None = None,
    ) -> None:
        """Go on in this run, of which no slot was sent yet. `chance` returns random numbers in [0, 1).

        The first slot of each run names `claimant`, because the next one who wants the name begins to read at some run,
        and wants to know whether the owner still answers.
        """
        self.run = run
        self.node = node
        self.depth = depth
        self.fence: Slot | None = None  # who has taken the name, if it says so
        self.fenced: str | None = None  # why this process doesn't own the name any more
        self.confirmed_position = 0
        self._chance = chance
        self._claimant = claimant
        self._next_number = 0
        self._pending: deque[PendingSlot] = deque()  # in the order of the chain
        self._confirmed: list[PendingSlot] = []
        self._latencies: deque[float] = deque(maxlen=_MEDIAN_OF)  # of small slots
        self._patience_with_small = 1.0  # by their median
        self._early_patience = 1.0  # the same for early ones
        self._early_left = 0.0  # how many of them there may be
        self._line = LineRate()
        self._probe: ChainRequest | None = None

    # What goes in

    @property
    def may_append(self) -> bool:
        """Whether another slot may start."""
        return self.fenced is None and self.under_way < self.depth and len(self._pending) < MOST_UNCONFIRMED

    @property
    def next_number(self) -> int:
        """The number of the next slot of this run."""
        return self._next_number

    @property
    def under_way(self) -> int:
        """How many slots aren't stored yet."""
        return sum(not it.is_stored for it in self._pending)

    def append(
        self,
        operations: Sequence[Operation],
        body: Sequence[bytes],
        position: int,
        time_ns: int,
        *,
        crc: int | None = None,
    ) -> PendingSlot:
        """Put these operations into the next slot. `position`: the number of the last of them. `crc`: of the body."""
        return self._append(SlotKind.DATA, position, time_ns, operations=tuple(operations), body=body, crc=crc)

    def end_run(self, position: int, time_ns: int, following: Run | None = None, *, reads_root: bool = False) -> Run:
        """Put an end into the next slot, and go on in the next run. Return it.

        The run goes on without a pause: its slots are sent while the end is under way, and are confirmed after it.
        `following`: a later run than the next, because a root of that one was begun and given up.
        """
        following = following or self.run.following(self.run.writer)
        self._append(SlotKind.END, position, time_ns, following=following, reads_root=reads_root)
        self.run, self._next_number = following, 0
        return following

    def _append(
        self,
        kind: SlotKind,
        position: int,
        time_ns: int,
        *,
        operations: tuple[Operation, ...] = (),
        body: Sequence[bytes] = (),
        crc: int | None = None,
        following: Run | None = None,
        reads_root: bool = False,
    ) -> PendingSlot:
        slot = Slot(
            *(kind, self.node, self.run, self._next_number, self.run.writer, time_ns),
            *(operations, following, reads_root, None if self._next_number else self._claimant),
        )
        data = encode_slot(slot, body, crc=crc)
        size = sum(map(len, data))
        pending = PendingSlot(slot, slot_name(self.run, self._next_number), data[0], data, position, size)
        self._pending.append(pending)
        self._early_left = min(self._early_left + EARLY_SHARE, _MOST_EARLY)
        self._next_number += 1
        return pending

    # What to send

    def next_request(self, now: float) -> ChainRequest | None:
        """Return what a thread should send now, the earliest slot first; None: nothing."""
        if self.fenced is not None:
            return None
        slots, under_way = self._sendable()
        for slot in slots:
            if self._due(slot, under_way) <= now:
                return self._begin(slot, now)
        return None

    def next_due(self) -> float:
        """Return when `next_request` has something to send; `inf`: not before an answer or another slot."""
        if self.fenced is not None:
            return inf
        slots, under_way = self._sendable()
        return min((self._due(it, under_way) for it in slots), default=inf)

    def _sendable(self) -> tuple[list[PendingSlot], int]:
        """Return the slots that aren't stored and for which the line has room, and how many bytes are under way."""
        slots = [it for it in self._pending if not it.is_stored]
        if not any(it.size >= LARGE for it in slots):
            return slots, 0  # the count is unused: the line matters to large slots only
        under_way = sum(
            it.size for it in self._pending for request in it.requests if request.verb is RequestVerb.CREATE
        )
        may_start = self._line.may_start
        return [it for it in slots if it.compares or may_start(it.size, under_way=under_way)], under_way

    def probe(self, now: float) -> ChainRequest | None:
        """Return a request that finds out whether somebody has taken the name while there was nothing to send."""
        if self.fenced is not None or self._pending or self._probe is not None:
            return None
        self._probe = ChainRequest(RequestVerb.PROBE, slot_name(self.run, self._next_number), now, None)
        return self._probe

    def _due(self, slot: PendingSlot, bytes_under_way: int) -> float:
        if not slot.requests:
            return slot.due
        # A create may hang for half a minute. The comparison that another one has made necessary doesn't wait for that.
        verb = RequestVerb.COMPARE if slot.compares else RequestVerb.CREATE
        under_way = [it for it in slot.requests if it.verb is verb]
        if not under_way:
            return slot.due
        if len(under_way) >= MOST_REQUESTS:
            return inf
        last = under_way[-1].sent_at
        if len(under_way) == 1 and self._may_be_early(slot):
            return max(slot.due, last + self._early_patience)
        return max(slot.due, last + self._patience(slot, bytes_under_way) * 2.0 ** (len(under_way) - 1))

    def _may_be_early(self, slot: PendingSlot) -> bool:
        return self._early_left >= 1 and slot.size < LARGE and not slot.compares

    def _patience(self, slot: PendingSlot, bytes_under_way: int) -> float:
        if slot.size >= LARGE and not slot.compares:
            return max(1.0, PATIENCE * self._line.time_for(bytes_under_way))
        return self._patience_with_small

    def _begin(self, slot: PendingSlot, now: float) -> ChainRequest:
        if len(slot.requests) == 1 and self._may_be_early(slot):
            self._early_left -= 1
        request = ChainRequest(
            RequestVerb.COMPARE if slot.compares else RequestVerb.CREATE, slot.name, now, slot, slot.data
        )
        slot.requests.append(request)
        return request

    # What answers mean

    def created(self, request: ChainRequest, answer: Created, now: float) -> None:
        """Take the answer to a create."""
        slot = self._take_answer(request)
        if slot is None:
            return
        time = now - request.sent_at
        match answer:
            case Created.CREATED:
                self._line.arrived(slot.size, time)
                if slot.size < LARGE:
                    self._note_latency(time)
                self._store(slot)
            case Created.EXISTS:
                slot.compares = True
                slot.due = now
            case Created.UNKNOWN:
                self._line.failed(slot.size, time)
                self._put_off(slot, now)

    def got(self, request: ChainRequest, found: bytes | None, now: float) -> None:
        """Take the answer to a comparison or a probe. None: nothing is there."""
        if request.verb is RequestVerb.PROBE:
            self._probed(request, found)
            return
        slot = self._take_answer(request)
        if slot is None:
            return
        if found is None:
            slot.compares = False  # a store that answers "conflict, try again" has said EXISTS of nothing
            self._put_off(slot, now)
        elif found[: len(slot.header)] == slot.header:
            self._store(slot)
        else:
            self._lose(found)

    def failed(self, request: ChainRequest, now: float) -> None:
        """Note that the store didn't say whether the object of a comparison or a probe is there."""
        if request.verb is RequestVerb.PROBE:
            self._probe = None
        elif (slot := self._take_answer(request)) is not None:
            self._put_off(slot, now)

    def _note_latency(self, time: float) -> None:
        self._latencies.append(time)
        median = sorted(self._latencies)[len(self._latencies) // 2]
        self._patience_with_small = max(SHORTEST_PATIENCE, PATIENCE * median)
        self._early_patience = min(max(SHORTEST_EARLY, EARLY * median), self._patience_with_small)

    def _take_answer(self, request: ChainRequest) -> PendingSlot | None:
        """Return the slot of an answer; None: the answer comes too late to matter."""
        slot = request.slot
        assert slot is not None
        slot.requests.remove(request)
        return None if slot.is_stored or self.fenced is not None else slot

    def _put_off(self, slot: PendingSlot, now: float) -> None:
        slot.attempts += 1
        slot.due = now + pause_before(slot.attempts, self._chance())

    def _probed(self, request: ChainRequest, found: bytes | None) -> None:
        self._probe = None
        is_next = request.name == slot_name(self.run, self._next_number)
        if found is not None and is_next:  # otherwise we have created it since, and its own answer counts
            self._lose(found)

    # What follows

    def take_confirmed(self) -> list[PendingSlot]:
        """Return the slots that were confirmed since the last call, in order."""
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    def unconfirmed(self) -> Iterator[PendingSlot]:
        return iter(self._pending)

    def _store(self, slot: PendingSlot) -> None:
        slot.is_stored = True
        slot.data = ()
        while self._pending and self._pending[0].is_stored:
            confirmed = self._pending.popleft()
            self.confirmed_position = confirmed.position
            self._confirmed.append(confirmed)

    def _lose(self, found: bytes) -> None:
        """Stop, because another process has written to our run."""
        self.fenced = "the name was taken over by another process"
        try:
            slot, _ = decode_slot_header(found)
        except BadObject:  # the object isn't a slot, or its header is longer than any fence's
            return
        if slot.claimant is not None:
            self.fence = slot
            did = "deleted" if slot.is_last else "taken over"
            self.fenced = f"the name was {did} by {slot.claimant}"
