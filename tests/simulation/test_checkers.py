"""Do the checkers notice? For each planted bug, the ledger that has to find it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import kill9
from tests.planted.planting import bugs_for, with_bug
from tests.simulation import disk_faults, power_cuts
from tests.simulation.shim import Effect, Op, Rule

pytestmark = pytest.mark.slow


VERDICTS = {
    "one message of a hundred is dropped": r"messages of channels are lost",
    "deferred messages come early": r"(deferred|requeued) message \d+ early by",
    "finished messages are delivered again": r"message \d+ came again after its FIN",
    "some finishes are forgotten": r"message \d+ came again, though finished|finished messages came back",
    "attempts go down": r"attempts of message \d+ are \d+ after \d+",
}


@pytest.mark.parametrize("bug", bugs_for("kills"))
def test_kills_find_a_planted_bug(tmp_path: Path, bug: str) -> None:
    with pytest.raises(AssertionError, match=VERDICTS[bug]):
        kill9.run(tmp_path, cycles=kill9.CYCLES, seed=1, environ=with_bug(bug))  # ends with the first violation


@pytest.mark.needs("C compiler")
@pytest.mark.parametrize("unsynced", ["*", "*.log", "topics/t.steady-?"], ids=["nothing", "logs", "folders"])
def test_power_cuts_find_syncs_that_do_nothing(tmp_path: Path, unsynced: str) -> None:
    lazy = Rule(Op.SYNC, Effect.SKIP, pattern=unsynced)
    with pytest.raises(AssertionError, match="Violation"):
        power_cuts.run(tmp_path, power_cuts.Outcome(), seed=1, ack="synced", cuts=power_cuts.CUTS, rules=(lazy,))


@pytest.mark.needs("C compiler")
@pytest.mark.parametrize("bug", bugs_for("power cuts"))
def test_power_cuts_find_a_planted_bug(tmp_path: Path, bug: str) -> None:
    with pytest.raises(AssertionError, match="Violation"):
        power_cuts.run(
            tmp_path, power_cuts.Outcome(), seed=1, ack="synced", cuts=power_cuts.CUTS, environ=with_bug(bug)
        )


@pytest.mark.needs("C compiler")
def test_disk_faults_find_a_planted_bug(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="messages of channels are lost"):
        disk_faults.run(
            tmp_path,
            disk_faults.Outcome(),
            seed=1,
            lives=1,
            disorders=(),
            environ=with_bug("one message of a hundred is dropped"),
        )
