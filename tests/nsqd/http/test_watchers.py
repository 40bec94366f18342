"""An owner knows for some minutes which standbys have asked for it."""

from __future__ import annotations

import pytest

from nsqd.http.watchers import KEPT_FOR, MOST, Watchers


def test_a_standby_that_asks_no_more_is_forgotten() -> None:
    watchers = Watchers()
    watchers.asked("b:4151", 0.0)
    watchers.asked("a:4151", 1.0)
    watchers.asked("b:4151", KEPT_FOR)
    assert watchers.addresses(KEPT_FOR) == ["a:4151", "b:4151"]
    assert watchers.addresses(1.0 + KEPT_FOR) == ["b:4151"]


@pytest.mark.parametrize("address", ["", "a" * 256, "<script>", "a:4151\n", "ä"])
def test_what_is_no_address_is_ignored(address: str) -> None:
    watchers = Watchers()
    watchers.asked(address, 0.0)
    assert watchers.addresses(0.0) == []


def test_made_up_addresses_are_few() -> None:
    watchers = Watchers()
    for number in range(100):
        watchers.asked(f"b:{number}", float(number))
    assert sorted(watchers.addresses(100.0)) == sorted(f"b:{100 - it}" for it in range(1, MOST + 1))
