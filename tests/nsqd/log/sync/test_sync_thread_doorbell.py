"""A descriptor that wakes a loop, with eventfd and without."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from nsqd.log.sync.sync_thread import Doorbell, EventfdDoorbell, PipeDoorbell, make_doorbell
from tests.support.open_files import descriptors


@pytest.fixture(params=[EventfdDoorbell, PipeDoorbell])
def doorbell(request: pytest.FixtureRequest) -> Iterator[Doorbell]:
    made: Doorbell = request.param()
    yield made
    made.close()


def is_readable(doorbell: Doorbell) -> bool:
    return bool(select.select([doorbell.descriptor], [], [], 0)[0])


def test_it_rings_until_it_is_answered(doorbell: Doorbell) -> None:
    assert not is_readable(doorbell)
    doorbell.ring()
    assert is_readable(doorbell)
    doorbell.answer()
    assert not is_readable(doorbell)
    doorbell.ring()
    assert is_readable(doorbell)


def test_one_answer_is_enough_for_several_rings(doorbell: Doorbell) -> None:
    for _ in range(3):
        doorbell.ring()
    doorbell.answer()
    assert not is_readable(doorbell)


def test_nobody_waits_at_a_bell_that_is_not_answered(doorbell: Doorbell) -> None:
    for _ in range(100_000):  # more than a pipe holds
        doorbell.ring()
    assert is_readable(doorbell)


@pytest.mark.parametrize(("kind", "count"), [(EventfdDoorbell, 1), (PipeDoorbell, 2)])
def test_it_leaves_no_descriptor_behind(kind: type[Doorbell], count: int) -> None:
    before = descriptors()
    doorbell = kind()
    its = descriptors() - before
    doorbell.close()
    assert len(its) == count
    assert not its & descriptors()


@pytest.mark.parametrize("has_eventfd", [True, False])
def test_eventfd_is_used_where_there_is_one(has_eventfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_eventfd:
        monkeypatch.delattr(os, "eventfd")
    doorbell = make_doorbell()
    doorbell.close()
    assert type(doorbell) is (EventfdDoorbell if has_eventfd else PipeDoorbell)
