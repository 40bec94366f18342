"""Calls in threads that end with the process, whatever they wait for."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import wait
from threading import Event

import pytest

from nsqd.remote.daemon_threads import DaemonThreads

LIMIT = 30.0


def test_each_call_has_its_result() -> None:
    with DaemonThreads[int](3, name="test") as threads:
        futures = [threads.submit(pow, 2, it) for it in range(20)]
        assert [it.result(LIMIT) for it in futures] == [2**it for it in range(20)]


def test_an_error_is_the_result_of_its_call() -> None:
    with DaemonThreads[int](1, name="test") as threads:
        with pytest.raises(ZeroDivisionError):
            threads.submit(divmod, 1, 0).result(LIMIT)
        assert threads.submit(pow, 2, 3).result(LIMIT) == 8, "the thread goes on"


def test_it_is_left_while_a_call_hangs_and_later_calls_do_not_begin() -> None:
    answer, began = Event(), Event()

    def hang() -> bool:
        began.set()
        return answer.wait(LIMIT)

    with DaemonThreads[bool](1, name="test") as threads:
        first, second = threads.submit(hang), threads.submit(hang)
        assert began.wait(LIMIT)
    assert (first.done(), second.cancelled()) == (False, True)
    answer.set()
    assert not wait([first], LIMIT).not_done


def test_the_interpreter_exits_while_a_call_hangs() -> None:
    code = """
from threading import Event
from nsqd.remote.daemon_threads import DaemonThreads
with DaemonThreads(1, name="test") as threads:
    threads.submit(Event().wait)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=LIMIT, check=False).returncode == 0
