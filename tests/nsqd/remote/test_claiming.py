"""A claim against a store that is slow, faulty, or owned by a process that is alive."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.marks import encode_gone
from nsqcommon.remote.names import gone_name, root_name, slot_name
from nsqcommon.remote.root import Root, encode_root
from nsqcommon.remote.slot import Claimant
from nsqcommon.startup import StartupError
from nsqd.remote.chain import Chain
from nsqd.remote.claim import SLOTS_AHEAD, ChainRead, Claim, Claimed, RunRead
from nsqd.remote.claiming import FINISH, REPORT_INTERVAL, WATCH, claim_name
from nsqd.remote.object_store import Created, OnUnknown, StoreFault, StoreFaultKind
from tests.nsqd.remote.claims import World, append
from tests.nsqd.remote.shelf import FIRST, first_writer, writer
from tests.support.object_stores import MemoryStore

LIMIT = 30.0  # seconds until a test gives up waiting


def new_claim() -> Claim:
    return Claim(
        node="node", writer=writer("a"), first_writer=first_writer("a"), claimant=Claimant(), time_ns=1, may_leap=False
    )


def test_a_new_name_is_owned_without_a_pause() -> None:
    world = World()
    assert world.claim("a").run.writer == writer("a")
    assert (world.time.pauses, [it.writers for it in world.saved]) == (0, [(FIRST.writer,)])


def test_a_check_without_an_answer_is_repeated() -> None:
    world, answers = World(), [StoreFault("s3://lake: the store has failed (status 500)"), None]

    def check() -> None:
        if (fault := answers.pop(0)) is not None:
            raise fault

    claim_name("orders", world.open, new_claim(), save=world.saved.append, check=check, surroundings=world.surroundings)
    assert (answers, world.time.pauses, len(world.saved)) == ([], 1, 1)


def test_a_check_that_never_will_get_an_answer_ends_the_start() -> None:
    def check() -> None:
        raise StoreFault("s3://lake: the quota is used up", StoreFaultKind.FULL)

    world = World()
    with pytest.raises(StartupError, match="can't be checked before its first use: s3://lake: the quota is used up"):
        claim_name(
            "orders", world.open, new_claim(), save=world.saved.append, check=check, surroundings=world.surroundings
        )
    assert world.objects.contents == {}


def test_slots_come_one_after_the_other_on_a_slow_line_until_it_is_quick() -> None:
    world = World()
    claimed = world.claim("a")
    chain = world.chain_of(claimed)
    for _ in range(40):
        append(world, chain)
    widths: list[int] = []
    lock = threading.Lock()

    class Slow(MemoryStore):
        def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
            if name.startswith(f"wal/{claimed.run}"):
                with lock:
                    widths.append(claim.slots_ahead)
                    if len(widths) <= SLOTS_AHEAD:
                        world.time.now += 30
                        raise StoreFault("no answer in time", StoreFaultKind.UNREACHABLE)
            return super().get(name, start, end)

    claim = Claim(
        node="", writer=writer("b"), first_writer=first_writer("b"), claimant=Claimant(), time_ns=1, mark=claimed.mark
    )
    claim_name(
        *("orders", lambda on_unknown: Slow(world.objects), claim),
        save=world.saved.append,
        surroundings=world.surroundings,
    )
    assert widths[SLOTS_AHEAD] == 1
    assert widths[-1] == SLOTS_AHEAD


def test_a_start_can_be_stopped_while_its_check_hangs() -> None:
    checks, answer, ended = threading.Event(), threading.Event(), threading.Event()

    def check() -> None:
        checks.set()
        answer.wait(LIMIT)
        ended.set()

    world = World()
    surroundings = replace(world.surroundings, is_stopped=checks.is_set)
    with pytest.raises(StartupError, match="stopped while asking the store who owns orders"):
        claim_name("orders", world.open, new_claim(), save=world.saved.append, check=check, surroundings=surroundings)
    assert (ended.is_set(), world.saved) == (False, [])
    answer.set()
    assert ended.wait(LIMIT)


def test_the_owner_of_the_same_data_path_must_have_died() -> None:
    world = World()
    claimed = world.claim("a")
    append(world, world.chain_of(claimed))
    assert world.claim("b", mark=claimed.mark).run.number == 2
    assert world.time.pauses == 0


def test_a_chain_that_stands_still_is_watched_before_it_is_fenced() -> None:
    world = World()
    append(world, world.chain_of(world.claim("a")))
    assert world.claim("b").run.number == 2
    assert WATCH <= world.time.now < WATCH + 1


def test_a_chain_that_moves_has_an_owner() -> None:
    world = World()
    chain = world.chain_of(world.claim("a"))
    append(world, chain)
    pause = world.time.pause

    def pause_and_move(seconds: float) -> None:
        pause(seconds)
        if world.time.pauses == 3:
            append(world, chain)

    world.time.pause = pause_and_move  # type: ignore[method-assign]
    with pytest.raises(StartupError, match="orders is in use by process 7 on machine-a, its chain moves"):
        world.claim("b")
    append(world, chain)
    assert chain.fenced is None


def test_an_owner_that_answers_is_left_alone() -> None:
    world = World(living={"machine-a"})
    world.claim("a")
    with pytest.raises(StartupError, match=r"in use by process 7 on machine-a, it answers at 10\.0\.0\.1:4151"):
        world.claim("b")
    assert world.time.pauses == 0


def test_an_owner_that_answers_is_known_by_the_first_slot_after_a_root() -> None:
    """The claim begins to read there, so it never sees the fence by which the owner has begun."""
    world = World(living={"machine-a"})
    chain = world.chain_of(world.claim("a"))
    chain.end_run(0, 1)
    append(world, chain)
    found = Claim(
        node="node",
        writer=writer("b"),
        first_writer=first_writer("b"),
        claimant=Claimant(),
        time_ns=1,
        may_leap=False,
    )
    with pytest.raises(StartupError, match="process 7 on machine-a"):
        claim_name("orders", world.open, found, save=world.saved.append, surroundings=world.surroundings)


def test_after_a_clean_stop_the_name_is_free_at_once() -> None:
    world = World()
    chain = world.chain_of(world.claim("a"))
    append(world, chain)
    chain.end_run(1, 1)
    world.send(chain)
    assert world.claim("b").run.number == 3
    assert world.time.pauses == 0


def test_an_owner_without_an_address_is_watched_because_it_may_be_making_a_root() -> None:
    world = World(address="")
    chain = world.chain_of(world.claim("a"))
    append(world, chain)
    chain.end_run(1, 1)
    world.send(chain)
    world.claim("b")
    assert world.time.now >= WATCH


def test_an_operator_may_take_a_name_from_an_owner_that_is_alive() -> None:
    world = World(living={"machine-a"})
    chain = world.chain_of(world.claim("a"))
    assert world.claim("b", takes_over=True).run.number == 2
    assert chain.fenced is None, "it finds out when it sends"


def test_of_two_that_are_at_it_at_once_the_slower_one_finds_an_owner() -> None:
    """Its fence is not created, so it looks again, and must not fence the one that was faster."""
    world = World(living={"machine-a"})
    with pytest.raises(StartupError, match="in use by process 7 on machine-a"):
        world.claim("b", prepare=lambda read: world.claim("a") if read.owner is None else None)
    assert world.claim("c", takes_over=True).path[-1].run.writer == writer("a")


def test_what_is_needed_to_go_on_is_there_before_the_fence() -> None:
    world = World()
    chain = world.chain_of(world.claim("a"))
    append(world, chain)

    def fail(read: ChainRead) -> None:
        raise BadObject("fold/7/0001 is missing")

    with pytest.raises(StartupError, match="orders can't be restored from the store: fold/7/0001 is missing"):
        world.claim("b", prepare=fail)
    append(world, chain)
    assert chain.fenced is None


def test_what_was_added_meanwhile_is_prepared_as_well_but_not_for_ever() -> None:
    world = World()
    chain = world.chain_of(world.claim("a"))
    seen: list[int] = []

    def prepare(read: ChainRead) -> None:
        seen.append(read.path[-1].end)
        append(world, chain)

    assert world.claim("b", takes_over=True, prepare=prepare).path[-1].end == 2
    assert seen == [0, 1]


def test_what_the_owner_has_swept_meanwhile_is_read_from_its_root() -> None:
    world = World()
    claimed = world.claim("a")
    chain = world.chain_of(claimed)
    append(world, chain)
    seen: list[int] = []

    def prepare(read: ChainRead) -> None:
        seen.append(read.path[0].run.number)
        if len(seen) == 1:
            following = chain.end_run(1, 1)
            world.send(chain)
            world.objects.contents |= {
                root_name(following): encode_root(Root("node", following, {})),
                **{gone_name(it): encode_gone(it, following) for it in (FIRST, claimed.run)},
            }
            raise BadObject("wal/... is missing")

    assert world.claim("b", takes_over=True, prepare=prepare).path[0].run.number == 2
    assert seen == [0, 2]


class Failing(MemoryStore):
    """Fails in every way that the claim has to survive, `count` times."""

    count = 0
    kind = StoreFaultKind.UNREACHABLE

    def _fails(self) -> bool:
        if type(self).count <= 0:
            return False
        type(self).count -= 1
        return True

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        if not self._fails():
            return super().create(name, data)
        if type(self).count % 2:
            super().create(name, data)
        self.on_unknown(StoreFault("no answer", self.kind))
        return Created.UNKNOWN

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        if self._fails():
            raise StoreFault("no answer", self.kind)
        return super().get(name, start, end)


class FailingWorld(World):
    def open(self, on_unknown: OnUnknown) -> MemoryStore:
        return Failing(self.objects, on_unknown=on_unknown)


@pytest.mark.parametrize("failures", [1, 2, 5, 20])
def test_a_store_without_an_answer_is_asked_again(failures: int) -> None:
    Failing.count, Failing.kind = failures, StoreFaultKind.UNREACHABLE
    world = FailingWorld()
    assert world.claim("a", takes_over=True).run.number == 1
    assert world.time.pauses >= 1


def test_a_store_that_is_down_delays_the_start_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    Failing.count, Failing.kind = 30, StoreFaultKind.UNREACHABLE
    world = FailingWorld()
    world.claim("a", takes_over=True)
    lines = [it.getMessage() for it in caplog.records]
    assert lines == ["waiting for the store to say who owns orders: no answer"] * (
        1 + int(world.time.now / REPORT_INTERVAL)
    )


@pytest.mark.parametrize("kind", [StoreFaultKind.DENIED, StoreFaultKind.MISSING, StoreFaultKind.CLOCK])
def test_a_store_that_refuses_at_once_ends_the_start(kind: StoreFaultKind) -> None:
    Failing.count, Failing.kind = 1, kind
    with pytest.raises(StartupError, match="no answer"):
        FailingWorld().claim("a")


def test_a_waiting_start_can_be_stopped() -> None:
    Failing.count, Failing.kind = 1_000_000, StoreFaultKind.UNREACHABLE
    world = FailingWorld()
    claim = Claim(node="node", writer=writer("a"), first_writer=first_writer("a"), claimant=Claimant(), time_ns=1)
    surroundings = replace(world.surroundings, is_stopped=lambda: world.time.pauses > 5)
    with pytest.raises(StartupError, match="stopped while asking the store who owns orders"):
        claim_name("orders", world.open, claim, save=world.saved.append, surroundings=surroundings)


class Raced(MemoryStore):
    """Lets an owner be faster once than the fence of the next one, and is away afterwards if `goes_away`."""

    def __init__(self, world: World, chain: Chain, on_unknown: OnUnknown, *, goes_away: bool = False) -> None:
        super().__init__(world.objects, on_unknown=on_unknown)
        self._world = world
        self._chain = chain
        self._goes_away = goes_away

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        if name == slot_name(self._chain.run, 0):
            append(self._world, self._chain)
        elif self._goes_away:
            self.on_unknown(StoreFault("no answer"))
            return Created.UNKNOWN
        return super().create(name, data)


@pytest.mark.parametrize("goes_away", [False, True])
def test_a_fence_ahead_is_followed_by_one_that_counts_before_a_stop_is_heeded(goes_away: bool) -> None:
    world = World()
    chain = world.chain_of(world.claim("a"))
    claim = Claim(node="node", writer=writer("b"), first_writer=first_writer("b"), claimant=Claimant(), time_ns=1)

    def run() -> Claimed:
        return claim_name(
            "orders",
            lambda on_unknown: Raced(world, chain, on_unknown, goes_away=goes_away),
            claim,
            save=world.saved.append,
            surroundings=replace(world.surroundings, is_stopped=lambda: claim.stops_owner_later),
        )

    if goes_away:
        with pytest.raises(StartupError, match="stopped while asking the store who owns orders"):
            run()
        assert FINISH <= world.time.now < 2 * FINISH
    else:
        assert run().path[-1] == RunRead(chain.run, 1, is_fenced=True)


def test_a_chain_that_cannot_be_read_is_named() -> None:
    world = World()
    world.objects.contents["node"] = b"something else"
    with pytest.raises(StartupError, match="orders can't be owned: node: "):
        world.claim("a")


def test_a_guarded_process_at_the_address_keeps_others_out_but_no_restart_on_the_same_disk() -> None:
    world = World(is_guarded=True)
    first = world.claim("a")
    with pytest.raises(StartupError, match=r"it answers at 10\.0\.0\.1:4151"):
        world.claim("b")
    assert world.claim("b", mark=first.mark).claimant.host == "machine-b"
