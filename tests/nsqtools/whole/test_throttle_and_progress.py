"""Records, throttle, status lines and progress, which several tools use."""

from __future__ import annotations

import io
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from nsqtools.progress import Progress, bar, duration, progress_text, with_progress
from nsqtools.status import StatusLines, StatusRing
from nsqtools.throttle import Throttle
from nsqtools.to_nsq import RecordSplitter


@given(st.binary(max_size=60), st.randoms())
def test_pieces_do_not_matter_to_records(stream: bytes, random: Random) -> None:
    splitter, rest = RecordSplitter(b"\n"), stream
    found: list[bytes] = []
    while rest:
        cut = random.randint(1, len(rest))
        found += splitter.feed(rest[:cut])
        rest = rest[cut:]
    assert [*found, splitter.end()] == stream.split(b"\n")


def waits(rate: float, times: list[tuple[float, int]]) -> list[float]:
    throttle = Throttle(rate, 0.0)
    return [round(throttle.take(count, now), 6) for now, count in times]


def test_one_after_the_other_at_the_rate() -> None:
    throttle, now = Throttle(5, 0.0), 0.0
    for _ in range(12):
        now += throttle.take(1, now)
    assert now == pytest.approx(2.4)


def test_after_a_rest_as_many_as_in_a_second_go_at_once() -> None:
    assert waits(5, [(0.0, 1), (100.0, 1), (100.0, 1), (100.0, 1), (100.0, 1), (100.0, 1)]) == [0.2, 0, 0, 0, 0, 0.2]


def test_many_at_once_are_waited_for() -> None:
    assert waits(10, [(0.0, 20)]) == [2.0]


def test_a_line_for_each_ring() -> None:
    ring = StatusRing(5, "aggregate")
    lines = [ring.add(seconds / 1000) for seconds in range(1, 12)]
    assert [number for number, line in enumerate(lines, 1) if line] == [6, 11]
    assert lines[5] == "[aggregate]: finished 5 - 99th: 5.00ms - 95th: 5.00ms - avg: 3.00ms"
    assert lines[10] == "[aggregate]: finished 5 - 99th: 10.00ms - 95th: 10.00ms - avg: 8.00ms"


def test_percentiles_of_many() -> None:
    ring = StatusRing(1000, "x")
    for number in range(1000):
        assert ring.add(number / 1000) is None
    assert ring.add(0) == "[x]: finished 1000 - 99th: 991.00ms - 95th: 951.00ms - avg: 499.50ms"


def test_failures_are_counted_apart() -> None:
    ring = StatusRing(1, "x")
    ring.failed()
    ring.failed()
    ring.add(0.001)
    assert ring.add(0.001) == "[x]: finished 1 - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms - failed: 2"
    assert ring.add(0.001) == "[x]: finished 1 - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms"


def test_one_target_has_one_line_and_several_have_one_each() -> None:
    one, two = StatusLines(1, ["a"]), StatusLines(1, ["a", "b"])
    for lines in (one, two):
        lines.add(0, 0.001)
    assert [line.split(":")[0] for line in one.add(0, 0.001)] == ["[aggregate]"]
    assert [line.split(":")[0] for line in two.add(0, 0.001)] == ["[aggregate]", "[a]"]
    assert [line.split(":")[0] for line in two.add(1, 0.001)] == ["[aggregate]"]
    warning = "Warning: use more than 100 status values for accurate percentiles (configured with 1)"
    assert (one.warnings, two.warnings) == ([warning], [warning] * 3)
    assert StatusLines(100, ["a"]).warnings == []


def test_no_status_where_none_is_asked_for() -> None:
    lines = StatusLines(0, ["a", "b"])
    lines.failed(1)
    assert (lines.add(0, 1.0), lines.warnings) == ([], [])


def test_how_progress_looks() -> None:
    assert bar(500, 1000, 4.0) == "[===============               ]  50%  500/1000 messages  125/s  4s left"
    assert bar(0, 0, 0.0).startswith("[==============================] 100%  0/0 messages")
    assert progress_text(10, 10, 2.0) == "10/10 messages  5/s"
    assert [duration(it) for it in (0.4, 59, 61, 3600 * 2 + 120)] == ["0s", "59s", "1m01s", "2h02m"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "quiet", "shown"),
    [
        (io.StringIO(), False, "50/100 messages  5/s  10s left\n100/100 messages  5/s\n"),
        (io.StringIO(), True, ""),
        (Terminal(), True, ""),
    ],
)
def test_a_line_now_and_then_where_there_is_no_terminal(stream: io.StringIO, quiet: bool, shown: str) -> None:
    progress = Progress(100, quiet=quiet, stream=stream)

    async def work() -> None:
        await trio.sleep(5)
        progress.done = 50
        await trio.sleep(10)
        progress.done = 100
        await trio.sleep(6)

    trio.run(with_progress, progress, work, clock=MockClock(autojump_threshold=0))
    assert stream.getvalue() == shown


def test_a_bar_on_a_terminal_and_the_last_state_stays() -> None:
    stream = Terminal()
    progress = Progress(4, quiet=False, stream=stream)

    async def work() -> str:
        progress.done = 2
        await trio.sleep(0.3)
        progress.done = 4
        return "result"

    assert trio.run(with_progress, progress, work, clock=MockClock(autojump_threshold=0)) == "result"
    first, last = stream.getvalue().split("\r")[1:]
    assert "] " in first
    assert " 50%" in first
    assert "100%" in last
    assert last.endswith("\n")
