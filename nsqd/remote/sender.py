"""The threads that send an owner's slots to the store, and tell the event loop what was confirmed.

One thread at a time *leads*: it waits until a request is due. Then it hands the lead to another one and sends the request
itself. So a slot that the end of a turn makes due passes through one thread only, and an idle node has one that sleeps.

    the end of a turn ── wake ──> the leader ── create ──> the store ── confirmed ──> doorbell ──> the event loop

A request may take half a minute if the store hangs, and a second request for the same slot should not have to wait for
that. So there are as many threads for each slot under way as it may have creates and comparisons, begun when they are
needed, one for a probe, and a leader. A request that still hangs after another one has stored its slot doesn't count, or
half of a store's servers could hang all threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from nsqd.log.sync.sync_thread import make_doorbell
from nsqd.remote.chain import MOST_REQUESTS, SHORTEST_PATIENCE, ChainRequest, RequestVerb
from nsqd.remote.object_store import Created, ObjectStore, OnUnknown, StoreFault, StoreFaultKind

if TYPE_CHECKING:
    from nsqd.remote.owner import Owner

NAME: Final = "nsqd remote"
_MOST_THREADS: Final = 128
_PROBES: Final = 1  # under way; it may have begun before there was a slot


class Sender:
    """Serves one owner until it is closed."""

    def __init__(
        self,
        owner: Owner,
        open_store: Callable[[OnUnknown], ObjectStore],
        *,
        depth: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.doorbell = make_doorbell()  # rings when more is confirmed, and when the name is lost
        self.fault: StoreFault | None = None  # why the last request has got no answer; None: it has
        self.bug: BaseException | None = None  # a thread has ended with it; the event loop has to raise it
        self._owner = owner
        self._rung = 0  # the number of the last confirmed change for which the doorbell has rung
        self._store = open_store(self._note_fault)
        self._clock = clock
        # One more than may hang, so that there is always a leader: if too much waits, it has to drop it.
        self._most_threads = 2 * MOST_REQUESTS * depth + _PROBES + 1
        self._threads: list[Thread] = []
        self._lead = Lock()
        self._leads_until = inf  # when the leader looks for work by itself; inf while it is about to find out
        # Held while there is nothing new, and released to wake the leader. A `SimpleQueue` would not do: CPython 3.11's may
        # wait for ever if it is asked to wait for a few microseconds.
        self._asleep = Lock()
        self._asleep.acquire()
        self._is_closed = False
        self._starting = Lock()
        self._followers = 0  # threads that wait for the lead, or have it
        self._under_way: set[ChainRequest] = set()

    def start(self) -> None:
        self._owner.wake = self._wake
        self._start_thread()

    def close(self) -> None:
        """Have the threads end, each after the request that it has sent. Don't wait for them: the store may hang."""
        self._is_closed = True
        self._wake()  # the leader; the others see it when they lead

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it was woken, and hasn't looked yet
            self._asleep.release()

    def _start_thread(self) -> None:
        with self._starting:
            hanging = sum(it.slot is not None and it.slot.is_stored for it in self._under_way)
            if self._followers or len(self._threads) >= min(_MOST_THREADS, self._most_threads + hanging):
                return
            self._followers += 1
            # A daemon thread, so that the interpreter can exit even if the store hangs.
            thread = Thread(target=self._serve, name=NAME, daemon=True)
            self._threads.append(thread)
        thread.start()

    # In a thread

    def _serve(self) -> None:
        try:
            while (request := self._next_request()) is not None:
                with self._starting:
                    self._followers -= 1
                    self._under_way.add(request)
                self._start_thread()
                self._perform(request)
                with self._starting:
                    self._followers += 1
                    self._under_way.remove(request)
        except BaseException as error:  # a bug of ours, which must not look like a store that hangs
            self.bug = error
            self.doorbell.ring()

    def _next_request(self) -> ChainRequest | None:
        """Wait for a request that is due. None: the sender was closed."""
        found = self._ask_owner()
        if isinstance(found, ChainRequest):
            self._tell_leader(self._clock() + SHORTEST_PATIENCE)  # it may have to be repeated then
            return found
        self._tell_leader(found)
        with self._lead:
            while not self._is_closed:
                self._leads_until = inf  # before we ask, so that every later change wakes us
                found = self._ask_owner()
                if isinstance(found, ChainRequest):
                    return found
                self._leads_until = found
                self._sleep(found)
        return None

    def _tell_leader(self, due: float) -> None:
        """Wake the leader if the answer that we had has made something due earlier than it knows."""
        if due < self._leads_until:
            self._wake()

    def _ask_owner(self) -> ChainRequest | float:
        found = self._owner.next_request(self._clock())
        self._ring_if_confirmed()  # what is left out of slots needs no answer
        return found

    def _ring_if_confirmed(self) -> None:
        confirmed = self._owner.confirmed
        if confirmed != self._rung:
            self._rung = confirmed
            self.doorbell.ring()

    def _sleep(self, until: float) -> None:
        self._asleep.acquire(timeout=-1 if until == inf else max(0.0, until - self._clock()))

    def _perform(self, request: ChainRequest) -> None:
        owner = self._owner
        if request.verb is RequestVerb.CREATE:
            created = self._store.create(request.name, request.data)
            if created is not Created.UNKNOWN:
                self.fault = None
            owner.created(request, created, self._clock())
        else:
            try:
                found = self._store.get(request.name, 0, request.size)
            except StoreFault as fault:
                self._note_fault(fault)
                owner.failed(request, self._clock())
                return
            self.fault = None
            owner.got(request, found, self._clock())
        self._ring_if_confirmed()
        if owner.fenced is not None:
            self.doorbell.ring()

    def _note_fault(self, fault: StoreFault) -> None:
        self.fault = fault
        if fault.kind is StoreFaultKind.BUSY:
            self._owner.slow_down(self._clock())
