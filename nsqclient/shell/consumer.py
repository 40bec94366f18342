"""The part of a consumer that trio and asyncio share: everything but waiting."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar, cast

from nsqclient.core.consumption import Consumption, check_names
from nsqclient.core.delivery import Delivery, only_one
from nsqclient.core.errors import GiveUp, Requeue
from nsqclient.shell.identity import our_identity
from nsqclient.shell.log import logging_events

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.events import Event
    from nsqclient.core.stats import ConsumerStats

MessageT = TypeVar("MessageT", bound=Delivery)

REQUEUE_TIMEOUT: Final = 1.0  # seconds that a cancelled consumer takes at most to requeue its messages
DEAD_LETTER_TIMEOUT: Final = 30.0
UNREACHABLE_AFTER: Final = 3  # failures in a row to connect to an nsqd that nsqlookupd lists
_TURN: Final = 0.001  # seconds for which messages are handed out before other tasks may run


class BaseConsumer(ABC, Generic[MessageT]):
    """The base of the consumers. Any number of tasks may iterate over one; each message goes to one of them.

    Iteration ends after `stop`. It raises ProtocolError or AuthError if the consumer can never receive anything. A
    consumer belongs to the loop in which it was opened: call its methods in that loop only.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        config: Config,
        delivery: type[MessageT],
        clock: Callable[[], float],
        has_dead_letters: bool,
        logger: logging.Logger,
    ) -> None:
        check_names(topic, channel, config)
        self.topic = topic
        self.channel = channel
        self.config = config
        self._logger = logger
        self._log = logging_events(logger, f"[{topic}/{channel}] ")
        self._random = Random()
        self._core = Consumption(
            topic,
            channel,
            config,
            our_identity(),
            clock=clock,
            notify=self._notify,
            emit=self._emit,
            random=self._random,
            delivery=delivery,
            has_dead_letters=has_dead_letters,
        )
        self._queue = self._core.queue
        self._turn_ends = 0.0  # when other tasks have to run again, on the real clock

    @abstractmethod
    def _notify(self) -> None:
        """Wake the tasks that wait: the core has messages or dead letters, or has ended."""

    @abstractmethod
    def _emit(self, event: Event) -> None: ...

    # Messages, one by one

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageT:
        # A checkpoint for each message would cost too much; one is made every _TURN seconds.
        if self._queue and monotonic() < self._turn_ends:
            message = self._queue.popleft()
            if message.answered == "no":
                return cast(MessageT, message)
        return await self._next()

    async def _next(self) -> MessageT:
        await self._checkpoint()
        while (message := self._core.take()) is None:
            if self._core.failure is not None:
                raise self._core.failure
            if self._core.is_stopping:
                raise StopAsyncIteration
            await self._wait_for_arrival()
        self._turn_ends = monotonic() + _TURN
        return cast(MessageT, message)

    @abstractmethod
    async def _checkpoint(self) -> None:
        """Let other tasks run, and let this one be cancelled."""

    @abstractmethod
    async def _wait_for_arrival(self) -> None:
        """Return when `_notify` says that another message may be available."""

    # Handlers

    async def _work(self, call: Callable[[MessageT], Awaitable[None]]) -> None:
        async for message in self:
            try:
                await call(message)
            except Exception as error:
                self._failed(message, error)
            except BaseException as error:
                rest = message.answer_for(error)
                if rest is error:
                    raise
                if rest is not None:
                    raise rest from None
            else:
                if message.auto_response:
                    message.finish()

    def _failed(self, message: MessageT, error: Exception) -> None:
        alone = only_one(error)
        if isinstance(alone, GiveUp):
            self._core.give_up(message, alone.reason or "its handler says so")
            return
        if not isinstance(alone, Requeue):
            text = "[%s/%s] Handler returned error (%s) for msg %s"
            self._logger.error(text, self.topic, self.channel, error, message.id, exc_info=error)
        message.answer_for(error)

    async def _handle_dead_letters(self, handle: Callable[[MessageT], Awaitable[None]]) -> None:
        while self._core.dead_letters:
            message, _ = self._core.dead_letters.popleft()
            try:
                await handle(cast(MessageT, message))
            except Exception as error:
                text = "[%s/%s] dead letter failed for msg %s, requeued"
                self._logger.exception(text, self.topic, self.channel, message.id, exc_info=error)
                message.requeue()
            else:
                self._core.finish_dead_letter(message)

    @property
    def has_waiting(self) -> bool:
        """Whether a message is available at once."""
        return bool(self._queue)

    # Flow control

    def pause(self) -> None:
        """Receive no new messages until `resume`. Messages that were delivered already may still be answered."""
        self._core.pause()

    def resume(self) -> None:
        """Receive messages again."""
        self._core.resume()

    @property
    def max_in_flight(self) -> int:
        """The most messages that all nsqds together may have in flight here."""
        return self._core.max_in_flight

    def set_max_in_flight(self, count: int) -> None:
        """Change `max_in_flight` at once. Raise ValueError for a negative number."""
        self._core.set_max_in_flight(count)

    # Figures

    def is_starved(self) -> bool:
        """Return whether no message is waiting here, and some nsqd sends no more until messages are answered."""
        return self._core.is_starved()

    def stats(self) -> ConsumerStats:
        """Return the figures of this moment."""
        return self._core.stats()
