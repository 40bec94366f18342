"""A worker's task messages, from delivery to answer.

taskiq's only report about a task is a call of `ack`. There is none if a middleware fails, if a task is cancelled, or if
a task with manual acknowledgement never acknowledges. Without an answer such a message would stay with this worker
until nsqd's limit. So we also watch for the end of the asyncio task in which the receiver handles the message:

    waiting -> begun -> acknowledged              ack: FIN
                     -> ended with an exception   REQ, or BURY after the last attempt
                     -> cancelled                 REQ that does not count the attempt
                     -> ended without an ack      no further TOUCH: nsqd delivers it again after its timeout
    waiting -> the worker stops                   REQ that does not count the attempt

All messages are touched until then, even while they wait for the receiver.
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
    from nsqjobs.taskiq.runs import TaskRun

log = logging.getLogger("taskiq.nsq_broker")


class TaskDelivery:
    """One delivery of a task's message."""

    __slots__ = ("_deliveries", "message", "run")

    def __init__(self, message: Message, deliveries: Deliveries) -> None:
        self.message = message
        self.run: TaskRun | None = None  # None: it hasn't begun, or nothing is reported
        self._deliveries = deliveries

    async def ack(self) -> None:
        """Finish the message. Called by taskiq's receiver, or through the task's context.

        It never waits, but it is async in other brokers, and users' receivers await it.
        """
        self._deliveries.forget(self)
        if self._bury_failed():
            return
        if not self.message.finish() and self.message.answered == "lost":
            log.warning("task finished after its nsqd timeout and will run again message=%s", self.message.id)

    def _bury_failed(self) -> bool:
        """Bury the message if its task has failed and that is reported."""
        failure = self.run.failure if self.run is not None else ""
        return bool(failure) and self.message.answered == "no" and self.message.bury(failure)

    def begin(self) -> None:
        """Record that the current asyncio task handles the message."""
        task = asyncio.current_task()
        if task is not None:
            task.add_done_callback(self._ended)

    def bury(self, reason: str) -> None:
        """Bury a message that no worker can run."""
        self._deliveries.forget(self)
        log.error("buried reason=%s message=%s", reason, self.message.id)
        self.message.bury(reason)

    def give_back(self) -> None:
        """Give the message to another worker, without counting the attempt."""
        self._deliveries.forget(self)
        self.message.requeue(0, backoff=False, count=False)

    def _ended(self, task: asyncio.Task[object]) -> None:
        if self.run is not None:
            self.run.has_ended_early(None if task.cancelled() else task.exception())
        if self.message.answered != "no":
            return
        if task.cancelled():
            self.give_back()
        elif (error := task.exception()) is not None:
            self._deliveries.forget(self)
            log.error("task was not acknowledged and will run again message=%s", self.message.id, exc_info=error)
            self.message.answer_for(error)
        else:
            self._deliveries.forget(self)
            self._bury_failed()  # it was to acknowledge by itself


class Deliveries:
    """The messages of one `listen`, and the queue for the receiver."""

    def __init__(self) -> None:
        self._waiting: deque[TaskDelivery] = deque()
        self._arrived = asyncio.Event()
        self._failure: BaseException | None = None
        self._unanswered: set[TaskDelivery] = set()
        self._touching = Touching()
        self._sooner = asyncio.Event()  # woken to check for touches sooner
        self._keeping: asyncio.Task[None] | None = None

    def add(self, message: Message) -> None:
        """Add a new delivery."""
        delivery = TaskDelivery(message, self)
        self._unanswered.add(delivery)
        self._waiting.append(delivery)
        self._arrived.set()
        if self._touching.arrived(message):
            self._sooner.set()
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    def fail(self, error: BaseException) -> None:
        """Make `take` raise an error: no more messages will arrive."""
        self._failure = error
        self._arrived.set()

    async def take(self) -> TaskDelivery:
        """Return the next message for the receiver."""
        while True:
            while self._waiting:
                delivery = self._waiting.popleft()
                if delivery.message.answered == "no":  # otherwise it lost its connection while it waited
                    return delivery
                self.forget(delivery)
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()

    def forget(self, delivery: TaskDelivery) -> None:
        """Stop touching the message."""
        self._unanswered.discard(delivery)

    def give_back_waiting(self) -> None:
        """Give back messages that the receiver hasn't taken."""
        while self._waiting:
            self._waiting.popleft().give_back()

    def close(self) -> None:
        """Give back everything, even messages that the receiver still has."""
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
            text = "task runs longer than nsqd's --max-msg-timeout, another worker will run it too message=%s"
            log.warning(text, message.id)
