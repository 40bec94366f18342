"""A real nsqd loses its power: its disk as a power cut leaves it, a new nsqd on that disk, and the ledger.

While clients publish, consume, create and delete, the shim records what nsqd does to its disk (`trace.py`). At random
moments the ledger is copied. Afterwards the disk of each of these moments is made, without some part of what was not
synced. nsqd starts on it, and has to know and deliver everything that clients knew at that moment.

Syncs take up to SLOW_SYNC, as on an honest disk, so that much is always under way.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.simulation.disk import Crash
from tests.simulation.shim import Effect, Op, Rule, Shim
from tests.simulation.trace import Replay, read_trace
from tests.support.lengths import sized
from tests.support.process import Nsqd
from tests.support.promises import Excuses, Ledger
from tests.support.traffic import Load, Pace, check_shape, drain, log_of, new_ledger, set_up

SYNC_TIMEOUT: Final = 0.5
SLOW_SYNC: Final = 0.02
# With --ack=written a message is synced at most --sync-timeout after its answer. The rest is for the journal, which
# is written every tenth of a second, and for two rounds of a dozen syncs each on a busy machine.
WINDOW: Final = SYNC_TIMEOUT + 0.1 + 1.2
EXCUSES: Final[Mapping[str, Excuses]] = {
    "synced": Excuses(finishes=WINDOW, changes=WINDOW),
    "written": Excuses(finishes=WINDOW, changes=WINDOW, messages=WINDOW),
}
OPTIONS: Final = ("max-bytes-per-file=50000", f"sync-timeout={SYNC_TIMEOUT}s")
PACE: Final = Pace(publishers=2, consumers=4, longest_pause=0.01, longest_delay=1000)
CUTS: Final = sized(short=3, long=6)  # of a test; of three, each kind is one
POWER_CUTS: Final = (Crash.FORGETS_ALL, Crash.FORGETS_LATEST, Crash.FORGETS_ANY)


@dataclass
class Outcome:
    """What happened in some runs."""

    cuts: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0  # sum over the moments of the cuts
    lost: int = 0  # within the window
    oldest_lost: float = 0.0  # how long before the cut

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.cuts.items()))
        return (
            f"{self.cuts.total()} power cuts ({kinds}), {self.acknowledged:,} acknowledged messages before them: "
            f"{self.lost:,} deliveries lost, the oldest acknowledged {self.oldest_lost:.3f} s before a cut"
        )


class Moment(NamedTuple):
    at: float
    ledger: Ledger


def run(
    folder: Path,
    outcome: Outcome,
    *,
    seed: int,
    ack: str,
    cuts: int,
    environ: Mapping[str, str] | None = None,
    rules: tuple[Rule, ...] = (),
) -> None:
    """Run it. Raise AssertionError, with the seed and the log, if more is lost than may be."""
    chance = random.Random(seed)
    moments, trace = _record(folder, chance, seed, ack, cuts, environ or {}, rules)
    replay = Replay(read_trace(trace))
    for number, moment in enumerate(moments):
        replay.play_until(moment.at)
        crash = POWER_CUTS[number % len(POWER_CUTS)]
        target = folder / f"cut-{number}"
        replay.cut(crash, chance, target)
        _check(target, moment, crash, seed, ack)
        outcome.cuts[crash] += 1
        outcome.acknowledged += moment.ledger.acknowledged
        outcome.lost += moment.ledger.lost
        outcome.oldest_lost = max(outcome.oldest_lost, moment.ledger.oldest_lost)
        shutil.rmtree(target)


def _record(
    folder: Path,
    chance: random.Random,
    seed: int,
    ack: str,
    cuts: int,
    environ: Mapping[str, str],
    rules: tuple[Rule, ...],
) -> tuple[list[Moment], Path]:
    ledger = new_ledger()
    data_path = folder / "data"
    moments = []
    with (
        Shim(folder, data_path, seed=seed, traced=True) as shim,
        Nsqd(data_path, f"ack={ack}", *OPTIONS, environ={**shim.environ, **environ}) as nsqd,
    ):
        set_up(nsqd, ledger)
        shim.apply(*rules, Rule(Op.SYNC, Effect.HANG, milliseconds=int(SLOW_SYNC * 1000)))
        load = Load(nsqd, ledger, chance, PACE)
        for _ in range(cuts):
            goal = ledger.acknowledged + chance.randrange(40, 150)
            load.go_on_until(lambda goal=goal: ledger.acknowledged >= goal)  # type: ignore[misc]  # the default has a type
            moments.append(Moment(*ledger.copy()))
        nsqd.kill()
        load.ended()
    return moments, shim.trace_path


def _check(data_path: Path, moment: Moment, crash: Crash, seed: int, ack: str) -> None:
    at, ledger = moment
    ledger.ended(at, EXCUSES[ack])
    with Nsqd(data_path, f"ack={ack}", *OPTIONS) as nsqd:
        try:
            check_shape(nsqd, ledger)
            drain(nsqd, ledger)
        except Exception as error:
            raise AssertionError(
                f"{log_of(nsqd)}\n\nseed {seed}, {crash} after {ledger.acknowledged} messages with --ack={ack}: "
                f"{type(error).__name__} {error}"
            ) from error
