"""The physical limit, `bench/limit.c`: what is answered is in the file, and who sends anything else is hung up on."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bench.limit import Limit
from bench.ports import take_port
from bench.work import HOST

pytestmark = pytest.mark.needs("C compiler")

PATIENCE: Final = 100.0
OK: Final = b"\0\0\0\6\0\0\0\0OK"
MAGIC: Final = b"  V2"
LARGEST: Final = 5 << 20  # of a body


def sized(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def pub(body: bytes) -> bytes:
    return b"PUB topic\n" + sized(body)


def mpub(*bodies: bytes) -> bytes:
    return b"MPUB topic\n" + sized(struct.pack(">I", len(bodies)) + b"".join(map(sized, bodies)))


@pytest.fixture(scope="module")
def limit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limit]:
    with Limit(tmp_path_factory.mktemp("limit")) as started:
        yield started


def connected(port: int) -> socket.socket:
    connection = socket.create_connection((HOST, port), timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(MAGIC)
    return connection


@pytest.fixture
def connection(limit: Limit) -> Iterator[socket.socket]:
    with connected(limit.port) as found:
        yield found


def answer_to(connection: socket.socket, sent: bytes, count: int = 1) -> bytes:
    """Send, and return as many bytes as so many OKs have."""
    connection.sendall(sent)
    return read(connection, count * len(OK))


def read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (piece := connection.recv(size - len(found))):
        found += piece
    return found


def is_hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # it had not read all that was sent
        return True


def test_a_load_generator_is_greeted(connection: socket.socket) -> None:
    assert answer_to(connection, b"IDENTIFY\n" + sized(b"{}") + b"SUB topic ch\n", 2) == OK * 2


def test_a_message_is_in_the_file_when_it_is_answered(limit: Limit, connection: socket.socket) -> None:
    assert answer_to(connection, pub(b"one message")) == OK
    assert limit.records.read_bytes().endswith(sized(b"one message"))


def test_a_batch_has_one_answer_and_leaves_its_messages_in_the_file(limit: Limit, connection: socket.socket) -> None:
    bodies = [b"of a batch: %d" % number for number in range(200)]
    assert answer_to(connection, mpub(*bodies)) == OK
    assert limit.records.read_bytes().endswith(b"".join(map(sized, bodies)))


def test_each_of_64_in_flight_on_two_connections_is_answered(limit: Limit, connection: socket.socket) -> None:
    with connected(limit.port) as other:
        bodies = {
            it: [b"%s, in flight: %d" % (name, at) for at in range(64)]
            for it, name in ((connection, b"a"), (other, b"b"))
        }
        for each, those in bodies.items():
            each.sendall(b"".join(map(pub, those)))
        for each in bodies:
            assert read(each, 64 * len(OK)) == OK * 64
    written = limit.records.read_bytes()
    for those in bodies.values():
        assert b"".join(map(sized, those)) in written


def test_packet_borders_do_not_matter(limit: Limit, connection: socket.socket) -> None:
    for byte in pub(b"in pieces") + mpub(b"also", b"this"):
        connection.sendall(bytes([byte]))
    assert read(connection, 2 * len(OK)) == OK * 2
    assert limit.records.read_bytes().endswith(sized(b"in pieces") + sized(b"also") + sized(b"this"))


def test_the_largest_body_fits(limit: Limit, connection: socket.socket) -> None:
    before = limit.records.stat().st_size
    assert answer_to(connection, b"PUB " + b"t" * 64 + b"\n" + sized(bytes(LARGEST))) == OK
    assert limit.records.stat().st_size == before + 4 + LARGEST


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\n",
        b"x" * 300,
        bytes(range(256)) * 100,
        b"PUB topic\n\xff\xff\xff\xff",
        b"PUB topic\n" + struct.pack(">I", LARGEST + 1),
        b"MPUB topic\n" + sized(b"123"),
        pub(b"good") + b"NONSENSE\n",
    ],
    ids=[
        "HTTP",
        "no word",
        "no end of the line",
        "bytes",
        "negative",
        "too large",
        "batch without a count",
        "behind a message",
    ],
)
def test_garbage_closes_its_connection_and_no_other(limit: Limit, connection: socket.socket, garbage: bytes) -> None:
    with connected(limit.port) as other:
        connection.sendall(garbage)
        assert is_hung_up(connection)
        assert answer_to(other, pub(b"after garbage")) == OK


def test_another_protocol_is_hung_up_on(limit: Limit) -> None:
    with socket.create_connection((HOST, limit.port), timeout=PATIENCE) as stranger:
        stranger.sendall(b"*1")  # less than a greeting has
        assert is_hung_up(stranger)


def test_who_leaves_in_the_middle_of_a_command_leaves_nothing(limit: Limit) -> None:
    with connected(limit.port) as leaving, connected(limit.port) as other:
        leaving.sendall(pub(b"never whole")[:-1])
        leaving.shutdown(socket.SHUT_WR)
        assert is_hung_up(leaving)
        assert answer_to(other, pub(b"whole")) == OK
    assert b"never whole"[:-1] not in limit.records.read_bytes()


def test_sigterm_ends_it(limit: Limit, tmp_path: Path) -> None:
    port = take_port()
    with subprocess.Popen([limit.command[0], str(port), str(tmp_path / "records")]) as process:
        process.terminate()
        assert process.wait(PATIENCE) == -signal.SIGTERM


def test_it_ends_with_its_parent(limit: Limit, tmp_path: Path) -> None:
    other = Limit(tmp_path)
    command = [limit.command[0], *other.command[1:]]
    with subprocess.Popen(["sh", "-c", '"$@" & read -r line', "sh", *command], stdin=subprocess.PIPE) as parent:
        while not other.answers():
            assert parent.poll() is None
            time.sleep(0.01)
        with connected(other.port) as connection:
            parent.communicate(b"end\n", timeout=PATIENCE)
            assert is_hung_up(connection)
