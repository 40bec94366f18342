"""All incomplete bodies together have a bound, and those that began first make room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.unfinished import UnfinishedBodies


class Holder:
    def __init__(self) -> None:
        self.given_up = 0

    def give_up_body(self) -> None:
        self.given_up += 1


def test_the_body_that_began_first_makes_room() -> None:
    bodies = UnfinishedBodies(100)
    first, second, third = Holder(), Holder(), Holder()
    bodies.hold(first, 10)
    bodies.hold(second, 60)
    bodies.hold(first, 40)  # it has grown, but still is the one that began first
    assert bodies.total == 100
    bodies.hold(third, 1)
    assert (first.given_up, second.given_up, third.given_up) == (1, 0, 0)
    assert bodies.total == 61


def test_a_body_that_is_alone_may_have_any_size() -> None:
    bodies, only = UnfinishedBodies(100), Holder()
    bodies.hold(only, 1000)
    assert only.given_up == 0
    bodies.hold(Holder(), 1)
    assert only.given_up == 1


def test_one_that_grows_too_much_gives_itself_up_when_it_began_first() -> None:
    bodies, first, second = UnfinishedBodies(100), Holder(), Holder()
    bodies.hold(first, 50)
    bodies.hold(second, 50)
    bodies.hold(first, 51)
    assert (first.given_up, second.given_up, bodies.total) == (1, 0, 50)


def test_a_body_that_is_whole_counts_no_more() -> None:
    bodies, first, second = UnfinishedBodies(100), Holder(), Holder()
    bodies.hold(first, 90)
    bodies.release(first)
    bodies.release(first)
    bodies.hold(second, 90)
    assert (first.given_up, bodies.total) == (0, 90)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 70))))
def test_the_sum_is_kept_whatever_happens(steps: list[tuple[int, int]]) -> None:
    bodies = UnfinishedBodies(100)
    holders = [Holder() for _ in range(6)]
    held: dict[int, int] = {}
    for number, size in steps:
        before = [holder.given_up for holder in holders]
        if size:
            held[number] = size
            bodies.hold(holders[number], size)
        else:
            held.pop(number, None)
            bodies.release(holders[number])
        for other, count in enumerate(before):
            if holders[other].given_up > count:
                del held[other]
        assert bodies.total == sum(held.values())
        assert bodies.total <= 100 or len(held) == 1
