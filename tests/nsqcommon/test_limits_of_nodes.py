from __future__ import annotations

import pytest

from nsqcommon.limits_of_nodes import sum_in_words


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ([3], "3"),
        ([0], "no limit"),
        ([0, 0], "no limit"),
        ([3, 3, 3], "3 on each node, up to 9 on these three"),
        ([1500, 1500], "1,500 on each node, up to 3,000 on these two"),
        ([3, 5, 3], "3 to 5 on each node, up to 11 on these three"),
        ([3, 0, 3], "3 on two of these three, no limit on the others"),
        ([1] * 13, "1 on each node, up to 13 on these 13"),
    ],
)
def test_what_nodes_allow_together(limits: list[int], words: str) -> None:
    assert sum_in_words(limits) == words


def test_the_nodes_may_be_named_otherwise() -> None:
    assert sum_in_words([3, 3], "{} nodes") == "3 on each node, up to 6 on two nodes"
