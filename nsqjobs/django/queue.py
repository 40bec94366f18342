"""One queue of a worker: the subscriptions of its bands. Threads take tasks from them by weight."""

from __future__ import annotations

import queue
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from nsqjobs.django.priorities import Band, Turns, band_topic, prefetches

if TYPE_CHECKING:
    from nsqjobs.held import HeldMessage
    from nsqjobs.link import Link, Subscription

_FEWEST: Final = 2  # with so many bands in use there is a choice


class TakenMessage(NamedTuple):
    band: Band
    held: HeldMessage


class Queue:
    """Hands out the messages of a queue to `concurrency` threads, which report when they are done with one.

    While all messages are of one band, we keep none at hand: the worker has as many messages as threads, and others
    wait for the first free worker.
    """

    def __init__(self, link: Link, name: str, *, concurrency: int, has_priorities: bool) -> None:
        bands = tuple(Band) if has_priorities else (Band.NORMAL,)
        self._concurrency = concurrency
        self._lock = Lock()  # for everything below
        self._turns = Turns()
        self._running = dict.fromkeys(bands, 0)
        self._used: set[Band] = set()
        self._prefetches = dict.fromkeys(bands, concurrency)
        # One entry for each message at hand, and some for messages that were lost or given back. See Subscription for why
        # it is no SimpleQueue.
        self._bell = queue.Queue[None]()
        self._subscriptions: dict[Band, Subscription] = {
            band: link.subscribe(band_topic(name, band), prefetch=concurrency, wake=self._ring) for band in bands
        }

    def take(self, timeout: float) -> TakenMessage | None:
        """Return the next message, or None after `timeout` seconds or after `close`.

        Raises NSQError if nothing can ever arrive.
        """
        if self._bell.empty():
            with self._lock:
                self._share_out()  # a thread is free, and about to wait
        try:
            self._bell.get(timeout=timeout)
        except queue.Empty:
            return None
        with self._lock:
            return self._next()

    def done(self, taken: TakenMessage) -> None:
        """Report that the thread that took a message is free."""
        with self._lock:
            self._running[taken.band] -= 1

    def close(self) -> None:
        """Receive nothing more, and give back untaken messages."""
        for subscription in self._subscriptions.values():
            subscription.close()

    def _ring(self) -> None:
        self._bell.put(None)

    def _next(self) -> TakenMessage | None:
        while at_hand := [band for band, it in self._subscriptions.items() if it.has_arrived]:
            band = self._turns.choose(at_hand)
            if (held := self._subscriptions[band].take(0.0)) is not None:
                self._running[band] += 1
                self._used.add(band)
                self._share_out()
                return TakenMessage(band, held)
        return None

    def _share_out(self) -> None:
        if len(self._used) < _FEWEST:
            return
        for band, count in prefetches(self._running, self._concurrency).items():
            if count != self._prefetches[band]:
                self._prefetches[band] = count
                self._subscriptions[band].set_prefetch(count)
