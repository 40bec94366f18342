"""Derives one worker's options from the supervisor's."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from nsqcommon.net import AddressError, parse_address
from nsqcommon.startup import StartupError
from nsqd.options import MAX_NODE_ID, Options
from nsqd.workers.plan import name_of, node_id_of, port_in, port_problem, shifted_address, shifted_port

_ADDRESSES: Final = ("tcp-address", "http-address", "https-address")


def check_addresses(options: Options) -> None:
    """Raise StartupError if the options don't allow a separate address for each worker."""
    addresses = dict(zip(_ADDRESSES, (options.tcp_address, options.http_address, options.https_address), strict=True))
    if not options.tls_cert:
        del addresses["https-address"]  # unused without TLS
    for flag, address in addresses.items():
        if _is_unix(address):
            raise StartupError(f"--workers needs host:port in --{flag}, not the unix socket {address}")
    ports = {flag: port_in(address) for flag, address in addresses.items()}
    broadcast = {"broadcast-tcp-port": options.broadcast_tcp_port, "broadcast-http-port": options.broadcast_http_port}
    for group in (ports, broadcast):
        if problem := port_problem(group, options.workers):
            raise StartupError(problem)


def worker_options(options: Options, *, starts_again: bool) -> Options:
    """Return the options of worker `options.worker`.

    `starts_again` disables --take-over: only the first start may take the data path from another machine. If an operator
    has moved the data path to another machine since then, a restart must not take it back.
    """
    number = options.worker
    return replace(
        options,
        data_path=str(Path(options.data_path) / name_of(number)),
        tcp_address=shifted_address(options.tcp_address, number),
        http_address=shifted_address(options.http_address, number),
        https_address=shifted_address(options.https_address, number),
        broadcast_tcp_port=shifted_port(options.broadcast_tcp_port, number),
        broadcast_http_port=shifted_port(options.broadcast_http_port, number),
        node_id=node_id_of(options.node_id, number, below=MAX_NODE_ID),
        remote_name=f"{options.remote_name}-{number}",
        log_prefix=f"{options.log_prefix}{name_of(number)}: ",
        take_over=options.take_over and not starts_again,
    )


def _is_unix(address: str) -> bool:
    with suppress(AddressError):  # listening reports any other error in the address
        return bool(address) and parse_address(address).is_unix
    return False
