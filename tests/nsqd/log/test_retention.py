from __future__ import annotations

import pytest

from nsqd.log.retention import AgeClock, Retention
from tests.support.log_settings import log_settings

SECOND = 1_000_000_000


def test_without_retention_nothing_is_wanted() -> None:
    assert not Retention().wants(newest=0, bytes_behind=0, timestamp=0)


@pytest.mark.parametrize(("age", "wanted"), [(-5, True), (9, True), (10, False), (11, False)])
def test_time_alone(age: int, wanted: bool) -> None:
    retention = Retention(time=10 * SECOND)
    assert retention.wants(newest=100 * SECOND, bytes_behind=1 << 60, timestamp=(100 + age) * SECOND) is wanted


@pytest.mark.parametrize(("bytes_behind", "wanted"), [(0, True), (50, True), (51, False)])
def test_bytes_alone(bytes_behind: int, wanted: bool) -> None:
    assert Retention(bytes=50).wants(newest=0, bytes_behind=bytes_behind, timestamp=1 << 62) is wanted


@pytest.mark.parametrize(
    ("age", "bytes_behind", "wanted"), [(9, 50, True), (10, 50, False), (9, 51, False), (10, 51, False)]
)
def test_of_both_either_lets_go(age: int, bytes_behind: int, wanted: bool) -> None:
    retention = Retention(time=10 * SECOND, bytes=50)
    assert retention.wants(newest=0, bytes_behind=bytes_behind, timestamp=age * SECOND) is wanted


def test_topic_of_its_own_retention_takes_nothing_of_the_general_one() -> None:
    own = Retention(bytes=5)
    settings = log_settings(retention=Retention(time=SECOND), topic_retention={"t": own, "u": Retention()})
    assert settings.retention_of("t") == own
    assert settings.retention_of("u") == Retention()
    assert settings.retention_of("other") == Retention(time=SECOND)


@pytest.mark.parametrize(
    ("retention", "interval"),
    [
        (Retention(), None),
        (Retention(bytes=1), 60.0),
        (Retention(time=SECOND), 1.0),
        (Retention(time=100 * SECOND), 10.0),
        (Retention(time=86_400 * SECOND), 60.0),
    ],
)
def test_how_often_is_looked(retention: Retention, interval: float | None) -> None:
    assert log_settings(retention=retention).retention_interval == interval


class Clocks:
    def __init__(self) -> None:
        self.wall = 1000 * SECOND
        self.monotonic = 50.0
        self.ages = AgeClock(lambda: self.wall, lambda: self.monotonic)

    def pass_time(self, seconds: int) -> int:
        self.wall += seconds * SECOND
        self.monotonic += seconds
        return self.ages()


def test_age_clock_goes_with_the_wall_clock() -> None:
    clocks = Clocks()
    assert clocks.pass_time(7) == 1007 * SECOND


def test_age_clock_catches_up_with_a_step_forward_slowly() -> None:
    clocks = Clocks()
    clocks.wall += 10 * SECOND
    assert clocks.pass_time(0) == 1000 * SECOND
    assert clocks.pass_time(4) == 1008 * SECOND
    assert clocks.pass_time(6) == 1020 * SECOND
    assert clocks.pass_time(1) == 1021 * SECOND


def test_age_clock_follows_a_step_back_at_once() -> None:
    clocks = Clocks()
    clocks.wall -= 100 * SECOND
    assert clocks.pass_time(1) == 901 * SECOND
