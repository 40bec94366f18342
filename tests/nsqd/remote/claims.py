"""Claims of one name against a store in memory, with a clock that only pauses move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nsqcommon.remote.operations import Replace
from nsqcommon.remote.slot import Claimant
from nsqd.remote.chain import Chain, RequestVerb
from nsqd.remote.claim import ChainRead, Claim, Claimed
from nsqd.remote.claiming import Surroundings, claim_name
from nsqd.remote.local_mark import LocalMark
from nsqd.remote.object_store import OnUnknown, ignore
from nsqd.remote.owner_call import OwnerAnswer
from nsqd.remote.vigil import Vigil
from tests.nsqd.remote.shelf import first_writer, writer
from tests.support.object_stores import MemoryStore, Objects


@dataclass
class Time:
    """A clock that only pauses move."""

    now: float = 0.0
    pauses: int = 0

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        self.now += seconds


@dataclass
class World:
    objects: Objects = field(default_factory=Objects)
    time: Time = field(default_factory=Time)
    saved: list[LocalMark] = field(default_factory=list)
    living: set[str] = field(default_factory=set)  # hosts whose process answers
    address: str = "10.0.0.1:4151"
    is_guarded: bool = False  # something at this address asks for a password
    is_stopped: Callable[[], bool] = lambda: False

    def open(self, on_unknown: OnUnknown) -> MemoryStore:
        return MemoryStore(self.objects, on_unknown=on_unknown)

    @property
    def surroundings(self) -> Surroundings:
        time, stopped = self.time, self.is_stopped
        return Surroundings(time.clock, time.pause, lambda: 0.5, self._answer, is_stopped=stopped)

    def _answer(self, owner: Claimant, writer: str) -> OwnerAnswer:
        if owner.host in self.living:
            return OwnerAnswer.YES
        return OwnerAnswer.GUARDED if self.is_guarded else OwnerAnswer.NO

    def claim(
        self,
        letter: str,
        *,
        mark: LocalMark | None = None,
        takes_over: bool = False,
        vigil: Vigil | None = None,
        prepare: Callable[[ChainRead], object] = lambda read: None,
    ) -> Claimed:
        claim = Claim(
            node="node",
            writer=writer(letter),
            first_writer=first_writer(letter),
            claimant=Claimant(f"machine-{letter}", 7, "boot", self.address),
            time_ns=1,
            mark=mark,
            may_leap=False,
        )
        return claim_name(
            "orders",
            self.open,
            claim,
            save=self.saved.append,
            prepare=prepare,
            takes_over=takes_over,
            vigil=vigil,
            surroundings=self.surroundings,
        )

    def chain_of(self, claimed: Claimed) -> Chain:
        return Chain(claimed.node, claimed.run, chance=lambda: 0.0, claimant=claimed.claimant)

    def send(self, chain: Chain) -> None:
        store = self.open(ignore)
        while (request := chain.next_request(1e9)) is not None:
            assert request.verb is RequestVerb.CREATE
            assert request.slot is not None
            chain.created(request, store.create(request.name, request.slot.data), 0.0)


def append(world: World, chain: Chain) -> None:
    chain.append([Replace("file", 1)], [b"x"], 1, 1)
    world.send(chain)
