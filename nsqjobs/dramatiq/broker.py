"""dramatiq's broker: actors' messages as messages of nsqd.

dramatiq's other brokers have a second queue for each queue, `NAME.DQ`, whose messages wait in the memory of a worker
until they are due. Here nothing is declared as a delay queue, and nothing that a worker gets has an `eta`, which are the
two things that would make the worker wait: nsqd keeps a message until it is due.
"""

from __future__ import annotations

import time
from threading import local
from typing import TYPE_CHECKING, Any, Final, Self

import dramatiq
from dramatiq.broker import Consumer, MessageProxy
from dramatiq.common import current_millis
from dramatiq.errors import ConnectionClosed, ConnectionFailed, DecodeError, QueueJoinTimeout, QueueNotFound

from nsqclient import ConnectError, NSQError, PublishError, PublishRejected, Stopped
from nsqjobs.addresses import parse_url
from nsqjobs.headers import Job
from nsqjobs.link import Link
from nsqjobs.names import topic_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsqjobs.counts import QueueCounts
    from nsqjobs.held import HeldMessage
    from nsqjobs.link import Subscription

LIBRARY: Final = "dramatiq"
MOST_ATTEMPTS: Final = 10  # deliveries of a message that no worker has answered: it may be what kills them
_RETURN: Final = 5.0  # seconds after which a message comes back whose retry could not be sent


class NsqBroker(dramatiq.Broker):
    """A broker whose queues are topics of the nsqds that `url` names. See nsqjobs/addresses.py for the URL.

    The first use connects. A process that was forked off connects anew.
    """

    def __init__(
        self, url: str = "nsq://127.0.0.1:4150", *, middleware: Sequence[dramatiq.Middleware] | None = None
    ) -> None:
        super().__init__(middleware=None if middleware is None else list(middleware))
        self.queues: set[str] = set()
        self._link = Link(parse_url(url, max_attempts=MOST_ATTEMPTS))
        self._unsent = local()

    def close(self) -> None:
        """Give back what is held, and disconnect."""
        self._link.close()

    # Queues

    def declare_queue(self, queue_name: str) -> None:
        """Take note of a queue. nsqd makes the topic when it is first used."""
        if queue_name not in self.queues:
            topic_name(queue_name)
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        return self.queues.copy()

    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue but the dead letters, which nsqd keeps buried."""
        self._check_declared(queue_name)
        try:
            self._link.empty(topic_name(queue_name))
        except NSQError as error:
            raise ConnectionFailed(str(error)) from error

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """Return how many messages wait, are deferred, and are dead letters."""
        counts = self._counts(queue_name)
        return counts.waiting, counts.deferred, counts.buried

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Return when all messages are processed, also the deferred ones. Raise QueueJoinTimeout.

        `timeout` and `interval`, the time between two looks, are in milliseconds.
        """
        self._check_declared(queue_name)
        until = None if timeout is None else time.monotonic() + timeout / 1000
        while self._counts(queue_name).undone:
            if until is not None and time.monotonic() >= until:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1000)

    def _counts(self, queue_name: str) -> QueueCounts:
        try:
            return self._link.counts(topic_name(queue_name))
        except NSQError as error:
            raise ConnectionFailed(str(error)) from error

    def _check_declared(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)

    # Messages

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Publish a message, and return it when nsqd has it. It is delivered after `delay` milliseconds.

        Raises ConnectionFailed if it was not published, ConnectionClosed if nobody can tell, and PublishRejected if
        nsqd has refused it.
        """
        if delay is not None:
            message = message.copy(options={"eta": current_millis() + delay})
        self.emit_before("enqueue", message, delay)
        try:
            self._publish(message)
        except Exception as error:
            self._unsent.error = error
            raise
        self.emit_after("enqueue", message, delay)
        return message

    def _publish(self, message: dramatiq.Message[Any]) -> None:
        eta = _eta_of(message)
        job = Job(
            library=LIBRARY,
            name=message.actor_name,
            id=message.message_id,
            retries=int(message.options.get("retries") or 0),
            eta=eta,
        )
        delay = 0.0 if eta is None else eta - time.time()
        try:
            self._link.publish(topic_name(message.queue_name), message.encode(), delay=delay, headers=job.headers())
        except PublishRejected:
            raise
        except (ConnectError, Stopped) as error:
            raise ConnectionFailed(str(error)) from error
        except PublishError as error:
            raise ConnectionClosed(str(error)) from error

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> NsqConsumer:
        """Return a consumer that has up to `prefetch` messages, and waits `timeout` milliseconds for the next."""
        self._check_declared(queue_name)
        return NsqConsumer(self._link.subscribe(topic_name(queue_name), prefetch=max(prefetch, 1)), timeout / 1000)

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware. If it could not send what has to follow this message, the message is to come back.

        Retries, pipelines and groups send from here. dramatiq logs their errors and acknowledges the message, so the
        retry would be lost with it.
        """
        if signal != "process_message":
            super().emit_after(signal, *args, **kwargs)
            return
        self._unsent.error = None
        super().emit_after(signal, *args, **kwargs)
        error, self._unsent.error = self._unsent.error, None
        if error is not None and isinstance(args[0], NsqMessage):
            args[0].comes_back = True


def _eta_of(message: dramatiq.Message[Any]) -> float | None:
    """Return when a message is due, in seconds since 1970. None: at once, also if what it says is no time."""
    eta = message.options.get("eta")
    return eta / 1000 if isinstance(eta, int | float) else None


class NsqMessage(MessageProxy):
    """A message that a worker has."""

    def __init__(self, message: dramatiq.Message[Any], held: HeldMessage) -> None:
        super().__init__(message)
        self.held = held
        self.comes_back = False  # it was processed, but what has to follow could not be sent
        self.reason = ""  # of the exception that was the last; dramatiq clears that too early

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


def _read(held: HeldMessage) -> NsqMessage | None:
    """Return the message for an actor, or None if it is none: it is buried then."""
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
