"""A real nsqd on a disk that refuses, tears, cuts short and hangs, under load, killed again and again; and the ledger.

A *run* is one data path: lives of nsqd in which faults come and go (`DISORDERS`), each ended by kill -9, half of them while
the disk is still sick. After each start everything that was promised is so; at the end all of it is delivered, while the
disk refuses to read for a moment, and nothing that was finished comes back. No byte on the disk is ever harmed, so there
is no excuse for a loss.

Short segments, a small cache and long delays make nsqd read from disk, compact and read compacted files all the time.
"""

from __future__ import annotations

import errno
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.simulation.shim import Effect, Op, Rule, Shim
from tests.support.process import Nsqd
from tests.support.promises import Excuses, Ledger, Violation
from tests.support.traffic import Load, Pace, check_nothing_is_left, check_shape, drain, log_of, new_ledger, set_up

OPTIONS: Final = ("max-bytes-per-file=20000", "mem-queue-size=10", "msg-timeout=5s")
PACE: Final = Pace(publishers=2, consumers=5, longest_pause=0.01, longest_delay=4000)
LONGEST_DISORDER: Final = 1.2  # seconds; after three seconds a refusal defers messages by a minute
# A FIN is journaled within a tenth of a second, but here writes hang.
KILLED: Final = Excuses(finishes=1.5)
RECOVERY_TIMEOUT: Final = 60.0
LIVES: Final = 5

LOG: Final = "topics/*"
NO_CACHE: Final = Rule(Op.CACHED_READ, Effect.FAIL, errno.EAGAIN)


class Disorder(NamedTuple):
    """A fault of the disk that lasts for a while."""

    name: str
    rules: tuple[Rule, ...]
    is_sickness: bool = True  # changes may fail: publishes are refused, and the journal may be behind


def _fails(name: str, ops: Op, code: int = errno.EIO, *, share: float = 1.0, pattern: str = "*") -> Disorder:
    return Disorder(name, (Rule(ops, Effect.FAIL, code, pattern, share),))


READS_ARE_REFUSED: Final = Disorder("reads are refused", (NO_CACHE, Rule(Op.READ, Effect.FAIL)), is_sickness=False)
IN_ORDER: Final = Disorder("nothing", (), is_sickness=False)
DISORDERS: Final = (
    READS_ARE_REFUSED,
    Disorder("some reads are refused", (NO_CACHE, Rule(Op.READ, Effect.FAIL, share=0.3)), is_sickness=False),
    Disorder("reads are short", (Rule(Op.READ | Op.CACHED_READ, Effect.SHORT, share=0.5),), is_sickness=False),
    Disorder("reads hang", (NO_CACHE, Rule(Op.READ, Effect.HANG, share=0.2, milliseconds=400)), is_sickness=False),
    _fails("files cannot be opened", Op.OPEN),
    _fails("some files cannot be opened", Op.OPEN, errno.EMFILE, share=0.3),
    _fails("writes fail", Op.WRITE),
    _fails("some writes fail", Op.WRITE, share=0.2),
    _fails("writes of logs fail", Op.WRITE, pattern=LOG),
    _fails("writes of the journal fail", Op.WRITE, pattern="journal.*"),
    _fails("disk is full", Op.WRITE | Op.ALLOCATE | Op.MKDIR, errno.ENOSPC),
    Disorder("writes are torn", (Rule(Op.WRITE, Effect.TORN, share=0.3),)),
    Disorder("disk fills up", (Rule(Op.WRITE, Effect.TORN, errno.ENOSPC, share=0.5),)),
    Disorder("writes are short", (Rule(Op.WRITE, Effect.SHORT, share=0.5),), is_sickness=False),
    Disorder("writes hang", (Rule(Op.WRITE, Effect.HANG, share=0.02, milliseconds=400),), is_sickness=False),
    _fails("syncs fail", Op.SYNC),
    _fails("some syncs fail", Op.SYNC, share=0.3),
    Disorder("syncs hang", (Rule(Op.SYNC, Effect.HANG, milliseconds=600),), is_sickness=False),
    _fails("names cannot be changed", Op.RENAME | Op.UNLINK | Op.MKDIR | Op.RMDIR),
    _fails("nothing can be cut or set aside", Op.TRUNCATE | Op.ALLOCATE),
    _fails("anything may fail", Op(4095), share=0.1),
    _fails("everything fails", Op(4095)),
)
# These affect a few calls each: a fault that is over after some tries must not count as lasting.
AT_START: Final = tuple(
    Disorder(f"{name} refused", (Rule(ops, Effect.FAIL, code, pattern, share, most=4),))
    for name, ops, code, pattern, share in (
        ("reads are", Op.READ, errno.EIO, "*", 0.2),
        ("reads of logs are", Op.READ, errno.EIO, LOG, 1.0),
        ("reads of the journal are", Op.READ, errno.EIO, "journal.*", 1.0),
        ("opening is", Op.OPEN, errno.EIO, "*", 0.2),
        ("listing is", Op.LIST, errno.EIO, "*", 1.0),
        ("writes are", Op.WRITE, errno.ENOSPC, "*", 0.5),
        ("syncs are", Op.SYNC, errno.EIO, "*", 0.5),
    )
)


@dataclass
class Outcome:
    """What happened in some runs."""

    runs: int = 0
    lives: int = 0
    acknowledged: int = 0
    delivered: int = 0
    refused: int = 0
    undecided: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, ledger: Ledger, faults: Counter[str]) -> None:
        self.runs += 1
        self.lives += ledger.life
        self.acknowledged += ledger.acknowledged
        self.delivered += ledger.delivered
        self.refused += ledger.refused
        self.undecided += ledger.undecided
        self.faults += faults

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.runs} runs with {self.lives} kills: {self.acknowledged:,} messages acknowledged, {self.refused:,} refused, "
            f"{self.delivered:,} deliveries, {self.undecided} changes answered with 500; "
            f"{self.faults.total():,} faults ({faults})"
        )


def run(
    folder: Path,
    outcome: Outcome,
    *,
    seed: int,
    lives: int = LIVES,
    disorders: tuple[Disorder, ...] = DISORDERS,
    options: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
) -> None:
    """Run nsqd on a failing disk. Raise AssertionError, with the seed and the log, if a promise was broken."""
    chance = random.Random(seed)
    ledger = new_ledger()
    data_path = folder / "data"
    with (
        Shim(folder, data_path, seed=seed) as shim,
        Nsqd(data_path, *OPTIONS, *options, environ={**shim.environ, **(environ or {})}) as nsqd,
    ):
        story: list[str] = []
        try:
            set_up(nsqd, ledger)
            for _ in range(lives):
                _live(nsqd, shim, ledger, chance, disorders, story)
            _fill_compacted_files(nsqd, ledger, chance)
            if READS_ARE_REFUSED in disorders:
                shim.apply(NO_CACHE, Rule(Op.READ, Effect.FAIL, seconds=0.5))
            drain(nsqd, ledger)
            nsqd.restart()
            check_nothing_is_left(nsqd)
        except Exception as error:
            raise AssertionError(
                f"{log_of(nsqd)}\n\nseed {seed}, life {ledger.life}, after {', '.join(story)}: "
                f"{type(error).__name__} {error}"
            ) from error
        finally:
            outcome.add(ledger, shim.counts)


def _live(
    nsqd: Nsqd,
    shim: Shim,
    ledger: Ledger,
    chance: random.Random,
    disorders: tuple[Disorder, ...],
    story: list[str],
) -> None:
    """Live one life, up to the start of the next one."""
    load = Load(nsqd, ledger, chance, PACE)
    _go_on_for(load, ledger, chance.randrange(60, 200))
    for last in (False, True):
        disorder = chance.choice(disorders or (IN_ORDER,))
        story.append(disorder.name)
        if disorder.is_sickness:
            ledger.falls_sick()
        shim.apply(*disorder.rules)
        load.stopping.wait(chance.uniform(0.1, LONGEST_DISORDER))
        if last and chance.random() < 0.5:
            break
        shim.heal()
        if disorder.is_sickness:
            _wait_until_well(nsqd)
            ledger.is_well()
        _go_on_for(load, ledger, chance.randrange(60, 150))
    killed_at = time.monotonic()
    nsqd.kill()
    load.ended()
    ledger.ended(killed_at, KILLED)
    shim.heal()
    ledger.falls_sick()
    if chance.random() < 0.5:
        disorder = chance.choice(AT_START)
        story.append(f"{disorder.name} at the start")
        shim.apply(*disorder.rules)
    _start(nsqd, shim)
    check_shape(nsqd, ledger)
    _wait_until_well(nsqd)
    ledger.is_well()


def _go_on_for(load: Load, ledger: Ledger, count: int) -> None:
    """Let the load go on until so many more messages were acknowledged."""
    goal = ledger.acknowledged + count
    load.go_on_until(lambda: ledger.acknowledged >= goal)


def _fill_compacted_files(nsqd: Nsqd, ledger: Ledger, chance: random.Random) -> None:
    """Let consumers keep up for a while, so that only the deferred messages of most segments are left, and carried."""
    load = Load(nsqd, ledger, chance, PACE)
    _go_on_for(load, ledger, 300)
    load.ended()


def _start(nsqd: Nsqd, shim: Shim) -> None:
    """Start nsqd. A refusing disk may keep it from starting, but must not let it start with fewer messages."""
    try:
        nsqd.start()
    except AssertionError:
        nsqd.kill()
        shim.heal()
        nsqd.start()
    shim.heal()


def _wait_until_well(nsqd: Nsqd) -> None:
    """Wait until nsqd has been healthy for a while, as it may report a failure a moment late."""
    deadline = time.monotonic() + RECOVERY_TIMEOUT
    well = 0
    while well < 3:
        answer = nsqd.http("GET", "/ping")
        well = well + 1 if answer.status == 200 else 0
        if time.monotonic() > deadline:
            raise Violation(f"the disk works again, and nsqd says {answer.body!r}")
        time.sleep(0.1)  # another process gives no event to wait for
