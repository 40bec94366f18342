"""Shared kinds and checks of flags."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final, NoReturn

from nsqcommon.option_kinds import OptionKind
from nsqcommon.startup import StartupError
from nsqcommon.wire.groups import checked_group
from nsqcommon.wire.names import is_valid_name
from nsqtools.nodes import parse_server

NSQD_TCP_ADDRESS: Final = "TCP address of an nsqd, host:port"
LOOKUPD_HTTP_ADDRESS: Final = "HTTP address of an nsqlookupd, host:port or URL"
DESTINATION_NSQD: Final = "TCP address of an nsqd to publish to, host:port"
DESTINATION_LOOKUPD: Final = (
    "HTTP address of an nsqlookupd that lists the nsqds to publish to (they may come and go), host:port or URL"
)
NSQD_HTTP_ADDRESS: Final = "HTTP address of an nsqd, host:port"
CONNECT_TIMEOUT: Final = "timeout for opening an HTTP connection"
REQUEST_TIMEOUT: Final = "timeout for an HTTP request"

_INT32: Final = range(-(2**31), 2**31)


def _parse_count(text: str) -> int | None:
    if not re.fullmatch("[+-]?[0-9]+", text, re.ASCII):
        raise ValueError(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if int(text) not in _INT32:
        raise ValueError(f'strconv.ParseInt: parsing "{text}": value out of range')
    return int(text)


def _parse_group(text: str) -> bytes | None:
    return checked_group(os.fsencode(text))


def _no_file(value: object) -> NoReturn:
    raise ValueError(f"invalid value type {type(value).__name__}")


# None: the flag was not given.
COUNT: Final[OptionKind[int | None]] = OptionKind(
    word="int", parse=_parse_count, convert=_no_file, show=lambda value: "" if value is None else str(value)
)
GROUP: Final[OptionKind[bytes | None]] = OptionKind(word="string", parse=_parse_group, convert=_no_file)


def check_sources(nsqd: Sequence[str], lookupd: Sequence[str], *, kind: str = "tcp", full_stop: str = "") -> None:
    """Check that there are addresses of exactly one kind. Raise StartupError."""
    if not nsqd and not lookupd:
        raise StartupError(f"--nsqd-{kind}-address or --lookupd-http-address required{full_stop}")
    if nsqd and lookupd:
        raise StartupError(f"use --nsqd-{kind}-address or --lookupd-http-address not both")


def check_destinations(nsqd: Sequence[str], lookupd: Sequence[str], *, is_needed: bool = True) -> None:
    """Check that there are addresses of one kind to publish to. Raise StartupError."""
    if is_needed and not nsqd and not lookupd:
        raise StartupError("--destination-nsqd-tcp-address or --destination-lookupd-http-address required")
    if nsqd and lookupd:
        raise StartupError("use --destination-nsqd-tcp-address or --destination-lookupd-http-address not both")


def check_timeouts(connect: int, request: int) -> None:
    """Check that both timeouts are positive. Raise StartupError."""
    if connect <= 0:
        raise StartupError("--http-client-connect-timeout should be positive")
    if request <= 0:
        raise StartupError("--http-client-request-timeout should be positive")


def check_topic(name: str) -> None:
    """Check a topic's name. Raise StartupError."""
    if not is_valid_name(name):
        raise StartupError(f"invalid topic name {name!r}")


def check_channel(name: str) -> None:
    """Check a channel's name. Raise StartupError."""
    if not is_valid_name(name):
        raise StartupError(f"invalid channel name {name!r}")


def check_server(text: str) -> None:
    """Check an HTTP address. Raise StartupError."""
    try:
        parse_server(text)
    except ValueError as error:
        raise StartupError(str(error)) from error


def check_addresses(nsqd_tcp: Sequence[str], lookupd_http: Sequence[str]) -> None:
    """Check the addresses of nsqd and nsqlookupd. Raise StartupError."""
    for address in (*nsqd_tcp, *lookupd_http):
        check_server(address)
