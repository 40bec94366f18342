"""Properties of any stream: packet borders do not matter, garbage does no harm, cost is bounded."""

from __future__ import annotations

import struct
import time
import tracemalloc
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqcommon.wire import commands, extensions
from nsqcommon.wire.commands import (
    BodyCommand,
    Command,
    CommandReader,
    Finishes,
    HeadedPublication,
    HeadedPublications,
    LineCommand,
    LineTooLong,
    Publications,
    PublishCommand,
)
from nsqcommon.wire.faults import ProtocolError
from nsqcommon.wire.headers import MOST_ENCODED, NONE, encode_headers
from nsqcommon.wire.limits import SizeLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LIMITS = SizeLimits(max_message=60, max_body=400, max_line=64)


def admit_all(params: list[bytes]) -> None:
    pass


# Streams. Names are short so that lines keep within the limit.

NAMES = st.text("abc.-_#", min_size=1, max_size=8)
IDS = st.binary(min_size=16, max_size=16) | st.integers(0, 2**64 - 1).map(lambda number: b"%016x" % number)
BODIES = st.binary(min_size=1, max_size=60)
HEADERS = st.just(NONE) | st.dictionaries(
    st.text("abc.-_0", min_size=1, max_size=5).filter(lambda name: name[0] in "abc0"), st.binary(max_size=9), max_size=3
).map(encode_headers)
MANY = st.lists(BODIES, min_size=1, max_size=6) | st.builds(
    lambda body, count: [body] * count, st.binary(min_size=1, max_size=8), st.integers(1, 30)
)
WELL_FORMED = st.one_of(
    st.builds(commands.pub, NAMES, BODIES),
    st.builds(commands.dpub, NAMES, st.integers(0, 10**9), BODIES),
    st.builds(commands.mpub, NAMES, MANY),
    st.builds(commands.hpub, NAMES, HEADERS, BODIES),
    st.builds(commands.hdpub, NAMES, st.integers(0, 10**9), HEADERS, BODIES),
    st.builds(commands.hmpub, NAMES, st.lists(st.tuples(HEADERS, BODIES), min_size=1, max_size=3)),
    st.builds(commands.identify, BODIES),
    st.builds(commands.auth, BODIES),
    st.lists(IDS, min_size=1, max_size=40).map(lambda ids: b"".join(map(commands.fin, ids))),
    st.builds(commands.req, IDS, st.integers(0, 10**6)),
    st.builds(extensions.req_free, IDS, st.integers(0, 10**6)),
    st.builds(extensions.bury, IDS, st.text(max_size=8)),
    st.builds(commands.rdy, st.integers(0, 2500)),
    st.sampled_from(
        [b"NOP\n", b"CLS\r\n", b"\n", b" \n", b"FIN\n", b"FIN x\n", b"FIN 0123456789abcdef\r\n", b"FOO x\n"]
    ),
)
STREAMS = st.lists(WELL_FORMED, max_size=8).map(b"".join)
SIZES = st.sampled_from([-(2**31), -1, 0, 1, 5, 60, 61, 80, 400, 401, 2**31 - 1]).map(struct.Struct(">i").pack)
BROKEN = st.lists(
    WELL_FORMED
    | st.binary(max_size=20)
    | SIZES
    | st.builds(commands.hpub, NAMES, st.binary(max_size=20), BODIES)
    | st.builds(commands.hmpub, NAMES, st.lists(st.tuples(st.binary(max_size=9), BODIES), max_size=3))
    | st.sampled_from(
        [
            b"HPUB t\n",
            b"HMPUB t\n",
            b"PUB t\n",
            b"DPUB t 1\n",
            b"MPUB t\n",
            b"IDENTIFY\n",
            b"AUTH\n",
            b"FIN ",
            b"x" * 50,
        ]
    ),
    max_size=8,
).map(b"".join)


def pieces_of(stream: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    """Return the stream in pieces of the given lengths, with the rest in one piece."""
    for cut in cuts:
        yield stream[:cut]
        stream = stream[cut:]
    yield stream


def whole_commands(reader: CommandReader) -> Iterator[Command]:
    while (command := reader.next_command()) is not None:
        yield command


CUTS = st.lists(st.integers(1, 40), max_size=60)


def outcome(pieces: Iterable[bytes]) -> tuple[list[Command | bytes], str]:
    """Return what was read, with single FINs because packets determine how they are grouped, and how it ended."""
    reader = CommandReader(LIMITS, admit_all)
    reader.take_headers(True)
    got: list[Command | bytes] = []
    try:
        for piece in pieces:
            reader.receive(piece)
            for command in whole_commands(reader):
                if isinstance(command, Finishes):
                    got += command.ids
                else:
                    got.append(command)
    except (ProtocolError, LineTooLong) as error:
        return got, repr(error)
    return got, repr(reader.end())


# A slow and obvious reader to compare with, which has the whole stream.


def parted(content: bytes) -> tuple[bytes, bytes]:
    end = 2 + int.from_bytes(content[:2])
    return content[:end], len(content[end:]).to_bytes(4, "big") + content[end:]


def obvious(stream: bytes) -> tuple[list[Command | bytes], str]:
    got: list[Command | bytes] = []
    at = 0
    while (end := stream.find(b"\n", at)) >= 0:
        params = stream[at:end].removesuffix(b"\r").split(b" ")
        plain = stream[at : end + 1]
        at = end + 1
        if params[0] in (b"PUB", b"DPUB", b"IDENTIFY", b"AUTH"):
            length = int.from_bytes(stream[at : at + 4])
            payload = stream[at : at + 4 + length]
            if params[0].endswith(b"PUB"):
                got.append(PublishCommand(params, payload))
            else:
                got.append(BodyCommand(params, payload[4:]))
            at += 4 + length
        elif params[0] in (b"HPUB", b"HDPUB"):
            length = int.from_bytes(stream[at : at + 4])
            headers, body = parted(stream[at + 4 : at + 4 + length])
            got.append(HeadedPublication([params[0][1:], *params[1:]], body, headers))
            at += 4 + length
        elif params[0] == b"HMPUB":
            count, at = int.from_bytes(stream[at + 4 : at + 8]), at + 8
            area, payload, ends = b"", b"", [0]
            for _ in range(count):
                length = int.from_bytes(stream[at : at + 4])
                headers, body = parted(stream[at + 4 : at + 4 + length])
                area, payload, at = area + headers, payload + body, at + 4 + length
                ends.append(len(payload))
            params[0] = b"MPUB"
            if area == NONE * count:
                got.append(Publications(params, payload, ends))
            else:
                got.append(HeadedPublications(params, payload, ends, area))
        elif params[0] == b"MPUB":
            count, at = int.from_bytes(stream[at + 4 : at + 8]), at + 8
            offsets = [0]
            for _ in range(count):
                begin = at + offsets[-1]
                offsets.append(offsets[-1] + 4 + int.from_bytes(stream[begin : begin + 4]))
            got.append(Publications(params, stream[at : at + offsets[-1]], offsets))
            at += offsets[-1]
        elif params[0] == b"FIN" and len(params) == 2 and len(plain) == 21 and b"\r" not in plain:
            got.append(params[1])
        else:
            got.append(LineCommand(params))
    return got, "None"


@given(STREAMS)
def test_well_formed_streams_are_read_as_the_obvious_reader_does(stream: bytes) -> None:
    assert outcome([stream]) == obvious(stream)


ALIKE = st.lists(st.tuples(st.integers(1, 9), st.sampled_from((b"abc", b"xyz", b"longer"))), min_size=1, max_size=30)


@given(ALIKE, st.none() | st.tuples(st.integers(0, 29), st.integers(0, 20), st.integers(0, 255)), CUTS)
@example([(size, b"abc") for size in range(1, 9)], None, [])
def test_messages_that_are_read_together_are_as_if_each_came_alone(
    shapes: list[tuple[int, bytes]], damage: tuple[int, int, int] | None, cuts: list[int]
) -> None:
    contents = [encode_headers({"a": value, "b.c": b"1234"}) + b"x" * size for size, value in shapes]
    if damage is not None:
        number, place, byte = damage
        content = bytearray(contents[number % len(contents)])
        content[place % len(content)] = byte
        contents[number % len(contents)] = bytes(content)
    sized = [len(content).to_bytes(4, "big") + content for content in contents]
    together = b"".join([len(sized).to_bytes(4, "big"), *sized])
    alone, _ = outcome([b"HPUB t\n" + content for content in sized])
    limits = SizeLimits(max_message=60, max_body=3000, max_line=64)
    reader = CommandReader(limits, admit_all)
    reader.take_headers(True)
    read: Command | None = None
    try:
        for piece in pieces_of(b"HMPUB t\n" + len(together).to_bytes(4, "big") + together, cuts):
            reader.receive(piece)
            read = reader.next_command() or read
    except ProtocolError:
        assert len(alone) < len(sized)
        return
    assert isinstance(read, Publications)
    headers = read.headers if isinstance(read, HeadedPublications) else NONE * len(sized)
    assert headers == b"".join([it.headers for it in alone if isinstance(it, HeadedPublication)])
    bodies = [it.payload for it in alone if isinstance(it, HeadedPublication)]
    assert read.payload == b"".join(bodies)
    assert list(read.offsets) == list(accumulate(map(len, bodies), initial=0))


@given(
    st.integers(1, 300),
    st.sampled_from((NONE, encode_headers({"a": b"value", "b.c": b""}))),
    st.binary(max_size=9),
    st.none() | st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)),
    CUTS,
)
def test_equally_long_messages_with_headers_mean_the_same_however_they_come(
    count: int, headers: bytes, body: bytes, damage: tuple[int, int] | None, cuts: list[int]
) -> None:
    damaged = bytearray(commands.hmpub("t", [(headers, body)] * count))
    if damage is not None:
        place, byte = damage
        damaged[8 + place % (len(damaged) - 8)] = byte
    stream = bytes(damaged)
    whole = outcome([stream])
    assert outcome(pieces_of(stream, cuts)) == whole
    assert outcome(stream[at : at + 1] for at in range(len(stream))) == whole


@given(STREAMS, CUTS)
def test_packet_borders_do_not_matter(stream: bytes, cuts: list[int]) -> None:
    assert outcome(pieces_of(stream, cuts)) == outcome([stream])


@given(BROKEN, CUTS)
@example(b"x" * 64 + b"\n", [63, 1])
@example(b"x" * 63 + b"\n", [63, 1])
@example(b"HMPUB t\n" + struct.pack(">III", 40, 2, 5) + b"\x20\0abc" + struct.pack(">I", 1 << 22), [30])  # two faults
def test_packet_borders_do_not_matter_for_errors_either(stream: bytes, cuts: list[int]) -> None:
    whole = outcome([stream])
    assert outcome(pieces_of(stream, cuts)) == whole
    assert outcome(stream[at : at + 1] for at in range(len(stream))) == whole


@given(st.lists(BROKEN, max_size=20))
def test_garbage_never_makes_the_reader_hold_more_than_its_limits(pieces: list[bytes]) -> None:
    reader = CommandReader(LIMITS, admit_all)
    reader.take_headers(True)
    # Headers and bodies of an HMPUB that is not complete are held twice: as they came, and parted.
    most = 8 + MOST_ENCODED + 2 * LIMITS.max_body + LIMITS.max_line
    try:
        for piece in pieces:
            reader.receive(piece)
            for _ in whole_commands(reader):
                pass
            assert reader.buffered <= most
    except (ProtocolError, LineTooLong):
        pass


@given(STREAMS)
def test_nothing_is_held_after_the_last_command(stream: bytes) -> None:
    reader = CommandReader(LIMITS, admit_all)
    reader.take_headers(True)
    reader.receive(stream)
    for _ in whole_commands(reader):
        pass
    assert reader.idle
    assert reader._data == b""


def test_endless_mpub_is_stopped_however_small_its_announced_size() -> None:
    limits = SizeLimits(max_message=1 << 20, max_body=5 << 20)
    reader = CommandReader(limits, admit_all)
    reader.receive(b"MPUB t\n" + struct.pack(">iii", 8, 1_000_000, 65536))
    for _ in range(79):
        assert reader.next_command() is None
        reader.receive(bytes(65536) + struct.pack(">i", 65536))
    with pytest.raises(ProtocolError, match="MPUB body too big 5243204 > 5242880"):
        reader.next_command()


@pytest.mark.parametrize(
    "make",
    [
        lambda: commands.pub("t", bytes(5 << 20)),
        lambda: commands.identify(bytes(5 << 20)),
        lambda: commands.mpub("t", [bytes(5000)] * 1000),
        lambda: commands.mpub("t", [bytes(1 + number % 7) for number in range(600_000)]),
        lambda: commands.hmpub("t", [(NONE, bytes(1 + number % 3)) for number in range(600_000)]),
        lambda: commands.hmpub("t", [(encode_headers({"name": bytes(4000)}), b"x")] * 1300),
    ],
    ids=["one body", "identify", "equal messages", "tiny messages", "tiny messages, no headers", "large headers"],
)
def test_big_payload_in_small_pieces_is_no_slower_than_its_length(make: Callable[[], bytes]) -> None:
    stream = make()
    reader = CommandReader(SizeLimits(max_message=6 << 20, max_body=6 << 20, max_identify=6 << 20), admit_all)
    reader.take_headers(True)
    began = time.process_time()
    for at in range(0, len(stream), 100):
        assert reader.next_command() is None
        reader.receive(stream[at : at + 100])
    assert reader.next_command() is not None
    # This takes a tenth of a second. Copying the buffer for each piece would be 100 GB, and take seconds.
    assert time.process_time() - began < 3


def test_half_an_hmpub_of_tiny_messages_says_what_memory_it_takes() -> None:
    """Tens of thousands of small objects would take several times what the limits count."""
    stream = commands.hmpub("t", [(NONE, b"x")] * 30_000)[:-1]
    reader = CommandReader(SizeLimits(max_message=6 << 20, max_body=6 << 20), admit_all, hold := Held())
    reader.take_headers(True)
    tracemalloc.start()
    for at in range(0, len(stream), 65_536):
        reader.receive(stream[at : at + 65_536])
        assert reader.next_command() is None
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert hold.bytes <= taken * 1.2
    assert taken <= hold.bytes * 1.5


class Held:
    """What a reader says that it takes."""

    bytes = 0

    def __call__(self, size: int) -> None:
        self.bytes = size
