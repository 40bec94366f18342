"""The clock of `run_with_threads` stands while a thread works, and jumps as soon as none does."""

from __future__ import annotations

from threading import Thread

import trio

from tests.support.jumping import hold_clock_while, run_with_threads

HOUR = 3600.0


def work() -> int:
    """Take longer than a loop takes to notice that it has nothing to do."""
    return sum(range(1_000_000))


def test_a_deadline_does_not_pass_while_a_thread_works() -> None:
    async def test() -> None:
        began = trio.current_time()
        with trio.fail_after(1.0):
            await trio.to_thread.run_sync(work)
        assert trio.current_time() == began
        await trio.sleep(HOUR)
        assert trio.current_time() >= began + HOUR

    run_with_threads(test)


def test_a_deadline_does_not_pass_while_a_thread_of_another_kind_works() -> None:
    async def test() -> None:
        is_busy, done = True, trio.Event()
        token = trio.lowlevel.current_trio_token()

        def end() -> None:
            nonlocal is_busy
            is_busy = False
            done.set()

        def run() -> None:
            work()
            token.run_sync_soon(end)

        hold_clock_while(lambda: is_busy)
        thread = Thread(target=run)
        thread.start()
        with trio.fail_after(1.0):
            await done.wait()
        thread.join()
        await trio.sleep(HOUR)

    run_with_threads(test)
