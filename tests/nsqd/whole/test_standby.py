"""Two machines with the same command line, as processes: one owns the node, and the other one waits."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path

import pytest

from nsqcommon.startup import TakenOver
from tests.support.client import Client
from tests.support.process import Nsqd, eventually, run_to_end

Start = Callable[..., Nsqd]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Start]:
    """Return what makes a machine that isn't started yet."""
    shared = tmp_path / "shared"
    shared.mkdir()
    with ExitStack() as running:

        def new_machine(name: str, *options: str, after: str = "1s", **more: dict[str, str]) -> Nsqd:
            nsqd = Nsqd(
                tmp_path / name,
                f"remote=file://{shared}",
                "remote-name=orders",
                "remote-interval=2ms",
                "ack=remote",
                "broadcast-address=127.0.0.1",
                "standby",
                f"standby-after={after}",
                *options,
                **more,
            )
            running.callback(nsqd.kill)
            return nsqd

        yield new_machine


def bodies_at(nsqd: Nsqd, count: int) -> list[bytes]:
    with Client(nsqd.tcp) as client:
        client.subscribe("t", ready=count)
        return sorted(client.bodies(count))


def test_a_standby_says_that_it_lives_and_is_not_ready(machine: Start) -> None:
    owner = machine("a").start()
    standby = machine("b").start_waiting()
    eventually(lambda: "which process" in standby.log)
    asked = {path: standby.http("GET", path) for path in ("/ping", "/healthz", "/readyz", "/stats")}
    assert {path: (it.status, it.body) for path, it in asked.items()} == {
        "/ping": (200, b"OK"),
        "/healthz": (200, b"OK"),
        "/readyz": (503, b"standby"),
        "/stats": (503, b'{"message":"STANDBY"}'),
    }
    assert standby.http("POST", "/pub?topic=t", b"x").status == 503
    metrics = standby.http("GET", "/metrics").body.decode()
    assert 'nsqd_remote_state{state="standby"} 1' in metrics
    found = standby.http("GET", "/remote").json
    assert (found["state"], found["name"]) == ("standby", "orders")
    assert found["owner"].startswith(f"process {owner.pid} on ")
    assert found["owner_address"] == f"127.0.0.1:{owner.http_address[1]}"
    assert found["chain"]["run"] == owner.http("GET", "/remote").json["run"]
    assert found["waits_for"].startswith("standing by for orders, which process")
    for document in (owner.http("GET", "/remote").json, owner.stats()["remote"]):
        assert (document["standby"], document["watched_by"]) == (True, [f"127.0.0.1:{standby.http_address[1]}"])


def test_an_owner_that_wants_a_token_is_still_an_owner(machine: Start, tmp_path: Path) -> None:
    """The standby has no token. /readyz is open to all, and tells an owner from a standby."""
    rights = tmp_path / "rights.toml"
    rights.write_text(f'[[allow]]\nname = "ana"\ntoken_sha256 = "{sha256(b"secret").hexdigest()}"\nroles = ["read"]\n')
    owner = machine("a", f"rights-file={rights}").start()
    standby = machine("b", f"rights-file={rights}").start_waiting()
    eventually(lambda: "which process" in standby.log)
    assert (standby.http("GET", "/remote").status, standby.http("GET", "/readyz").status) == (401, 503)
    found = standby.http("GET", "/remote", headers={"Authorization": "Bearer secret"}).json
    assert (found["state"], found["owner_says"]) == ("standby", "it owns the name, and reaches the store")
    watched = owner.http("GET", "/remote", headers={"Authorization": "Bearer secret"}).json["watched_by"]
    assert watched == [f"127.0.0.1:{standby.http_address[1]}"]


def test_its_tcp_port_refuses_connections(machine: Start) -> None:
    machine("a").start()
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        address = chosen.getsockname()
    machine("b", f"tcp-address=127.0.0.1:{address[1]}").start_waiting()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(address):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_standby_ends_at_once_when_it_is_asked_to(machine: Start, number: signal.Signals) -> None:
    machine("a").start()
    standby = machine("b", after="1h").start_waiting()
    assert standby.stop(number) == 0


def test_a_standby_goes_on_with_every_message_that_was_answered(machine: Start) -> None:
    owner = machine("a").start()
    standby = machine("b").start_waiting()
    with Client(owner.tcp) as client:
        for number in range(5):
            client.publish("t", b"%d" % number)
    owner.kill()
    assert bodies_at(standby.wait_until_serving(), 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_clean_stop_is_not_waited_for(machine: Start) -> None:
    owner = machine("a", after="1h").start()
    standby = machine("b", after="1h").start_waiting()
    eventually(lambda: "which process" in standby.log)
    assert owner.stop() == 0
    standby.wait_until_serving()


def test_an_owner_that_loses_its_name_stands_by(machine: Start) -> None:
    """Also if it was started with --take-over, or two machines would take the name from each other for ever."""
    first = machine("a", "take-over").start()
    pid = first.pid
    with Client(first.tcp) as client:
        second = machine("b", "take-over").start()
        with suppress(OSError):  # it has found out already, on a busy machine
            client.send(b"PUB t\n\x00\x00\x00\x01x")  # so it finds out now, and not by a heartbeat
        first.wait_until_lost(0)
    first.wait_until_waiting()
    assert (first.remote_state, first.pid) == ("standby", pid)
    second.kill()
    assert first.wait_until_serving().remote_state == "owner"
    assert first.stop() == 0


def test_without_standby_it_ends_with_a_status_of_its_own(machine: Start, tmp_path: Path) -> None:
    first = Nsqd(tmp_path / "a", *[it for it in machine("a").options if not it.startswith("standby")])
    with first, Client(first.tcp) as client:
        machine("b", "take-over").start()
        with suppress(OSError):  # it may have found the fence by itself
            client.send(b"PUB t\n\x00\x00\x00\x01x")
        assert first.wait() == TakenOver.exit_status


def test_a_service_manager_learns_that_a_standby_has_started(machine: Start, tmp_path: Path) -> None:
    machine("a").start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        machine("b", environ={"NOTIFY_SOCKET": str(tmp_path / "notify")}).start_waiting()
        assert manager.recv(100) == b"READY=1"


def test_what_it_could_not_serve_later_is_refused_at_the_start(machine: Start, tmp_path: Path) -> None:
    owner = machine("a").start()
    options = [f"--{it}" for it in machine("b").options]
    done = run_to_end(f"--data-path={tmp_path}", *options, f"--tcp-address=127.0.0.1:{owner.tcp[1]}")
    assert (done.returncode, "address already in use" in done.stderr) == (1, True)
    done = run_to_end(f"--data-path={tmp_path}", *options, "--tcp-address=127.0.0.1:0", "--http-address=")
    assert (done.returncode, "--standby needs --http-address" in done.stderr) == (1, True)
