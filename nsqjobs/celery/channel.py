"""A kombu channel. Exchanges, queues and bindings are kombu's own; consuming and answering go to the reader."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final

from kombu.transport import virtual
from kombu.transport.virtual import exchange as exchange_types

from nsqjobs.celery import http, revoking, routing
from nsqjobs.celery.envelope import decode, encode, let_run, publication, ttl_of
from nsqjobs.celery.places import check_worker
from nsqjobs.celery.reader import PrefetchGroup, Reader, ReaderSubscription
from nsqjobs.counts import counts_of, empty

if TYPE_CHECKING:
    from nsqclient import Message as Delivery
    from nsqjobs.celery.reporting import FailedRun
    from nsqjobs.celery.routing import QueueChannel

log = logging.getLogger(__name__)

_TRANSIENT: Final = 1  # delivery_mode
_CONNECT_TIMEOUT: Final = 5.0  # seconds for a passing queue to appear
_GET_TIMEOUT: Final = 1.0  # seconds that `basic_get` waits

Callback = Callable[[virtual.Message], object]


class QoS:
    """Celery's unanswered messages by tag.

    A tag is part of the message. If nsqd redelivers a message while Celery still has it, because a connection broke or
    the job takes longer than nsqd allows, Celery doesn't get it again: its one answer goes to both deliveries.
    """

    restore_at_shutdown = False  # nsqd has them all

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        self.channel = channel
        self.prefetch_count = prefetch_count
        self._transport = channel.connection  # kept here, because a task may end after its channel was closed
        self._deliveries: dict[str, list[tuple[ReaderSubscription, Delivery]]] = {}
        self._failed: dict[str, FailedRun] = {}

    def fail(self, tag: str, failed: FailedRun) -> bool:
        """Bury the message when Celery acknowledges it. Return False if it was answered before."""
        if tag not in self._deliveries:
            return False
        self._failed[tag] = failed
        return True

    def append(self, subscription: ReaderSubscription, delivery: Delivery, tag: str) -> bool:
        """Record a delivery. Return True if Celery has to get it."""
        if (known := self._deliveries.get(tag)) is not None:
            known.append((subscription, delivery))
            return False
        self._deliveries[tag] = [(subscription, delivery)]
        return True

    def ack(self, tag: str) -> None:
        failed = self._failed.pop(tag, None)
        if failed is not None and not failed.is_withdrawn:
            self._bury(tag, failed.reason)
            return
        self._transport.finished.add(tag, monotonic())
        for subscription, delivery in self._deliveries.pop(tag, ()):
            subscription.reader.answer(subscription, delivery, delivery.finish)

    def reject(self, tag: str, requeue: bool = False) -> None:
        failed = self._failed.pop(tag, None)
        if not requeue:
            self._bury(tag, "rejected by Celery" if failed is None else failed.reason)
            return
        for subscription, delivery in self._deliveries.pop(tag, ()):
            subscription.reader.answer(subscription, delivery, partial(delivery.requeue, 0.0, backoff=False))

    def _bury(self, tag: str, reason: str) -> None:
        for subscription, delivery in self._deliveries.pop(tag, ()):
            subscription.reader.answer(subscription, delivery, partial(delivery.bury, reason))

    def restore_unacked(self) -> None:
        """Give back everything that Celery hasn't answered."""
        self._failed.clear()
        while self._deliveries:
            _, deliveries = self._deliveries.popitem()
            for subscription, delivery in deliveries:
                subscription.reader.give_back(subscription, delivery)

    def restore_unacked_once(self, stderr: object = None) -> None:
        self.restore_unacked()

    def can_consume(self) -> bool:
        """Return True, because nsqd keeps the limit."""
        return True

    def get(self, tag: str) -> Delivery:
        return self._deliveries[tag][0][1]


class Direct(exchange_types.DirectExchange):
    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        self.channel.route(message, exchange, self.type, routing_key, **kwargs)


class Topic(exchange_types.TopicExchange):
    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        self.channel.route(message, exchange, self.type, routing_key, **kwargs)


class Consuming:
    """A Celery consumer: a queue and its callback."""

    def __init__(self, channel: Channel, callback: Callback, no_ack: bool) -> None:
        self.channel = channel
        self.callback = callback
        self.no_ack = no_ack
        self.subscriptions: list[ReaderSubscription] = []


class Channel(virtual.Channel):
    """A kombu channel."""

    QoS = QoS
    do_restore = False
    supports_fanout = True
    body_encoding = None  # text stays readable; see encode_body
    exchange_types = {"direct": Direct, "topic": Topic, "fanout": exchange_types.FanoutExchange}  # noqa: RUF012  # kombu's own
    from_transport_options = (*virtual.Channel.from_transport_options, "priority_steps")
    priority_steps: tuple[int, ...] = ()

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.priority_steps = tuple(sorted({0, *map(int, self.priority_steps)})) if self.priority_steps else ()
        self.group = PrefetchGroup()
        self._consuming: dict[str, Consuming] = {}
        self._getters: dict[str, tuple[PrefetchGroup, list[ReaderSubscription]]] = {}

    # Queues

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue. Only with `passive` we ask nsqd whether it exists and how many messages it has."""
        if passive:
            return super().queue_declare(queue, passive=True, **kwargs)
        self.connection.wants_no_size = True
        try:
            return super().queue_declare(queue, **kwargs)
        finally:
            self.connection.wants_no_size = False

    def _new_queue(
        self, queue: str, durable: bool = True, exclusive: bool = False, auto_delete: bool = False, **kwargs: Any
    ) -> None:
        if not durable or exclusive or auto_delete:
            self.connection.passing.setdefault(queue, time())
        else:
            self.connection.passing.pop(queue, None)
            self.connection.lasting.add(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        if self.is_passing(queue):
            return True
        return any(http.has_topic(self._publisher, it.topic) for it in self._levels(queue))

    def _size(self, queue: str) -> int:
        if self.connection.wants_no_size or self.is_passing(queue):
            return 0
        return sum(counts_of(self._publisher, it.topic, it.channel).waiting for it in self._levels(queue))

    def _purge(self, queue: str) -> int:
        count = self._size(queue)
        if not self.is_passing(queue):
            for it in self._levels(queue):
                empty(self._publisher, it.topic, it.channel)
        return count

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        if self.connection.passing.pop(queue, None) is None:
            self.connection.lasting.discard(queue)
            for it in self._levels(queue):
                http.delete(self._publisher, it.topic)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue, even if its bindings are unknown here."""
        if if_empty and self._size(queue):
            return
        self._delete(queue)
        self.state.queue_bindings_delete(queue)
        for exchange in self.state.exchanges.values():
            exchange["table"][:] = [binding for binding in exchange["table"] if binding[2] != queue]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Do nothing: kombu has recorded the binding."""

    def is_passing(self, queue: str) -> bool:
        return queue in self.connection.passing

    def _levels(self, queue: str) -> list[QueueChannel]:
        return [routing.lasting(queue, level) for level in self.priority_steps or (0,)]

    def _sources(self, queue: str) -> list[QueueChannel]:
        """Return the topic and channel of a queue."""
        since = self.connection.passing.get(queue, time())
        bindings = [it for it in self.state.queue_bindings(queue) if self._is_bound_to_topic(queue, it.exchange)]
        if not bindings and not self.is_passing(queue):
            return self._levels(queue)
        sources = [
            routing.bound(queue, it.exchange, self.typeof(it.exchange).type, it.routing_key, since) for it in bindings
        ]
        return list({it.topic: it for it in sources}.values()) or [routing.passing(queue)]

    def _is_bound_to_topic(self, queue: str, exchange: str) -> bool:
        """Return True if a queue is a channel of the exchange's topic. Mailboxes are, even durable ones."""
        if self.is_passing(queue):
            return True
        declared = self.state.exchanges.get(exchange, {})
        return declared.get("type") == "fanout" and not declared.get("durable")

    # Publishing

    def route(self, message: dict[str, Any], exchange: str, kind: str, routing_key: str, **kwargs: Any) -> None:
        """Publish to the bound queues, and for passing queues to the exchange's topic; see routing.py."""
        table = self.state.exchanges.get(exchange, {}).get("table", [])
        matching = {queue for queue in self._lookup(exchange, routing_key) if queue} if table else set()
        lasting = {queue for queue in matching if not self.is_passing(queue)}
        for queue in sorted(lasting):
            self._put(queue, message, **kwargs)
        has_lasting = any(not self.is_passing(queue) for _, _, queue in table)
        if not has_lasting or matching - lasting:
            self._publish_passing(routing.exchange_topic(exchange, kind, routing_key), message)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        properties = message["properties"]
        is_known = queue in self.connection.lasting
        if self.is_passing(queue) or (not is_known and properties.get("delivery_mode") == _TRANSIENT):
            self._publish_passing(routing.passing(queue).topic, message)
            return
        level = routing.level_of(self._get_message_priority(message), self.priority_steps)
        self.connection.publish_job(routing.lasting(queue, level).topic, publication(message))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        if ids := revoking.revoked_by(exchange, message):
            revoking.cancel_jobs(self._publisher, ids)
        for queue in sorted({queue for _, _, queue in self.state.exchanges.get(exchange, {}).get("table", [])}):
            if not self._is_bound_to_topic(queue, exchange):
                self._put(queue, message, **kwargs)
        self._publish_passing(routing.exchange_topic(exchange, "fanout", routing_key), message)

    def _publish_passing(self, topic: str, message: dict[str, Any]) -> None:
        self._publisher.publish(topic, encode(message), headers=ttl_of(message))

    @property
    def _publisher(self) -> Any:
        return self.connection.publisher

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Leave text as it is, and write bytes as base64."""
        encoded: tuple[Any, str | None] = super().encode_body(body, "base64" if isinstance(body, bytes) else encoding)
        return encoded

    # Consuming

    def basic_consume(self, queue: str, no_ack: bool, callback: Callback, consumer_tag: str, **kwargs: Any) -> None:
        sources = self._sources(queue)
        if not no_ack and not self.is_passing(queue):
            check_worker(self._publisher, queue, sources)
        consuming = self._consuming[consumer_tag] = Consuming(self, callback, no_ack)
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        reader: Reader = self.connection.reader
        group = None if no_ack else self.group
        # Before the first publish no nsqd has the topic, so nsqlookupd can't tell where a mailbox will be.
        nsqds = tuple(self.connection.nodes()) if self.is_passing(queue) else ()
        consuming.subscriptions = [reader.subscribe(it, consuming, group, nsqds=nsqds) for it in sources]
        has_levels = len(sources) > 1 and not self.is_passing(queue)
        if self.is_passing(queue) or has_levels:  # broadcasts from now on must not be missed
            deadline = monotonic() + _CONNECT_TIMEOUT
            for subscription in consuming.subscriptions:
                subscription.connected.wait(max(0.0, deadline - monotonic()))
        if has_levels and group is not None:
            reader.settle(group)

    def basic_cancel(self, consumer_tag: str) -> None:
        self._consumers.discard(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag, None)
        if queue in self._active_queues:
            self._active_queues.remove(queue)
        if (consuming := self._consuming.pop(consumer_tag, None)) is not None:
            for subscription in consuming.subscriptions:
                subscription.reader.cancel(subscription)

    def deliver(self, subscription: ReaderSubscription, delivery: Delivery, consuming: Consuming) -> bool:
        """Hand a message to Celery. Return False if Celery doesn't get it."""
        message = self._received(subscription, delivery, no_ack=consuming.no_ack)
        if message is None:
            return False
        consuming.callback(message)
        return True

    def _received(
        self, subscription: ReaderSubscription, delivery: Delivery, *, no_ack: bool
    ) -> virtual.Message | None:
        answer = partial(subscription.reader.answer, subscription, delivery)
        try:
            raw = decode(delivery.body)
            # A message published to several queues has the same tag in all of them.
            raw["properties"]["delivery_tag"] = f"{delivery.topic} {raw['properties'].get('delivery_tag')}"
            message = self.Message(let_run(raw, time()), channel=self)
        except Exception as error:  # published there by some other program
            log.error("message %s of %s is not a message of kombu: %r", delivery.id, delivery.topic, error)
            answer(partial(delivery.bury, f"not a message of kombu: {error!r}"))
            return None
        accepts = subscription.source.accepts
        if accepts is not None and not accepts(str(message.delivery_info.get("routing_key", ""))):
            answer(delivery.finish)
            return None
        if no_ack:
            answer(delivery.finish)
            return message
        tag = message.delivery_tag
        if self.connection.finished.is_repeat(tag, delivery.attempts, subscription.breaks):
            answer(delivery.finish)
            return None
        message.delivery_info["redelivered"] = delivery.attempts > 1
        return message if self.qos.append(subscription, delivery, tag) else None

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> virtual.Message | None:
        """Return the next message of a queue, or None after a second without one."""
        reader: Reader = self.connection.reader
        if queue not in self._getters:
            group = PrefetchGroup(wants=False)
            self._getters[queue] = (group, [reader.subscribe(it, None, group) for it in self._sources(queue)])
        group, subscriptions = self._getters[queue]
        reader.want_one(group)
        try:
            return self._wait_for_one(subscriptions, no_ack=no_ack)
        finally:
            reader.want_none(group)

    def _wait_for_one(self, subscriptions: list[ReaderSubscription], *, no_ack: bool) -> virtual.Message | None:
        deadline = monotonic() + _GET_TIMEOUT
        while True:
            for subscription in subscriptions:
                while (found := self.connection.reader.take(of=subscription)) is not None:
                    if (message := self._received(*found, no_ack=no_ack)) is not None:
                        return message
            if not self.connection.wait(deadline - monotonic()):
                return None

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        self.qos.prefetch_count = prefetch_count
        self.connection.reader.limit(self.group, prefetch_count)

    def drain_events(self, timeout: float | None = None, callback: object = None) -> None:
        self.connection.drain_events(self.connection, timeout=timeout)

    def close(self) -> None:
        """Cancel all consumers, and give back everything that Celery hasn't answered."""
        if not self.closed and self.connection is not None:
            for consumer in list(self._consumers):
                self.basic_cancel(consumer)
            for _, subscriptions in self._getters.values():
                for subscription in subscriptions:
                    subscription.reader.cancel(subscription)
            self._getters.clear()
            self.qos.restore_unacked()
        super().close()
