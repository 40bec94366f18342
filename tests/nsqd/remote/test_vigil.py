"""A standby: a claim that waits for the owner to be gone, and waits again if somebody is faster."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.slot import Claimant
from nsqcommon.startup import StartupError
from nsqd.remote.claim import ChainRead
from nsqd.remote.object_store import OnUnknown, StoreFault, StoreFaultKind
from nsqd.remote.standby import OwnerSays, Verdict
from nsqd.remote.vigil import FOLLOW_INTERVAL, REPORT_INTERVAL, Vigil
from tests.nsqd.remote.claims import World, append
from tests.nsqd.remote.shelf import writer
from tests.support.object_stores import MemoryStore

AFTER = 10.0


class Owners:
    """What owners say, by the letter of their writer, at which second. Those that aren't here are gone."""

    def __init__(self, world: World, **says: Callable[[float], OwnerSays]) -> None:
        self.says = says
        self.vigil = Vigil("orders", "memory", AFTER, ask=self._ask, clock=world.time.clock)
        self._world = world
        self.asked = 0

    def _ask(self, owner: Claimant, writer: str) -> OwnerSays:
        self.asked += 1
        says = self.says.get(owner.host.removeprefix("machine-"))
        return says(self._world.time.now) if says is not None else OwnerSays.GONE


def well(now: float) -> OwnerSays:
    return OwnerSays.WELL


def well_until(time: float, then: OwnerSays = OwnerSays.NOTHING) -> Callable[[float], OwnerSays]:
    return lambda now: OwnerSays.WELL if now < time else then


def at_each_pause(world: World, action: Callable[[float], object]) -> None:
    pause = world.time.pause

    def pause_and_act(seconds: float) -> None:
        pause(seconds)
        action(world.time.now)

    world.time.pause = pause_and_act  # type: ignore[method-assign]


def test_a_standby_waits_for_the_owner_and_then_for_the_chain_to_stand_still() -> None:
    world = World()
    append(world, world.chain_of(world.claim("a")))
    owners = Owners(world, a=well_until(100))
    assert world.claim("b", vigil=owners.vigil).run.number == 2
    assert 100 + AFTER <= world.time.now < 100 + AFTER + 3


class Counted(MemoryStore):
    def __init__(self, world: World, on_unknown: OnUnknown, gets: list[str]) -> None:
        super().__init__(world.objects, on_unknown=on_unknown)
        self._gets = gets

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        self._gets.append(name)
        return super().get(name, start, end)


def test_an_owner_that_is_well_costs_few_requests() -> None:
    world, gets = World(), list[str]()
    append(world, world.chain_of(world.claim("a")))
    world.open = lambda on_unknown: Counted(world, on_unknown, gets)  # type: ignore[method-assign]
    world.is_stopped = lambda: world.time.now > 600
    with pytest.raises(StartupError):
        world.claim("b", vigil=Owners(world, a=well).vigil)
    assert len(gets) <= 600 / FOLLOW_INTERVAL * 3 + 60, "the next slot, and whether the two runs of the path are gone"


def test_a_new_name_and_the_own_disk_are_not_waited_for() -> None:
    world = World()
    claimed = world.claim("a", vigil=Owners(world).vigil)
    append(world, world.chain_of(claimed))
    assert world.claim("b", mark=claimed.mark, vigil=Owners(world).vigil).run.number == 2
    assert world.time.pauses == 0


def test_an_owner_that_has_stopped_is_followed_at_once() -> None:
    world = World()
    chain = world.chain_of(world.claim("a"))
    append(world, chain)
    chain.end_run(0, 1)
    world.send(chain)
    world.claim("b", vigil=Owners(world).vigil)
    assert world.time.now < 1.5


def test_an_owner_that_cannot_be_reached_and_goes_on_keeps_the_name() -> None:
    world = World()
    chain = world.chain_of(world.claim("a"))
    append(world, chain)
    owners = Owners(world, a=well_until(5))
    seen: set[Verdict] = set()

    def go_on(now: float) -> None:
        seen.add(owners.vigil.verdict)
        if now < 100:
            append(world, chain)

    at_each_pause(world, go_on)
    world.claim("b", vigil=owners.vigil)
    assert world.time.now >= 99 + AFTER
    assert Verdict.OUT_OF_REACH in seen


def test_of_two_standbys_the_slower_one_waits_for_the_other() -> None:
    """One takes over while the other prepares, so the fence is in the slot that it wants."""
    world = World()
    append(world, world.chain_of(world.claim("a")))
    first = Owners(world, c=well_until(500))

    def be_overtaken(read: ChainRead) -> None:
        if world.time.now < 100:
            append(world, world.chain_of(world.claim("c", takes_over=True)))

    claimed = world.claim("b", vigil=first.vigil, prepare=be_overtaken)
    assert (claimed.run.writer, claimed.path[-1].run.writer) == (writer("b"), writer("c"))
    assert world.time.now >= 500


def test_an_owner_that_comes_back_while_its_files_are_fetched_keeps_the_name() -> None:
    world = World()
    append(world, world.chain_of(world.claim("a")))
    owners = Owners(world)
    owners.says["a"] = lambda now: OwnerSays.NOTHING if now < 12 or now > 900 else OwnerSays.WELL
    times: list[float] = []

    def fetch(read: ChainRead) -> None:
        times.append(world.time.now)
        if len(times) == 1:
            world.time.now += 60

    world.claim("b", vigil=owners.vigil, prepare=fetch)
    assert times[0] < 13
    assert world.time.now > 900


def test_files_that_take_long_to_fetch_are_not_fetched_again_and_again() -> None:
    world = World()
    append(world, world.chain_of(world.claim("a")))
    times: list[float] = []

    def fetch(read: ChainRead) -> None:
        times.append(world.time.now)
        world.time.now += 60

    world.claim("b", vigil=Owners(world).vigil, prepare=fetch)
    assert len(times) == 1


def test_what_the_owner_has_swept_while_it_was_alive_is_read_again() -> None:
    world = World()
    append(world, world.chain_of(world.claim("a")))
    is_first = True

    def prepare(read: ChainRead) -> None:
        nonlocal is_first
        if not is_first:
            return
        is_first = False
        raise BadObject("a fold is missing")

    with pytest.raises(StartupError, match="can't be restored from the store: a fold is missing"):
        world.claim("b", vigil=Owners(world).vigil, prepare=prepare)


class Away(MemoryStore):
    """Doesn't answer for a minute."""

    def __init__(self, world: World, on_unknown: OnUnknown) -> None:
        super().__init__(world.objects, on_unknown=on_unknown)
        self._world = world

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        if 20 <= self._world.time.now < 80:
            raise StoreFault("no answer", StoreFaultKind.UNREACHABLE)
        return super().get(name, start, end)


def test_without_the_store_nothing_is_decided(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    append(world, world.chain_of(world.claim("a")))
    world.open = lambda on_unknown: Away(world, on_unknown)  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        world.claim("b", vigil=Owners(world, a=well_until(15)).vigil)
    assert world.time.now >= 80 + AFTER
    assert "the store doesn't answer this machine" in caplog.text


def test_it_says_every_ten_seconds_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    append(world, world.chain_of(world.claim("a")))
    with caplog.at_level(logging.INFO):
        world.claim("b", vigil=Owners(world, a=well_until(100)).vigil)
    waits = [it for it in caplog.messages if it == "standing by for orders, which process 7 on machine-a owns"]
    assert len(waits) in (100 // REPORT_INTERVAL - 1, 100 // REPORT_INTERVAL)
    assert "its chain stands still" in caplog.text


def test_a_snapshot_says_what_it_waits_for() -> None:
    world = World()
    append(world, world.chain_of(world.claim("a")))
    owners = Owners(world, a=well_until(5))
    empty = owners.vigil.snapshot()
    assert (empty.owner, empty.answer, empty.run, empty.well_seconds_ago) == ("", "", "", None)
    world.claim("b", vigil=owners.vigil)
    found = owners.vigil.snapshot()
    assert (found.owner, found.owner_address, found.slot) == ("process 7 on machine-a", "10.0.0.1:4151", 1)
    assert (found.answer, found.run.endswith(writer("a"))) == ("no answer", True)
    assert found.well_seconds_ago is not None
    assert AFTER <= found.well_seconds_ago < AFTER + 3
    assert found.waiting_seconds == world.time.now


def test_a_standby_can_be_stopped() -> None:
    world = World()
    append(world, world.chain_of(world.claim("a")))
    world.is_stopped = lambda: world.time.now > 30
    with pytest.raises(StartupError, match="stopped while asking"):
        world.claim("b", vigil=Owners(world, a=well).vigil)
