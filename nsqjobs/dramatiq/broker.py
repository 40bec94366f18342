"""dramatiq's broker: actors' messages as nsqd's.

dramatiq's other brokers have a second queue for each queue, `NAME.DQ`, with messages that wait in a worker's memory
until they are due. Here nsqd keeps a message until it is due. So we declare no delay queue, and a worker's messages
have no `eta`, because either would make the worker wait.
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
from nsqjobs.dramatiq.reports import Reports
from nsqjobs.groups import GROUP, GROUP_BY, group_of, group_text
from nsqjobs.headers import Job
from nsqjobs.link import Link
from nsqjobs.names import topic_name
from nsqjobs.reporting import Reporter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsqjobs.counts import QueueCounts
    from nsqjobs.held import HeldMessage
    from nsqjobs.link import Subscription

LIBRARY: Final = "dramatiq"
MOST_ATTEMPTS: Final = 10  # deliveries without an answer before a message is buried: it may be killing the workers
_RETURN: Final = 5.0  # seconds before a message comes back if its retry couldn't be sent


class NsqBroker(dramatiq.Broker):
    """A broker with topics as queues, on the nsqds in `url` (see nsqjobs/addresses.py).

    The first use connects. A forked process makes its own connections. Actors have the option `nsq_group_by`, and
    messages `nsq_group` (see nsqjobs/groups.py). With `report`, workers report their runs (nsqjobs/reporting.py).
    """

    def __init__(
        self,
        url: str = "nsq://127.0.0.1:4150",
        *,
        middleware: Sequence[dramatiq.Middleware] | None = None,
        report: bool = False,
    ) -> None:
        super().__init__(middleware=None if middleware is None else list(middleware))
        self.actor_options |= {GROUP_BY}
        self.queues: set[str] = set()
        endpoint = parse_url(url, max_attempts=MOST_ATTEMPTS)
        self._link = Link(endpoint)
        self._reports = Reports(Reporter(endpoint)) if report else None
        if self._reports is not None:
            # First in the list, so that it learns of a run's end last: after Retries.
            self.add_middleware(self._reports, before=dramatiq.Middleware if self.middleware else None)
        self._unsent = local()

    def close(self) -> None:
        """Give back held messages, and disconnect."""
        if self._reports is not None:
            self._reports.close()
        self._link.close()

    # Queues

    def declare_queue(self, queue_name: str) -> None:
        """Record a queue. nsqd creates the topic on first use."""
        if queue_name not in self.queues:
            topic_name(queue_name)
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        return self.queues.copy()

    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue except dead letters, which nsqd keeps buried."""
        self._check_declared(queue_name)
        try:
            self._link.empty(topic_name(queue_name))
        except NSQError as error:
            raise ConnectionFailed(str(error)) from error

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """Return the numbers of waiting and deferred messages and of dead letters."""
        counts = self._counts(queue_name)
        return counts.waiting, counts.deferred, counts.buried

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until all messages are processed, including deferred ones. Raise QueueJoinTimeout.

        `timeout` and `interval` (between two checks) are in milliseconds.
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

        Raises ConnectionFailed if it was not published, ConnectionClosed if that is unknown, and PublishRejected if
        nsqd refused it.
        """
        if delay is not None:
            message = message.copy(options={"eta": current_millis() + delay})
        self.emit_before("enqueue", message, delay)
        try:
            self._publish(message)
        except Exception as error:
            self._unsent.error = error
            if self._reports is not None:
                self._reports.not_sent()
            raise
        if self._reports is not None:
            self._reports.sent(message)
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
            topic, group = topic_name(message.queue_name), self._group_of(message)
            self._link.publish(topic, message.encode(), delay=delay, headers=job.headers(), group=group)
        except PublishRejected:
            raise
        except (ConnectError, Stopped) as error:
            raise ConnectionFailed(str(error)) from error
        except PublishError as error:
            raise ConnectionClosed(str(error)) from error

    def _group_of(self, message: dramatiq.Message[Any]) -> str | None:
        """Return the group in the message's options, or by its actor. A retry has the same. Raise ValueError."""
        if (given := message.options.get(GROUP)) is not None:
            return group_text(given)
        actor = self.actors.get(message.actor_name)
        by = actor.options.get(GROUP_BY) if actor is not None else None
        if actor is None or by is None:
            return None
        function = getattr(actor.fn, "perform", actor.fn)  # an actor that is a class has its arguments there
        return group_of(by, function, message.args, message.kwargs)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> NsqConsumer:
        """Return a consumer with up to `prefetch` messages, which waits `timeout` milliseconds for the next."""
        self._check_declared(queue_name)
        return NsqConsumer(self._link.subscribe(topic_name(queue_name), prefetch=max(prefetch, 1)), timeout / 1000)

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware. If it fails to send a follow-up of this message, have the message redelivered.

        Retries, pipelines and groups send from here. dramatiq logs their errors and acknowledges the message, which
        would lose the retry.
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
    """Return when a message is due, in seconds since 1970. None: at once, also if its time is invalid."""
    eta = message.options.get("eta")
    return eta / 1000 if isinstance(eta, int | float) else None


class NsqMessage(MessageProxy):
    """A message that a worker has."""

    def __init__(self, message: dramatiq.Message[Any], held: HeldMessage) -> None:
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


def _read(held: HeldMessage) -> NsqMessage | None:
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
