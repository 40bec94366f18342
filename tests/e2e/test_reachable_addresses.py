"""Addresses that others can reach, on machines of their own: what a node registers, and who says that it is wrong."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import pytest

from nsqcommon.wire.lookup import encode_command, identify_body
from tests.e2e.namespaces import Machine, Network, a_network
from tests.support.client import Client
from tests.support.process import Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

LOOKUPD: Final = "10.77.0.1"
NODE: Final = "10.77.0.5"
OTHER: Final = "10.77.0.9"
PROMISED: Final = 5.0  # seconds until everybody says that a node cannot be reached
PATIENCE: Final = 2.5  # times as long on a busy machine: sooner than by the next ping, after 15 s


class Site:
    """An nsqlookupd on a machine of its own, a machine for an nsqd, and a machine of somebody else."""

    def __init__(self, network: Network, running: ExitStack, folder: Path) -> None:
        self.network = network
        self.other = network.machine("other", OTHER)
        self.where = network.machine("lookup1", LOOKUPD, hosts=f"{OTHER} victim")
        self._running = running
        self._folder = folder
        self.lookupd: Nsqlookupd

    def start_lookupd(self, *options: str) -> Nsqlookupd:
        self.lookupd = Nsqlookupd(f"tcp-address={LOOKUPD}:4160", f"http-address={LOOKUPD}:4161", *options)
        self.lookupd.under = self.where.under
        return self._running.enter_context(self.lookupd)

    def start_nsqadmin(self, *options: str) -> Nsqadmin:
        addresses = (f"http-address={LOOKUPD}:4171", f"lookupd-http-address={LOOKUPD}:4161")
        admin = Nsqadmin(*addresses, *options)
        admin.under = self.where.under
        return self._running.enter_context(admin)

    def findings(self, rule: str) -> list[dict[str, Any]]:
        found = self.get("/api/v2/diagnose", port=4171)["findings"]
        return [it for it in found if it["rule"] == rule]

    def start_nsqd(self, machine: Machine, *options: str, lookupd: str = LOOKUPD) -> Nsqd:
        addresses = ("tcp-address=0.0.0.0:4150", "http-address=0.0.0.0:4151")
        nsqd = Nsqd(self._folder / "data", *addresses, f"lookupd-tcp-address={lookupd}:4160", *options)
        nsqd.under = machine.under
        return self._running.enter_context(nsqd)

    def get(self, path: str, *, ip: str = LOOKUPD, port: int = 4161, machine: Machine | None = None) -> Any:
        """Ask over HTTP, from the machine of nsqlookupd unless another is named."""

        def ask() -> Any:
            connection = HTTPConnection(ip, port, timeout=10)
            connection.request("GET", path)
            answer = json.loads(connection.getresponse().read())
            connection.close()
            return answer

        return (machine or self.where).do(ask)

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return list(self.get("/nodes")["producers"])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with a_network(tmp_path) as network, ExitStack() as running:
        yield Site(network, running, tmp_path)


@pytest.mark.parametrize("hosts", ["", "127.0.1.1 web7"], ids=["no name", "loopback"])
def test_a_node_whose_host_name_means_nothing_to_others_is_reached(site: Site, hosts: str) -> None:
    """Publish and consume from another machine, at the address that nsqlookupd tells."""
    site.start_lookupd()
    nsqd = site.start_nsqd(site.network.machine("web7", NODE, hosts=hosts))
    assert f"broadcast address {NODE}: the host name web7 " in nsqd.log
    assert f"this is the source address of packets to nsqlookupd {LOOKUPD}:4160" in nsqd.log
    (node,) = eventually(lambda: site.nodes)
    assert (node["broadcast_address"], node["hostname"]) == (NODE, "web7")

    def publish() -> None:
        with Client((node["broadcast_address"], node["tcp_port"])) as client:
            client.publish("t", b"hello")

    site.other.do(publish)
    (producer,) = eventually(lambda: site.get("/lookup?topic=t", machine=site.other).get("producers"))

    def consume() -> bytes:
        with Client((producer["broadcast_address"], producer["tcp_port"])) as client:
            client.subscribe("t", "c", ready=1)
            message = client.message()
            client.finish(message)
            return message.body

    assert site.other.do(consume) == b"hello"
    time.sleep(0.2)
    assert "reachable" not in site.nodes[0]


def test_a_host_name_that_resolves_is_registered_as_before(site: Site) -> None:
    site.start_lookupd()
    nsqd = site.start_nsqd(site.network.machine("web7", NODE, hosts=f"{NODE} web7"))
    assert f"broadcast address web7: the host name, which resolves to {NODE}" in nsqd.log
    assert eventually(lambda: site.nodes)[0]["broadcast_address"] == "web7"


def test_a_given_address_is_not_questioned(site: Site) -> None:
    site.start_lookupd()
    nsqd = site.start_nsqd(site.network.machine("web7", NODE), f"broadcast-address={OTHER}")
    assert "NSQ: broadcast address" not in nsqd.log
    assert eventually(lambda: site.nodes)[0]["broadcast_address"] == OTHER


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "lookup web7: no such host"),
        ((f"broadcast-address={NODE}", "broadcast-tcp-port=4999"), f"dial {NODE}:4999: connection refused"),
    ],
    ids=["a container's name", "a wrong port"],
)
def test_a_node_that_cannot_be_reached_is_named_by_everybody(
    site: Site, options: tuple[str, ...], problem: str
) -> None:
    """Start an nsqd whose name only its own machine knows, as in a container, or with a wrong port."""
    needs_module("starlette")
    lookupd = site.start_lookupd()
    site.start_nsqadmin()
    nsqd = site.start_nsqd(site.network.machine("web7", NODE, hosts=f"{NODE} web7"), *options)
    eventually(lambda: site.nodes)
    registered = time.monotonic()
    eventually(lambda: site.nodes[0].get("reachable") is False)
    assert site.nodes[0]["unreachable"] == problem
    assert "unreachable at its broadcast address " in lookupd.log
    assert f": {problem}; set another" in lookupd.log
    eventually(lambda: f"this node cannot be reached: {problem}" in nsqd.log)
    assert "set --broadcast-address to" in nsqd.log
    (finding,) = eventually(lambda: site.findings("D27"))
    assert finding["node"] == f"{site.nodes[0]['broadcast_address']}:4151"
    assert finding["evidence"] == [{"label": "nsqlookupd says", "value": f"{LOOKUPD}:4161: {problem}"}]
    assert (
        f"--broadcast-address=<a name or address that clients can reach> (it connects from {NODE})" in finding["advice"]
    )
    assert time.monotonic() - registered < PROMISED * PATIENCE


# Hostile


def register(machine: Machine, address: str, port: int) -> socket.socket:
    """Register as an nsqd at this address, from this machine."""

    def connect() -> socket.socket:
        body = identify_body(
            broadcast_address=address,
            hostname="liar",
            http_port=1,
            tcp_port=port,
            topology_region="",
            topology_zone="",
            version="1.3.0",
        )
        connection = socket.create_connection((LOOKUPD, 4160), timeout=10)
        connection.sendall(b"  V1" + encode_command("IDENTIFY", body=body))
        assert b"broadcast_address" in connection.recv(1000)
        return connection

    return machine.do(connect)


def was_visited(listener: socket.socket, seconds: float) -> bool:
    listener.settimeout(seconds)
    try:
        listener.accept()[0].close()
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("claimed", [OTHER, "victim", f"::ffff:{OTHER}"])
def test_a_registration_with_another_s_address_makes_nobody_connect_there(site: Site, claimed: str) -> None:
    site.start_lookupd()
    liar = site.network.machine("liar", NODE)
    with site.other.do(lambda: socket.create_server((OTHER, 4150))) as listener, register(liar, claimed, 4150):
        (node,) = eventually(lambda: site.nodes)
        assert not was_visited(listener, 1.0)
        assert "reachable" not in site.nodes[0], "nobody has tried"
        assert node["broadcast_address"] == claimed


def test_a_registration_makes_nobody_knock_at_the_doors_of_nsqlookupd_itself(site: Site) -> None:
    site.start_lookupd()
    liar = site.network.machine("liar", NODE)
    with (
        site.where.do(lambda: socket.create_server(("0.0.0.0", 4150))) as listener,
        register(liar, "127.0.0.1", 4150),
        register(liar, LOOKUPD, 4150),
        register(liar, "lookup1", 4150),
        register(liar, "localhost", 4150),
    ):
        eventually(lambda: len(site.nodes) == 4)
        assert not was_visited(listener, 1.0)


def test_where_an_operator_permits_it_nsqlookupd_connects(site: Site) -> None:
    site.start_lookupd(f"dial-back-to={OTHER}/32")
    gateway = site.network.machine("gateway", NODE)
    with site.other.do(lambda: socket.create_server((OTHER, 4150))) as listener, register(gateway, "victim", 4150):
        assert was_visited(listener, 3.0)
    with register(gateway, OTHER, 4151):
        eventually(lambda: any(it.get("reachable") is False for it in site.nodes))


def test_connecting_back_can_be_switched_off(site: Site) -> None:
    site.start_lookupd("dial-back=false")
    node = site.network.machine("web7", NODE)
    with node.do(lambda: socket.create_server((NODE, 4150))) as listener, register(node, NODE, 4150):
        eventually(lambda: site.nodes)
        assert not was_visited(listener, 1.0)
