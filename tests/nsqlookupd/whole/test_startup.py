"""nsqlookupd as a process: how it starts, refuses to start, logs and stops."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Final

import pytest

from nsqcommon.wire.lookup import ReplyReader
from tests.support.process import SOURCES, run_to_end

LIMIT: Final = 30.0
LINE: Final = re.compile(r"\[nsqlookupd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} (DEBUG|INFO|WARNING|ERROR|FATAL): .")


class Lookupd:
    def __init__(self, process: subprocess.Popen[str], stderr: IO[str]) -> None:
        self.process = process
        self._stderr = stderr
        self.lines: list[str] = []
        self.tcp = self._port("TCP")
        self.http = self._port("HTTP")

    def _port(self, kind: str) -> int:
        return int(self.wait_for(rf"{kind}: listening on 127\.0\.0\.1:(\d+)$")[1])

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait for the next line that has this text."""
        for line in self._stderr:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(pattern, self.lines[-1]):
                return found
        raise AssertionError("\n".join([f"no {pattern} in:", *self.lines]))

    def say(self, data: bytes, replies: int) -> list[bytes]:
        reader, got = ReplyReader(1 << 20), list[bytes]()
        with socket.create_connection(("127.0.0.1", self.tcp), timeout=LIMIT) as connection:
            connection.sendall(data)
            while len(got) < replies and (received := connection.recv(65536)):
                reader.receive(received)
                got += iter(reader.next_reply, None)
        return got

    def get(self, target: str) -> bytes:
        connection = HTTPConnection("127.0.0.1", self.http, timeout=LIMIT)
        try:
            connection.request("GET", target)
            return connection.getresponse().read()
        finally:
            connection.close()

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.lines += [line.rstrip("\n") for line in self._stderr]
        return self.process.wait(LIMIT)


@contextmanager
def launched(*options: str) -> Iterator[Lookupd]:
    process = subprocess.Popen(
        [sys.executable, "-m", "nsqlookupd", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *options],
        env={**os.environ, "PYTHONPATH": SOURCES},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process, process.stderr as stderr:
        try:
            yield Lookupd(process, stderr)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_with_status_0_and_peers_see_the_end(number: signal.Signals) -> None:
    with launched() as lookupd, socket.create_connection(("127.0.0.1", lookupd.tcp), timeout=LIMIT) as peer:
        peer.sendall(b"  V1PING\n")
        assert peer.recv(100) == b"\0\0\0\2OK"
        assert lookupd.stop(number) == 0
        assert peer.recv(100) == b""
        assert "Traceback" not in "\n".join(lookupd.lines)


def test_log_has_lines_of_nsq() -> None:
    with launched() as lookupd:
        assert lookupd.say(b"  V1NOP\n", 1) == [b"E_INVALID invalid command NOP"]
        lookupd.wait_for(r"INFO: TCP: new client\(127\.0\.0\.1:\d+\)$")
        lookupd.wait_for(r"INFO: CLIENT\(127\.0\.0\.1:\d+\): desired protocol magic '  V1'$")
        lookupd.wait_for(r"ERROR: \[127\.0\.0\.1:\d+\] - E_INVALID invalid command NOP$")
        lookupd.get("/lookup?topic=t")
        lookupd.wait_for(r"INFO: 404 GET /lookup\?topic=t \(127\.0\.0\.1:\d+\) [\d.]+(µs|ms)$")
        lookupd.stop(signal.SIGTERM)
        assert [line for line in lookupd.lines if not LINE.match(line)] == []


def test_options_come_from_the_file_too(tmp_path: Path) -> None:
    config = tmp_path / "nsqlookupd.cfg"
    config.write_text('broadcast_address = "there"\ninactive_producer_timeout = 2000\nno_such_key = 1\n')
    body = b'{"broadcast_address":"a","tcp_port":1,"http_port":1,"version":"1"}'
    with launched(f"--config={config}") as lookupd:
        (reply,) = lookupd.say(b"  V1IDENTIFY\n" + len(body).to_bytes(4, "big") + body, 1)
        assert b'"broadcast_address":"there"' in reply


@pytest.mark.usefixtures("real_starts")
def test_version_is_one_line() -> None:
    result = run_to_end("--version", program="nsqlookupd")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(r"nsqlookupd v1\.3\.0 \(built w/python3\.\d+\.\d+\S*, nsq-suite \S+\)\n", result.stdout)


@pytest.mark.parametrize(("option", "message"), [
    ("-bogus", "flag provided but not defined: -bogus"),
    ("-inactive-producer-timeout=5", 'invalid value "5" for flag -inactive-producer-timeout: expected a duration such as 500ms, 90s, 1h30m or 7d'),
    ("-verbose=maybe", 'invalid boolean value "maybe" for -verbose: parse error'),
    ("-tcp-address", "flag needs an argument: -tcp-address"),
])  # fmt: skip
def test_wrong_command_line(option: str, message: str) -> None:
    result = run_to_end(option, program="nsqlookupd")
    assert result.returncode == 2
    assert result.stderr == f"nsqlookupd: {message}; see nsqlookupd --help\n"


@pytest.mark.parametrize("kind", ["tcp", "http"])
def test_address_in_use(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        addresses = {"tcp": "127.0.0.1:0", "http": "127.0.0.1:0", kind: address}
        options = [f"--{name}-address={value}" for name, value in addresses.items()]
        result = run_to_end(*options, program="nsqlookupd")
    assert result.returncode == 1
    expected = f"FATAL: failed to instantiate nsqlookupd - listen ({address}) failed - listen tcp {address}: bind: "
    assert expected in result.stderr
