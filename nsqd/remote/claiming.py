"""Runs a claim against a store: sends its requests from threads, and repeats the unanswered ones.

Before the fence it looks whether the owner is alive, because an operator may have started a second nsqd of one name by
mistake. It asks the owner at its address, then watches the chain for some seconds. It doesn't watch if the last owner had
our data path, because we hold its lock. And it doesn't if the chain stops at the end of a run and the owner doesn't
answer at an address that we know, because that is how a clean stop leaves it.

With a `vigil` it is a standby: it waits until the owner has been gone for some seconds (nsqd/remote/standby.py), and then
it claims the name like a start that has looked. If the owner or another standby is faster, it waits again.

If slots are large and the line is slow, none of those that are under way arrives within the time of a request. So a get
that fails after a long time halves their number, and a quick one doubles it.

A store that can't be reached delays the start, and a line every ten seconds says so. Without the store we can't know who
owns the name.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import NODE, gone_name, writer_name
from nsqcommon.remote.slot import Claimant
from nsqcommon.startup import StartupError
from nsqd.remote.claim import SLOTS_AHEAD, Ask, ChainRead, Claim, Claimed, ClaimRequest
from nsqd.remote.daemon_threads import DaemonThreads
from nsqd.remote.fetching import LOOK_INTERVAL
from nsqd.remote.kept_slots import keep_nothing
from nsqd.remote.object_store import Created, ObjectStore, OnUnknown, StoreFault, StoreFaultKind, ignore
from nsqd.remote.owner_call import OwnerAnswer, owner_answers
from nsqd.remote.pacing import pause_before
from nsqd.remote.standby import Verdict

if TYPE_CHECKING:
    from nsqcommon.remote.names import Run
    from nsqd.remote.local_mark import LocalMark
    from nsqd.remote.vigil import Vigil

log = logging.getLogger(__name__)

WATCH: Final = 5.0  # seconds in which the chain of an owner that is alive moves
WATCH_INTERVAL: Final = 0.5
REPORT_INTERVAL: Final = 10.0
_SLOW: Final = 10.0  # seconds after which a get that fails may have had too little of the line
_QUICK: Final = 5.0  # seconds within which the line has room for more
FINISH: Final = 10.0  # seconds to finish a claim that has a fence ahead, after a signal to stop
_LASTING: Final = frozenset(
    {StoreFaultKind.CLOCK, StoreFaultKind.DENIED, StoreFaultKind.MISSING}
)  # as a store's first answer
_LASTING_FOR_WRITERS: Final = _LASTING | {StoreFaultKind.FULL}


class DamagedChain(StartupError):
    """A chain can't be read to its end, because of one of its objects."""


class InUse(StartupError):
    """Another process owns the name, and is alive."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The clock, chance and network of a claim, which tests replace."""

    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep
    chance: Callable[[], float] = random.random
    answers: Callable[[Claimant, str], OwnerAnswer] = lambda owner, writer: owner_answers(owner, writer)
    new_writer: Callable[[], str] = lambda: writer_name(secrets.randbits(64))
    is_stopped: Callable[[], bool] = lambda: False  # whether the operator wants this start to end


def claim_name(
    name: str,
    open_store: Callable[[OnUnknown], ObjectStore],
    claim: Claim,
    *,
    save: Callable[[LocalMark], object],
    check: Callable[[], object] = lambda: None,
    prepare: Callable[[ChainRead], object] = lambda read: None,
    keep: Callable[[str, bytes], object] = keep_nothing,
    takes_over: bool = False,
    vigil: Vigil | None = None,
    surroundings: Surroundings | None = None,
    place: str = "",
) -> Claimed:
    """Make this process the owner of a name. With `takes_over` it doesn't look whether another one is alive.

    With a `vigil`, wait until the owner is gone, for as long as that takes. `place`: the store's URL, for texts.

    `save` writes a mark into the data path, durably. If the name is new, `check` raises StartupError unless the store
    keeps its word. `prepare` gets what this process needs to go on, before the fence; it raises BadObject if it can't.
    `keep` gets the name and the bytes of each object that was read, in any thread.

    Blocks for as long as the store can't be reached. Raises StartupError if another process owns the name, if the chain
    can't be read, if the store refuses our credentials, or if `is_stopped`: then a claim that has put a fence ahead of the
    owner's chain is finished first, unless that takes longer than `FINISH`.
    """
    surroundings = surroundings or Surroundings()
    claiming = _Claiming(name, open_store, claim, save, check, surroundings, vigil, keep=keep, place=place)
    return claiming.run(prepare, takes_over=takes_over)


def read_chain(
    name: str,
    open_store: Callable[[OnUnknown], ObjectStore],
    *,
    keep: Callable[[str, bytes], object] = keep_nothing,
    surroundings: Surroundings | None = None,
) -> ChainRead:
    """Read the chain of a name to its end, without wanting to own it, and change nothing.

    An owner that is alive may sweep meanwhile. So if something in the catalog turns out to be missing, read again.
    Raises StartupError if there is no such name or if its chain can't be read, and StoreFault.
    """
    if open_store(ignore).get(NODE) is None:
        raise StartupError(f"the store has no {name}")
    unused = writer_name(0)
    while True:
        claim = Claim(node="", writer=unused, first_writer=unused, claimant=Claimant(), time_ns=0, may_leap=False)
        at = surroundings or Surroundings()
        claiming = _Claiming(name, open_store, claim, save_nothing, save_nothing, at, keep=keep)
        found = claiming.read()
        store = open_store(ignore)
        if all(store.get(gone_name(it.run)) is None for it in found.path):
            return found


class _Claiming:
    def __init__(
        self,
        name: str,
        open_store: Callable[[OnUnknown], ObjectStore],
        claim: Claim,
        save: Callable[[LocalMark], object],
        check: Callable[[], object],
        surroundings: Surroundings,
        vigil: Vigil | None = None,
        *,
        keep: Callable[[str, bytes], object],
        place: str = "",
    ) -> None:
        self._name = name
        self._where = f" in {place}" if place else ""
        self._claim = claim
        self._save = save
        self._check = check
        self._at = surroundings
        self._vigil = vigil
        self._keep = keep
        self._store = open_store(self._note_fault)
        self._fault: StoreFault | None = None
        self._failures = 0  # in a row
        self._has_answered = False
        self._resumes = -inf  # when to ask a store again that hasn't answered
        self._reported = -inf
        self._stops_by = inf  # when to stop at the latest, after we were asked to

    def run(self, prepare: Callable[[ChainRead], object], *, takes_over: bool) -> Claimed:
        claim = self._claim
        look = _Look(self._name, claim, self._store, prepare, self._at, self._vigil, takes_over=takes_over)
        self._go_on(lambda: claim.claimed is not None, look.step)
        if claim.claimed is None:
            raise StartupError(f"{self._name}{self._where} can't be owned: {claim.fault}")
        return claim.claimed

    def read(self) -> ChainRead:
        """Return the chain as it was read up to where the claim would look for an owner that is alive."""
        claim = self._claim
        self._go_on(lambda: claim.is_looking, lambda: None)
        if claim.fault is not None:
            raise DamagedChain(f"{self._name} can't be read: {claim.fault}")
        return claim.read()

    def _go_on(self, is_done: Callable[[], bool], look: Callable[[], object]) -> None:
        claim = self._claim
        under_way: dict[Future[bytes | Created | None], tuple[ClaimRequest, float]] = {}
        with DaemonThreads[bytes | Created | None](SLOTS_AHEAD, name="nsqd claim") as threads:
            while claim.fault is None and not is_done():
                self._stop_if_asked()
                if claim.is_looking:
                    look()
                for request in self._next_requests():
                    under_way[threads.submit(self._perform, request)] = request, self._at.clock()
                for future in self._wait(under_way):
                    self._take(*under_way.pop(future), future)

    def _next_requests(self) -> list[ClaimRequest]:
        """Return what to send now, after the mark was saved if that has to be done first."""
        if self._at.clock() < self._resumes:
            return []
        requests = self._claim.next_requests()
        for request in [it for it in requests if it.ask is Ask.SAVE]:  # comes before a new node is created
            self._check_and_save(request)
        return [it for it in requests if it.ask is not Ask.SAVE]

    def _check_and_save(self, request: ClaimRequest) -> None:
        assert request.mark is not None
        try:
            self._run_check()
        except StoreFault as fault:
            if fault.kind in _LASTING_FOR_WRITERS:
                raise StartupError(f"the store can't be checked before its first use: {fault}") from fault
            self._note_fault(fault)
            self._claim.failed(request)
            self._put_off()
            return
        self._save(request.mark)
        self._claim.answered(request, None)

    def _run_check(self) -> None:
        """Run the check in a thread, because its requests may hang, and the operator may want this start to end."""
        with DaemonThreads[object](1, name="nsqd check") as threads:
            running = threads.submit(self._check)
            while not wait([running], timeout=LOOK_INTERVAL).done:
                self._stop_if_asked()
        running.result()

    def _perform(self, request: ClaimRequest) -> bytes | Created | None:
        if request.ask is Ask.CREATE:
            return self._store.create(request.name, request.data)
        found = self._store.get(request.name)
        if found is not None:
            self._keep(request.name, found)
        return found

    def _wait(
        self, under_way: dict[Future[bytes | Created | None], tuple[ClaimRequest, float]]
    ) -> set[Future[bytes | Created | None]]:
        if under_way:
            return wait(under_way, timeout=LOOK_INTERVAL, return_when=FIRST_COMPLETED).done
        if (left := self._resumes - self._at.clock()) > 0:
            self._at.pause(left)
        return set()

    # Answers

    def _take(self, request: ClaimRequest, began: float, future: Future[bytes | Created | None]) -> None:
        claim, time = self._claim, self._at.clock() - began
        try:
            answer = future.result()
        except StoreFault as fault:
            if time >= _SLOW:
                claim.slots_ahead = max(1, claim.slots_ahead // 2)
            self._note_fault(fault)
            self._claim.failed(request)
            self._put_off()
            return
        if time < _QUICK:
            claim.slots_ahead = min(SLOTS_AHEAD, 2 * claim.slots_ahead)
        claim.answered(request, answer)
        if answer is Created.UNKNOWN:
            self._put_off()
        else:
            self._has_answered = True
            self._failures = 0

    def _note_fault(self, fault: StoreFault) -> None:
        self._fault = fault

    def _put_off(self) -> None:
        fault = self._fault
        if fault is not None and fault.kind in _LASTING and not self._has_answered:
            raise StartupError(fault.text)
        self._failures += 1
        if self._vigil is not None:
            self._vigil.chain_unread()
        now = self._at.clock()
        self._resumes = now + pause_before(self._failures, self._at.chance())
        if now >= self._reported + REPORT_INTERVAL:
            self._reported = now
            log.warning("waiting for the store to say who owns %s: %s", self._name, fault)

    def _stop_if_asked(self) -> None:
        if not self._at.is_stopped():
            return
        now = self._at.clock()
        self._stops_by = min(self._stops_by, now + FINISH)
        if self._claim.stops_owner_later and now < self._stops_by:
            return
        raise StartupError(f"stopped while asking the store who owns {self._name}")


class _Stage(Enum):
    NEW = auto()
    WATCHING = auto()
    STANDING_BY = auto()
    PREPARED = auto()
    LEAPT = auto()


class _Look:
    """What happens before the fence: looking whether the owner is alive, and preparing to go on in its place."""

    def __init__(
        self,
        name: str,
        claim: Claim,
        store: ObjectStore,
        prepare: Callable[[ChainRead], object],
        surroundings: Surroundings,
        vigil: Vigil | None,
        *,
        takes_over: bool,
    ) -> None:
        self._name = name
        self._claim = claim
        self._store = store
        self._prepare = prepare
        self._at = surroundings
        self._vigil = vigil
        self._takes_over = takes_over
        self._stage = _Stage.NEW
        self._until = -inf
        self._seen = claim.place
        self._has_run_behind = False  # after an owner that goes on; once is enough
        self._has_asked = False  # a standby has asked the owner, and then had the chain read
        self._prepared: tuple[Run, int] | None = None  # the place for which we have what we need

    def step(self) -> None:
        """Have the claim leap or read on. Raises StartupError if the owner is alive, or if we could not go on."""
        has_moved = self._claim.place != self._seen
        if self._stage is _Stage.LEAPT:  # and another process was faster
            self._stage = _Stage.NEW
        if self._stage is _Stage.NEW:
            self._begin()
        elif self._stage is _Stage.STANDING_BY:
            self._stand_by()
        elif self._vigil is not None and not self._takes_over and (has_moved or self._vigil.is_stale):
            self._stage = _Stage.STANDING_BY
        elif has_moved and not self._takes_over:
            raise self._in_use("its chain moves")
        elif self._stage is _Stage.PREPARED and (not has_moved or self._has_run_behind):
            self._leap()
        elif self._stage is _Stage.PREPARED:
            self._has_run_behind = True
            self._get_ready()
        elif self._at.clock() >= self._until:
            self._get_ready()
        else:
            self._at.pause(WATCH_INTERVAL)
            self._claim.look_again()

    def _begin(self) -> None:
        claim, owner = self._claim, self._claim.owner
        self._has_run_behind = False
        if owner is None or self._takes_over:
            self._get_ready()
            return
        if self._vigil is not None and not claim.is_own:
            self._stage, self._has_asked = _Stage.STANDING_BY, False
            return
        answer = self._at.answers(owner, claim.place[0].writer)
        if self._vigil is not None and answer is OwnerAnswer.YES:
            self._stage, self._has_asked = _Stage.STANDING_BY, False
            return
        # If the owner had our data path it has died, and another process has its address. But this may be a copy of it.
        if answer is OwnerAnswer.YES or (answer is OwnerAnswer.GUARDED and not claim.is_own):
            raise self._in_use(f"it answers at {owner.http_address}")
        if claim.is_own or (claim.is_ended and owner.http_address):
            self._get_ready()
        else:
            log.info("watching for %g s whether %s is still the owner of %s", WATCH, owner, self._name)
            self._stage, self._seen, self._until = _Stage.WATCHING, claim.place, self._at.clock() + WATCH
            claim.look_again()

    def _stand_by(self) -> None:
        vigil, claim = self._vigil, self._claim
        assert vigil is not None
        assert claim.owner is not None
        if self._has_asked:
            self._has_asked = False
            if vigil.chain_read(claim.place, is_ended=claim.is_ended) is Verdict.TAKE_OVER:
                if self._prepared == claim.place:
                    self._leap()
                else:
                    self._get_ready()
                return
            self._at.pause(vigil.pause)
        if vigil.ask(claim.owner, claim.place[0].writer):
            self._has_asked = True
            claim.look_again(ahead=1)
        else:
            self._at.pause(vigil.pause)

    def _leap(self) -> None:
        self._stage = _Stage.LEAPT
        self._claim.leap(stops_owner=self._takes_over)

    def _get_ready(self) -> None:
        """Prepare, and look whether the chain has moved meanwhile."""
        self._stage, self._seen = _Stage.PREPARED, self._claim.place
        read = self._claim.read()
        try:
            self._prepare(read)
        except BadObject as error:
            if not self._is_swept(read):
                raise StartupError(f"{self._name} can't be restored from the store: {error}") from error
            self._stage = _Stage.NEW
            self._claim.begin_again()
        else:
            self._prepared = self._seen
            self._claim.look_again()

    def _is_swept(self, read: ChainRead) -> bool:
        """Return whether the owner is alive and has made a root, so that what was read isn't there any more."""
        try:
            return any(self._store.get(gone_name(it.run)) is not None for it in read.path)
        except StoreFault:
            return False

    def _in_use(self, why: str) -> InUse:
        owner = self._claim.owner or "another process"
        return InUse(
            f"{self._name} is in use by {owner}, {why}; stop that process first, or use --take-over if you cannot stop it"
        )


def save_nothing(mark: LocalMark | None = None) -> None:
    raise AssertionError("the name exists, so it doesn't get a new node")
