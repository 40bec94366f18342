"""Each rule of the command reader. test_commands_properties.py has the rules that hold for any stream."""

from __future__ import annotations

import struct

import pytest

from nsqcommon.wire import commands
from nsqcommon.wire.commands import (
    BodyCommand,
    Command,
    CommandReader,
    Finishes,
    LineCommand,
    LineTooLong,
    Publications,
    PublishCommand,
    parse_decimal,
    to_signed64,
)
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.limits import SizeLimits

LIMITS = SizeLimits(max_message=100, max_body=200)
ID = b"0123456789abcdef"


def size(number: int) -> bytes:
    return struct.pack(">i", number)


def admit_all(params: list[bytes]) -> None:
    pass


def reader_of(*pieces: bytes, limits: SizeLimits = LIMITS) -> CommandReader:
    reader = CommandReader(limits, admit_all)
    for piece in pieces:
        reader.receive(piece)
    return reader


def read(stream: bytes, limits: SizeLimits = LIMITS) -> list[Command]:
    return list(iter(reader_of(stream, limits=limits).next_command, None))


def error_of(stream: bytes, limits: SizeLimits = LIMITS) -> bytes:
    """Return the error that the stream causes by itself, without ending."""
    with pytest.raises(ProtocolError) as raised:
        read(stream, limits)
    assert raised.value.fatal
    return raised.value.data


def error_at_end(stream: bytes) -> bytes | None:
    """Return the error that is due if the stream ends here."""
    reader = reader_of(stream)
    while reader.next_command() is not None:
        pass
    error = reader.end()
    assert error is None or error.fatal
    return None if error is None else error.data


def feed(reader: CommandReader, stream: bytes, piece: int) -> None:
    for at in range(0, len(stream), piece):
        reader.receive(stream[at : at + piece])
        while reader.next_command() is not None:
            pass


# Lines


@pytest.mark.parametrize(
    ("line", "params"),
    [
        (b"NOP\n", [b"NOP"]),
        (b"NOP\r\n", [b"NOP"]),
        (b"NOP\r\r\n", [b"NOP\r"]),
        (b"\rNOP\n", [b"\rNOP"]),
        (b"\n", [b""]),
        (b"\r\n", [b""]),
        (b" \n", [b"", b""]),
        (b"RDY \n", [b"RDY", b""]),
        (b"SUB  t  c \n", [b"SUB", b"", b"t", b"", b"c", b""]),
        (b"RDY\t1\n", [b"RDY\t1"]),
        (b"FOO x\n", [b"FOO", b"x"]),
        (b"pub t\n", [b"pub", b"t"]),
        (b"PUBT\n", [b"PUBT"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
def test_line_is_split_at_single_spaces(line: bytes, params: list[bytes]) -> None:
    assert read(line) == [LineCommand(params)]


def test_carriage_return_of_a_payload_is_not_taken_for_the_lines_own() -> None:
    assert read(commands.pub("t", b"\r") + b"\n") == [
        PublishCommand([b"PUB", b"t"], size(1) + b"\r"),
        LineCommand([b""]),
    ]


def test_line_of_just_the_limit_is_read() -> None:
    line = b"X" * 16383
    assert read(line + b"\n") == [LineCommand([line])]


def test_line_beyond_the_limit_is_too_long() -> None:
    with pytest.raises(LineTooLong):
        read(b"X" * 16384 + b"\n")


def test_line_is_given_up_when_no_newline_could_make_it_fit() -> None:
    reader = reader_of(b"X" * 16383)
    assert reader.next_command() is None
    reader.receive(b"X")
    with pytest.raises(LineTooLong):
        reader.next_command()


@pytest.mark.parametrize("piece", [1, 7, 1000, 16384])
def test_line_that_never_ends_is_given_up_at_the_limit(piece: int) -> None:
    reader = reader_of()
    for _ in range(16383 // piece):
        reader.receive(b"X" * piece)
        assert reader.next_command() is None
    reader.receive(b"X" * piece)
    reader.receive(b"X")
    with pytest.raises(LineTooLong):
        reader.next_command()


def test_line_in_pieces_is_read_when_its_newline_comes() -> None:
    reader = reader_of()
    for byte in b"RDY 1":
        reader.receive(bytes([byte]))
        assert reader.next_command() is None
    reader.receive(b"\nNOP\nCL")
    assert reader.next_command() == LineCommand([b"RDY", b"1"])
    assert reader.next_command() == LineCommand([b"NOP"])
    assert reader.next_command() is None
    assert reader.buffered == 2


def test_pieces_received_before_reading_are_joined() -> None:
    reader = reader_of(b"NOP\nRD", b"Y 1", b"\nNOP\n")
    assert list(iter(reader.next_command, None)) == [
        LineCommand([b"NOP"]),
        LineCommand([b"RDY", b"1"]),
        LineCommand([b"NOP"]),
    ]


# FIN


def plain_fins(count: int) -> tuple[bytes, tuple[bytes, ...]]:
    ids = tuple(b"%016x" % number for number in range(count))
    return b"".join(map(commands.fin, ids)), ids


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 18, 100, 512])
def test_fins_that_arrive_together_are_one_command(count: int) -> None:
    stream, ids = plain_fins(count)
    assert read(stream) == [Finishes(ids)]
    assert read(stream + b"NOP\n") == [Finishes(ids), LineCommand([b"NOP"])]
    assert read(b"NOP\n" + stream + b"FIN") == [LineCommand([b"NOP"]), Finishes(ids)]


def test_very_long_run_of_fins_is_cut_into_several_commands() -> None:
    stream, ids = plain_fins(1300)
    got = read(stream)
    assert [len(command.ids) for command in got if isinstance(command, Finishes)] == [512, 512, 276]
    assert sum((command.ids for command in got if isinstance(command, Finishes)), ()) == ids


@pytest.mark.parametrize(
    "line",
    [
        b"FIN\n",
        b"FIN \n",
        b"FIN 0123456789abcde\n",
        b"FIN 0123456789abcdef0\n",
        b"FIN 0123456789abcdef x\n",
        b"FIN 0123456789abcdef\r\n",
        b"FIN 0123456789abcde\r\n",
        b"FIN 0123456 89abcdef\n",
        b"FIN  123456789abcdef\n",
        b"FIN 012345\r789abcdef\n",
        b"fin 0123456789abcdef\n",
        b"FIM 0123456789abcdef\n",
        b"GIN 0123456789abcdef\n",
        b"FON 0123456789abcdef\n",
        b"FIN_0123456789abcdef\n",
    ],
)
@pytest.mark.parametrize("before", [0, 1, 20])
@pytest.mark.parametrize("after", [0, 1, 40])
def test_fin_that_is_not_plain_comes_as_a_line_between_the_others(line: bytes, before: int, after: int) -> None:
    first, first_ids = plain_fins(before)
    last, last_ids = plain_fins(after)
    params = line.removesuffix(b"\n").removesuffix(b"\r").split(b" ")
    expected: list[Command] = [LineCommand(params)]
    if before:
        expected.insert(0, Finishes(first_ids))
    if after:
        expected.append(Finishes(last_ids))
    assert read(first + line + last) == expected


def test_two_short_lines_that_look_like_one_fin_stay_two() -> None:
    filler, ids = plain_fins(30)
    assert read(filler + b"FIN 0123456\n89abcdef\n" + filler) == [
        Finishes(ids),
        LineCommand([b"FIN", b"0123456"]),
        LineCommand([b"89abcdef"]),
        Finishes(ids),
    ]


@pytest.mark.parametrize("message_id", [bytes(16), b"\xff" * 16, b"\tabcdefghijklmn\v"])
def test_any_sixteen_bytes_are_an_id(message_id: bytes) -> None:
    assert read(commands.fin(message_id) * 20) == [Finishes((message_id,) * 20)]


def test_fin_across_a_packet_border_joins_those_that_come_with_its_rest() -> None:
    stream, ids = plain_fins(3)
    reader = reader_of(stream[:30])
    assert list(iter(reader.next_command, None)) == [Finishes(ids[:1])]
    reader.receive(stream[30:])
    assert list(iter(reader.next_command, None)) == [Finishes(ids[1:])]


# Payloads


def test_publication_keeps_its_size_prefix() -> None:
    assert read(b"PUB t\n\x00\x00\x00\x05hello") == [PublishCommand([b"PUB", b"t"], b"\x00\x00\x00\x05hello")]


def test_deferred_publication_is_one_with_more_parameters() -> None:
    assert read(commands.dpub("t", 500, b"x")) == [PublishCommand([b"DPUB", b"t", b"500"], size(1) + b"x")]


def test_identify_and_auth_have_a_body() -> None:
    assert read(commands.identify(b"{}") + commands.auth(b"secret")) == [
        BodyCommand([b"IDENTIFY"], b"{}"),
        BodyCommand([b"AUTH"], b"secret"),
    ]


def test_surplus_parameters_are_left_to_the_protocol() -> None:
    assert read(b"PUB t x y\n" + size(1) + b"x") == [PublishCommand([b"PUB", b"t", b"x", b"y"], size(1) + b"x")]
    assert read(b"IDENTIFY x\n" + size(2) + b"{}") == [BodyCommand([b"IDENTIFY", b"x"], b"{}")]


def test_mpub_of_the_conformance_vector_is_cut() -> None:
    stream = b"MPUB t\n" + bytes.fromhex("00000010 00000002 00000002 6161 00000002 6262")
    payload = bytes.fromhex("00000002 6161 00000002 6262")
    assert read(stream) == [Publications([b"MPUB", b"t"], payload, [0, 6, 12])]
    assert stream == commands.mpub("t", [b"aa", b"bb"])


@pytest.mark.parametrize("body_size", [1, 5, 199, 200])
def test_announced_size_of_mpub_does_not_matter_within_its_range(body_size: int) -> None:
    messages = size(2) + size(2) + b"aa" + size(1) + b"b"
    got = read(b"MPUB t\n" + size(body_size) + messages + b"NOP\n")
    assert got == [Publications([b"MPUB", b"t"], messages[4:], [0, 6, 11]), LineCommand([b"NOP"])]


@pytest.mark.parametrize("lengths", [[1], [5] * 30, [5] * 29 + [6], [6] + [5] * 30, [5, 5, 6] * 10, list(range(1, 30))])
def test_mpub_of_equal_and_unequal_messages_is_cut_alike(lengths: list[int]) -> None:
    bodies = [bytes([65 + length]) * length for length in lengths]
    command = read(commands.mpub("t", bodies) + b"NOP\n", SizeLimits())[0]
    assert isinstance(command, Publications)
    starts = command.offsets[:-1]
    assert [command.payload[start + 4 :][:length] for start, length in zip(starts, lengths, strict=True)] == bodies
    assert command.offsets[-1] == len(command.payload) == sum(lengths) + 4 * len(lengths)


def test_bodies_that_hold_commands_are_not_read_as_such() -> None:
    body = b"FIN 0123456789abcdef\nPUB t\n"
    assert read(commands.pub("t", body) + commands.fin(ID)) == [
        PublishCommand([b"PUB", b"t"], size(len(body)) + body),
        Finishes((ID,)),
    ]


def test_payloads_are_bytes_however_they_arrived() -> None:
    reader = reader_of()
    for piece in (commands.mpub("t", [b"aa", b"b"]), commands.pub("t", b"hello"), commands.identify(b"{}")):
        reader.receive(piece[:-1])
        assert reader.next_command() is None
        reader.receive(piece[-1:])
        command = reader.next_command()
        assert type(getattr(command, "payload", getattr(command, "body", None))) is bytes


# Admission


@pytest.mark.parametrize("word", [b"IDENTIFY", b"AUTH", b"PUB", b"DPUB", b"MPUB"])
def test_command_with_payload_is_admitted_once_before_its_size_is_looked_at(word: bytes) -> None:
    asked: list[list[bytes]] = []
    reader = CommandReader(LIMITS, asked.append)
    reader.receive(word + b" t")
    assert reader.next_command() is None
    assert asked == []
    reader.receive(b"\n")
    assert reader.next_command() is None
    assert asked == [[word, b"t"]]
    reader.receive(size(-1))
    with pytest.raises(ProtocolError):
        reader.next_command()
    assert asked == [[word, b"t"]]


def test_commands_without_payload_are_not_asked_for() -> None:
    asked: list[list[bytes]] = []
    reader = CommandReader(LIMITS, asked.append)
    reader.receive(b"SUB t c\nFOO\n" + commands.fin(ID) + commands.pub("t", b"x") + commands.mpub("t", [b"x"]))
    assert len(list(iter(reader.next_command, None))) == 5
    assert asked == [[b"PUB", b"t"], [b"MPUB", b"t"]]


def test_a_line_that_is_known_is_not_asked_about_until_another_one_is() -> None:
    asked: list[bytes] = []

    def admit(params: list[bytes]) -> bool:
        asked.append(b" ".join(params))
        return params[0] == b"PUB"

    reader = CommandReader(LIMITS, admit)
    for command in (b"PUB t\n", b"PUB t\n", b"DPUB u 1\n", b"DPUB u 1\n", b"PUB t\n", b"PUB t k\n"):
        reader.receive(command + size(1) + b"x")
        assert reader.next_command() is not None
    assert asked == [b"PUB t", b"DPUB u 1", b"DPUB u 1", b"PUB t", b"PUB t k"]


def test_refusal_comes_before_any_error_of_the_payload() -> None:
    def refuse(params: list[bytes]) -> None:
        raise ProtocolError(Fault.BAD_TOPIC, "no")

    reader = CommandReader(LIMITS, refuse)
    reader.receive(b"PUB t\n" + size(-1))
    with pytest.raises(ProtocolError) as raised:
        reader.next_command()
    assert raised.value.data == b"E_BAD_TOPIC no"


# Invalid sizes


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (b"PUB t\n" + size(0), b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n" + size(-1), b"E_BAD_MESSAGE PUB invalid message body size -1"),
        (b"PUB t\n" + size(-(2**31)), b"E_BAD_MESSAGE PUB invalid message body size -2147483648"),
        (b"PUB t\n" + size(101), b"E_BAD_MESSAGE PUB message too big 101 > 100"),
        (b"PUB t\n" + size(2**31 - 1), b"E_BAD_MESSAGE PUB message too big 2147483647 > 100"),
        (b"DPUB t 5\n" + size(0), b"E_BAD_MESSAGE DPUB invalid message body size 0"),
        (b"DPUB t 5\n" + size(101), b"E_BAD_MESSAGE DPUB message too big 101 > 100"),
        (b"IDENTIFY\n" + size(0), b"E_BAD_BODY IDENTIFY invalid body size 0"),
        (b"IDENTIFY\n" + size(-5), b"E_BAD_BODY IDENTIFY invalid body size -5"),
        (b"IDENTIFY\n" + size(201), b"E_BAD_BODY IDENTIFY body too big 201 > 200"),
        (b"AUTH\n" + size(0), b"E_BAD_BODY AUTH invalid body size 0"),
        (b"AUTH\n" + size(-5), b"E_BAD_BODY AUTH invalid body size -5"),
        (b"AUTH\n" + size(201), b"E_BAD_BODY AUTH body too big 201 > 200"),
        (b"MPUB t\n" + size(0), b"E_BAD_BODY MPUB invalid body size 0"),
        (b"MPUB t\n" + size(-1), b"E_BAD_BODY MPUB invalid body size -1"),
        (b"MPUB t\n" + size(201), b"E_BAD_BODY MPUB body too big 201 > 200"),
        (b"MPUB t\n" + size(9) + size(0), b"E_BAD_BODY MPUB invalid message count 0"),
        (b"MPUB t\n" + size(9) + size(-1), b"E_BAD_BODY MPUB invalid message count -1"),
        (b"MPUB t\n" + size(9) + size(40), b"E_BAD_BODY MPUB invalid message count 40"),
        (b"MPUB t\n" + size(9) + size(2**31 - 1), b"E_BAD_BODY MPUB invalid message count 2147483647"),
        (b"MPUB t\n" + size(9) + size(2) + size(0), b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (b"MPUB t\n" + size(9) + size(2) + size(-7), b"E_BAD_MESSAGE MPUB invalid message(0) body size -7"),
        (b"MPUB t\n" + size(9) + size(2) + size(101), b"E_BAD_MESSAGE MPUB message too big 101 > 100"),
        (
            b"MPUB t\n" + size(9) + size(2) + size(1) + b"x" + size(0),
            b"E_BAD_MESSAGE MPUB invalid message(1) body size 0",
        ),
        (
            b"MPUB t\n" + size(9) + size(12) + (size(1) + b"x") * 11 + size(101),
            b"E_BAD_MESSAGE MPUB message too big 101 > 100",
        ),
    ],
)
def test_bad_size_is_refused_as_soon_as_it_is_there(stream: bytes, error: bytes) -> None:
    assert error_of(stream) == error
    assert error_of(stream + bytes(50)) == error
    reader = reader_of(stream[:-1])
    assert reader.next_command() is None
    reader.receive(stream[-1:])
    with pytest.raises(ProtocolError) as raised:
        reader.next_command()
    assert raised.value.data == error


def test_limits_are_inclusive() -> None:
    stream = commands.pub("t", bytes(100)) + commands.identify(bytes(200)) + commands.mpub("t", [bytes(100)])
    assert len(read(stream)) == 3


def test_mpub_takes_as_many_messages_as_the_limit_of_bodies_could_hold() -> None:
    command = read(commands.mpub("t", [b"x"] * 39))[0]
    assert isinstance(command, Publications)
    assert len(command.offsets) == 40


@pytest.mark.parametrize("lengths", [[90, 90, 90, 90], [90, 90, 1, 90], [10] * 20, [99, 87, 1]])
@pytest.mark.parametrize("piece", [1, 3, 50, 1000])
def test_mpub_that_announced_less_than_it_sends_is_stopped_at_the_limit(lengths: list[int], piece: int) -> None:
    stream = b"MPUB t\n" + size(9) + commands.mpub("t", [bytes(length) for length in lengths])[11:]
    totals = [4 + sum(lengths[:count]) + 4 * count for count in range(1, len(lengths) + 1)]
    excess = next(total for total in totals if total > 200)
    reader = reader_of()
    with pytest.raises(ProtocolError) as raised:
        feed(reader, stream, piece)
    assert raised.value.data == b"E_BAD_BODY MPUB body too big %d > 200" % excess


@pytest.mark.parametrize("piece", [1, 50, 1000])
def test_mpub_beyond_the_limit_is_stopped_there_and_not_at_a_later_bad_size(piece: int) -> None:
    stream = b"MPUB t\n" + size(9) + size(5) + (size(70) + bytes(70)) * 3 + size(-1)
    with pytest.raises(ProtocolError, match="MPUB body too big 226 > 200"):
        feed(reader_of(), stream, piece)


# The end of the stream


@pytest.mark.parametrize(
    ("stream", "lengths"),
    [
        (
            commands.pub("t", b"abc"),
            {
                0: None,
                6: b"E_BAD_MESSAGE PUB failed to read message body size",
                10: b"E_BAD_MESSAGE PUB failed to read message body",
                13: None,
            },
        ),
        (
            commands.dpub("t", 5, b"abc"),
            {
                0: None,
                9: b"E_BAD_MESSAGE DPUB failed to read message body size",
                13: b"E_BAD_MESSAGE DPUB failed to read message body",
                16: None,
            },
        ),
        (
            commands.identify(b"{}"),
            {
                0: None,
                9: b"E_BAD_BODY IDENTIFY failed to read body size",
                13: b"E_BAD_BODY IDENTIFY failed to read body",
                15: None,
            },
        ),
        (
            commands.auth(b"se"),
            {
                0: None,
                5: b"E_BAD_BODY AUTH failed to read body size",
                9: b"E_BAD_BODY AUTH failed to read body",
                11: None,
            },
        ),
        (
            commands.mpub("t", [b"abc", b"de"]),
            {
                0: None,
                7: b"E_BAD_BODY MPUB failed to read body size",
                11: b"E_BAD_BODY MPUB failed to read message count",
                15: b"E_BAD_MESSAGE MPUB failed to read message(0) body size",
                19: b"E_BAD_MESSAGE MPUB failed to read message body",
                22: b"E_BAD_MESSAGE MPUB failed to read message(1) body size",
                26: b"E_BAD_MESSAGE MPUB failed to read message body",
                28: None,
            },
        ),
        (
            commands.mpub("t", [b"abc"] * 12),
            {
                0: None,
                7: b"E_BAD_BODY MPUB failed to read body size",
                11: b"E_BAD_BODY MPUB failed to read message count",
            }
            | {15 + 7 * n: b"E_BAD_MESSAGE MPUB failed to read message(%d) body size" % n for n in range(12)}
            | {19 + 7 * n: b"E_BAD_MESSAGE MPUB failed to read message body" for n in range(12)}
            | {99: None},
        ),
        (commands.fin(ID), {0: None}),
        (b"NOP\n", {0: None}),
    ],
)
def test_stream_cut_at_any_byte_earns_the_error_of_that_place(stream: bytes, lengths: dict[int, bytes | None]) -> None:
    expected: bytes | None = None
    for length in range(len(stream) + 1):
        expected = lengths.get(length, expected)
        assert error_at_end(stream[:length]) == expected
        assert error_at_end(commands.pub("other", b"x") + stream[:length]) == expected


def test_reader_is_idle_only_between_commands() -> None:
    reader = reader_of()
    assert reader.idle
    for byte in commands.mpub("t", [b"abc", b"de"]):
        assert reader.next_command() is None
        reader.receive(bytes([byte]))
        assert not reader.idle
    assert reader.next_command() is not None
    assert reader.idle
    assert reader.buffered == 0


def test_line_of_a_payload_that_has_not_begun_is_not_idle() -> None:
    reader = reader_of(b"PUB t\n")
    assert reader.next_command() is None
    assert not reader.idle
    assert reader.buffered == 0


# Encoders and numbers


def test_encoders_write_what_the_reader_reads() -> None:
    stream = b"".join(
        (
            commands.sub("t", "c#ephemeral"),
            commands.rdy(5),
            commands.req(ID, 1000),
            commands.touch(ID),
            commands.cls(),
            commands.nop(),
        )
    )
    assert [command.params for command in read(stream) if isinstance(command, LineCommand)] == [
        [b"SUB", b"t", b"c#ephemeral"],
        [b"RDY", b"5"],
        [b"REQ", ID, b"1000"],
        [b"TOUCH", ID],
        [b"CLS"],
        [b"NOP"],
    ]


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        (b"", 0),
        (b"0", 0),
        (b"0042", 42),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", 0),
        (b"18446744073709551617", 1),
        (b"9" * 5000, (10**5000 - 1) % 2**64),
        (b"0" * 16000 + b"7", 7),
    ],
)
def test_decimal_is_unsigned_and_wraps_at_64_bits(raw: bytes, number: int) -> None:
    assert parse_decimal(raw) == number


@pytest.mark.parametrize("raw", [b"+1", b"-1", b"1_0", b"1.5", b" 1", b"1 ", b"0x1", b"x", "٣".encode(), b"\xb2"])
def test_anything_but_digits_is_no_decimal(raw: bytes) -> None:
    assert parse_decimal(raw) is None


@pytest.mark.parametrize(
    ("value", "signed"),
    [(0, 0), (5, 5), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1), (2**64, 0), (-1, -1)],
)
def test_upper_half_of_64_bits_is_negative(value: int, signed: int) -> None:
    assert to_signed64(value) == signed
