from __future__ import annotations

from nsqjobs.touching import Touching


class FakeMessage:
    def __init__(self, timeout: float, *, most: float = 900.0) -> None:
        self.received_at = 0.0
        self.deadline = timeout
        self.hard_deadline = most
        self.touches = 0

    def touch(self) -> None:
        self.touches += 1


def test_the_first_message_brings_the_next_look_forward() -> None:
    touching = Touching()
    assert touching.pause == 1.0
    assert touching.arrived(FakeMessage(1.0))
    assert touching.pause == 0.125
    assert not touching.arrived(FakeMessage(1.0))


def test_the_shortest_time_of_all_nsqds_counts() -> None:
    touching = Touching()
    touching.arrived(FakeMessage(60.0))
    touching.arrived(FakeMessage(4.0))
    assert not touching.arrived(FakeMessage(60.0))
    assert touching.pause == 0.5


def test_no_look_comes_too_soon() -> None:
    touching = Touching()
    touching.arrived(FakeMessage(0.001))
    assert touching.pause == 0.05


def test_a_message_is_touched_when_a_third_of_its_time_is_over() -> None:
    touching, message = Touching(), FakeMessage(60.0)
    touching.arrived(message)
    assert touching.touch_in_time(message, 19.0)
    assert message.touches == 0
    assert touching.touch_in_time(message, 21.0)
    assert message.touches == 1


def test_nsqd_grants_no_more_than_its_longest_time() -> None:
    touching, message = Touching(), FakeMessage(900.0)
    touching.arrived(message)
    assert touching.touch_in_time(message, 899.0)
    assert not touching.touch_in_time(message, 900.0)
    assert message.touches == 0
