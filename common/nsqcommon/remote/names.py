"""Names of the objects of one node, below its prefix in the store.

    node                         who the node is, and its first run
    wal/RUN/00000017             a slot
    root/RUN                     the state as of the beginning of RUN
    gone/RUN                     RUN may have been swept; it says where to go on
    fold/RUN/0003                bytes of many files
    log/t.TOPIC/LOGID/BASE-NEXT-RUN.log    a sealed segment
    blob/RUN/0001                a side file
    hint                         a committed run, perhaps not the newest

Each of them but `hint` is created once and never changes. Deleting is not changing: what was deleted is never created
again, because the name of a run has a number that grows and 64 random bits of its writer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nsqcommon.remote.framing import BadObject

NODE: Final = "node"
HINT: Final = "hint"
SLOTS: Final = "wal/"  # what the names of all slots begin with
ROOTS: Final = "root/"
GONE: Final = "gone/"
_RUN: Final = re.compile(r"(\d{10,20})-([0-9a-f]{16})")
_OF_SEGMENT: Final = re.compile(rf"\d+-\d+-({_RUN.pattern})\.log")


@dataclass(frozen=True, order=True, slots=True)
class Run:
    """One owner's numbered slots, up to a root or to the next owner.

    `number` is one more than that of the run before, so two claimants of one place may choose the same number. They
    differ in `writer`, which is drawn at the start of a process.
    """

    number: int
    writer: str

    def __str__(self) -> str:
        return f"{self.number:010}-{self.writer}"

    def following(self, writer: str) -> Run:
        """Return the run that this writer would begin after this one."""
        return Run(self.number + 1, writer)


def parse_run(text: object) -> Run:
    """Return the run of this name. Raises BadObject, because a name comes out of an object."""
    found = _RUN.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise BadObject(f"{text!r} is not the name of a run")
    return Run(int(found[1]), found[2])


def run_in(name: str) -> Run | None:
    """Return the run in the name of an object; None: it has none, or it's the name of something else."""
    kind, _, rest = name.partition("/")
    first, _, last = rest.rpartition("/")
    if kind in ("root", "gone"):
        text = rest
    elif kind in ("wal", "fold", "blob") and last.isdigit():
        text = first
    elif kind == "log" and (found := _OF_SEGMENT.fullmatch(last)) is not None:
        text = found[1]
    else:
        return None
    try:
        return parse_run(text)
    except BadObject:
        return None


def writer_name(random_bits: int) -> str:
    """Return the name of a writer: 16 hexadecimal digits of 64 random bits."""
    return f"{random_bits:016x}"


def slot_name(run: Run, number: int) -> str:
    return f"{SLOTS}{run}/{number:08}"


def slots_prefix(run: Run) -> str:
    return f"{SLOTS}{run}/"


def root_name(run: Run) -> str:
    return f"{ROOTS}{run}"


def gone_name(run: Run) -> str:
    return f"{GONE}{run}"


def fold_name(run: Run, number: int) -> str:
    return f"fold/{run}/{number:04}"


def blob_name(run: Run, number: int) -> str:
    return f"blob/{run}/{number:04}"


def segment_object_name(topic: str, log_id: str, base: int, following: int, run: Run) -> str:
    """Return the name of a sealed segment with the messages [base, following), uploaded with this run's root.

    The topic has a prefix, as its folder on disk has, because "." and ".." are legal names of topics and a shared folder
    would follow them.
    """
    return f"log/t.{topic}/{log_id}/{base:020}-{following:020}-{run}.log"
