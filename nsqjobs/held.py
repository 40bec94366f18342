"""Messages in the hands of worker threads: answers, and touches while the job runs.

Threads only queue an answer. The trio thread takes all queued answers and sends them to nsqd together, because
switching threads costs more than an answer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final

import trio

from nsqjobs.touching import Touching

if TYPE_CHECKING:
    from nsqclient import Message

log = logging.getLogger(__name__)

_LONGEST_AT_HAND: Final = 30.0  # seconds that a message may wait here for a thread; another worker may be idle


class HeldMessage:
    """A message that a worker has. Any thread may answer it, without waiting. Only the first answer counts."""

    __slots__ = ("_claimed", "_holding", "_message", "is_overdue")

    def __init__(self, message: Message, holding: Holding) -> None:
        self._message = message
        self._holding = holding
        self._claimed = Lock()  # the first to lock it, forever, answers the message
        self.is_overdue = False  # the job ran so long that nsqd gave it to another worker

    @property
    def body(self) -> bytes:
        return self._message.body

    @property
    def headers(self) -> Mapping[str, bytes]:
        return self._message.headers

    @property
    def attempts(self) -> int:
        return self._message.attempts

    @property
    def id(self) -> str:
        return self._message.id

    @property
    def topic(self) -> str:
        return self._message.topic

    def claim(self) -> bool:
        """Claim the message. Return False if another thread has it, or its connection is gone."""
        return self._message.answered != "lost" and self._claimed.acquire(blocking=False)

    def finish(self) -> None:
        self._holding.answer(self, self._message.finish)

    def give_back(self, delay: float = 0.0, *, count: bool = False) -> None:
        """Have nsqd redeliver the message after `delay` seconds. With `count` that is a further attempt."""
        self._holding.answer(self, partial(_requeue, self._message, delay, count))

    def bury(self, reason: str) -> None:
        """Have nsqd keep the message in the channel for an operator."""
        self._holding.answer(self, partial(_bury, self._message, reason))

    # In the trio thread

    def is_answered(self) -> bool:
        return self._message.answered != "no"

    def give_back_in_time(self, now: float) -> None:
        """Give back the message if it has waited too long for a thread."""
        if now - self._message.received_at > _LONGEST_AT_HAND and self.claim():
            self.give_back()

    def touch_in_time(self, now: float) -> None:
        """Touch the message if it's time. Log once if nsqd grants no more time."""
        message = self._message
        if not self._holding.touching.touch_in_time(message, now) and not self.is_overdue:
            self.is_overdue = True
            log.warning(
                "a job of %s has run for %.0f s, as long as nsqd's --max-msg-timeout lets it: another worker gets it",
                message.topic,
                now - message.received_at,
            )


class Holding:
    """All messages held by a process. `in_trio` schedules a call in the trio thread."""

    def __init__(self, in_trio: Callable[[Callable[[], None]], None]) -> None:
        self._in_trio = in_trio
        self._answers: deque[tuple[HeldMessage, Callable[[], object]]] = deque()
        self._held: set[HeldMessage] = set()
        self.touching = Touching()
        self._sooner = trio.lowlevel.ParkingLot()  # woken to check sooner

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldMessage]:
        return iter(self._held)

    def answer(self, held: HeldMessage, answer: Callable[[], object]) -> None:
        """Queue an answer, in any thread. No effect after the end of the trio thread: then nsqd has the message."""
        self._answers.append((held, answer))
        with suppress(trio.RunFinishedError):
            self._in_trio(self.settle)

    # In the trio thread

    def hold(self, message: Message) -> HeldMessage:
        held = HeldMessage(message, self)
        self._held.add(held)
        if self.touching.arrived(message):
            self._sooner.unpark_all()
        return held

    def settle(self) -> None:
        """Send the queued answers to nsqd."""
        answers = self._answers
        while answers:
            held, answer = answers.popleft()
            self._held.discard(held)
            try:
                answer()
            except Exception:  # one message must not block the others' answers
                log.exception("a message of %s could not be answered", held._message.topic)

    async def keep(self) -> None:
        """Touch the messages as long as nsqd allows it, and forget lost ones."""
        while True:
            now = trio.current_time()
            self._held = {held for held in self._held if not held.is_answered()}
            for held in self._held:
                held.give_back_in_time(now)
                held.touch_in_time(now)
            with trio.move_on_after(self.touching.pause):
                await self._sooner.park()


def _requeue(message: Message, delay: float, count: bool) -> None:
    message.requeue(delay, backoff=False, count=count)


def _bury(message: Message, reason: str) -> None:
    if message.can_bury:
        message.bury(reason)
    else:
        log.error("nsqd cannot bury a message of %s, requeuing it: %s", message.topic, reason)
        message.requeue(backoff=False)
