"""The command that lives many lives: what its options mean."""

from __future__ import annotations

import pytest

from tests.failover.__main__ import STANDBY_AFTER, options_of


@pytest.mark.parametrize(
    ("words", "standby"),
    [
        (["rf1"], ""),
        (["rf1", "--standby"], STANDBY_AFTER),
        (["--standby", "--store=file", "rf1"], STANDBY_AFTER),
        (["rf1", "--standby", "5s"], "5s"),
        (["rf1", "--standby=5s"], "5s"),
    ],
)
def test_a_standby_may_be_told_when_to_take_over(words: list[str], standby: str) -> None:
    assert options_of(words).standby == standby
