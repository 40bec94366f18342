"""Messages that are published together, in as few MPUBs as nsqd's --max-body-size allows."""

from __future__ import annotations

import pytest

from nsqclient.core.publication import MOST_AT_ONCE, mpub_commands


@pytest.mark.parametrize(("excess", "counts"), [(0, [2, 1]), (1, [1, 2])])
def test_an_mpub_is_filled_to_the_last_byte(excess: int, counts: list[int]) -> None:
    first = 1 << 20
    second = MOST_AT_ONCE - 4 - (4 + first) - 4 + excess  # without the count, and the two sizes
    commands = list(mpub_commands("t", [bytes([1]) * first, bytes([1]) * second, b"last"]))
    assert [count for _, count in commands] == counts
    bodies = [len(command) - len(b"MPUB t\n") - 4 for command, _ in commands]
    assert max(bodies) == (MOST_AT_ONCE if not excess else 4 + (4 + second) + (4 + len(b"last")))
