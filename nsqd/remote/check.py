"""Whether a store keeps its word: what `nsqd remote check` does, and a shorter form at the first use of a prefix.

Of all that a store promises, a node relies on this: of several writers that create one name, exactly one succeeds, and
its object stays. A store that ignores the condition of a create lets two nsqds own one log, and acknowledged messages
are lost. Such stores exist, some only break the promise under load or across their servers, and none of them says so.

Each step proves one thing and gives a finding. A step that finds a lie ends there, and the others still run. A store
that doesn't answer at all is no liar: StoreFault is raised, and what was proved before stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from statistics import median
from threading import Barrier
from typing import Any, Final, TypeVar

from nsqd.remote.daemon_threads import DaemonThreads
from nsqd.remote.object_store import Created, Names, ObjectStore, OnUnknown, StoreFault, StoreFaultKind

WRITERS: Final = 8
ROUNDS: Final = 200
_ROUNDS_PER_CONNECTION: Final = 25
_TRIES: Final = 6  # of a request that gets no answer
_FIRST_PAUSE: Final = 0.05  # seconds; each is twice as long as the one before
_LASTING: Final = frozenset(
    {StoreFaultKind.CLOCK, StoreFaultKind.DENIED, StoreFaultKind.FULL, StoreFaultKind.MISSING}
)  # a repeat won't help
_ABSENCES: Final = 16  # names that are asked for before they exist
_LARGE: Final = 8 << 20  # bytes of the largest slot
_TIMED: Final = ((1 << 10, 20), (1 << 20, 5))  # bytes of an object, and how many of that size are created

T = TypeVar("T")


class CheckVerdict(StrEnum):
    PROVED = "ok"
    REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True)
class StoreFinding:
    verdict: CheckVerdict
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:<8} {self.subject:<8} {self.text}"


@dataclass(frozen=True, slots=True)
class Latencies:
    """How long creates of one size took, in seconds."""

    size: int
    times: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.times)

    def __str__(self) -> str:
        size = f"{self.size >> 20} MiB" if self.size >= 1 << 20 else f"{self.size >> 10} KiB"
        return (
            f"{size}: median {1000 * self.median:.1f} ms, slowest of {len(self.times)} {1000 * max(self.times):.1f} ms"
        )


class _Lie(Exception):
    """The store has not done what it answered."""


class StoreCheck:
    """A check of one store, in a folder of its own below the prefix, which is empty again at the end.

    `open_store` opens the store with connections of its own, `clock` returns seconds, and `pause` waits for the given
    number of them before a repeat.
    """

    def __init__(
        self,
        open_store: Callable[[OnUnknown], ObjectStore],
        *,
        random: Random,
        clock: Callable[[], float],
        pause: Callable[[float], object],
        rounds: int = ROUNDS,
        on_round: Callable[[int], object] = lambda number: None,
    ) -> None:
        self.latencies: list[Latencies] = []
        self._open_store = open_store
        self._random = random
        self._clock = clock
        self._pause = pause
        self._rounds = rounds
        self._on_round = on_round
        self._folder = f"check-{random.getrandbits(64):016x}"
        self._clients = self._open_clients()
        self._threads = DaemonThreads[Any](WRITERS, name="nsqd remote check")
        self._first, self._last = (_Patient(it.store, pause) for it in (self._clients[0], self._clients[-1]))
        self._kept: dict[str, bytes] = {}  # what has to be there at the end
        self._written: set[str] = set()  # what has to be deleted

    def run(self, *, is_short: bool = False) -> Iterator[StoreFinding]:
        """Yield a finding for each step. Raises StoreFault if the store can't be used at all."""
        steps = [
            ("create", self._creates),
            ("exists", self._refuses_the_second),
            ("fresh", self._shows_new_objects_at_once),
            ("delete", self._deletes),
            ("list", self._lists),
            ("hint", self._overwrites),
            ("race", self._has_one_winner),
            *([] if is_short else [("large", self._takes_large_objects), ("speed", self._measures)]),
            ("kept", self._keeps),
            ("clean", self._cleans),
        ]
        try:
            with self._threads:
                for subject, step in steps:
                    try:
                        yield StoreFinding(CheckVerdict.PROVED, subject, step())
                    except _Lie as lie:
                        yield StoreFinding(CheckVerdict.REFUSED, subject, str(lie))
        finally:
            with suppress(StoreFault):
                self._first.delete(sorted(self._written))

    # Steps: each returns what it has proved, or raises _Lie

    def _creates(self) -> str:
        name, data = self._new_name("created"), self._content(1 << 10)
        if self._first.get(name) is not None:  # asked first, because its failures come at once
            raise _Lie("a name that was never written has an object")
        if not self._create(self._clients[0], name, data):
            raise _Lie("a create of a new name was refused, and there is another object of that name")
        self._expect(name, data, self._first.get(name))
        self._kept[name] = data
        self._expect_part(name, data)
        return "a new object was stored, and reads as it was written, as a whole and in parts"

    def _refuses_the_second(self) -> str:
        name, first, second = self._new_name("exists"), self._content(100), self._content(100)
        self._create(self._clients[0], name, first)
        is_ours = self._create(self._clients[0], name, second)
        found = self._first.get(name)
        if is_ours or found == second:
            raise _Lie("the second create of a name was accepted, too: this store ignores If-None-Match: *")
        self._expect(name, first, found)
        self._kept[name] = first
        return "a second create of the same name was refused, and the first object stayed"

    def _shows_new_objects_at_once(self) -> str:
        for _ in range(_ABSENCES):
            name, data = self._new_name("fresh"), self._content(100)
            if any(found is not None for found in self._get_all(name)):
                raise _Lie("a name that was never written has an object")
            self._create(self._clients[0], name, data)
            for found in self._get_all(name):
                self._expect(name, data, found)
            self._kept[name] = data
        return f"{WRITERS} connections that had found nothing all read a new object at once, {_ABSENCES} times"

    def _deletes(self) -> str:
        name, first, second = self._new_name("deleted"), self._content(100), self._content(100)
        self._create(self._clients[0], name, first)
        self._first.delete([name, f"{self._folder}/never-written"])
        if self._first.get(name) is not None:
            raise _Lie("a deleted object can still be read")
        if not self._create(self._clients[0], name, second):
            raise _Lie("a deleted name can't be created again")
        self._expect(name, second, self._first.get(name))
        self._kept[name] = second
        return "a deleted object was gone, and its name could be created again"

    def _lists(self) -> str:
        names = sorted(self._new_name("listed") for _ in range(3))
        for name in names:
            self._create(self._clients[0], name, b"listed")
        folder = f"{self._folder}/listed/"
        found = self._first.list(folder)
        rest = self._first.list(folder, after=found[0]) if found else []
        if not set(found) <= set(names) or found != sorted(found) or rest != found[1:]:
            raise _Lie("a list has names that aren't there, or isn't sorted, or doesn't go on where it should")
        return "a list is sorted and goes on after a name" + (" (it lags; that's allowed)" if found != names else "")

    def _overwrites(self) -> str:
        name = self._new_name("hint")
        self._written.add(name)
        for data in (b"first", b"second"):
            self._first.overwrite(name, data)
        if (found := self._first.get(name)) not in (b"first", b"second"):
            raise _Lie(f"an overwritten object reads as {found!r}")
        return "an object could be overwritten"

    def _has_one_winner(self) -> str:
        for number in range(1, self._rounds + 1):
            self._on_round(number)
            if number % _ROUNDS_PER_CONNECTION == 0:
                self._clients = self._open_clients()
            self._race(number)
        return f"in {self._rounds} races of {WRITERS} writers there was one winner each"

    def _race(self, number: int) -> None:
        name = self._new_name("race")
        contents = [self._content(1 << 10) for _ in range(WRITERS)]
        start = Barrier(WRITERS)

        def write(client: _Client) -> bool:
            start.wait()
            return self._create(client, name, contents[client.number])

        winners = [contents[index] for index, is_ours in enumerate(self._all(write)) if is_ours]
        if len(winners) != 1:
            raise _Lie(
                f"{len(winners)} of {WRITERS} writers were the first to create one name, in race {number}: "
                "with this store, two nsqds could own one log"
            )
        for found in self._get_all(name):
            self._expect(name, winners[0], found)
        self._kept[name] = winners[0]

    def _takes_large_objects(self) -> str:
        name, data = self._new_name("large"), self._random.randbytes(_LARGE)
        if not self._create(self._clients[0], name, data):
            raise _Lie("a create of a new name was refused, and there is another object of that name")
        self._expect(name, data, self._first.get(name))
        self._expect_part(name, data)
        return f"an object of {_LARGE >> 20} MiB was stored by one request"

    def _measures(self) -> str:
        for size, count in _TIMED:
            self.latencies.append(Latencies(size, tuple(self._time_create(size) for _ in range(count))))
        return "; ".join(map(str, self.latencies))

    def _time_create(self, size: int) -> float:
        name, data = self._new_name("speed"), self._random.randbytes(size)
        began = self._clock()
        self._create(self._clients[0], name, data)
        return self._clock() - began

    def _keeps(self) -> str:
        gets = [self._threads.submit(self._last.get, name) for name in self._kept]
        for (name, data), get in zip(self._kept.items(), gets, strict=True):
            self._expect(name, data, get.result())
        return f"all {len(self._kept)} objects were still there at the end"

    def _cleans(self) -> str:
        self._first.delete(sorted(self._written))
        self._written.clear()
        return "the objects of this check are deleted"

    # Parts of steps

    def _create(self, client: _Client, name: str, data: bytes) -> bool:
        """Create an object as a node does, until the answer is sure. Return whether the object there is this one."""
        self._written.add(name)
        for attempt in range(_TRIES):
            answer = client.store.create(name, data)
            if answer is Created.CREATED:
                return True
            if answer is Created.EXISTS and (found := _Patient(client.store, self._pause).get(name)) is not None:
                return found == data
            if answer is Created.UNKNOWN and client.fault is not None and client.fault.kind in _LASTING:
                raise client.fault
            self._pause(_FIRST_PAUSE * 2**attempt)
        if answer is Created.EXISTS:
            raise _Lie(f"the store answers that {name} exists, and there is nothing of that name")
        raise client.fault or StoreFault("the store doesn't answer")

    def _expect(self, name: str, data: bytes, found: bytes | None) -> None:
        if found is None:
            raise _Lie(f"{name} was acknowledged, and isn't there: the store forgets, or answers from an old copy")
        if found != data:
            raise _Lie(f"{name} reads differently from what was acknowledged ({len(found)} bytes, not {len(data)})")

    def _expect_part(self, name: str, data: bytes) -> None:
        middle = len(data) // 2
        for start, end in ((middle, middle + 100), (middle, None), (0, 1)):
            self._expect(name, data[start:end], self._first.get(name, start, end))

    def _all(self, action: Callable[[_Client], T]) -> list[T]:
        """Do something with all clients at once, and return what came of it."""
        return [it.result() for it in [self._threads.submit(action, client) for client in self._clients]]

    def _get_all(self, name: str) -> list[bytes | None]:
        return self._all(lambda client: _Patient(client.store, self._pause).get(name))

    def _new_name(self, kind: str) -> str:
        return f"{self._folder}/{kind}/{self._random.getrandbits(64):016x}"

    def _content(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def _open_clients(self) -> list[_Client]:
        return [_Client(number, self._open_store) for number in range(WRITERS)]


class _Client:
    """One writer, with connections of its own, and the reason of its last answer UNKNOWN."""

    def __init__(self, number: int, open_store: Callable[[OnUnknown], ObjectStore]) -> None:
        self.number = number
        self.fault: StoreFault | None = None
        self.store = open_store(self._keep)

    def _keep(self, fault: StoreFault) -> None:
        self.fault = fault


class _Patient:
    """A store whose requests are repeated if there is no answer, as a node does: one error in a thousand is no lie."""

    def __init__(self, store: ObjectStore, pause: Callable[[float], object]) -> None:
        self._store = store
        self._pause = pause

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        return self._patiently(lambda: self._store.get(name, start, end))

    def delete(self, names: Sequence[str]) -> None:
        self._patiently(lambda: self._store.delete(names))

    def list(self, prefix: str, after: str = "") -> Names:
        return self._patiently(lambda: self._store.list(prefix, after))

    def overwrite(self, name: str, data: bytes) -> None:
        self._patiently(lambda: self._store.overwrite(name, data))

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Return the answer to a request. Raises StoreFault if there is none."""
        for attempt in range(_TRIES - 1):
            try:
                return ask()
            except StoreFault as fault:
                if fault.kind in _LASTING:
                    raise
            self._pause(_FIRST_PAUSE * 2**attempt)
        return ask()
