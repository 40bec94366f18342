"""A short form of `python -m tests.simulation abandoned`: one topic must not take the disk from the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.simulation import abandoned
from tests.simulation.abandoned import TOPIC, Outcome
from tests.support.lengths import sized
from tests.support.small_disk import SmallDisk, mounted_for_test

SIZE: Final = 16 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted_for_test(tmp_path / "disk", SIZE) as small:
        yield small


def run(disk: SmallDisk, folder: Path, policy: str, *, times: float) -> Outcome:
    return abandoned.run(disk, folder, policy, size=SIZE, channels=10, times=times, say=lambda line: None)


@pytest.mark.parametrize(
    ("policy", "times"),
    [
        ("channel", sized(short=3.0, long=10.0)),
        pytest.param("messages", 2.0, marks=pytest.mark.slow),
        pytest.param("topic", 2.0, marks=pytest.mark.slow),
    ],
)
def test_an_abandoned_channel_with_a_bound_takes_the_disk_from_nobody(
    disk: SmallDisk, tmp_path: Path, policy: str, times: float
) -> None:
    outcome = run(disk, tmp_path, policy, times=times)
    assert outcome.is_bounded, outcome
    assert not outcome.refused, outcome
    assert outcome.offered >= times * SIZE


def test_a_bound_that_rejects_refuses_its_own_publishers_alone(disk: SmallDisk, tmp_path: Path) -> None:
    outcome = run(disk, tmp_path, "reject", times=1.0)
    assert outcome.is_bounded, outcome
    assert set(outcome.refused) == {TOPIC}


def test_an_abandoned_channel_without_a_bound_stops_everybody(disk: SmallDisk, tmp_path: Path) -> None:
    outcome = run(disk, tmp_path, "none", times=2.0)
    assert outcome.refused_elsewhere
    assert outcome.most > SIZE // 2
