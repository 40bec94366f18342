"""A dramatiq worker's messages and their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import dramatiq
from dramatiq.broker import Consumer, MessageProxy
from dramatiq.errors import ConnectionClosed, DecodeError

from nsqclient import NSQError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqjobs.held import Held
    from nsqjobs.link import Subscription

_RETURN: Final = 5.0  # seconds before a message comes back if its retry couldn't be sent


class NsqMessage(MessageProxy):
    """A message that a worker has."""

    def __init__(self, message: dramatiq.Message[Any], held: Held) -> None:
        super().__init__(message)
        self.held = held
        self.comes_back = False  # processed, but the follow-up couldn't be sent
        self.reason = ""  # of the last exception, which dramatiq clears too early

    def stuff_exception(self, exception: BaseException) -> None:
        super().stuff_exception(exception)
        self.reason = f"{type(exception).__name__}: {exception}".removesuffix(": ")


class NsqConsumer(Consumer):
    """Iterates over the messages of one queue. Any thread may answer them."""

    def __init__(self, subscription: Subscription, timeout: float) -> None:
        self._subscription = subscription
        self._timeout = timeout

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> NsqMessage | None:
        try:
            held = self._subscription.take(self._timeout)
        except NSQError as error:
            raise ConnectionClosed(str(error)) from error
        return None if held is None else _read(held)

    def ack(self, message: MessageProxy) -> None:
        it = _ours(message)
        if it.comes_back:
            it.held.give_back(_RETURN, count=True)
        else:
            it.held.finish()

    def nack(self, message: MessageProxy) -> None:
        it = _ours(message)
        it.held.bury(it.reason or "failed")

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        for message in messages:
            _ours(message).held.give_back()

    def close(self) -> None:
        self._subscription.close()


def _read(held: Held) -> NsqMessage | None:
    """Return the message for an actor. Bury any other message, and return None."""
    try:
        message = dramatiq.Message.decode(held.body)
    except DecodeError as error:
        held.bury(f"{error} {error.__cause__}")
        return None
    message.options.pop("eta", None)  # nsqd has kept it until now; with an `eta`, the worker would
    return NsqMessage(message, held)


def _ours(message: MessageProxy) -> NsqMessage:
    assert isinstance(message, NsqMessage), "a message of another broker"
    return message
