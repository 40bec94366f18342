"""The messages of tasks that a worker has, from their delivery to their answer.

taskiq tells a broker one thing about a task: it calls `ack`. It says nothing when a middleware fails, when a task is
cancelled, or when a task that acknowledges for itself never does so. Without an answer such a message would stay with
this worker until nsqd loses its patience. So the end of the asyncio task in which the receiver handles the message
counts as well:

    waiting -> begun -> acknowledged              ack: FIN
                     -> ended with an exception   REQ, or BURY after the last attempt
                     -> cancelled                 REQ that does not count the attempt
                     -> ended without an ack      no further TOUCH: nsqd delivers it again after its timeout
    waiting -> the worker stops                   REQ that does not count the attempt

All messages are touched until then, also those that wait for the receiver.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from nsqjobs.touching import Touching

if TYPE_CHECKING:
    from nsqclient.aio import Message

log = logging.getLogger("taskiq.nsq_broker")


class TaskDelivery:
    """A task's message, delivered once."""

    __slots__ = ("_deliveries", "message")

    def __init__(self, message: Message, deliveries: Deliveries) -> None:
        self.message = message
        self._deliveries = deliveries

    async def ack(self) -> None:
        """Finish the message. Called by taskiq's receiver, or through the context of the task.

        It never waits, but other brokers have it async, and receivers of users await it.
        """
        self._deliveries.forget(self)
        if not self.message.finish() and self.message.answered == "lost":
            log.warning("task was done after nsqd had taken it back, so it runs again message=%s", self.message.id)

    def begin(self) -> None:
        """Take note that the current asyncio task handles the message until it ends."""
        task = asyncio.current_task()
        if task is not None:
            task.add_done_callback(self._ended)

    def bury(self, reason: str) -> None:
        """Let nsqd keep a message that no worker can run."""
        self._deliveries.forget(self)
        log.error("buried reason=%s message=%s", reason, self.message.id)
        self.message.bury(reason)

    def give_back(self) -> None:
        """Let another worker have the message, and do not count the attempt."""
        self._deliveries.forget(self)
        self.message.requeue(0, backoff=False, count=False)

    def _ended(self, task: asyncio.Task[object]) -> None:
        if self.message.answered != "no":
            return
        if task.cancelled():
            self.give_back()
        elif (error := task.exception()) is not None:
            self._deliveries.forget(self)
            log.error("task was not acknowledged, so it runs again message=%s", self.message.id, exc_info=error)
            self.message.answer_for(error)
        else:
            self._deliveries.forget(self)


class Deliveries:
    """The messages that one `listen` has, and those of them that wait for the receiver."""

    def __init__(self) -> None:
        self._waiting: deque[TaskDelivery] = deque()
        self._arrived = asyncio.Event()
        self._failure: BaseException | None = None
        self._unanswered: set[TaskDelivery] = set()
        self._touching = Touching()
        self._sooner = asyncio.Event()  # the next look at what has to be touched comes sooner than was thought
        self._keeping: asyncio.Task[None] | None = None

    def add(self, message: Message) -> None:
        """Take a message that was just delivered."""
        delivery = TaskDelivery(message, self)
        self._unanswered.add(delivery)
        self._waiting.append(delivery)
        self._arrived.set()
        if self._touching.arrived(message):
            self._sooner.set()
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    def fail(self, error: BaseException) -> None:
        """Let `take` raise an error: no message will come any more."""
        self._failure = error
        self._arrived.set()

    async def take(self) -> TaskDelivery:
        """Return the next message for the receiver."""
        while True:
            while self._waiting:
                delivery = self._waiting.popleft()
                if delivery.message.answered == "no":  # otherwise its connection was lost while it waited
                    return delivery
                self.forget(delivery)
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()

    def forget(self, delivery: TaskDelivery) -> None:
        """Touch the message no more."""
        self._unanswered.discard(delivery)

    def give_back_waiting(self) -> None:
        """Give back what the receiver has not taken."""
        while self._waiting:
            self._waiting.popleft().give_back()

    def close(self) -> None:
        """Give back everything, also what the receiver still has."""
        self.give_back_waiting()
        for delivery in list(self._unanswered):
            delivery.give_back()
        if self._keeping is not None:
            self._keeping.cancel()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._sooner.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._sooner.wait(), self._touching.pause)
            for delivery in list(self._unanswered):
                self._touch(delivery, loop.time())

    def _touch(self, delivery: TaskDelivery, now: float) -> None:
        message = delivery.message
        if message.answered != "no":
            self.forget(delivery)
        elif not self._touching.touch_in_time(message, now):
            self.forget(delivery)
            text = "task runs longer than nsqd's --max-msg-timeout, so another worker gets it as well message=%s"
            log.warning(text, message.id)
