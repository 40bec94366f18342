"""The body of MPUB as HTTP posts it. test_commands.py has the tests over TCP."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest

from nsqcommon.wire.commands import CommandReader, Publications, cut_mpub_body, mpub
from nsqcommon.wire.faults import ProtocolError
from nsqcommon.wire.limits import SizeLimits
from nsqcommon.wire.mpub import cut_messages

LIMITS = SizeLimits(max_message=100, max_body=200)


def size(number: int) -> bytes:
    return struct.pack(">i", number)


def test_body_of_the_conformance_vector_is_cut() -> None:
    body = bytes.fromhex("00000002 00000002 6161 00000002 6262")
    assert cut_mpub_body(body, LIMITS) == (body[4:], [0, 6, 12])


class CountingOffsets(list[int]):
    """Counts the messages whose sizes are read one by one."""

    read_alone = 0

    def append(self, offset: int) -> None:
        self.read_alone += 1
        super().append(offset)


@pytest.mark.parametrize(("lengths", "read_alone"), [([5] * 20, 0), ([5] * 19 + [6], 20), ([6] + [5] * 19, 20)])
def test_the_sizes_of_equal_messages_are_compared_together(lengths: list[int], read_alone: int) -> None:
    body = b"".join(size(length) + b"x" * length for length in lengths)
    offsets = CountingOffsets([0])
    assert cut_messages(body, 0, len(lengths), offsets, LIMITS)
    assert offsets == list(accumulate((4 + length for length in lengths), initial=0))
    assert offsets.read_alone == read_alone


def test_bytes_behind_the_last_message_are_dropped() -> None:
    body = size(1) + size(2) + b"aa"
    assert cut_mpub_body(body + b"more", LIMITS) == (body[4:], [0, 6])


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", b"E_BAD_BODY MPUB failed to read message count"),
        (b"abc", b"E_BAD_BODY MPUB failed to read message count"),
        (size(0), b"E_BAD_BODY MPUB invalid message count 0"),
        (size(-1), b"E_BAD_BODY MPUB invalid message count -1"),
        (size(40), b"E_BAD_BODY MPUB invalid message count 40"),
        (size(1), b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (size(1) + b"\x00\x00\x00", b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (size(2) + size(1) + b"x", b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
        (size(1) + size(3) + b"xy", b"E_BAD_MESSAGE MPUB failed to read message body"),
        (size(9) + (size(1) + b"x") * 8, b"E_BAD_MESSAGE MPUB failed to read message(8) body size"),
        (size(1) + size(0), b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (size(1) + size(101) + bytes(101), b"E_BAD_MESSAGE MPUB message too big 101 > 100"),
    ],
)
def test_bad_body_is_refused(body: bytes, error: bytes) -> None:
    with pytest.raises(ProtocolError) as raised:
        cut_mpub_body(body, LIMITS)
    assert raised.value.data == error


def test_many_offsets_of_a_body_that_is_not_whole_are_packed() -> None:
    """A million numbers as objects take 36 MB, and freeing them would hold up other clients."""
    count = 50_000
    held: list[int] = []
    reader = CommandReader(SizeLimits(max_body=1 << 20), lambda params: None, held.append)
    command = mpub("t", [b"x", b"yz"] * (count // 2))
    for at in range(0, len(command), 40_000):
        reader.receive(command[at : at + 40_000])
        got = reader.next_command()
    assert isinstance(got, Publications)
    assert list(got.offsets) == list(accumulate([5, 6] * (count // 2), initial=0))
    assert held[-1] == 0
    assert max(held) < len(command) + 8 * (count + 1)
