"""nsqd on unix sockets, which differ from TCP in how nsqd is reached, and in what it knows about addresses."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd, Nsqlookupd, eventually, run_to_end


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short path, as the path of a unix socket has 107 bytes at most."""
    with TemporaryDirectory(prefix="nsq-") as path:
        yield Path(path)


def start(start_nsqd: StartNsqd, folder: Path, *options: str) -> Nsqd:
    return start_nsqd(f"tcp-address={folder / 'tcp'}", f"http-address={folder / 'http'}", *options)


def test_clients_are_served_over_unix_sockets(start_nsqd: StartNsqd, folder: Path) -> None:
    nsqd = start(start_nsqd, folder)
    assert (nsqd.tcp, nsqd.http_address) == ((str(folder / "tcp"), -1), (str(folder / "http"), -1))
    nsqd.post("/pub?topic=t", b"over http")
    consumer = nsqd.connect()
    consumer.subscribe("t", ready=2)
    consumer.publish("t", b"over tcp")
    messages = consumer.messages(2)
    assert {message.body for message in messages} == {b"over http", b"over tcp"}
    consumer.finish(*messages)
    consumer.in_step()
    (client,) = nsqd.channel("t")["clients"]
    assert (client["remote_address"], client["client_id"], client["hostname"]) == ("@", "", "")
    assert eventually(lambda: "TCP: new client(@)" in nsqd.log)
    assert eventually(lambda: "200 GET /stats?format=json&topic=t (@) " in nsqd.log)


def test_there_are_no_ports_to_tell(start_nsqd: StartNsqd, folder: Path) -> None:
    info = start(start_nsqd, folder).http("GET", "/info").json
    assert (info["tcp_port"], info["http_port"]) == (-1, -1)


def test_with_broadcast_ports_it_can_be_registered_all_the_same(start_nsqd: StartNsqd, folder: Path) -> None:
    """This helps if a proxy stands in front of nsqd. Without the ports nsqlookupd refuses it, as NSQ's does."""
    with Nsqlookupd() as lookupd:
        address = f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"
        nsqd = start(start_nsqd, folder, address, "broadcast-tcp-port=4150", "broadcast-http-port=4151")
        nsqd.post("/topic/create?topic=t")
        assert eventually(lambda: lookupd.producers("t")) == {4150}


def test_the_files_have_default_permissions_and_go_at_the_end(start_nsqd: StartNsqd, folder: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    nsqd = start(start_nsqd, folder)
    for name in ("tcp", "http"):
        status = (folder / name).stat()
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o777 & ~mask
    assert nsqd.stop() == 0
    assert list(folder.iterdir()) == []
    nsqd.start()
    assert nsqd.http("GET", "/ping").body == b"OK"


def test_what_a_kill_leaves_behind_is_an_address_in_use(start_nsqd: StartNsqd, folder: Path, tmp_path: Path) -> None:
    nsqd = start(start_nsqd, folder)
    nsqd.kill()
    for flag in ("tcp", "http"):
        path = folder / flag
        done = run_to_end(
            f"--data-path={tmp_path}",
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            f"--{flag}-address={path}",
        )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].endswith(
            f"FATAL: failed to instantiate nsqd - listen ({path}) failed - listen unix {path}: bind: address already in use"
        )
        assert path.exists()


def test_a_signal_closes_connections_over_unix_sockets(start_nsqd: StartNsqd, folder: Path) -> None:
    nsqd = start(start_nsqd, folder)
    consumer = nsqd.connect()
    consumer.subscribe("t")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(folder / "http"))
        assert nsqd.stop(signal.SIGINT) == 0
    assert consumer.closes()
