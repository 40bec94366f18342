"""Addresses, and listeners on the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nsqcommon.net import (
    Address,
    AddressError,
    ListenError,
    begin_listening,
    bind,
    close_listener,
    format_listener,
    format_name,
    listening_port,
    parse_address,
)

Listen = Callable[[str], socket.socket]


@pytest.fixture
def listen() -> Iterator[Listen]:
    opened: list[socket.socket] = []

    def open_one(address: str) -> socket.socket:
        opened.append(bind(address))
        return opened[-1]

    yield open_one
    for listener in opened:
        close_listener(listener)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:4150", Address(host="0.0.0.0", port=4150)),
        ("nsqd.example:4150", Address(host="nsqd.example", port=4150)),
        (":4150", Address(host="", port=4150)),
        ("127.0.0.1:", Address(host="127.0.0.1", port=0)),
        ("[::1]:4150", Address(host="::1", port=4150)),
        ("[fe80::1%eth0]:80", Address(host="fe80::1%eth0", port=80)),
        ("/run/nsqd.sock", Address(path="/run/nsqd.sock")),
        ("nsqd.sock", Address(path="nsqd.sock")),
        ("./nsqd", Address(path="./nsqd")),
        ("@nsqd", Address(path="@nsqd")),
    ],
)
def test_an_address_is_tcp_when_it_splits_as_host_and_port(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert address.is_unix == bool(address.path)


@pytest.mark.parametrize("text", ["0.0.0.0:4150", "[::1]:4150", ":4150", "/run/nsqd.sock"])
def test_an_address_prints_as_it_was_written(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty address"),
        ("127.0.0.1:65536", "address 65536: invalid port"),
        ("127.0.0.1", "address 127.0.0.1: missing port in address"),
        ("4150", "address 4150: missing port in address"),
        ("broker.example", "address broker.example: missing port in address"),
        ("[::1]", "address [::1]: missing port in address"),
        ("::1", "address ::1: too many colons in address"),
        ("a:b:c", "address a:b:c: too many colons in address"),
        ("127.0.0.1:http", "lookup tcp/http: unknown port"),
        ("127.0.0.1:-1", "lookup tcp/-1: unknown port"),
        ("127.0.0.1:٣", "lookup tcp/٣: unknown port"),
    ],
)
def test_other_addresses_are_refused(text: str, message: str) -> None:
    with pytest.raises(AddressError) as refused:
        parse_address(text)
    assert str(refused.value) == message


def test_a_host_without_a_port_is_no_unix_socket_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ListenError, match=r"missing port in address; expected host:port, or \./127\.0\.0\.1 for a unix socket"
    ):
        bind("127.0.0.1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "0.0.0.0:0", ":0"])
def test_a_listener_has_a_real_port_and_does_not_block(listen: Listen, address: str) -> None:
    listener = listen(address)
    assert listening_port(listener) > 0
    assert not listener.getblocking()
    with socket.create_connection(("127.0.0.1", listening_port(listener))) as client:
        assert format_name(client.getpeername()) == f"127.0.0.1:{listening_port(listener)}"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_wildcard_is_open_for_both_families(listen: Listen) -> None:
    listener = listen("0.0.0.0:0")
    port = listening_port(listener)
    assert format_listener(listener) == f"[::]:{port}"
    listener.setblocking(True)
    with socket.create_connection(("127.0.0.1", port)) as client:
        accepted, name = listener.accept()
        with accepted:
            here = f"127.0.0.1:{client.getsockname()[1]}"
            assert format_name(accepted.getpeername()) == format_name(name) == here


def test_a_port_in_use_is_refused_with_nsqs_text(listen: Listen) -> None:
    address = f"127.0.0.1:{listening_port(listen('127.0.0.1:0'))}"
    with pytest.raises(ListenError) as refused:
        bind(address)
    assert str(refused.value) == f"listen ({address}) failed - listen tcp {address}: bind: address already in use"


def test_an_address_can_be_kept_before_it_is_served() -> None:
    listener = bind("127.0.0.1:0", listens=False)
    with closing(listener):
        name = listener.getsockname()
        with pytest.raises(ConnectionRefusedError), socket.create_connection(name):
            pass
        begin_listening(listener)
        socket.create_connection(name).close()


def test_a_text_that_is_no_address_is_refused_like_one_in_use() -> None:
    with pytest.raises(ListenError, match=r"^listen \(h:99999\) failed - listen tcp: address 99999: invalid port$"):
        bind("h:99999")


def test_a_name_without_a_file_is_written_as_text(listen: Listen, tmp_path: Path) -> None:
    listener = listen(str(tmp_path / "nsqd.sock"))
    listener.setblocking(True)
    with socket.socket(socket.AF_UNIX) as client:
        client.bind("\0a name")
        client.connect(str(tmp_path / "nsqd.sock"))
        accepted, name = listener.accept()
        with accepted:
            assert format_name(accepted.getpeername()) == format_name(name) == "@a name"
    close_listener(listener)


def test_a_unix_socket_is_a_file_while_it_is_open(listen: Listen, tmp_path: Path) -> None:
    path = tmp_path / "nsqd.sock"
    listener = listen(str(path))
    listener.setblocking(True)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        accepted, name = listener.accept()
        with accepted:
            assert format_name(accepted.getpeername()) == format_name(name) == "@"
    assert listening_port(listener) == -1
    assert format_listener(listener) == str(path)
    close_listener(listener)
    assert not path.exists()
    close_listener(listener)


def test_an_existing_file_is_an_address_in_use(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.sock"
    path.touch()
    with pytest.raises(ListenError, match=r"bind: address already in use$"):
        bind(str(path))
    assert path.exists()
