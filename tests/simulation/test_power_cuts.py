"""A real nsqd loses its power. The long version: `python -m tests.simulation power-cuts`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.simulation import power_cuts
from tests.simulation.disk import Crash
from tests.simulation.shim import Shim
from tests.simulation.trace import Replay, read_trace
from tests.support.process import Nsqd

pytestmark = pytest.mark.needs("C compiler")

MOST_RUNS = 10  # in which something has to be lost that was only written


@pytest.mark.slow
def test_nothing_that_was_synced_is_lost_with_the_power(tmp_path: Path) -> None:
    outcome = power_cuts.Outcome()
    power_cuts.run(tmp_path, outcome, seed=random.randrange(1 << 32), ack="synced", cuts=power_cuts.CUTS)
    assert outcome.acknowledged > 100
    assert outcome.lost == 0


@pytest.mark.slow
def test_what_was_only_written_is_lost_within_its_window(tmp_path: Path) -> None:
    outcome = power_cuts.Outcome()
    for number in range(MOST_RUNS):
        folder = tmp_path / str(number)
        folder.mkdir()
        power_cuts.run(folder, outcome, seed=random.randrange(1 << 32), ack="written", cuts=power_cuts.CUTS)
        if outcome.lost:  # seldom, everything has just been synced at each of the cuts
            break
    assert outcome.lost > 0
    assert outcome.oldest_lost <= power_cuts.WINDOW


def test_replayed_disk_is_what_the_process_has_left(tmp_path: Path) -> None:
    data_path = tmp_path / "data"
    with (
        Shim(tmp_path, data_path, traced=True) as shim,
        Nsqd(data_path, "max-bytes-per-file=200", environ=shim.environ) as nsqd,
    ):
        client = nsqd.connect()
        for number in range(20):
            client.publish("kept", b"%d" % number)
            client.publish("deleted", b"%d" % number)
        nsqd.post("/topic/delete?topic=deleted")
        assert nsqd.stop() == 0  # a kill may come between a call and its line of the trace
        replay = Replay(read_trace(shim.trace_path))
    replay.play_until(float("inf"))
    replay.cut(Crash.KILL, random.Random(1), tmp_path / "replayed")
    assert contents(tmp_path / "replayed") == contents(data_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(it.relative_to(folder)): it.read_bytes() for it in folder.rglob("*") if it.is_file()}
