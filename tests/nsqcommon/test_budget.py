"""A full listener: connections that wait for room get it, and the log is not flooded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
import trio.testing

from nsqcommon.budget import Budget

if TYPE_CHECKING:
    import pytest

LIMIT = 30.0  # seconds


def full() -> Budget:
    budget = Budget(1, "TCP")
    budget.take()
    return budget


def test_all_who_wait_for_room_look_when_there_is_some() -> None:
    async def test() -> None:
        budget, told = full(), []

        async def wait(number: int) -> None:
            await budget.wait_for_room()
            told.append(number)

        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, 1)
                nursery.start_soon(wait, 2)
                await trio.testing.wait_all_tasks_blocked()
                assert told == []
                budget.give_back()
        assert sorted(told) == [1, 2]

    trio.run(test)


def test_who_finds_the_room_taken_again_goes_on_waiting() -> None:
    async def test() -> None:
        budget = full()
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(budget.wait_for_room)
                await trio.testing.wait_all_tasks_blocked()
                budget.give_back()
                budget.take()
                await trio.testing.wait_all_tasks_blocked()
                assert len(nursery.child_tasks) == 1
                budget.give_back()

    trio.run(test)


def test_a_door_that_is_full_again_and_again_has_a_few_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        budget = Budget(1, "TCP")
        for _ in range(100):
            budget.take()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(budget.wait_for_room)
                await trio.testing.wait_all_tasks_blocked()
                budget.give_back()

    trio.run(test, clock=trio.testing.MockClock())
    assert len(caplog.records) == 10
