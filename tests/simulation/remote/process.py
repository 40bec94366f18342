"""A process that claims a name, and then owns it: a shell around the product's cores, one step at a time.

It may be killed or frozen between any two steps. What it does to its disk happens at once, what it asks of the store
happens sometime.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.slot import Claimant
from nsqd.remote.claim import Ask, Claim, Claimed, ClaimRequest
from nsqd.remote.local_mark import decode_mark, encode_mark
from nsqd.remote.standby import OwnerSays, Standby, Verdict
from tests.simulation.promise import Violation
from tests.simulation.remote.owner import Owner
from tests.simulation.remote.settling import Settling
from tests.simulation.remote.store import Call

if TYPE_CHECKING:
    from tests.simulation.remote.life import RemoteLife
    from tests.simulation.remote.machine import Machine

SLOTS_AHEAD: Final = 3


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
        self._wants_to_leap = False
        self._standby = Standby(life.standby_after) if life.has_standbys and not may_leap else None
        self._has_asked = False
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
        if claim.is_looking and self._standby is not None and claim.owner is not None and not claim.is_own:
            self._stand_by(self._standby)
        elif claim.is_looking:
            self._wants_to_leap = self._wants_to_leap or self.life.random.random() < 0.1
            (claim.leap if self._wants_to_leap else claim.look_again)()
        if not self.is_alive:
            return
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

    def _stand_by(self, standby: Standby) -> None:
        """Do what nsqd/remote/claiming.py does for a standby: look at the chain, decide, and ask the owner."""
        claim, life = self.claim, self.life
        if self._has_asked:
            self._has_asked = False
            standby.chain_read(claim.place, life.now, is_ended=claim.is_ended)
            if standby.decide(life.now) is Verdict.TAKE_OVER:
                life.counts["standbys take over"] += 1
                claim.leap(stops_owner=False)
                return
        says = life.owner_says(claim.place[0].writer)
        if life.is_calm and says is OwnerSays.WELL:
            self.end("it isn't needed any more")
            return
        standby.owner_said(says, life.now)
        self._has_asked = True
        claim.look_again(ahead=1)

    def _save_mark(self, request: ClaimRequest) -> None:
        assert request.mark is not None
        self._local = None
        self.disk.save_mark(encode_mark(request.mark))
        self.claim.answered(request, None)

    def _claim_answered(self, request: ClaimRequest, call: Call) -> None:
        self.claim.answered(request, call.result)
        if self.claim.fault is not None:
            raise Violation(f"{self} can't claim the name: {self.claim.fault}")
        if (claimed := self.claim.claimed) is not None:
            self.life.note(f"{self} owns {claimed.run}, {claimed.decision.value}")
            self.life.check_decision(self, claimed)
            self.life.perhaps_thaw()
            self._settling = Settling(
                self, claimed, same_boot=self.found is not None and self.found.boot == self.machine.boot
            )

    def settled(self, claimed: Claimed) -> None:
        self._settling = None
        self.owner = Owner(self, claimed)
