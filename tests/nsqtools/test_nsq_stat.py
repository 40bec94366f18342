"""When nsq_stat polls, and what it prints."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from nsqcommon.durations import SECOND
from nsqtools.command import ToolFailed
from nsqtools.nsq_stat import Options, watch
from nsqtools.rates import HEADER, NodeCounters, Poll


class FakeChannel:
    """Gets ten messages more with each poll, which takes a second. A name in `down` does not answer that time."""

    def __init__(self, *, down: tuple[int, ...] = ()) -> None:
        self.polled: list[float] = []
        self._down = down

    async def poll(self) -> tuple[Poll, list[str]]:
        await trio.sleep(1)
        now, number = trio.current_time(), len(self.polled)
        self.polled.append(now)
        if number in self._down:
            return Poll(now, {}, ("a:1",)), ["it is down"]
        return Poll(now, {"a:1": NodeCounters(message_count=10 * number)}), []


def watched(channel: FakeChannel, *, count: int, interval: int = 2) -> list[str]:
    shown = b""

    async def write(data: bytes) -> None:
        nonlocal shown
        shown += data

    async def main() -> None:
        await watch(channel, Options(count=count, interval=interval * SECOND), write)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return shown.decode().splitlines(keepends=True)


def test_a_header_before_24_rows_and_then_before_each_25() -> None:
    lines = watched(FakeChannel(), count=60)
    first, second = HEADER.splitlines(keepends=True)
    headers = [number for number, line in enumerate(lines) if line == first]
    assert headers == [0, 2 + 24, 2 + 24 + 2 + 25]
    assert all(lines[number + 1] == second for number in headers)
    assert len(lines) == 60 + 3 * 2


def test_so_many_rows_are_one_poll_more_and_it_does_not_wait_behind_the_last() -> None:
    channel = FakeChannel()
    lines = watched(channel, count=2)
    assert len(lines) == 2 + 2
    assert [it - channel.polled[0] for it in channel.polled] == [0, 3, 6]


def test_rates_are_by_the_time_that_has_passed() -> None:
    assert watched(FakeChannel(), count=1, interval=4)[-1].split()[0] == "2"  # ten in five seconds, not in four


def test_nothing_to_begin_with_is_the_end() -> None:
    with pytest.raises(ToolFailed, match="it is down"):
        watched(FakeChannel(down=(0,)), count=1)


def test_later_it_goes_on_and_says_without_whom() -> None:
    lines = watched(FakeChannel(down=(1,)), count=3)
    assert "(without a:1)" in lines[2]
    assert lines[4].split()[0] == "3"
