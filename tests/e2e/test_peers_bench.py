"""`python -m bench peers` in its quick form, and that its load generator counts what really happened."""

from __future__ import annotations

import json
import select
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.peers.loader import CLOSED, SHORT, Loader, NotReady
from bench.peers.loads import FIGURES, ONLY_PUBLISHING
from bench.peers.variants import REFERENCES, Promise, variants
from bench.ports import take_port
from bench.work import Failed
from tests.e2e.rivals import check_that_all_comes_once
from tests.support.needs import need

REFERENCE = REFERENCES[Promise.WRITTEN]
ROOT = Path(__file__).resolve().parents[2]
LIMIT = 150.0
ONE_OF_EACH = ("nsqd-pure", "go-nsqd-disk", "redis-everysec", "nats", "rabbitmq-classic", "beanstalkd")


@pytest.mark.needs("C compiler")
def test_a_quick_run_measures_all_loads(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench", "peers", "--quick", "--build=pure", f"--json={path}"]
    done = subprocess.run(
        [*command, "--seconds=0.1", "--messages=2000"], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = {(row["load"], row["peer"]): row for row in result["rows"]}
    behind = {it["load"] for it in result["missing"] if it["peer"] == REFERENCE}  # a busy machine may be too slow
    assert {load for load, peer in rows if peer == REFERENCE} | behind == {figure.name for figure in FIGURES}
    assert rows["kill", REFERENCE]["median"] == 0, "acknowledged, and gone after kill -9"
    assert not [it for it in result["missing"] if it["load"] in ("rates", "backlog", "kill")], result["missing"]
    compared_with = {load: row["compared_with"] for (load, peer), row in rows.items() if peer == "limit"}
    assert compared_with == dict.fromkeys(ONLY_PUBLISHING, REFERENCE)
    assert "| ahead |" in done.stdout
    assert "| limit / nsqd, pure |" in done.stdout


def test_a_result_from_elsewhere_is_not_drawn_and_the_reason_is_said(tmp_path: Path) -> None:
    path = shutil.copy(ROOT / "bench" / "results" / "0021-peers.json", tmp_path)
    command = [sys.executable, "-m", "bench", "peers", f"--draw={path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1
    assert "not in the repository: documents could not link it" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    need("C compiler")
    return Loader.compiled(tmp_path_factory.mktemp("loader"))


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """Return a program that takes the place of Go's nsqd: ours, which has the same options and answers."""
    program = tmp_path / "nsqd"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m nsqd "$@"\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_all_that_was_acknowledged_comes_and_does_not_come_again(
    name: str, loader: Loader, tmp_path: Path, stand_in: Path
) -> None:
    variant = next(it for it in variants(go_nsqd=str(stand_in)) if it.name == name)
    if why := variant.kind.lacks():
        pytest.skip(why)
    check_that_all_comes_once(variant, loader, tmp_path)


@dataclass
class Told:
    """Something that listens, and says what a test wants to whatever comes."""

    port: int
    protocol: str = "redis"
    kind: str = ""


@contextmanager
def talking(talk: Callable[[socket.socket], object], protocol: str = "redis") -> Iterator[Told]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                talk(connection)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield Told(listener.getsockname()[1], protocol)
        thread.join(LIMIT)


def saying(*answers: bytes) -> AbstractContextManager[Told]:
    def talk(connection: socket.socket) -> None:
        for said in answers:
            connection.recv(65536)
            connection.sendall(said)
        connection.recv(65536)

    return talking(talk)


def test_an_answer_that_is_an_error_ends_the_load_and_is_shown(loader: Loader) -> None:
    with saying(b"+PONG\r\n", b"-OOM command not allowed\r\n") as told, pytest.raises(Failed, match="-OOM command"):
        loader.run("pub", told, "q", at_most=60, seconds=60)


def test_a_server_that_is_still_loading_can_be_asked_again(loader: Loader) -> None:
    with saying(b"-LOADING Redis is loading\r\n") as told, pytest.raises(NotReady, match="LOADING"):
        loader.run("pub", told, "q", at_most=60, seconds=60)


def test_a_port_where_nobody_listens_can_be_asked_again(loader: Loader) -> None:
    with pytest.raises(NotReady, match="cannot connect"):
        loader.run("declare", Told(take_port()), "q", at_most=60)


# What XREADGROUP answers with one entry: number 0, without a time stamp.
ONE_ENTRY = b"*1\r\n*2\r\n$1\r\nq\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nb\r\n$16\r\n" + bytes(16) + b"\r\n"


def test_a_server_that_stalls_has_the_time_until_the_limit_in_its_rate(loader: Loader) -> None:
    with saying(b"+OK\r\n", ONE_ENTRY, b":1\r\n") as told:
        got = loader.run("sub", told, "q", at_most=60, allow=(SHORT,), size=16, count=2, seconds=0.5)
    assert (got["msgs"], got.status) == (1, SHORT)
    assert got["msgs_per_s"] <= 2


def test_what_has_not_come_before_the_limit_is_not_said_to_be_lost(loader: Loader, tmp_path: Path) -> None:
    expected = tmp_path / "expected"
    expected.write_bytes(b"\3")  # numbers 0 and 1
    with saying(b"+OK\r\n", ONE_ENTRY, b":1\r\n") as told:
        got = loader.run("sub", told, "q", at_most=60, allow=(SHORT,), size=16, expect=expected, seconds=0.2)
    assert (got["missing"], got.status) == (1, SHORT)


def test_answers_out_of_order_are_noted_for_the_messages_that_they_are_about(loader: Loader, tmp_path: Path) -> None:
    acked = tmp_path / "acked"

    def talk(connection: socket.socket) -> None:
        def accept(number: int) -> None:
            connection.sendall(b'MSG _INBOX.1.0.%d 1 9\r\n{"seq":1}\r\n' % number)

        connection.sendall(b"INFO {}\r\n")
        read_until(connection, b"PING\r\n")
        connection.sendall(b"PONG\r\n")
        read_until(connection, b"$JS.API.STREAM.CREATE.q", b"}\r\n")
        connection.sendall(b"MSG _INBOX.1.0.api 1 2\r\n{}\r\n")
        read_until(connection, b".0 16\r\n", b".1 16\r\n")
        accept(1)
        select.select([connection], [], [], 0.2)  # the wrong moment for a third message: the first is not answered yet
        accept(0)
        read_until(connection, b".2 16\r\n")

    with talking(talk, "nats") as told:
        sent = loader.run(
            *("pub", told, "q"), at_most=60, allow=(CLOSED,), count=3, window=2, size=16, acked=acked, seconds=60
        )
    assert sent["msgs"] == 2
    assert acked.read_bytes() == b"\3"


def read_until(connection: socket.socket, *words: bytes) -> None:
    """Read until all these words have come."""
    said = b""
    while not all(word in said for word in words):
        piece = connection.recv(65536)
        assert piece, f"the end came before {words}"
        said += piece
