from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio

from nsqclient import Message
from nsqjobs.held import HeldMessage, Holding


class FakeMessage:
    """A message whose answers are written down."""

    topic = "orders"

    def __init__(self, *, can_bury: bool = True, deadline: float = 60.0, is_broken: bool = False) -> None:
        self.can_bury = can_bury
        self.received_at = 0.0
        self.deadline = deadline
        self.hard_deadline = 900.0
        self.answered = "no"
        self.said: list[Any] = []
        self._is_broken = is_broken

    def finish(self) -> None:
        if self._is_broken:
            raise RuntimeError("broken")
        self.said.append("finish")

    def requeue(self, delay: float | None = None, **options: bool) -> None:
        self.said.append(("requeue", delay, options))

    def bury(self, reason: str) -> None:
        self.said.append(("bury", reason))

    def touch(self) -> None:
        self.said.append("touch")


class Thread:
    """The trio thread: what is to run in it."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.holding = Holding(self.soon.append)

    def hold(self, message: FakeMessage) -> HeldMessage:
        return self.holding.hold(cast(Message, message))


def test_answers_wait_for_the_trio_thread() -> None:
    thread = Thread()
    first, second = FakeMessage(), FakeMessage()
    thread.hold(first).finish()
    thread.hold(second).give_back(2.0)
    assert not first.said
    assert len(thread.holding) == 2
    thread.soon[0]()
    assert first.said == ["finish"]
    assert second.said == [("requeue", 2.0, {"backoff": False, "count": False})]
    assert len(thread.holding) == 0


def test_a_message_that_nsqd_cannot_bury_is_requeued() -> None:
    thread = Thread()
    kept, thrown = FakeMessage(), FakeMessage(can_bury=False)
    thread.hold(kept).bury("broken")
    thread.hold(thrown).bury("broken")
    thread.holding.settle()
    assert kept.said == [("bury", "broken")]
    assert thrown.said == [("requeue", None, {"backoff": False})]


def test_an_answer_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    thread = Thread()
    good = FakeMessage()
    thread.hold(FakeMessage(is_broken=True)).finish()
    thread.hold(good).finish()
    thread.holding.settle()
    assert good.said == ["finish"]
    assert "could not be answered" in caplog.text


def test_answers_after_the_end_are_without_effect() -> None:
    def ended(settle: Callable[[], None]) -> None:
        raise trio.RunFinishedError

    holding = Holding(ended)
    holding.hold(cast(Message, FakeMessage())).finish()


def test_a_message_that_waits_long_for_a_thread_is_given_back_uncounted() -> None:
    thread = Thread()
    waits, runs = FakeMessage(), FakeMessage()
    waiting, running = thread.hold(waits), thread.hold(runs)
    assert running.claim()
    for now in (30.0, 31.0):
        waiting.give_back_in_time(now)
        running.give_back_in_time(now)
    thread.holding.settle()
    assert waits.said == [("requeue", 0.0, {"backoff": False, "count": False})]
    assert not runs.said
    assert not waiting.claim()


def test_a_message_is_touched_when_a_third_of_its_time_is_over() -> None:
    message = FakeMessage(deadline=60.0)
    held = Thread().hold(message)
    held.touch_in_time(19.0)
    assert not message.said
    held.touch_in_time(21.0)
    assert message.said == ["touch"]


def test_a_job_that_runs_too_long_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    message = FakeMessage(deadline=900.0)
    held = Thread().hold(message)
    with caplog.at_level(logging.WARNING):
        held.touch_in_time(899.0)
        held.touch_in_time(901.0)
        held.touch_in_time(902.0)
    assert not message.said
    assert caplog.text.count("--max-msg-timeout") == 1
