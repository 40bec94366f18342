"""Whether a node can be taken over from what its store has, and which objects nothing needs any more.

The chain is read as a claimant reads it, so every slot is proved. Here every part that a file of the node has in a fold,
segment or blob is proved as well. An object that is missing or damaged is named, with a file that needs it.

The other objects are sorted by the run that is in the name of each:

    `node`, `hint`, a mark, a fence                              kept for ever
    of a run as late as the first one that we read, or later     perhaps in the making
    of an earlier run                                            an orphan

Orphans are left by owners that died before they had swept, or that were fenced while they made a root. They cost money and
do no harm. The numbers of runs grow along a chain, so no run that comes before a committed root can be in it again. But a
claimant may be reading one of these runs, and would take a deleted slot for one that never existed. So a run without a mark
gets its mark first, as when an owner sweeps. The list of names may be old: then we only find less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from google_crc32c import value as crc32c

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.marks import encode_gone
from nsqcommon.remote.names import (
    GONE,
    HINT,
    NODE,
    ROOTS,
    SLOTS,
    Run,
    gone_name,
    root_name,
    run_in,
    slot_name,
    slots_prefix,
)
from nsqcommon.remote.slot import SlotKind, decode_slot_header
from nsqd.remote.chain import HEADER_OF_A_FENCE
from nsqd.remote.object_store import Created, StoreFault
from nsqd.remote.sweep import batches

if TYPE_CHECKING:
    from nsqcommon.remote.root import FilePart
    from nsqd.remote.claim import ChainRead
    from nsqd.remote.object_store import ObjectStore

DAY_NS: Final = 86_400 * 10**9
AT_ONCE: Final = 4  # objects, of up to 8 MiB each
_TRIES: Final = 5  # to set a mark

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DamagedObject:
    object: str
    text: str

    def __str__(self) -> str:
        return f"{self.object} {self.text}"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Objects that no file of the node needs, and that aren't in the chain."""

    orphans: tuple[str, ...]
    unmarked: tuple[Run, ...]  # earlier runs that somebody may be reading, as no mark says that they are swept
    recent: tuple[str, ...]  # of later runs: an owner may be about to need them, unless the node was forgotten
    unknown: tuple[str, ...]  # names that no version of nsqd gives, and what can't be told from a fence


class StoreExamination:
    """Examines one node. Its methods block, and raise StoreFault if the store doesn't answer."""

    def __init__(self, store: ObjectStore, *, quick: bool = False, at_once: int = AT_ONCE) -> None:
        """With `quick`, only look whether all objects are there in their length."""
        self.bytes = 0  # that were proved
        self._store = store
        self._quick = quick
        self._at_once = at_once

    # What is needed

    def damage(self, read: ChainRead) -> Iterator[DamagedObject]:
        """Yield what is wrong with the objects that the node's files need."""
        needed = parts_by_object(read)
        for found in self._for_each(needed, lambda it: self._damage_of(it, needed[it])):
            yield from found

    def _damage_of(self, name: str, parts: Mapping[FilePart, str]) -> list[DamagedObject]:
        if name.startswith(SLOTS):
            return [DamagedObject(name, f"is a slot, and the root needs it for {next(iter(parts.values()))}")]
        end = max(it.offset + it.length for it in parts)
        data = self._store.get(name, end - 1 if self._quick else 0, end)
        if data is None:
            return [DamagedObject(name, f"is missing, and {_named(parts.values())} it")]
        if self._quick:
            return (
                [] if data else [DamagedObject(name, f"has less than {end} bytes, and {_named(parts.values())} them")]
            )
        self.bytes += len(data)
        return [
            DamagedObject(name, f"is damaged in [{it.offset}, {it.offset + it.length}), which is of {path}")
            for it, path in parts.items()
            if crc32c(data[it.offset : it.offset + it.length]) != it.crc or it.offset + it.length > len(data)
        ]

    # What is not

    def leftovers(self, read: ChainRead) -> Leftovers:
        names = list(self._names())
        needed = {root_name(read.catalog.root.run), *read.catalog.objects, *parts_by_object(read)}
        in_chain = tuple(slots_prefix(it.run) for it in read.path)
        first = read.path[0].run
        marked = {it for name in names if name.startswith(GONE) and (it := run_in(name)) is not None}
        rest = [it for it in names if it not in needed and not it.startswith((GONE, *in_chain))]
        runs = {it: run_in(it) for it in rest if it not in (NODE, HINT)}
        earlier = [it for it, run in runs.items() if run is not None and run.number < first.number]
        kept, unreadable = self.fences_among([it for it in earlier if it.startswith(SLOTS)])
        orphans = [it for it in earlier if it not in kept and it not in unreadable]
        # Also runs that have a fence only: a claimant that comes from there must not get as far as a run without slots.
        unmarked = {run for it in earlier if it.startswith((SLOTS, ROOTS)) and (run := runs[it]) is not None} - marked
        return Leftovers(
            tuple(orphans),
            tuple(sorted(unmarked)),
            tuple(
                it for it, run in runs.items() if run is not None and run.number >= first.number and run not in marked
            ),
            tuple(chain((it for it, run in runs.items() if run is None), unreadable)),
        )

    def _names(self) -> Iterator[str]:
        after = ""
        while names := self._store.list("", after):
            yield from names
            after = names[-1]

    def fences_among(self, slots: Sequence[str]) -> tuple[set[str], set[str]]:
        """Return which of these slots are fences, and which can't be read."""
        kinds = dict(zip(slots, self._for_each(slots, self._kind_of), strict=True))
        fences = {it for it, kind in kinds.items() if kind is SlotKind.FENCE}
        return fences, {it for it, kind in kinds.items() if kind is None}

    def _kind_of(self, slot: str) -> SlotKind | None:
        for end in (HEADER_OF_A_FENCE, None):
            data = self._store.get(slot, 0, end)
            if data is None:
                return SlotKind.DATA  # it is being swept
            try:
                return decode_slot_header(data)[0].kind
            except BadObject:
                continue
        return None

    # Sweeping

    def age_ns(self, read: ChainRead, now_ns: int) -> int:
        """Return for how long the chain has gone on from its root, by the clocks of its owner and of this machine."""
        data = self._store.get(slot_name(read.path[0].run, 0), 0, None)
        return 0 if data is None else now_ns - decode_slot_header(data)[0].time_ns

    def sweep(self, read: ChainRead, leftovers: Leftovers) -> Iterator[str]:
        """Delete orphans, and yield their names. Call it only if nothing can need the root before this one: see `age_ns`."""
        if not leftovers.orphans:
            return
        for run in leftovers.unmarked:
            self.mark(run, encode_gone(run, read.path[0].run))
        for names in batches(leftovers.orphans):
            self._store.delete(names)
            yield from names

    def mark(self, run: Run, data: bytes) -> None:
        """Set the mark of a run, unless it has one. Raises StoreFault if the store doesn't say that it is there."""
        name = gone_name(run)
        for _ in range(_TRIES):
            if self._store.create(name, data) is Created.CREATED:
                return
            if self._store.get(name) is not None:
                return
        raise StoreFault(f"{name} can't be created")

    def _for_each(self, names: Iterable[str], ask: Callable[[str], T]) -> Iterator[T]:
        """Ask the store for some names at a time."""
        if self._at_once == 1:
            yield from map(ask, names)
            return
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="nsqd fsck") as threads:
            yield from threads.map(ask, names)


def parts_by_object(read: ChainRead) -> dict[str, dict[FilePart, str]]:
    """Return the parts that files have in each object but the chain's own slots, each with the path of a file."""
    in_chain = {slot_name(it.run, number) for it in read.path for number in range(it.end)}
    found: dict[str, dict[FilePart, str]] = defaultdict(dict)
    for path, file in read.catalog.files.items():
        for piece in file.pieces:
            if piece.part.object and piece.part.object not in in_chain:
                found[piece.part.object][piece.part] = path
    return found


def _named(paths: Iterable[str]) -> str:
    first, *others = sorted(set(paths))
    return f"{first} and {len(others)} other files need" if others else f"{first} needs"
