"""A slot: one object of the chain, with operations and the bytes that were written.

    magic | length | CRC32C | header | body

    header: [kind, node, run, number, writer, time in ns, CRC32C of the body, operations, next run, reads root, claimant]

There are three kinds. `data` has operations. `end` is put by the owner, `fence` by the next owner; both name the run in
which the chain goes on, and nothing after them in their own run is a part of the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Any, Final

from google_crc32c import extend as extend_crc32c
from google_crc32c import value as crc32c

from nsqcommon.remote.framing import BadObject, NewerFormat, frame, unframe
from nsqcommon.remote.names import Run, parse_run
from nsqcommon.remote.operations import Operation, body_length, decode_operations, encode_operations

MOST_BODY: Final = 8 << 20  # bytes; a longer write is cut, which recovery knows as a torn tail
_FIELDS: Final = 11


class SlotKind(StrEnum):
    DATA = "data"
    END = "end"
    FENCE = "fence"


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who has put a fence, for the one who was fenced and for operators."""

    host: str = ""
    pid: int = 0
    boot: str = ""
    http_address: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.host else "another process"


@dataclass(frozen=True, slots=True)
class Slot:
    """What the header of a slot says.

    `reads_root`: this end's next run has to be read from its root, because the slots before have a gap. The root was
    stored before this end was sent. A fence that says so is the one of `nsqd remote forget`: there will be no such root.
    """

    kind: SlotKind
    node: str
    run: Run
    number: int
    writer: str
    time_ns: int
    operations: tuple[Operation, ...] = ()
    next: Run | None = None
    reads_root: bool = False
    claimant: Claimant | None = None

    @property
    def ends_run(self) -> bool:
        return self.next is not None

    @property
    def is_last(self) -> bool:
        """Whether this is the fence of `nsqd remote forget`, after which no process may go on."""
        return self.kind is SlotKind.FENCE and self.reads_root

    def split(self, body: memoryview) -> Iterator[tuple[Operation, int, memoryview]]:
        """Yield each operation with its part of the body, and where in the body that begins."""
        start = 0
        for operation in self.operations:
            end = start + body_length(operation)
            yield operation, start, body[start:end]
            start = end


def encode_slot(slot: Slot, body: Sequence[bytes] = (), *, crc: int | None = None) -> list[bytes]:
    """Return the slot as buffers: its header, and the body as it was given, without copying it.

    `crc`: that of the body, if you know it.
    """
    if crc is None:
        crc = 0
        for buffer in body:
            crc = extend_crc32c(crc, buffer)
    header = [
        str(slot.kind),
        slot.node,
        str(slot.run),
        slot.number,
        slot.writer,
        slot.time_ns,
        crc,
        encode_operations(slot.operations),
        None if slot.next is None else str(slot.next),
        slot.reads_root,
        None if slot.claimant is None else list(astuple(slot.claimant)),
    ]
    return [frame(header), *body]


def decode_slot(data: bytes) -> tuple[Slot, memoryview]:
    """Return a whole slot and its body, which is proved. Raises BadObject."""
    slot, crc, start = _decode_header(data)
    body = memoryview(data)[start:]
    wanted = sum(map(body_length, slot.operations))
    if len(body) != wanted:
        raise BadObject(f"slot {slot.number} of {slot.run} has a body of {len(body)} bytes instead of {wanted}")
    if crc32c(bytes(body)) != crc:
        raise BadObject(f"the checksum of the body of slot {slot.number} of {slot.run} is wrong")
    return slot, body


def decode_slot_header(data: bytes) -> tuple[Slot, int]:
    """Return a slot of which only the beginning may be there, and where its body begins. Raises BadObject."""
    slot, _, start = _decode_header(data)
    return slot, start


def _decode_header(data: bytes) -> tuple[Slot, int, int]:
    fields, start = unframe(data)
    slot, crc = _slot_in(fields)
    if (slot.kind is SlotKind.DATA) is slot.ends_run:
        raise BadObject(f"a slot of kind {slot.kind} names {slot.next} as the next run")
    return slot, crc, start


def _slot_in(fields: list[Any]) -> tuple[Slot, int]:
    match fields[:_FIELDS]:
        case [
            str(kind),
            str(node),
            run,
            int(number),
            str(writer),
            int(time_ns),
            int(crc),
            operations,
            following,
            bool(reads_root),
            claimant,
        ]:
            slot = Slot(
                _kind_named(kind),
                node,
                parse_run(run),
                number,
                writer,
                time_ns,
                decode_operations(operations),
                None if following is None else parse_run(following),
                reads_root,
                _claimant_in(claimant),
            )
            return slot, crc
    raise BadObject(f"{fields[:1]!r} is not the header of a slot")


def _kind_named(word: str) -> SlotKind:
    try:
        return SlotKind(word)
    except ValueError:
        raise NewerFormat(f"has a slot of kind {word!r}, which this version doesn't know") from None


def _claimant_in(found: object) -> Claimant | None:
    match found:
        case None:
            return None
        case [str(host), int(pid), str(boot), str(http_address), str(version), *_]:
            return Claimant(host, pid, boot, http_address, version)
    raise BadObject(f"{found!r} doesn't say who has put the fence")
