"""How a process becomes the owner of a node's name: it reads the chain to its end, and puts a fence there.

    NODE -> HINT -> GONE -> ROOT -> SCAN -> VERIFY, LOOK -> FENCE ─ CREATED ──> VERIFY -> owner
                     ^ │            ^ │ end, fence:          ^ │ EXISTS           ^ │
                     │ │ follow     │ │ the next run         │ v                  │ │ a run of the
                     │<┘            │<┘                      COMPARE ── ours ─────┘ │ path is gone
                     │              └──── another owner's slot ─┘                   │
                     └──────────────────────────────────────────────────────────────┘

The first slot that doesn't exist is where the last owner has to write next, so its creator decides. That is true in a
run from which nothing was deleted. If the run was swept while we read it, a slot that "doesn't exist" may be one that did,
and a fence there stops no owner. Sweeping sets the mark `gone/RUN` before it deletes anything, so we ask for the marks of
*all* runs of our path after the fence. A mark that isn't there then was not there when we read.

An owner that lives may be faster with each slot than we are, because it knows the next one, and we have to ask. So if we
lose a slot to it, we put another fence some slots ahead. The owner stops there, and until then we try the others:

    d d d d d d . . . . F          our first fence came too late for the fifth and the sixth slot
                |       '-- the owner gets no further, and for readers it is a fence like any other
                '-- the first slot that doesn't exist: if a fence gets that place, the one ahead is in no chain

The fence ahead can't be taken back. If we die before we own the name, it stops a healthy owner when its chain gets there,
on a quiet node perhaps days later, and then no process serves the node until somebody starts one. So a claimant that is
asked to stop finishes its claim first (`stops_owner_later`). The owner then stops at once, while the operator who wanted
the takeover is there to see it.

Before the fence we begin once more at the newest root that we have read the commit of. An owner that sleeps may be about
to sweep what that commit has made unnecessary, and after its sweep the older root's objects are no more. Objects of the
newest committed root stay, because only a later commit could have them deleted, and after our fence only we can commit.

`nsqd remote forget` claims as well, to delete the node. Its fence says that the chain ends there for good, so the claim of
another process that comes to it fails. A hint may lead there although the name has a new node: an owner of the former one
that wakes up later may still write it. So such a hint counts as none. The same goes for one that leads to a run without a
root, as in a bucket that was copied in parts: before a claim gives up, it begins once more at the first run of `node`.

A claim has no clock and does nothing: `next_requests` says what to ask, in parallel if there are several, and `answered`
takes the answers. A store that doesn't say is asked again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, assert_never

from nsqcommon.remote.framing import BadObject, NewerFormat
from nsqcommon.remote.marks import ForgottenNode, NodeMark, decode_gone, decode_hint, decode_node, encode_node
from nsqcommon.remote.names import HINT, NODE, Run, gone_name, root_name, slot_name
from nsqcommon.remote.root import Root, decode_root, empty_root
from nsqcommon.remote.slot import Claimant, Slot, SlotKind, decode_slot, encode_slot
from nsqd.remote.catalog import Catalog
from nsqd.remote.local_mark import Decision, LocalMark, decide, first_mark
from nsqd.remote.object_store import Created
from nsqd.remote.pacing import DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_EMPTIED: Final = (
    "is missing, and this data path was in the store: has somebody emptied it, or do --remote and --remote-name lead "
    "elsewhere? If it is gone, nsqd remote seed has the next start store everything anew"
)
SLOTS_AHEAD: Final = 16  # gets under way at the same time
# From a slot that an owner was faster with to the fence that stops it. It stores DEPTH slots in a round trip, and we need two
# from asking for a slot to a fence ahead. A sweep reaches further beyond the end of a run.
BARRIER: Final = 4 * DEPTH


class Phase(Enum):
    NODE = auto()
    NEW_NODE = auto()
    HINT = auto()
    GONE = auto()
    ROOT = auto()
    SCAN = auto()
    LOOK = auto()
    FENCE = auto()
    COMPARE = auto()
    BARRIER = auto()
    VERIFY = auto()
    ENDED = auto()


class Ask(Enum):
    GET = "get"
    CREATE = "create"
    SAVE = "save"  # the first mark of the data path, durably


@dataclass(eq=False, slots=True)
class ClaimRequest:
    ask: Ask
    name: str
    data: bytes = b""
    mark: LocalMark | None = None


@dataclass(frozen=True, slots=True)
class RunRead:
    """A run of the path, and the slot that ended it."""

    run: Run
    end: int
    is_fenced: bool


def last_owner(path: Sequence[RunRead]) -> str:
    """Return the writer whose data path is what the path says.

    A run in which a fence comes first is one of a claimant that died after its own, perhaps ourselves on a path that was
    swept. It has changed nothing, so the owner before may go on with its data path. An end that comes first is an owner's,
    which has perhaps stored a root with everything that it had to ship.
    """
    return next((it.run.writer for it in reversed(path) if it.end or not it.is_fenced), path[0].run.writer)


@dataclass(frozen=True, slots=True)
class Claimed:
    """This process owns the name, and nothing that was ever acknowledged is missing in `catalog`."""

    node: str
    claimant: Claimant  # this process, as the first slot of each of its runs names it
    run: Run  # to go on in
    path: tuple[RunRead, ...]  # the runs since the root, which a later root makes unnecessary
    catalog: Catalog
    mark: LocalMark  # to save when the data path was made what it has to be, before the first slot
    decision: Decision


@dataclass(frozen=True, slots=True)
class ChainRead:
    """A chain as somebody reads it who doesn't claim the name."""

    node: str
    path: tuple[RunRead, ...]  # the runs since the root; the last one ends where nothing is yet
    catalog: Catalog
    owner: Claimant | None
    latest_ns: int  # the owner's clock at the last slot that was read; 0: there is none
    decision: Decision  # about the data path of the claim, if nothing is added to the chain

    @property
    def is_ended(self) -> bool:
        return self.path[-1].end == 0 and len(self.path) > 1 and not self.path[-2].is_fenced


class Claim:
    """One attempt to own a name, from the first request to the last."""

    def __init__(
        self,
        *,
        node: str,
        writer: str,
        first_writer: str,
        claimant: Claimant,
        time_ns: int,
        mark: LocalMark | None = None,
        may_leap: bool = True,
        has_data: bool = False,
        forgets: bool = False,
        slots_ahead: int = SLOTS_AHEAD,
    ) -> None:
        """Claim for this writer, whose name was drawn for this claim. `mark`: of the data path, if it has one.

        `node` and `first_writer`: the node's id and the writer of its first run, if the prefix is new. They are two writers,
        because a writer is an owner once: otherwise a copy of our data path could be taken for what we wrote later. `node`
        is empty if the data path doesn't know it, because its node.json is damaged or wasn't fetched yet.

        With `has_data` the data path is a node's already, so that the name must not be another one's.

        With `forgets` the fence is the end of the chain: the node is going to be deleted.

        Without `may_leap` the claim stops in front of the fence (`is_looking`), so that a start can see whether the
        owner is alive.
        """
        self.claimed: Claimed | None = None
        self.fault: str | None = None  # why the name can't be claimed, for the operator
        self.is_forgotten = False  # that's because its node is being deleted
        self.owner: Claimant | None = None  # the last owner, as far as the chain was read
        self._node = node
        self._writer = writer
        self._first_writer = first_writer
        self._claimant = claimant
        self._time_ns = time_ns
        self._mark = mark
        self._may_leap = may_leap
        self._stops_owner = may_leap
        self._has_fenced_ahead = False
        self._has_data = has_data
        self._forgets = forgets
        self.slots_ahead = slots_ahead  # gets under way at the same time; you may change it
        self._ahead_of_look = 0  # the same while the claim looks again; 0: no other number
        self._phase = Phase.NODE
        self._under_way: list[ClaimRequest] = []
        self._first: Run | None = None
        self._is_hinted = False
        self._fences: dict[str, bytes] = {}  # by name; a repeated fence has the same bytes
        self._highest = 0
        self._path: list[RunRead] = []
        self._begun = self._run = Run(0, writer)
        self._number = 0
        self._catalog = Catalog(empty_root(node, self._run))
        self._ahead: dict[int, bytes | None] = {}
        self._unverified: set[str] = set()
        self._after_verification = Phase.ENDED
        self._damage: str | None = None
        self._latest_ns = 0

    # What to ask

    def next_requests(self) -> list[ClaimRequest]:
        """Return the requests that should be sent now, and aren't under way."""
        under_way = {request.name for request in self._under_way}
        requests = [it for it in self._wanted() if it.name not in under_way]
        self._under_way += requests
        return requests

    def _wanted(self) -> Iterable[ClaimRequest]:
        match self._phase:
            case Phase.NODE:
                return [ClaimRequest(Ask.GET, NODE)]
            case Phase.NEW_NODE:
                return [self._new_node()]
            case Phase.HINT:
                return [ClaimRequest(Ask.GET, HINT)]
            case Phase.GONE:
                return [ClaimRequest(Ask.GET, gone_name(self._run))]
            case Phase.ROOT:
                return [ClaimRequest(Ask.GET, root_name(self._run))]
            case Phase.SCAN:
                ahead = range(self._number, self._number + (self._ahead_of_look or self.slots_ahead))
                return [ClaimRequest(Ask.GET, slot_name(self._run, it)) for it in ahead if it not in self._ahead]
            case Phase.FENCE:
                return [self._fence_at(self._number)]
            case Phase.BARRIER:
                return [self._fence_at(self._number + BARRIER)]
            case Phase.COMPARE:
                return [ClaimRequest(Ask.GET, self._slot)]
            case Phase.VERIFY:
                return [ClaimRequest(Ask.GET, it) for it in sorted(self._unverified)]
            case Phase.LOOK | Phase.ENDED:
                return []
        assert_never(self._phase)

    @property
    def _slot(self) -> str:
        return slot_name(self._run, self._number)

    def _new_node(self) -> ClaimRequest:
        """Return the request to create `node`, after the data path says that we may be the first owner.

        Without that, a start that dies in between would find a name that another writer owns, and put its own data aside.
        """
        first = Run(0, self._first_writer)
        mark = first_mark(self._node, first)
        if self._mark != mark:
            return ClaimRequest(Ask.SAVE, "", mark=mark)
        return ClaimRequest(Ask.CREATE, NODE, encode_node(NodeMark(self._node, first, self._time_ns)))

    # What answers mean

    def failed(self, request: ClaimRequest) -> None:
        """Note that there was no answer. The same is asked again."""
        if request in self._under_way:
            self._under_way.remove(request)

    def answered(self, request: ClaimRequest, answer: bytes | Created | None) -> None:
        """Take an answer: the bytes or None for a get, a `Created` for a create, None for a mark that was saved."""
        if request not in self._under_way:
            return  # it was asked before the claim went elsewhere
        self._under_way.remove(request)
        if answer is Created.UNKNOWN:
            return
        try:
            if request.ask is Ask.GET:
                assert not isinstance(answer, Created)
                self._got(request, answer)
            elif request.ask is Ask.SAVE:
                self._mark = request.mark
            elif self._phase is Phase.NEW_NODE:
                self._go(Phase.NODE)  # ours or another's
            elif self._phase is Phase.BARRIER:
                self._may_leap = True  # we have looked before; a second look would only give the owner time
                self._go(Phase.SCAN)
            elif answer is Created.CREATED:
                self._verify()
            else:
                self._go(Phase.COMPARE)
        except BadObject as error:
            # The answer may have been the one that slots after it were waiting for.
            self.is_forgotten = isinstance(error, ForgottenNode)
            what_to_do = ": use a newer version of nsqd" if isinstance(error, NewerFormat) else ""
            self._damaged(f"{self._slot if self._phase is Phase.SCAN else request.name}: {error}{what_to_do}")

    def _got(self, request: ClaimRequest, data: bytes | None) -> None:
        match self._phase:
            case Phase.NODE:
                self._got_node(data)
            case Phase.HINT:
                self._got_hint(data)
            case Phase.GONE:
                self._got_gone(data)
            case Phase.ROOT:
                self._got_root(data)
            case Phase.SCAN:
                self._ahead[_number_in(request.name)] = data
                self._scan()
            case Phase.COMPARE:
                self._got_other(data)
            case Phase.VERIFY:
                self._got_verification(request.name, data)
            case _:
                raise AssertionError(f"an answer in {self._phase}")

    def _go(self, phase: Phase) -> None:
        self._phase = phase
        self._under_way.clear()

    # Where to begin

    def _got_node(self, data: bytes | None) -> None:
        if data is None:
            if self._mark is not None and not self._mark.is_first:
                raise BadObject(_EMPTIED)
            if self._node:
                self._go(Phase.NEW_NODE)
            else:
                self._end("the data path doesn't say whose it is: start once without --remote, which repairs node.json")
            return
        mark = decode_node(data)
        if self._has_data and self._node not in ("", mark.node):
            self._end(f"it belongs to node {mark.node}, and this data path to node {self._node}")
            return
        self._node, self._first, self._run = mark.node, mark.first, mark.first
        self._go(Phase.HINT)

    def _got_hint(self, data: bytes | None) -> None:
        """Begin at the hint's run, which was committed once; or at the first run, from which marks lead on."""
        try:
            hinted = decode_hint(data) if data is not None else None
        except BadObject:
            hinted = None
        self._is_hinted = hinted is not None
        self._begin(hinted or self._run)

    def _begin(self, run: Run) -> None:
        self._run = self._begun = run
        self._number, self._path = 0, []
        self._ahead_of_look = 0
        self._ahead.clear()
        self.is_forgotten = False
        self._go(Phase.GONE)

    def _got_gone(self, data: bytes | None) -> None:
        if data is not None:
            self._begin(self._run_after(data))
        elif self._run == self._first:
            self._read_from(empty_root(self._node, self._run))
        else:
            self._go(Phase.ROOT)

    def _run_after(self, mark: bytes) -> Run:
        """Return the run that a mark leads to. Raises ForgottenNode, unless only a hint has led to the mark."""
        try:
            return decode_gone(mark)
        except ForgottenNode:
            if not self._is_hinted:
                raise
        return self._run_without_hint()

    def _run_without_hint(self) -> Run:
        self._is_hinted = False
        assert self._first is not None
        return self._first

    def _got_root(self, data: bytes | None) -> None:
        if data is not None:
            root = decode_root(data)
            if root.run != self._run:
                raise BadObject(f"is the root of {root.run}")
            # Also if it isn't committed, but an end says to read it: a copy of the disk from before lacks what it has.
            self._begun = root.run
            self._read_from(root)
        else:  # swept since we asked for the mark, which is there now, or the bucket has lost it
            self._verify()
            self._damage = f"{root_name(self._run)} is missing, and {gone_name(self._run)} doesn't say that it may be"

    def _read_from(self, root: Root) -> None:
        self._catalog = Catalog(root)
        self._go(Phase.SCAN)

    # Reading the chain

    def _scan(self) -> None:
        while self._phase is Phase.SCAN and self._number in self._ahead:
            data = self._ahead.pop(self._number)
            if data is None:
                self._reach_end()
            else:
                self._follow(data)

    def _reach_end(self) -> None:
        """Stand before the first slot that doesn't exist."""
        self._ahead.clear()
        committed = self._catalog.committed
        if committed is not None and committed.number > self._begun.number:
            self._begin(committed)
        else:
            self._go_beyond()

    def _go_beyond(self) -> None:
        """Put the fence, or look whether the owner is alive, which would seem to be dead on swept ground."""
        if self._may_leap:
            self._go(Phase.FENCE)
        else:
            self._verify(Phase.LOOK)

    def _follow(self, data: bytes) -> None:
        self._ahead_of_look = 0
        slot, body = decode_slot(data)
        if (slot.run, slot.number, slot.node) != (self._run, self._number, self._node):
            raise BadObject(f"is slot {slot.number} of {slot.run} of node {slot.node}")
        self.owner = slot.claimant or self.owner
        self._latest_ns = slot.time_ns
        if slot.next is None:
            self._catalog.apply(slot, body, len(data) - len(body))
            self._number += 1
            return
        if slot.next.number <= self._run.number:
            raise BadObject(f"leads back to {slot.next}")
        if slot.is_last:
            raise ForgottenNode
        self._path.append(RunRead(self._run, self._number, slot.kind is SlotKind.FENCE))
        self._run, self._number = slot.next, 0
        self._ahead.clear()
        self._catalog.begin_run()
        self._go(Phase.SCAN)
        if slot.reads_root:
            self._go(Phase.ROOT)

    # Looking before leaping

    @property
    def is_looking(self) -> bool:
        """Whether the claim has read the chain, and waits for `leap` or `look_again`."""
        return self._phase is Phase.LOOK

    @property
    def place(self) -> tuple[Run, int]:
        """How far the chain goes, as it was read last. A chain that moves has an owner that is alive."""
        return self._run, self._number

    def read(self) -> ChainRead:
        """Return what was read up to here. It counts unless one of these runs is gone by now."""
        assert self.is_looking
        path = self._whole_path
        decision = decide(self._mark, self._node, last_owner(path), self._begun)
        return ChainRead(self._node, path, self._catalog, self.owner, self._latest_ns, decision)

    @property
    def is_own(self) -> bool:
        """Whether the last owner had the data path that this process has now, so that it must have died."""
        return self._mark is not None and last_owner(self._whole_path) in self._mark.writers

    @property
    def is_ended(self) -> bool:
        """Whether the chain stops at the end of a run, as a clean stop leaves it. While an owner makes a root, it does too."""
        return self.read().is_ended

    def look_again(self, *, ahead: int = 0) -> None:
        """Read what was added to the chain since.

        `ahead`: with how many requests at the same time, until something is found. A standby looks again and again, and
        mostly there is nothing.
        """
        assert self.is_looking
        self._ahead_of_look = ahead
        self._go(Phase.SCAN)

    def begin_again(self) -> None:
        """Read from the newest root, because an owner that is alive has swept what was read."""
        assert self.is_looking
        assert self._first is not None
        self._run = self._first
        self._go(Phase.HINT)

    def leap(self, *, stops_owner: bool = True) -> None:
        """Take the name. If another process is faster, the claim looks again.

        `stops_owner`: even from an owner that is alive, so put a fence in its way if it is faster.
        """
        assert self.is_looking
        self._stops_owner = stops_owner
        self._go(Phase.FENCE)

    # The fence

    @property
    def stops_owner_later(self) -> bool:
        """Whether there is or may be a fence ahead of the chain, so that giving up now leaves an owner that will stop."""
        return self._has_fenced_ahead and self._phase is not Phase.ENDED

    @property
    def _whole_path(self) -> tuple[RunRead, ...]:
        return (*self._path, RunRead(self._run, self._number, is_fenced=True))

    def _fence_at(self, number: int) -> ClaimRequest:
        """Return the request for our fence in this slot of the run.

        The number of its next run is higher than any that we have named before, so that no two of our fences name the
        same run, even if one of them lies on swept ground or ahead of the chain's end.
        """
        name = slot_name(self._run, number)
        if (fence := self._fences.get(name)) is None:
            following = Run(max(self._run.number, self._highest) + 1, self._writer)
            self._highest = following.number
            slot = Slot(
                *(SlotKind.FENCE, self._node, self._run, number, self._writer, self._time_ns),
                *((), following, self._forgets, self._claimant),
            )
            fence = self._fences[name] = b"".join(encode_slot(slot))
        return ClaimRequest(Ask.CREATE, name, fence)

    def _got_other(self, data: bytes | None) -> None:
        """Take the object in the slot where our fence should be."""
        if data is None:
            self._go(Phase.FENCE)
        elif data == self._fences[self._slot]:
            self._verify()
        elif self._stops_owner and decode_slot(data)[0].next is None:
            self._has_fenced_ahead = True
            self._go(Phase.BARRIER)
        else:
            self._go(Phase.SCAN)
            self._ahead = {self._number: data}
            self._scan()

    # Whether it counts

    def _verify(self, then: Phase = Phase.ENDED) -> None:
        """Ask whether a run of our path was swept. If none was, go on: with `ENDED`, as the owner."""
        self._after_verification = then
        self._unverified = {gone_name(it.run) for it in self._path} | {gone_name(self._run)}
        self._go(Phase.VERIFY)

    def _got_verification(self, name: str, data: bytes | None) -> None:
        if data is not None:
            self._damage = None
            self._begin(decode_gone(data))
            return
        self._unverified.discard(name)
        if self._unverified:
            return
        if self._damage is not None and self._is_hinted:
            self._damage = None
            self._begin(self._run_without_hint())
        elif self._damage is not None:
            self._end(self._damage)
        elif self._after_verification is Phase.LOOK:
            self._go(Phase.LOOK)
        else:
            self._become_owner()

    def _become_owner(self) -> None:
        path = self._whole_path
        before = last_owner(path)
        decision = decide(self._mark, self._node, before, self._begun)
        # Not the root that our mark names: it may have been given up, and later roots may have lower numbers.
        mark = LocalMark(self._node, (self._writer, before), self._begun, self._claimant.boot)
        self._catalog.begin_run()
        following = self._run_named_by_the_fence()
        self.claimed = Claimed(self._node, self._claimant, following, path, self._catalog, mark, decision)
        self._go(Phase.ENDED)

    def _run_named_by_the_fence(self) -> Run:
        slot, _ = decode_slot(self._fences[self._slot])
        assert slot.next is not None
        return slot.next

    def _damaged(self, text: str) -> None:
        """Note what can't be read. It may only mean that we read on swept ground, so the marks are asked first."""
        if self._phase in (Phase.SCAN, Phase.COMPARE, Phase.ROOT):
            self._verify()
            self._damage = text
        else:
            self._end(text)

    def _end(self, fault: str) -> None:
        self.fault = fault
        self._go(Phase.ENDED)


def _number_in(slot: str) -> int:
    return int(slot.rpartition("/")[2])
