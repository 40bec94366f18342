"""Messages in the hands of worker threads: how they are answered, and kept while their job runs.

Threads only leave an answer; the trio thread takes all that have been left and gives them to nsqd together, because a
crossing between threads costs more than the answer itself.
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

_LONGEST_AT_HAND: Final = 30.0  # seconds that a message may wait here for a thread, while another worker may be idle


class HeldMessage:
    """A message that a worker has. Any thread may answer it. Only the first answer counts; none of them waits."""

    __slots__ = ("_claimed", "_holding", "_message", "is_overdue")

    def __init__(self, message: Message, holding: Holding) -> None:
        self._message = message
        self._holding = holding
        self._claimed = Lock()  # locked for ever by whoever is to answer the message
        self.is_overdue = False  # nsqd has given it to another worker, as the job runs for so long

    @property
    def body(self) -> bytes:
        return self._message.body

    @property
    def headers(self) -> Mapping[str, bytes]:
        return self._message.headers

    @property
    def attempts(self) -> int:
        return self._message.attempts

    def claim(self) -> bool:
        """Return whether the message is the caller's now: nobody else has claimed it, and its connection still stands."""
        return self._message.answered != "lost" and self._claimed.acquire(blocking=False)

    def finish(self) -> None:
        self._holding.answer(self, self._message.finish)

    def give_back(self, delay: float = 0.0, *, count: bool = False) -> None:
        """Let nsqd deliver the message again after `delay` seconds, as a further attempt only if it is to `count`."""
        self._holding.answer(self, partial(_requeue, self._message, delay, count))

    def bury(self, reason: str) -> None:
        """Have nsqd keep the message in the channel for somebody to look at it."""
        self._holding.answer(self, partial(_bury, self._message, reason))

    # In the trio thread

    def is_answered(self) -> bool:
        return self._message.answered != "no"

    def give_back_in_time(self, now: float) -> None:
        """Give back the message if it has waited for long and no thread has claimed it."""
        if now - self._message.received_at > _LONGEST_AT_HAND and self.claim():
            self.give_back()

    def touch_in_time(self, now: float) -> None:
        """Touch the message if it is time to. Say so, once, if nsqd grants no more time."""
        message = self._message
        if not self._holding.touching.touch_in_time(message, now) and not self.is_overdue:
            self.is_overdue = True
            log.warning(
                "a job of %s has run for %.0f s, as long as nsqd's --max-msg-timeout lets it: another worker gets it",
                message.topic,
                now - message.received_at,
            )


class Holding:
    """All messages that a process holds. `in_trio` has a function called soon in the trio thread."""

    def __init__(self, in_trio: Callable[[Callable[[], None]], None]) -> None:
        self._in_trio = in_trio
        self._answers: deque[tuple[HeldMessage, Callable[[], object]]] = deque()
        self._held: set[HeldMessage] = set()
        self.touching = Touching()
        self._sooner = trio.lowlevel.ParkingLot()  # woken when the next look has to come sooner

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldMessage]:
        return iter(self._held)

    def answer(self, held: HeldMessage, answer: Callable[[], object]) -> None:
        """Leave an answer, in any thread. Without effect once the trio thread has ended: nsqd has the message then."""
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
        """Give nsqd the answers that threads have left."""
        answers = self._answers
        while answers:
            held, answer = answers.popleft()
            self._held.discard(held)
            try:
                answer()
            except Exception:  # one message must not keep the others from being answered
                log.exception("a message of %s could not be answered", held._message.topic)

    async def keep(self) -> None:
        """Touch the messages for as long as nsqd allows it, and forget those that are lost."""
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
        log.error("nsqd cannot bury a message of %s, which is requeued: %s", message.topic, reason)
        message.requeue(backoff=False)
