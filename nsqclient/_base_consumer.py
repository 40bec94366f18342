"""What consumers on trio and on asyncio have in common: all but what waits."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar, cast

from nsqclient._consumption import Consumption, check_names
from nsqclient._delivery import Delivery, only_one
from nsqclient._dial import Target, check_target
from nsqclient._errors import ConfigError, GiveUp, Requeue
from nsqclient._identity import our_identity
from nsqclient._log import logging_events

if TYPE_CHECKING:
    from nsqclient._config import Config
    from nsqclient._stats import ConsumerStats
    from nsqclient.events import Event

MessageT = TypeVar("MessageT", bound=Delivery)

FAREWELL: Final = 1.0  # seconds that a cancelled consumer takes to give back what it has
DEAD_LETTER_TIMEOUT: Final = 30.0
_TURN: Final = 0.001  # seconds for which messages are handed out without a look at other tasks


class BaseConsumer(ABC, Generic[MessageT]):
    """Iterating it gives messages, whoever iterates; it ends after `stop`, and raises what makes it hopeless."""

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
        self._turn_ends = 0.0  # on the real clock

    @abstractmethod
    def _notify(self) -> None:
        """The core has something to take, or to bury, or has come to an end."""

    @abstractmethod
    def _emit(self, event: Event) -> None: ...

    # Messages, one by one

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageT:
        # The loop is asked now and then, not for each message.
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
        """Other tasks may run, and this one be cancelled."""

    @abstractmethod
    async def _wait_for_arrival(self) -> None:
        """Until `_notify` says that there may be something for one more."""

    # By a handler

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

    async def _bury_all(self, bury: Callable[[MessageT], Awaitable[None]]) -> None:
        while self._core.dead:
            message, _ = self._core.dead.popleft()
            try:
                await bury(cast(MessageT, message))
            except Exception as error:
                text = "[%s/%s] no dead letter of msg %s"
                self._logger.exception(text, self.topic, self.channel, message.id, exc_info=error)
                message.requeue()
            else:
                self._core.bury(message)

    # Faster, slower

    def pause(self) -> None:
        """No new messages, until `resume`."""
        self._core.pause()

    def resume(self) -> None:
        self._core.resume()

    @property
    def max_in_flight(self) -> int:
        return self._core.max_in_flight

    def set_max_in_flight(self, count: int) -> None:
        self._core.set_max_in_flight(count)

    # What can be asked

    def is_starved(self) -> bool:
        """Whether nothing waits here, and some nsqd sends nothing more until it is answered."""
        return self._core.is_starved()

    def stats(self) -> ConsumerStats:
        return self._core.stats()


def check_sources(nsqd: Sequence[Target], lookupd: Sequence[str]) -> None:
    if not nsqd and not lookupd:
        raise ConfigError("nsqd", nsqd, "neither nsqd nor nsqlookupd to ask")
    for target in nsqd:
        check_target(target)
