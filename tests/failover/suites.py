"""What each suite does in one life of a node, from its first owner to the comparison with the ledger.

All chance comes from a seed. The processes are real, so the same seed does much the same, and not exactly.
"""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bench.ports import HOST, take_port
from nsqcommon.startup import TakenOver
from nsqcommon.wire.commands import pub
from nsqd.remote.local_files import REMOTE_JSON
from nsqd.remote.local_mark import decode_mark, encode_mark
from tests.failover.ledger import KILLED_GRACE, Ledger, Violation
from tests.failover.load import Load
from tests.failover.machines import KEEPS_ALL, NAME, OTHER_TOPICS, VARIANTS, WAITING_TOPICS, Machines
from tests.failover.restoring import check_copy, fill, restore
from tests.failover.spark_reader import SparkReader
from tests.failover.stores import KINDS, SERVERS, Bucket, NewStore, SharedFolder
from tests.simulation.power_cuts import POWER_CUTS
from tests.simulation.shim import Effect, Op, Rule, Shim
from tests.simulation.trace import Replay, read_trace
from tests.support.client import Client, Refused
from tests.support.lengths import sized
from tests.support.process import Nsqd, Nsqlookupd, eventually
from tests.support.traffic import BROKEN

# How many messages an owner acknowledges before it is lost. Some are lost while everything begins.
EARLY: Final = range(1, 40)
LATE: Final = sized(short=range(50, 150), long=range(100, 900))
ROUNDS: Final = sized(short=range(1, 2), long=range(1, 5))  # owners that a life loses
READ_ROUNDS: Final = sized(short=1, long=20)  # owners that a life loses while Spark reads
IS_DOWN: Final = sized(short=0.0, long=0.2)  # of losses: Spark's query is stopped before, and started again after it
CATCHES_UP: Final = sized(short=1.0, long=0.5)  # of losses: Spark has all that there is just before, and after it
IS_AWAY: Final = sized(short=1.0, long=0.3)  # of losses: the store is away by then, so the owner has more than it
AHEAD: Final = 5  # messages that only such an owner has, at least
RESTORED: Final = 4_000_000  # bytes
GIGABIT: Final = 125e6  # bytes a second
RESTORE_RATE: Final = 10e9 / 130  # bytes a second: 10 GB in 130 s
RESTORE_STARTS: Final = 15.0  # seconds that any may take, as a small one does on a busy machine
BY_LOOKUPD: Final = 0.5  # of lives in which Spark reads; in the others, the owners have the same address
CLAIMANTS: Final = sized(short=4, long=10)
CLAIMS: Final = sized(short=1, long=2)
OWNER_IS_CUT_OFF: Final = sized(short=1.0, long=0.6)  # otherwise the next one is, and the owner idle
ASKED: Final = sized(short=1.0, long=0.8)  # of frozen owners; the others notice by a heartbeat every ten seconds
AWAY: Final = sized(short=(0.5, 1.5), long=(5.0, 10.0, 30.0, 120.0))  # seconds
OF_OUTAGES: Final = (sized(short="remote-timeout=1s", long="remote-timeout=10s"),)
SLOW_SYNC: Final = 20  # ms, as an honest disk takes
MOST_GROWN: Final = 150 << 20  # bytes of memory, while the store is away
OWNER_IS_REACHABLE: Final = 0.5  # by the standby, in suites with partitions
WATCHED: Final = sized(short=3.0, long=5.0)  # seconds in which a standby must not take over
FENCED_WITHIN: Final = 11.0  # seconds in which a process has to notice that it isn't the owner any more


@dataclass
class Outcome:
    """What one life has shown."""

    failovers: int = 0
    pauses: list[float] = field(default_factory=list)  # from the loss of an owner to the next OK, in seconds
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suite:
    about: str
    live: Callable[[Machines, random.Random, Outcome], None]
    kinds: tuple[str, ...] = KINDS  # stores that it can do this with
    options: tuple[str, ...] = ()
    has_standby: bool = False  # whether it can be lived with --standby
    has_spark: bool = False  # whether it needs a session of Spark in this process


# Owners are lost with their disks


def lose_disks(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    nsqd, ledger = machines.first_owner(), machines.ledger
    for _ in range(chance.choice(ROUNDS)):
        machines.stand_by()
        load = Load(nsqd, ledger, chance, is_refused=machines.store.is_stormy)
        load.go_on_for(chance.choice(chance.choice((EARLY, LATE))))
        machines.check_waiting()
        lost_at = machines.lose(nsqd)
        load.ended()
        ledger.ended(lost_at)
        nsqd = machines.take_over()
        _go_on(machines, nsqd, lost_at, chance, outcome)
        machines.store.settle()
    machines.check_end(nsqd)


def _go_on(machines: Machines, nsqd: Nsqd, lost_at: float, chance: random.Random, outcome: Outcome) -> None:
    """Publish and consume for a while at an owner that has taken over."""
    machines.check_shape(nsqd)
    outcome.failovers += 1
    load = Load(nsqd, machines.ledger, chance, is_refused=machines.store.is_stormy)
    load.go_on_for(1)
    assert load.first_ok is not None
    outcome.pauses.append(load.first_ok - lost_at)
    load.go_on_for(chance.choice(EARLY))
    load.ended()


# Spark reads on


def read_by_spark(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    """Lose owners with their disks while Spark reads, which has to find each next one by itself."""
    where = _address_for_spark(machines, chance)
    nsqd, ledger = machines.first_owner(), machines.ledger
    reader = machines.running.enter_context(SparkReader(machines.folder, ledger.topics, where))
    reader.start(nsqd)
    for _ in range(READ_ROUNDS):
        machines.stand_by()
        is_away = chance.random() < IS_AWAY
        load = Load(nsqd, ledger, chance, is_refused=is_away or machines.store.is_stormy, reads=False)
        load.go_on_for(chance.choice(chance.choice((EARLY, LATE))))
        machines.check_waiting()
        ended_at = time.monotonic()
        if is_away:
            machines.store.go_away()
            _go_ahead(load, ledger)
        if chance.random() < CATCHES_UP:
            reader.catch_up(nsqd)  # so that it surely has read what only this owner had
        is_down = chance.random() < IS_DOWN
        if is_down:
            reader.stop()
        lost_at = machines.lose(nsqd)
        load.ended()
        ledger.ended(ended_at if is_away else lost_at)
        machines.store.come_back()
        nsqd = machines.take_over()
        if is_down:
            reader.start(nsqd)
        _go_on(machines, nsqd, lost_at, chance, outcome)
        reader.check()
        if chance.random() < CATCHES_UP:
            reader.catch_up(nsqd)
            took = round(time.monotonic() - lost_at, 2)
            outcome.figures["spark_back_after"] = max(took, outcome.figures.get("spark_back_after", 0))
        machines.store.settle()
    machines.check_histories(nsqd)
    outcome.figures["spark_rows"] = reader.check_table(nsqd, ledger)
    machines.check_end(nsqd)


def _go_ahead(load: Load, ledger: Ledger) -> None:
    """Go on until an owner has more than the store, which is away."""
    least = ledger.acknowledged_of(OTHER_TOPICS) + AHEAD
    load.go_on_until(lambda: ledger.acknowledged_of(OTHER_TOPICS) >= least)


def _address_for_spark(machines: Machines, chance: random.Random) -> dict[str, str]:
    """Return the option that leads Spark to the owner: an nsqlookupd, or an address that each owner gets."""
    if machines.standby_after or chance.random() < BY_LOOKUPD:  # a standby has an address of its own while it waits
        lookupd = machines.running.enter_context(Nsqlookupd())
        machines.start_with(f"lookupd-tcp-address={HOST}:{lookupd.tcp[1]}", f"broadcast-address={HOST}")
        return {"lookupd": f"{HOST}:{lookupd.http_address[1]}"}
    address = f"{HOST}:{take_port(machines.running)}"
    machines.start_with(f"http-address={address}")
    return {"nsqd": address}


# A node that is fetched to an empty disk


def restore_all(machines: Machines, chance: random.Random, outcome: Outcome, *, size: int = RESTORED) -> None:
    """Fetch a whole node over a wire of 1 Gbit/s."""
    assert isinstance(machines.store, Bucket)
    (topic, *_) = machines.ledger.waiting_topics
    nsqd = machines.new_owner("take-over").start()
    count = fill(nsqd, topic, size)
    nsqd.kill()
    number = len(machines.started)
    store = machines.store.options(number)
    wire = machines.store.proxies[number]
    wire.weather.rate = GIGABIT
    copy = machines.folder / "restored"
    cost = restore(store, NAME, copy)
    check_copy(nsqd.data_path, copy)
    outcome.failovers += 1
    outcome.figures |= {
        "restored_messages": count,
        "restored_mb": sum(it.stat().st_size for it in copy.rglob("*") if it.is_file()) // 1_000_000,
        "restore_wire_mb": wire.carried // 1_000_000,
        "restore_seconds": round(cost.seconds, 2),
        "restore_cpu_seconds": round(cost.cpu_seconds, 2),
        "restore_peak_mb": round(cost.peak_bytes / 1e6, 1),
    }
    if (allowed := max(RESTORE_STARTS, size / RESTORE_RATE)) < cost.seconds:
        raise Violation(
            f"a restore of {size:,} bytes may take {allowed:.1f} s, and has taken {cost} for {wire.carried:,} bytes"
        )


# Owners that go on with a disk


def keep_disks(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    """End owners in all ways, and go on with their disk, with an older one, or on another machine after a clean stop."""
    nsqd, ledger = machines.first_owner(), machines.ledger
    copies: list[Path] = []
    for _ in range(chance.choice(ROUNDS)):
        load = Load(nsqd, ledger, chance, is_refused=machines.store.is_stormy)
        load.go_on_for(chance.choice(chance.choice((EARLY, LATE))))
        lost_at = time.monotonic()
        way = chance.choice(("same disk", "older disk", "stopped"))
        data_path: Path | None = None
        if way == "stopped":
            load.ended()
            if (status := nsqd.stop()) != 0:
                raise Violation(f"a clean stop has status {status}")
            ledger.stopped()
        else:
            nsqd.kill()
            load.ended()
            copies.append(machines.folder / f"copy-{len(copies)}")
            shutil.copytree(nsqd.data_path, copies[-1])
            data_path, copy = nsqd.data_path, copies[-1]
            if way == "older disk":
                copy = chance.choice(copies)
                data_path = machines.folder / f"restored-{len(copies)}"
                shutil.copytree(copy, data_path)
            if copy is copies[-1]:
                ledger.ended(lost_at, KILLED_GRACE, keeps_messages=True)
            else:
                ledger.ended(lost_at)
        outcome.figures[way] = outcome.figures.get(way, 0) + 1
        nsqd = machines.take_over(data_path=data_path)
        _go_on(machines, nsqd, lost_at, chance, outcome)
        machines.store.settle()
    machines.check_end(nsqd)


# Owners that stand still while another one takes over


def freeze_owners(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    nsqd, ledger = machines.first_owner(), machines.ledger
    for _ in range(chance.choice(ROUNDS)):
        machines.stand_by()
        load = Load(nsqd, ledger, chance, is_refused=True)
        load.go_on_for(chance.choice(chance.choice((EARLY, LATE))))
        is_asked = chance.random() < ASKED
        if not is_asked:
            load.ended()  # so only its heartbeat will show it that it has lost the name
        zombie = nsqd
        zombie.send_signal(signal.SIGSTOP)
        frozen_at = time.monotonic()
        time.sleep(chance.choice((0.0, chance.uniform(0, 1))))  # so long it stands still before another one starts
        ledger.ended(frozen_at)
        nsqd = machines.take_over()
        _go_on(machines, nsqd, frozen_at, chance, outcome)
        late = _LatePublish(zombie, ledger) if is_asked else None
        machines.store.settle()
        seen, thawed_at = zombie.seen, time.monotonic()
        zombie.send_signal(signal.SIGCONT)
        if late is not None and late.ended():
            raise Violation("an owner that was frozen has answered OK to a publish that came after the next one began")
        _wait_until_fenced(machines, zombie, load, outcome, thawed_at, seen)
    machines.check_end(nsqd)


class _LatePublish:
    """A publish to an owner that stands still. Nobody else has its message, so an OK is a lie."""

    def __init__(self, zombie: Nsqd, ledger: Ledger) -> None:
        (number,) = ledger.sending(WAITING_TOPICS[0], 1)
        self._client = Client(zombie.tcp)  # the system accepts for a process that stands still
        self._client.send(pub(WAITING_TOPICS[0], b"%d too late" % number))
        self._is_ok = False
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        with self._client as client:
            try:
                self._is_ok = client.response() == b"OK"
            except (Refused, *BROKEN):
                pass

    def ended(self) -> bool:
        """Return whether it was answered with OK."""
        self._thread.join(60)
        return self._is_ok


def _wait_until_fenced(machines: Machines, zombie: Nsqd, load: Load, outcome: Outcome, since: float, seen: int) -> None:
    """Wait until a process that could go on since then notices that it isn't the owner any more, and its load ends.

    Then it has ended, or it is the next standby. Its log had `seen` lines before.
    """
    if machines.standby_after:
        zombie.wait_until_lost(seen)
        took = time.monotonic() - since
    else:
        status = zombie.wait()
        took = time.monotonic() - since
        if status != TakenOver.exit_status:
            raise Violation(f"the former owner ended with status {status}\n{zombie.log[-3000:]}")
    outcome.figures["longest_zombie"] = round(max(took, outcome.figures.get("longest_zombie", 0)), 2)
    load.ended()
    if machines.standby_after:
        machines.waiting = zombie.wait_until_waiting()
        machines.check_waiting()


# A store that one machine can't reach


def cut_off(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    nsqd, ledger = machines.first_owner(*_unreachable_address(machines, chance)), machines.ledger
    machines.stand_by()
    load = Load(nsqd, ledger, chance, is_refused=True)
    load.go_on_for(chance.choice(LATE))
    if machines.standby_after:
        _watch_standby(machines, load)
    else:
        _refuse_another(machines, load)
    former = nsqd
    if chance.random() < OWNER_IS_CUT_OFF:
        cut_at = time.monotonic()
        machines.store.go_away(machines.number_of(former))
        time.sleep(chance.choice(AWAY))  # so long the owner is cut off before another one starts
        ledger.ended(cut_at)
        nsqd = machines.take_over()
    else:
        if machines.waiting is not None:
            machines.store.go_away(machines.number_of(machines.waiting))
        load.ended()
        cut_at = time.monotonic()
        ledger.ended(cut_at)
        nsqd = _take_over_from_afar(machines, chance)
    _go_on(machines, nsqd, cut_at, chance, outcome)
    seen = former.seen
    machines.store.come_back()
    _wait_until_fenced(machines, former, load, outcome, time.monotonic(), seen)
    machines.store.settle()
    machines.check_end(nsqd)


def _unreachable_address(machines: Machines, chance: random.Random) -> tuple[str, ...]:
    """Return an option by which the standby can't reach the owner over HTTP, as in a partition, or none."""
    if not machines.standby_after or chance.random() < OWNER_IS_REACHABLE:
        return ()
    return (f"broadcast-http-port={take_port(machines.running)}",)


def _watch_standby(machines: Machines, load: Load) -> None:
    """Check that the standby doesn't take over while the chain moves, although the owner may not answer it."""
    until = time.monotonic() + WATCHED
    load.go_on_until(lambda: time.monotonic() >= until)
    machines.check_waiting()


def _refuse_another(machines: Machines, load: Load) -> None:
    """Check that a second start of the name is refused while the owner lives."""
    another = machines.new_owner()
    try:
        another.start()
    except AssertionError:
        if " is in use by process " not in another.log:
            raise
    else:
        raise Violation("a second process was not refused while the chain moved")
    load.raise_violation()


def _take_over_from_afar(machines: Machines, chance: random.Random) -> Nsqd:
    """Have another owner that can't reach the store at first."""
    if machines.waiting is not None:
        time.sleep(chance.choice(AWAY))  # so long the store is out of its reach
        machines.check_waiting()
        machines.store.come_back()
        return machines.take_over()
    nsqd = machines.new_owner("take-over")
    machines.store.go_away(machines.number_of(nsqd))
    thread = threading.Thread(target=_start, args=(nsqd,), daemon=True)
    thread.start()
    time.sleep(chance.choice(AWAY))  # so long the store is out of its reach
    machines.store.come_back()
    thread.join(120)
    if not nsqd.is_running:
        raise Violation("an owner that could not reach the store at first hasn't started")
    return nsqd


# Owners that live


def take_from_the_living(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    """Take over from owners under load, which go on until they learn of it."""
    nsqd, ledger = machines.first_owner(), machines.ledger
    for _ in range(2):
        load = Load(nsqd, ledger, chance, is_refused=True)
        load.go_on_for(chance.choice(LATE))
        former, began, seen = nsqd, time.monotonic(), nsqd.seen
        ledger.ended(began)
        nsqd = machines.take_over()
        outcome.figures["took"] = round(max(time.monotonic() - began, outcome.figures.get("took", 0)), 2)
        _go_on(machines, nsqd, began, chance, outcome)
        _wait_until_fenced(machines, former, load, outcome, began, seen)
    machines.check_end(nsqd)


# A store that is away for all


def lose_store(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    """Have no store for a while, under load, and lose the machine when it is back."""
    nsqd, ledger = machines.first_owner(), machines.ledger
    load = Load(nsqd, ledger, chance, is_refused=True)
    load.go_on_for(chance.choice(LATE))
    calm = _rate(ledger, 1.0)
    base = nsqd.resident_bytes
    machines.store.go_away()
    away = _rate(ledger, chance.choice(AWAY))
    machines.store.come_back()
    back_at = time.monotonic()
    _wait_for_an_ok(load, ledger)
    outcome.figures |= {
        "back_after": round(time.monotonic() - back_at, 2),
        "written_rate": round(away / max(calm, 1), 2),
        "grown_mb": round((nsqd.resident_bytes - base) / 1e6, 1),
    }
    if nsqd.resident_bytes - base > MOST_GROWN:
        raise Violation(f"memory has grown from {base} to {nsqd.resident_bytes} bytes")
    if not nsqd.is_running:
        raise Violation("nsqd has ended")
    load.go_on_until(lambda: load.acknowledged > 0)
    lost_at = machines.lose(nsqd)
    load.ended()
    ledger.ended(lost_at)
    nsqd = machines.take_over()
    _go_on(machines, nsqd, lost_at, chance, outcome)
    machines.store.settle()
    machines.check_end(nsqd)


def _rate(ledger: Ledger, seconds: float) -> float:
    """Return how many publishes a second were answered to topics that don't wait for the store."""
    before = ledger.acknowledged_of(OTHER_TOPICS)
    time.sleep(seconds)  # it is the time that counts
    return (ledger.acknowledged_of(OTHER_TOPICS) - before) / seconds


def _wait_for_an_ok(load: Load, ledger: Ledger) -> None:
    before = ledger.acknowledged_of(WAITING_TOPICS)
    load.go_on_until(lambda: ledger.acknowledged_of(WAITING_TOPICS) > before)


# Owners whose machine loses its power, and that go on with the disk that is left


def lose_power(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    ledger = machines.ledger
    data_path = machines.folder / "machine-0"
    with Shim(machines.folder, data_path, seed=chance.getrandbits(30), traced=True) as shim:
        nsqd = machines.new_owner("take-over", environ=dict(shim.environ)).start()
        machines.set_up(nsqd)
        shim.apply(Rule(Op.SYNC, Effect.HANG, milliseconds=SLOW_SYNC))
        load = Load(nsqd, ledger, chance)
        load.go_on_for(chance.choice(chance.choice((EARLY, LATE))))
        cut_at = time.monotonic()
        nsqd.kill()
        load.ended()
    ledger.ended(cut_at)
    replay = Replay(read_trace(shim.trace_path))
    replay.play_until(cut_at + 3600)
    left = machines.folder / "left"
    replay.cut(chance.choice(POWER_CUTS), chance, left)
    _boot_again(left)
    nsqd = machines.take_over(data_path=left)
    machines.note_what_power_has_taken(nsqd)
    decision = "continuing" if "continuing with" in nsqd.log else "adopted"
    outcome.figures[decision] = 1
    _go_on(machines, nsqd, cut_at, chance, outcome)
    machines.check_end(nsqd)


def _boot_again(data_path: Path) -> None:
    """Have the mark of a data path name another boot, as it does after a power cut."""
    path = data_path / REMOTE_JSON
    if path.exists():
        path.write_bytes(encode_mark(replace(decode_mark(path.read_bytes()), boot="the one before")))


# Objects that are damaged


def damage_objects(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    """Flip a byte of an object before each takeover. It has to fail and name the object, or not to need it."""
    assert isinstance(machines.store, SharedFolder)
    folder = machines.store.folder / NAME
    nsqd, ledger = machines.first_owner(), machines.ledger
    for _ in range(chance.choice(ROUNDS)):
        load = Load(nsqd, ledger, chance)
        load.go_on_for(chance.choice(LATE))
        lost_at = machines.lose(nsqd)
        load.ended()
        ledger.ended(lost_at)
        nsqd = machines.new_owner("take-over")
        has_started = True
        with _damaged(folder, chance) as damaged:
            try:
                nsqd.start()
            except AssertionError:
                has_started = False
                outcome.figures["refused_to_start"] = outcome.figures.get("refused_to_start", 0) + 1
                if damaged not in nsqd.log:
                    raise Violation(f"{damaged} is damaged, and the start doesn't say so\n{nsqd.log[-2000:]}") from None
        if not has_started:
            nsqd = machines.take_over()
        _go_on(machines, nsqd, lost_at, chance, outcome)
    machines.check_end(nsqd)


@contextmanager
def _damaged(folder: Path, chance: random.Random) -> Iterator[str]:
    """Flip a bit in an object of a kind that chance decides, until the end of the block. Yield its name in the store."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(it for it in folder.rglob("*") if it.is_file() and not it.name.startswith(".")):
        kinds.setdefault(path.relative_to(folder).parts[0], []).append(path)
    path = chance.choice(kinds[chance.choice(sorted(kinds))])
    data = path.read_bytes()
    place = chance.randrange(len(data))
    path.write_bytes(data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :])
    try:
        yield str(path.relative_to(folder))
    finally:
        path.write_bytes(data)


# Many that want the name at once


def claim_at_once(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    """Start ten at once. One has to serve, and the others have to end."""
    if machines.standby_after:
        _stand_by_at_once(machines, chance, outcome)
        return
    ledger = machines.ledger
    for number in range(CLAIMS):
        claimants = [machines.new_owner("take-over") for _ in range(CLAIMANTS)]
        threads = [threading.Thread(target=_start, args=(it,), daemon=True) for it in claimants]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        owner = _only_owner(claimants)
        if number == 0:
            machines.set_up(owner)
        _go_on(machines, owner, began, chance, outcome)
        if number + 1 < CLAIMS:
            lost_at = machines.lose(owner)
            ledger.ended(lost_at)
    machines.check_end(owner)


def _start(nsqd: Nsqd) -> None:
    try:
        nsqd.start()
    except AssertionError:  # another one was the owner before it could listen
        pass


def _only_owner(claimants: list[Nsqd]) -> Nsqd:
    """Wait until only one of them runs, and return it."""
    deadline = time.monotonic() + FENCED_WITHIN + 20
    while len(alive := [it for it in claimants if it.is_running]) > 1:
        if time.monotonic() > deadline:
            raise Violation(f"{len(alive)} processes think that they own the node")
        time.sleep(0.02)  # other processes give no event to wait for
    if not alive:
        raise Violation("all claimants have ended:\n" + "\n".join(it.log[-300:] for it in claimants))
    return alive[0]


def _stand_by_at_once(machines: Machines, chance: random.Random, outcome: Outcome) -> None:
    """Start ten standbys at once. One has to serve, and the others have to wait, also when the first one is lost."""
    claimants = [machines.new_owner() for _ in range(CLAIMANTS)]
    threads = [threading.Thread(target=it.start_waiting, daemon=True) for it in claimants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    owner = _owner_of_standbys(claimants)
    machines.set_up(owner)
    for _ in range(CLAIMS):
        load = Load(owner, machines.ledger, chance)
        load.go_on_for(chance.choice(EARLY))
        lost_at = machines.lose(owner)
        claimants.remove(owner)
        load.ended()
        machines.ledger.ended(lost_at)
        owner = _owner_of_standbys(claimants)
        _go_on(machines, owner, lost_at, chance, outcome)
    machines.check_end(owner)


def _owner_of_standbys(claimants: Sequence[Nsqd]) -> Nsqd:
    """Wait until one of them owns the name and all others wait, and return it."""
    found: list[Nsqd] = []

    def is_settled() -> bool:
        states = {it: it.remote_state for it in claimants}
        found[:] = [it for it, state in states.items() if state == "owner"]
        return len(found) == 1 and sorted(states.values())[1:] == ["standby"] * (len(claimants) - 1)

    eventually(is_settled, timeout=FENCED_WITHIN + 60)
    return found[0].wait_until_serving()


SUITES: Final[Mapping[str, Suite]] = MappingProxyType(
    {
        "rf1": Suite("owners are killed under load and their disks wiped", lose_disks, has_standby=True),
        "disks": Suite("owners end in all ways, and go on with their disk or an older one", keep_disks),
        "rf2": Suite("owners stand still, and go on when another one has taken over", freeze_owners, has_standby=True),
        "rf3": Suite("the owner or the next one can't reach the store", cut_off, SERVERS, OF_OUTAGES, True),
        "living": Suite("another one takes over from an owner that lives, under load", take_from_the_living),
        "rf4": Suite("the store is away for a while", lose_store, options=OF_OUTAGES),
        "rf5": Suite("owners lose their power, and go on with the disk that is left", lose_power, ("file",)),
        "rf7": Suite(
            "Spark reads while owners are lost with their disks",
            read_by_spark,
            KINDS,
            (KEEPS_ALL, *OF_OUTAGES),
            True,
            True,
        ),
        "rf8": Suite("an object in the store is damaged before each takeover", damage_objects, ("file",)),
        "rf9": Suite("a node is fetched to an empty disk", restore_all, ("moto", "ceph"), (KEEPS_ALL,)),
        "rf6": Suite("ten processes want the name at once", claim_at_once, has_standby=True),
    }
)


def live(
    suite: Suite,
    folder: Path,
    seed: int,
    new_store: NewStore,
    environ: Mapping[str, str] | None = None,
    *,
    standby_after: str = "",
) -> Outcome:
    """Live one life, with these variables of the environment for each nsqd. Raise AssertionError, with the seed and the logs, if a promise was broken."""
    chance = random.Random(seed)
    outcome = Outcome()
    with ExitStack() as running:
        store = new_store(folder, chance, running)
        machines = running.enter_context(
            Machines(
                folder,
                store,
                (*chance.choice(VARIANTS), *suite.options),
                environ=environ,
                standby_after=standby_after,
            )
        )
        try:
            suite.live(machines, chance, outcome)
        except Exception as error:
            raise AssertionError(f"{machines.log}\n\nseed {seed}: {type(error).__name__} {error}") from error
        outcome.figures |= machines.ledger.figures()
    return outcome
