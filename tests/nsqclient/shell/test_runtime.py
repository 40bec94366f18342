"""What the shell relies on holds on trio and on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Final

import pytest
import trio

from nsqclient._trio import OnTrio
from nsqclient.aio import OnAsyncio
from nsqclient.shell.runtime import Flag, Runtime, within

LIMIT: Final = 30.0  # seconds
Test = Callable[[Runtime], Awaitable[None]]


def on_trio(test: Test) -> None:
    async def main() -> None:
        with trio.fail_after(LIMIT):
            await test(OnTrio())

    trio.run(main)


def on_asyncio(test: Test) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            await test(OnAsyncio())

    asyncio.run(main())


on_both = pytest.mark.parametrize("run", [on_trio, on_asyncio])
Run = Callable[[Test], None]


async def answer(it: int) -> int:
    return it


@on_both
def test_scope_ends_its_work_and_nothing_around_it(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        scope = runtime.scope()

        async def work() -> str:
            scope.cancel()
            await runtime.sleep(inf)
            return "done"

        assert await scope.run(work, "cancelled") == "cancelled"
        await runtime.checkpoint()

    run(test)


@on_both
def test_scope_that_was_cancelled_before_lets_its_work_begin(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        begun = []
        scope = runtime.scope()
        scope.cancel()

        async def work() -> None:
            begun.append(True)
            await runtime.sleep(inf)
            begun.append(False)

        await scope.run(work, None)
        assert begun == [True]

    run(test)


@on_both
def test_deadline_of_a_scope_may_move(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        scope = runtime.scope(runtime.clock() + 1000)

        async def work() -> bool:
            scope.set_deadline(runtime.clock())
            await runtime.sleep(inf)
            return True

        assert not await scope.run(work, False)
        assert await within(runtime, LIMIT, partial(answer, 1), 0) == 1
        await within(runtime, 0, partial(runtime.sleep, inf), None)

    run(test)


@on_both
def test_inner_timeout_is_not_taken_for_the_scope_s(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        async def work() -> None:
            raise TimeoutError("its own")

        with pytest.raises(TimeoutError, match="its own"):
            await runtime.scope(runtime.clock() + LIMIT).run(work, None)

    run(test)


@on_both
def test_tasks_that_never_ran_have_their_end(run: Run) -> None:
    """A publish waits for the `finally` of the task that connects."""

    async def test(runtime: Runtime) -> None:
        ended = []

        async def work() -> None:
            try:
                await runtime.sleep(inf)
            finally:
                ended.append(True)

        async with runtime.tasks() as tasks:
            tasks.start(work)
        assert ended == [True]

    run(test)


@on_both
def test_tasks_that_start_while_others_end_have_their_end(run: Run) -> None:
    """An nsqlookupd that answers as the block ends may list another nsqd."""

    async def test(runtime: Runtime) -> None:
        answered = Flag(runtime)
        ended = []

        async def connect() -> None:
            try:
                await runtime.sleep(inf)
            finally:
                ended.append(True)

        async with runtime.tasks() as tasks:

            async def ask() -> None:
                await answered.wait()
                tasks.start(connect)
                await runtime.sleep(inf)

            tasks.start(ask)
            await runtime.checkpoint()
            await runtime.checkpoint()
            answered.set()
        assert ended == [True]

    run(test)


@on_both
def test_cancelled_waits_leave_nothing_in_a_parking_lot(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        lot = runtime.parking_lot()
        for _ in range(3):
            await within(runtime, 0, lot.park, None)
        assert len(lot) == 0

    run(test)


@on_both
def test_flag_wakes_all_and_stays_set(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        flag = Flag(runtime)

        async def set_it() -> None:
            await runtime.checkpoint()
            flag.set()

        works: list[Callable[[], Awaitable[None]]] = [flag.wait, flag.wait, set_it]
        await runtime.together(works)
        await flag.wait()
        flag.clear()
        assert not flag.is_set

    run(test)


@on_both
def test_error_of_one_comes_out_alone_and_ends_the_others(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        async def fail() -> None:
            await runtime.checkpoint()
            raise ValueError("one")

        works: list[Callable[[], Awaitable[None]]] = [partial(runtime.sleep, inf), fail]
        with pytest.raises(ValueError, match="one"):
            await runtime.together(works)
        assert await runtime.together([partial(answer, 1), partial(answer, 2)]) == [1, 2]

    run(test)


@on_both
def test_first_of_several_errors_stands_for_all(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        async def fail() -> None:
            raise ValueError("the same of each")

        with pytest.raises(ValueError, match="the same"):
            await runtime.together([fail, fail])

    run(test)


@on_both
def test_error_while_a_scope_ends_its_work_comes_out_alone(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        async def fail() -> None:
            try:
                await runtime.sleep(inf)
            finally:
                raise ValueError("one")

        works: list[Callable[[], Awaitable[None]]] = [partial(runtime.sleep, inf), fail]
        with pytest.raises(ValueError, match="one"):
            await runtime.scope(runtime.clock()).run(partial(runtime.together, works), None)

    run(test)


@on_both
def test_work_beside_a_block_ends_with_it(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        ended = Flag(runtime)

        async def work() -> None:
            try:
                await runtime.sleep(inf)
            finally:
                ended.set()

        async with runtime.beside(work, inf):
            await runtime.checkpoint()
            await runtime.checkpoint()
        await ended.wait()

    run(test)


def test_timeouts_are_the_loop_s_own() -> None:
    async def test(runtime: Runtime) -> None:
        await runtime.fail_after(0, partial(runtime.sleep, inf))

    with pytest.raises(trio.TooSlowError):
        on_trio(test)
    with pytest.raises(TimeoutError):
        on_asyncio(test)
