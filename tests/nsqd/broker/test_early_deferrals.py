"""What a topic knows of messages that no channel has got yet, compared with plain dictionaries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from nsqd.broker.early_deferrals import EarlyDeferrals

STEP = st.tuples(st.sampled_from(("cancel", "cut", "pass over")), st.integers(0, 15))


def delays(parked: EarlyDeferrals) -> dict[int, int]:
    return {it: delay for start, count, delay in parked.in_order() for it in range(start, start + count)}


@given(st.lists(STEP, max_size=8))
def test_what_is_taken_back_loses_its_delay(steps: list[tuple[str, int]]) -> None:
    parked, expected = EarlyDeferrals(), {3: 10, 4: 10, 5: 10, 8: 20, 9: 20}
    parked.add(3, 3, 10)
    parked.add(8, 2, 20)
    begins = {3: 3, 4: 3, 5: 3, 8: 8, 9: 8}  # a tail never lies within a batch
    for word, number in steps:
        if word == "cancel":
            assert (number in parked.cancel(BitMap64([number]))) == (expected.get(number) != -1)
            expected[number] = -1
        elif word == "pass over":
            parked.pass_over(number)
            expected = {it: delay for it, delay in expected.items() if it >= number}
        elif word == "cut" and begins.get(number, number) == number:
            changed = parked.cut(number)
            rest = {it: delay for it, delay in expected.items() if it < number}
            assert changed == (rest != expected)
            expected = rest
        assert delays(parked) == expected
        assert bool(parked) == bool(expected)
        assert all(parked.holds(it) == (expected.get(it) == -1) for it in range(16))
    ordered = [start for start, _, _ in parked.in_order()]
    assert ordered == sorted(ordered)
    copied = parked.copy()
    parked.clear()
    assert (delays(copied), delays(parked)) == (expected, {})


def test_twelve_thousand_batches_are_passed_over_and_copied_in_pieces() -> None:
    parked = EarlyDeferrals()
    for start in range(12_000):
        parked.add(start, 1, 10)
    copied = parked.copy()
    parked.add(12_000, 2, 20)

    assert [len(piece) for piece in parked.pass_over(7_000)] == [5_000]
    assert list(parked.batches) == [*[(it, 1, 10) for it in range(7_000, 12_000)], (12_000, 2, 20)]
    assert list(copied.batches) == [(it, 1, 10) for it in range(12_000)]
    assert parked.cut(11_000)
    assert list(parked.batches) == [(it, 1, 10) for it in range(7_000, 11_000)]
    assert [len(piece) for piece in parked.clear()] == [3_000, 1_000]
    assert not parked
