"""A wake-up reaches its one task once, whenever it is set, and a cancelled wait does not lose it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps

import trio
import trio.testing

from nsqcommon.wakeup import Wakeup


def in_trio(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


async def is_due(wakeup: Wakeup) -> bool:
    with trio.move_on_after(1.0):
        await wakeup.wait()
        return True
    return False


@in_trio
async def test_what_was_set_before_wakes_once() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    assert await is_due(wakeup)
    assert not await is_due(wakeup)


@in_trio
async def test_a_waiting_task_is_woken_once() -> None:
    wakeup = Wakeup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.wait)
        await trio.testing.wait_all_tasks_blocked()
        wakeup.set()
    assert not await is_due(wakeup)


@in_trio
async def test_a_cancelled_wait_leaves_what_was_set() -> None:
    wakeup = Wakeup()
    wakeup.set()
    with trio.move_on_after(0):
        await wakeup.wait()
    assert await is_due(wakeup)


@in_trio
async def test_a_wait_that_was_cancelled_makes_way_for_the_next() -> None:
    wakeup = Wakeup()
    assert not await is_due(wakeup)
    wakeup.set()
    assert await is_due(wakeup)


@in_trio
async def test_a_cleared_wakeup_is_not_due() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.clear()
    assert not await is_due(wakeup)
