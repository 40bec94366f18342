"""Pushing to statsd: when, over how long, and what happens to the rest at the end. Time is the mock clock's."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from nsqd.stats.statsd_push import push_to_statsd
from tests.support.jumping import run_with_threads


async def two() -> list[bytes]:
    return [b"a", b"b"]


async def three() -> list[bytes]:
    return [b"a", b"b", b"c"]


@pytest.fixture
def sink() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


def address_of(sink: socket.socket) -> str:
    return f"127.0.0.1:{sink.getsockname()[1]}"


def received(sink: socket.socket) -> list[bytes]:
    packets = []
    while True:
        try:
            packets.append(sink.recv(65536))
        except BlockingIOError:
            return packets


async def until(seconds: float) -> None:
    await trio.sleep_until(seconds)
    await trio.testing.wait_all_tasks_blocked(0.01)


def test_packets_are_spread_over_the_interval_but_its_last_second(sink: socket.socket) -> None:
    async def main() -> None:
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(push_to_statsd, address_of(sink), 10.0, three)
            with sink:
                await until(start + 9.9)
                assert received(sink) == []
                await until(start + 10.1)
                assert received(sink) == [b"a"]
                await until(start + 13.1)
                assert received(sink) == [b"b"]
                await until(start + 16.1)
                assert received(sink) == [b"c"]
                await until(start + 20.1)
                assert received(sink) == [b"a"]
            nursery.cancel_scope.cancel()

    run_with_threads(main)


def test_at_the_end_the_rest_goes_at_once(sink: socket.socket) -> None:
    async def main() -> None:
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(push_to_statsd, address_of(sink), 10.0, three)
            await until(start + 10.1)
            nursery.cancel_scope.cancel()
        with sink:
            assert received(sink) == [b"a", b"b", b"c"]

    run_with_threads(main)


@pytest.mark.parametrize("interval", [1.0, 0.5])
def test_short_intervals_push_everything_at_once(sink: socket.socket, interval: float) -> None:
    async def main() -> None:
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(push_to_statsd, address_of(sink), interval, two)
            await until(start + interval * 1.1)
            nursery.cancel_scope.cancel()
        with sink:
            assert received(sink) == [b"a", b"b"]

    run_with_threads(main)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "two..dots", "x" * 64 + ".example", "host:99999", "a:b"])
def test_nobody_there_is_a_line_in_the_log_and_another_try(
    caplog: pytest.LogCaptureFixture, sink: socket.socket, host: str
) -> None:
    sink.close()
    asked = []

    async def take_packets() -> list[bytes]:
        asked.append(1)
        return []

    async def main() -> None:
        with trio.move_on_after(35):
            await push_to_statsd(f"{host}:8125", 10.0, take_packets)

    run_with_threads(main)
    assert asked == []
    assert f"STATSD: failed to dial {host}:8125" in caplog.text
