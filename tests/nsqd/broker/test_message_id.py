"""Ids: one counter that never goes back, whatever happens to the clock and in crashes."""

from __future__ import annotations

from nsqd.broker.message_id import COUNTER_BITS, RESERVATION, IdSource

START = 1_795_000_000_000_000_000


class Reservations:
    def __init__(self) -> None:
        self.until = 0
        self.calls = 0

    def __call__(self, until: int) -> None:
        self.until = until
        self.calls += 1


def source(reservations: Reservations, *, node: int = 0, timestamp: int = START) -> IdSource:
    return IdSource(node, timestamp=timestamp, reserved=reservations.until, reserve=reservations)


def test_ids_begin_at_the_clock_and_count() -> None:
    ids = source(Reservations())
    assert [ids.take(3), ids.take(1), ids.take(1)] == [START // 1000, START // 1000 + 3, START // 1000 + 4]


def test_node_stands_in_the_top_bits() -> None:
    assert source(Reservations(), node=1023).take(1) >> COUNTER_BITS == 1023


def test_no_id_is_given_that_is_not_reserved() -> None:
    reservations = Reservations()
    ids = source(reservations)
    for count in (1, RESERVATION - 1, 1, 3 * RESERVATION, 5):
        assert ids.take(count) + count <= reservations.until


def test_reservations_are_rare() -> None:
    reservations = Reservations()
    ids = source(reservations)
    for _ in range(10_000):
        ids.take(200)
    assert reservations.calls == 1


def test_clock_that_was_set_back_repeats_nothing() -> None:
    reservations = Reservations()
    last = source(reservations).take(100) + 99
    assert source(reservations, timestamp=START - 10**18).take(1) > last


def test_ids_are_reserved_before_the_first_is_asked_for() -> None:
    reservations = Reservations()
    source(reservations)
    assert reservations.calls == 1
