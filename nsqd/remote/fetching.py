"""Gets parts of objects, several requests at a time, and proves each part.

Parts that lie close together in one object come by one request, because a request costs more than some bytes in between.
For example, a slot has a piece of the journal and one of each topic's log. Slots that the claim has kept are no requests.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.root import FilePart, prove
from nsqd.remote.daemon_threads import DaemonThreads
from nsqd.remote.object_store import ObjectStore, StoreFault
from nsqd.remote.pacing import LineRate, pause_before

if TYPE_CHECKING:
    from nsqd.remote.kept_slots import KeptSlots
    from nsqd.remote.rate_limit import RateLimit

log = logging.getLogger(__name__)

AT_ONCE: Final = 16  # requests
MOST_BYTES: Final = 64 << 20  # under way
_GAP: Final = 64 << 10  # bytes between two parts that are fetched as well
_LARGEST: Final = 8 << 20  # bytes of one request, unless a part has more
_REPORT_INTERVAL: Final = 10.0
LOOK_INTERVAL: Final = 0.25  # seconds between two looks whether to give up


class Abandoned(Exception):
    """The work was ended: its start was stopped, or its owner is being closed, or has lost the name."""


@dataclass(eq=False, slots=True)
class ObjectRange:
    """Bytes of one object that one request gets, and the parts in them."""

    object: str
    start: int
    end: int
    parts: list[FilePart] = field(default_factory=list)
    failures: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start


class Fetch:
    """Gets parts, and repeats requests that have no answer, for as long as it takes, or until `is_abandoned`.

    Raises BadObject if an object is missing or damaged, and Abandoned.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        is_abandoned: Callable[[], bool] = lambda: False,
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        limit: RateLimit | None = None,
        kept: KeptSlots | None = None,
    ) -> None:
        self._store = store
        self._kept = kept
        self._limit = limit
        self._is_abandoned = is_abandoned
        self._pause = pause
        self._clock = clock
        self._reported = clock()
        self._fault: StoreFault | None = None  # the last one since the last report
        self._line = LineRate()
        self.done = 0  # bytes from the store

    def parts(self, wanted: Iterable[FilePart], take: Callable[[FilePart, bytes], object]) -> None:
        """Hand each part with its bytes to `take`, in any order."""
        waiting = deque(self._not_kept(ranges_of(wanted), take))
        total, size = sum(it.size for it in waiting), 0
        under_way: dict[Future[Mapping[FilePart, bytes]], ObjectRange] = {}
        is_over = Event()
        with DaemonThreads[Mapping[FilePart, bytes]](AT_ONCE, name="nsqd fetch") as threads:
            try:
                while waiting or under_way:
                    while waiting and len(under_way) < AT_ONCE and self.may_start(waiting[0], under_way=size):
                        found = waiting.popleft()
                        size += found.size
                        under_way[threads.submit(self._get_unless, is_over, found)] = found
                    for future in wait(under_way, LOOK_INTERVAL, FIRST_COMPLETED).done:
                        found = under_way.pop(future)
                        size -= found.size
                        try:
                            parts = future.result()
                        except StoreFault as fault:
                            self._fault = fault
                            found.failures += 1
                            waiting.appendleft(found)
                            continue
                        for part, data in parts.items():
                            self.done += len(data)
                            take(part, data)
                    if self._is_abandoned():
                        raise Abandoned
                    self._report(total)
            finally:
                is_over.set()

    def part(self, wanted: FilePart) -> bytes:
        found: list[bytes] = []
        self.parts([wanted], lambda _, data: found.append(data))
        return found[0]

    def give_back_kept(self) -> bool:
        """Ask the store for everything from now on. Return whether the disk has got room by that."""
        return self._kept is not None and self._kept.close()

    def _not_kept(
        self, wanted: Iterable[ObjectRange], take: Callable[[FilePart, bytes], object]
    ) -> Iterator[ObjectRange]:
        """Hand over the parts that are kept, and yield the ranges that the store has to be asked for."""
        for found in wanted:
            parts = self._kept_parts(found)
            if parts is None:
                yield found
                continue
            for part, data in parts.items():
                take(part, data)
            if self._is_abandoned():
                raise Abandoned

    def _kept_parts(self, wanted: ObjectRange) -> Mapping[FilePart, bytes] | None:
        if self._kept is None or (data := self._kept.get(wanted.object, wanted.start, wanted.end)) is None:
            return None
        try:
            return _proved(wanted, data)
        except BadObject as error:
            log.warning("asking the store again, because this disk has damaged its copy: %s", error)
            self._kept.drop(wanted.object)
            return None

    def may_start(self, wanted: ObjectRange, *, under_way: int) -> bool:
        """Return whether the line has room for this request while `under_way` bytes are."""
        return not under_way or (under_way < MOST_BYTES and self._line.may_start(wanted.size, under_way=under_way))

    def _get_unless(self, is_over: Event, wanted: ObjectRange) -> Mapping[FilePart, bytes]:
        if wanted.failures:
            self._pause(pause_before(wanted.failures, random.random()))
        for pause in self._limit.pauses(wanted.size, self._clock) if self._limit is not None else ():
            if is_over.is_set():
                break
            self._pause(pause)
        if is_over.is_set():
            raise Abandoned
        return self.get(wanted)

    def get(self, wanted: ObjectRange) -> Mapping[FilePart, bytes]:
        """Return the parts of this range. Raises StoreFault, and BadObject."""
        began = self._clock()
        try:
            data = self._store.get(wanted.object, wanted.start, wanted.end)
        except StoreFault:
            self._line.failed(wanted.size, self._clock() - began)
            raise
        if data is None:
            raise BadObject(f"{wanted.object} is missing")
        self._line.arrived(wanted.size, self._clock() - began)
        return _proved(wanted, data)

    def _report(self, total: int) -> None:
        if (now := self._clock()) >= self._reported + _REPORT_INTERVAL:
            self._reported = now
            fault, self._fault = self._fault, None
            log.info(
                "fetched %d of %d MB from the store%s",
                self.done >> 20,
                total >> 20,
                f", asking again: {fault}" if fault else "",
            )


def ranges_of(parts: Iterable[FilePart]) -> list[ObjectRange]:
    """Return the requests that get these parts, each part once."""
    ranges: list[ObjectRange] = []
    for part in sorted(set(parts), key=lambda it: (it.object, it.offset, it.length)):
        end = part.offset + part.length
        last = ranges[-1] if ranges else None
        if last is not None and last.object == part.object and _is_near(last, part):
            last.end = max(last.end, end)
            last.parts.append(part)
        else:
            ranges.append(ObjectRange(part.object, part.offset, end, [part]))
    return ranges


def _is_near(last: ObjectRange, part: FilePart) -> bool:
    return part.offset <= last.end + _GAP and part.offset + part.length - last.start <= _LARGEST


def _proved(wanted: ObjectRange, data: bytes) -> Mapping[FilePart, bytes]:
    return {it: prove(it, _cut_out(data, it.offset - wanted.start, it.length)) for it in wanted.parts}


def _cut_out(data: bytes, start: int, length: int) -> bytes:
    return data if (start, length) == (0, len(data)) else data[start : start + length]
