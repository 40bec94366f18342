"""The deadlines of a client."""

from __future__ import annotations

from math import inf

import pytest

from nsqd.client.keepalive import KeepAlive


@pytest.fixture
def kept() -> KeepAlive:
    keep_alive = KeepAlive()
    keep_alive.start_heartbeats(100.0, 1000)
    keep_alive.expect_commands(100.0, 1000)
    return keep_alive


def test_nothing_is_due_before_it_starts() -> None:
    keep_alive = KeepAlive()
    assert keep_alive.next_deadline == inf
    assert not keep_alive.take_heartbeat(1e9)
    assert not keep_alive.is_too_late(1e9)


def test_heartbeats_come_at_each_interval(kept: KeepAlive) -> None:
    assert not kept.take_heartbeat(100.9)
    assert kept.take_heartbeat(101.0)
    assert not kept.take_heartbeat(101.9)
    assert kept.take_heartbeat(102.1)
    assert kept.next_deadline == 102.0  # the deadline of the next command; the heartbeat comes at 103, not at 103.1
    assert kept.take_heartbeat(103.0)


def test_missed_heartbeats_are_not_made_up_for(kept: KeepAlive) -> None:
    assert kept.take_heartbeat(110.0)
    assert kept.take_heartbeat(110.0)
    assert not kept.take_heartbeat(110.0)


def test_silence_of_two_intervals_is_too_long(kept: KeepAlive) -> None:
    assert not kept.is_too_late(101.9)
    assert kept.is_too_late(102.0)


def test_a_command_gives_the_client_its_time_anew(kept: KeepAlive) -> None:
    kept.heard(101.5)
    assert not kept.is_too_late(103.4)
    assert kept.is_too_late(103.5)


def test_a_client_that_we_keep_waiting_is_never_too_late(kept: KeepAlive) -> None:
    kept.excuse()
    assert not kept.is_too_late(1e9)
    assert kept.next_deadline == 101.0
    kept.heard(200.0)
    assert kept.is_too_late(202.0)


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_without_heartbeats_nothing_is_ever_due(kept: KeepAlive, interval_ms: int) -> None:
    kept.start_heartbeats(100.0, interval_ms)
    kept.expect_commands(100.0, interval_ms)
    assert kept.next_deadline == inf


def test_nothing_is_due_when_it_has_stopped(kept: KeepAlive) -> None:
    kept.stop()
    assert kept.next_deadline == inf
