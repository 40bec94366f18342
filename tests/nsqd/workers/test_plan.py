"""What each worker has of its own."""

from __future__ import annotations

import pytest

from nsqd.workers.plan import (
    left_behind,
    name_of,
    node_id_of,
    number_in,
    port_in,
    port_problem,
    shifted_address,
    shifted_port,
)


@pytest.mark.parametrize(
    ("address", "second"),
    [
        ("0.0.0.0:4150", "0.0.0.0:4350"),
        (":4151", ":4351"),
        ("[::1]:4150", "[::1]:4350"),
        ("127.0.0.1:0", "127.0.0.1:0"),  # any free port
        ("", ""),  # no HTTP
        ("localhost", "localhost"),
        ("host:", "host:"),
        ("host:http", "host:http"),  # listening will refuse it
    ],
)
def test_a_worker_listens_a_hundred_ports_above_the_one_before(address: str, second: str) -> None:
    assert shifted_address(address, 0) == address
    assert shifted_address(address, 2) == second


def test_a_port_that_is_not_given_stays_so() -> None:
    assert shifted_port(0, 3) == 0
    assert shifted_port(4150, 3) == 4450


@pytest.mark.parametrize(("text", "port"), [("a:1", 1), (":0", 0), ("4150", 0), ("", 0), ("a:²", 0), ("[::1]:5", 5)])
def test_port_in_an_address(text: str, port: int) -> None:
    assert port_in(text) == port


def test_ids_of_the_workers_of_a_machine_differ() -> None:
    ids = [node_id_of(1000, number, below=1024) for number in range(64)]
    assert len(set(ids)) == 64
    assert ids[0] == 1000
    assert max(ids) < 1024


def test_default_ports_suit_all_workers() -> None:
    ports = {"tcp-address": 4150, "http-address": 4151, "https-address": 4152}
    assert port_problem(ports, 64) is None
    assert not {4160, 4161, 4171} & {shifted_port(port, it) for port in ports.values() for it in range(64)}


def test_ports_that_two_workers_would_share_are_named() -> None:
    problem = port_problem({"tcp-address": 4150, "http-address": 4350}, 3)
    assert problem is not None
    assert "--http-address of worker-0 and --tcp-address of worker-2 would both be port 4350" in problem
    assert port_problem({"tcp-address": 4150, "http-address": 4350}, 2) is None


def test_a_port_beyond_the_last_one_is_refused() -> None:
    assert (
        port_problem({"tcp-address": 65_436}, 2)
        == "worker-1 would need port 65536 for --tcp-address: choose a lower one"
    )
    assert port_problem({"tcp-address": 65_435}, 2) is None
    assert port_problem({"tcp-address": 0}, 64) is None


@pytest.mark.parametrize("name", ["worker-", "worker-01", "worker-x", "worker-²", "topics", "worker--1", "3"])
def test_other_folders_are_nobodys(name: str) -> None:
    assert number_in(name) is None


def test_folders_beyond_the_number_are_left_behind() -> None:
    assert number_in(name_of(12)) == 12
    assert left_behind(["worker-10", "topics", "worker-2", "worker-1"], 2) == ["worker-2", "worker-10"]
    assert left_behind(["worker-0"], 1) == []
