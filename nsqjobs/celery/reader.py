"""The thread that consumes for a transport. It owns the connections, so heartbeats and TOUCH never wait for Celery.

    nsqd --> a consumer of nsqclient --> ready --> `take`, in Celery's thread --> Celery
      ^                                    |                                        |
      +------------ FIN, REQ, BURY --------+----------- an order <------- ack, reject

Celery passes orders to the thread and doesn't wait. It takes ready messages in batches; `wake` is called when there are
some.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING, Final

import trio

from nsqclient import Consumer, Message, NSQError, events, open_consumer
from nsqjobs.celery.finished import Breaks
from nsqjobs.celery.prefetch import UNLIMITED, allowances, is_in_excess, stocks
from nsqjobs.delays import give_back_early
from nsqjobs.touching import Touching

if TYPE_CHECKING:
    from nsqclient import Config
    from nsqjobs.addresses import Endpoint
    from nsqjobs.celery.routing import QueueChannel

log = logging.getLogger(__name__)

NOT_COUNTED: Final = 250  # in flight, for consumers that acknowledge at once
CLOSE_TIMEOUT: Final = 5.0  # seconds for nsqd to take the last answers

_CANCEL_TIMEOUT: Final = 1.0  # seconds
_SKEW: Final = 5.0  # seconds that nsqd's clock may be behind ours
_SETTLING: Final = 0.1  # seconds
_RECONNECT_PAUSE: Final = 1.0  # seconds
_FOR_EVER: Final = 1e9  # a stopped consumer waits for answers; `Reader.close` ends that


class PrefetchGroup:
    """The subscriptions of one Celery channel, which share a prefetch limit."""

    def __init__(self, *, wants: bool = True) -> None:
        self.limit = UNLIMITED
        self.wants = wants  # False: Celery isn't waiting for a message, so none may wait here
        self.has_levels = False  # priorities; with several, some messages are in stock
        self.subscriptions: list[ReaderSubscription] = []
        self.is_settling = False  # the first message of each priority is on its way
        self.taken = 0  # messages that Celery has; guarded by the reader's lock

    @property
    def is_full(self) -> bool:
        """True if Celery may not have more for now."""
        return self.is_settling or (self.has_levels and self.taken >= self.limit)

    def held(self) -> list[int]:
        return [len(it.held) for it in self.subscriptions]

    def share_out(self) -> None:
        if not self.wants:
            shares = self.held()
        elif self.has_levels:
            shares = stocks(self.limit, [len(it.taken) for it in self.subscriptions])
        else:
            shares = allowances(self.limit, self.held())
        for it, share in zip(self.subscriptions, shares, strict=True):
            if it.consumer is not None:
                it.consumer.set_max_in_flight(share)


class ReaderSubscription:
    """A subscription to one channel. `held` is for the reader's thread only."""

    def __init__(
        self, source: QueueChannel, nsqds: Sequence[str], owner: object, group: PrefetchGroup | None, reader: Reader
    ) -> None:
        self.source = source
        self.reader = reader  # to answer; in a child process it does nothing
        self.nsqds = nsqds  # to subscribe to even if no nsqlookupd lists them for the topic
        self.owner = owner  # the Celery consumer that gets the messages
        self.group = group  # None: messages are finished as soon as they are taken
        self.connected = threading.Event()  # to the first nsqd
        self.ended = threading.Event()  # set when its connections are closed
        self.breaks = Breaks()
        self.consumer: Consumer | None = None
        self.is_cancelled = False
        self.held: set[Message] = set()  # unanswered messages
        self.taken: set[Message] = set()  # the ones that Celery has; guarded by the reader's lock


# Minus the priority, and a number: the highest priority first, then the oldest.
_Ready = tuple[int, int, ReaderSubscription, Message]


class Reader:
    """One for each transport that consumes. Call its methods in Celery's thread, unless they say otherwise."""

    def __init__(self, endpoint: Endpoint, wake: Callable[[], None]) -> None:
        self.pid = os.getpid()
        self.error: BaseException | None = None  # why nothing can arrive any more
        self._endpoint = endpoint
        self._config = _config_of(endpoint)
        self._wake = wake
        self._ready: list[_Ready] = []  # a heap
        self._number = 0
        self._lock = threading.Lock()  # of `_ready`
        self._has_levels = False
        self._subscriptions: set[ReaderSubscription] = set()
        self._warned: set[Message] = set()  # held for longer than nsqd allows
        self._touching = Touching()
        self._sooner = trio.lowlevel.ParkingLot()  # woken to check held messages sooner
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._end = trio.Event()
        self._ended = trio.lowlevel.ParkingLot()  # woken when a subscription has ended
        self._thread = threading.Thread(target=self._run, name="nsqjobs.celery", daemon=True)
        self._thread.start()
        self._started.wait()

    # Celery's thread

    def subscribe(
        self, source: QueueChannel, owner: object, group: PrefetchGroup | None, *, nsqds: Sequence[str] = ()
    ) -> ReaderSubscription:
        """Consume from a channel until `cancel`, at `nsqds` and the endpoint's nsqds, or all that have the topic."""
        subscription = ReaderSubscription(source, nsqds, owner, group, self)
        self._order(partial(self._begin, subscription))
        return subscription

    def settle(self, group: PrefetchGroup) -> None:
        """Hold messages back for a moment, so that each priority can send one."""
        group.is_settling = True
        self._order(partial(self._start, self._end_settling, group))

    def cancel(self, subscription: ReaderSubscription) -> None:
        """Receive nothing new, and give back messages that Celery hasn't taken. The others may still be answered.

        A passing channel disappears with its last consumer, and so do its messages. So this waits until a consumer
        without unanswered messages has ended. Otherwise a program that subscribes again at once under the same name,
        such as `inspect`, would lose the reply.
        """
        self._order(partial(self._stop, subscription))
        is_passing = subscription.source.channel.endswith("#ephemeral")
        if is_passing and subscription.group is None and self.pid == os.getpid():
            subscription.ended.wait(_CANCEL_TIMEOUT)

    def limit(self, group: PrefetchGroup, count: int) -> None:
        """Set how many messages a group may hold; 0: no limit."""
        self._order(partial(self._set_limit, group, count))

    def want_one(self, group: PrefetchGroup) -> None:
        """Allow a group one message more than it holds, until `want_none`."""
        self._order(partial(self._want_one, group))

    def want_none(self, group: PrefetchGroup) -> None:
        """Allow a group no further message, and give back messages that it hasn't taken."""
        self._order(partial(self._want_none, group))

    def take(self, *, of: ReaderSubscription | None = None) -> tuple[ReaderSubscription, Message] | None:
        """Return the next message, or None if there is none now. Raise the error that ended the reader."""
        while (found := self._take_next(of)) is not None:
            subscription, message = found
            if message.answered == "lost":  # its connection is gone, and nsqd redelivers it
                self.answer(subscription, message, message.finish)  # no effect at nsqd; it frees the place
                continue
            if subscription.group is not None and subscription.group.has_levels:
                self._order(subscription.group.share_out)  # there is room for another one of this priority
            return subscription, message
        if self.error is not None:
            raise self.error
        return None

    def _take_next(self, of: ReaderSubscription | None) -> tuple[ReaderSubscription, Message] | None:
        with self._lock:
            found = self._next(of)
            if found is None:
                return None
            self._ready.remove(found)
            heapq.heapify(self._ready)
        return found[2], found[3]

    def _next(self, of: ReaderSubscription | None) -> _Ready | None:
        """Return the next message that Celery may have, and count it. The caller holds the lock."""
        for entry in sorted(self._ready) if of is not None or self._has_levels else self._ready[:1]:
            _, _, subscription, message = entry
            group = subscription.group
            if (of is not None and subscription is not of) or (group is not None and group.is_full):
                continue
            if group is not None:
                group.taken += 1
                subscription.taken.add(message)
            return entry
        return None

    def answer(self, subscription: ReaderSubscription, message: Message, answer: Callable[[], bool]) -> None:
        """Answer a message with one of its methods."""
        self._order(partial(self._answer, subscription, message, answer))

    def give_back(self, subscription: ReaderSubscription, message: Message) -> None:
        """Give the message to another consumer at once. The attempt doesn't count."""
        self.answer(subscription, message, partial(message.requeue, 0.0, backoff=False, count=False))

    def close(self) -> None:
        """Give back unanswered messages, and end the thread."""
        if self.pid == os.getpid():
            self._order(self._end.set)
            self._thread.join(CLOSE_TIMEOUT + 1)

    def _order(self, order: Callable[[], object]) -> None:
        if self._token is not None and self.pid == os.getpid():
            try:
                self._token.run_sync_soon(order)
            except trio.RunFinishedError:
                pass  # `take` raises the error

    # The reader's thread

    def _run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:
            self.error = _first(error)
        finally:
            self._started.set()
            self._wake()

    async def _live(self) -> None:
        async with trio.open_nursery() as self._nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._nursery.start_soon(self._keep_touching)
            self._started.set()
            await self._end.wait()
            for subscription in list(self._subscriptions):
                self._stop(subscription)
                for message in list(subscription.held):
                    self._answer(subscription, message, partial(message.requeue, 0.0, backoff=False, count=False))
            with trio.move_on_after(CLOSE_TIMEOUT):
                while self._subscriptions:
                    await self._ended.park()
            self._nursery.cancel_scope.cancel()

    def _begin(self, subscription: ReaderSubscription) -> None:
        assert self._nursery is not None
        self._subscriptions.add(subscription)
        if (group := subscription.group) is not None:
            group.subscriptions.append(subscription)
            group.has_levels = group.has_levels or subscription.source.level > 0
            self._has_levels = self._has_levels or group.has_levels
        self._nursery.start_soon(self._consume, subscription)

    async def _consume(self, subscription: ReaderSubscription) -> None:
        source, endpoint = subscription.source, self._endpoint
        try:
            if subscription.is_cancelled:
                return
            async with open_consumer(
                source.topic,
                source.channel,
                nsqd=tuple(dict.fromkeys((*endpoint.nsqd, *subscription.nsqds))),
                lookupd=endpoint.lookupd,
                config=replace(self._config, max_in_flight=NOT_COUNTED if subscription.group is None else 0),
            ) as consumer:
                subscription.consumer = consumer
                if subscription.is_cancelled:
                    return
                assert self._nursery is not None
                self._nursery.start_soon(self._watch, subscription, consumer.events())
                if subscription.group is not None:
                    subscription.group.share_out()
                async for message in consumer:
                    self._arrived(subscription, message)
        finally:
            self._subscriptions.discard(subscription)
            self._ended.unpark_all()
            subscription.connected.set()
            subscription.ended.set()

    async def _watch(self, subscription: ReaderSubscription, happening: object) -> None:
        async for event in happening:  # type: ignore[attr-defined]
            if isinstance(event, events.Connected):
                subscription.breaks.connected(monotonic())
                subscription.connected.set()
            elif isinstance(event, events.Disconnected):
                subscription.breaks.broken(monotonic())

    def _start(self, task: Callable[[PrefetchGroup], Awaitable[None]], group: PrefetchGroup) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task, group)

    async def _end_settling(self, group: PrefetchGroup) -> None:
        await trio.sleep(_SETTLING)
        group.is_settling = False
        self._wake()

    def _stop(self, subscription: ReaderSubscription) -> None:
        if subscription.is_cancelled:
            return
        subscription.is_cancelled = True
        if subscription.consumer is not None:
            subscription.consumer.stop()
        if (group := subscription.group) is not None and subscription in group.subscriptions:
            group.subscriptions.remove(subscription)
            group.share_out()
        self._return_waiting(subscription)

    def _set_limit(self, group: PrefetchGroup, count: int) -> None:
        group.limit = count or UNLIMITED
        group.share_out()

    def _want_one(self, group: PrefetchGroup) -> None:
        group.wants = True
        self._set_limit(group, group.taken + 1)

    def _want_none(self, group: PrefetchGroup) -> None:
        group.wants = False
        for subscription in list(group.subscriptions):
            self._return_waiting(subscription)
        group.share_out()

    # Messages

    def _arrived(self, subscription: ReaderSubscription, message: Message) -> None:
        source = subscription.source
        if message.timestamp_ns / 1e9 < source.since - _SKEW:
            message.finish()  # a passing queue gets nothing from before its creation
            return
        if give_back_early(message, time()):
            return
        subscription.held.add(message)
        if self._touching.arrived(message):
            self._sooner.unpark_all()
        with self._lock:
            self._number += 1
            heapq.heappush(self._ready, (-source.level, self._number, subscription, message))
        if (group := subscription.group) is not None:
            if not group.wants:
                self._return_waiting(subscription)  # it was on its way when `basic_get` gave up
            elif len(group.subscriptions) > 1 and not group.has_levels:
                self._keep_to_limit(group)
        self._wake()

    def _keep_to_limit(self, group: PrefetchGroup) -> None:
        """Give back messages beyond the limit: untaken ones of the lowest priority, the last to arrive first."""
        while is_in_excess(group.limit, group.held()):
            with self._lock:
                mine = [entry for entry in self._ready if entry[2].group is group]
                if not mine:
                    break
                last = max(mine, key=lambda entry: entry[:2])
                self._ready.remove(last)
                heapq.heapify(self._ready)
            self._return(last[2], last[3])
        group.share_out()

    def _return_waiting(self, subscription: ReaderSubscription) -> None:
        """Give back the messages that Celery hasn't taken."""
        with self._lock:
            waiting = [message for _, _, of, message in self._ready if of is subscription]
            if waiting:
                self._ready = [entry for entry in self._ready if entry[2] is not subscription]
                heapq.heapify(self._ready)
        for message in waiting:
            self._return(subscription, message)

    def _return(self, subscription: ReaderSubscription, message: Message) -> None:
        self._answer(subscription, message, partial(message.requeue, 0.0, backoff=False, count=False))

    def _answer(self, subscription: ReaderSubscription, message: Message, answer: Callable[[], bool]) -> None:
        try:
            answer()
        except NSQError as error:  # ephemeral channels can't bury, and NSQ's own nsqd counts each attempt
            log.warning("[%s/%s] %s", subscription.source.topic, subscription.source.channel, error)
            _answer_otherwise(subscription, message)
        subscription.held.discard(message)
        self._warned.discard(message)
        if (group := subscription.group) is not None:
            with self._lock:
                if message in subscription.taken:
                    subscription.taken.remove(message)
                    group.taken -= 1
            if len(group.subscriptions) > 1:
                group.share_out()
            if group.has_levels:
                self._wake()  # it may have been full

    # Time

    async def _keep_touching(self) -> None:
        while True:
            with trio.move_on_after(self._touching.pause):
                await self._sooner.park()
            now = trio.current_time()
            for subscription in self._subscriptions:
                for message in subscription.held:
                    self._touch(subscription, message, now)

    def _touch(self, subscription: ReaderSubscription, message: Message, now: float) -> None:
        if self._touching.touch_in_time(message, now) or message in self._warned or message.answered != "no":
            return
        self._warned.add(message)
        log.warning(
            "[%s/%s] message %s has been here for longer than nsqd's --max-msg-timeout: another worker gets it",
            subscription.source.topic,
            subscription.source.channel,
            message.id,
        )


def _config_of(endpoint: Endpoint) -> Config:
    """Return the consumers' settings. We try a named nsqd every second, so its restart is only a short pause."""
    config = replace(endpoint.config, drain_timeout=_FOR_EVER)
    if endpoint.lookupd:
        return config
    return replace(config, reconnect_delay="fixed", lookupd_poll_interval=_RECONNECT_PAUSE)


def _answer_otherwise(subscription: ReaderSubscription, message: Message) -> None:
    """Answer a message if nsqd lacks the right answer. A broadcast may be lost, but not a job."""
    if subscription.source.channel.endswith("#ephemeral"):
        message.finish()
    else:
        message.requeue(backoff=False)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
