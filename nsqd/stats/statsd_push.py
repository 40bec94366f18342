"""Pushes figures to statsd, spread over the interval so that the packets don't overflow the receiver's buffer."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

from nsqcommon.net import parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

_RESOLVE_TIMEOUT: Final = 1.0
_LEFT_OVER: Final = 1.0  # seconds without packets at the end of each interval, as in NSQ


async def push_to_statsd(address: str, interval: float, take_packets: Callable[[], Awaitable[Sequence[bytes]]]) -> None:
    """Push until cancelled. On cancellation, send the rest of the current push without delay."""
    try:
        next_push = trio.current_time() + interval
        while True:
            await trio.sleep_until(next_push)
            # Skip pushes that are more than an interval late, or they would follow each other without a pause.
            next_push = max(next_push, trio.current_time() - interval) + interval
            await _push(address, take_packets, over=max(0.0, interval - _LEFT_OVER))
    finally:
        log.info("STATSD: closing")


async def _push(address: str, take_packets: Callable[[], Awaitable[Sequence[bytes]]], *, over: float) -> None:
    try:
        with trio.fail_after(_RESOLVE_TIMEOUT):
            sock = await _connected(address)
    except (OSError, ValueError) as error:  # ValueError: not an address, or an impossible host name
        log.error("STATSD: failed to dial %s - %s", address, error)
        return
    except trio.TooSlowError:
        log.error("STATSD: failed to dial %s - i/o timeout", address)
        return
    with sock:
        await _send(sock, await take_packets(), over=over)


async def _connected(address: str) -> trio.socket.SocketType:
    to = parse_address(address)
    family, kind, protocol, _, target = (await trio.socket.getaddrinfo(to.host, to.port, type=socket.SOCK_DGRAM))[0]
    sock = trio.socket.socket(family, kind, protocol)
    try:
        await sock.connect(target)
    except BaseException:
        sock.close()
        raise
    return sock


async def _send(sock: trio.socket.SocketType, packets: Sequence[bytes], *, over: float) -> None:
    started = trio.current_time()
    sent = 0
    try:
        for number, packet in enumerate(packets):
            await trio.sleep_until(started + over * number / len(packets))
            sent = number + 1
            await _send_one(sock, packet)
    except trio.Cancelled:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _RESOLVE_TIMEOUT):
            for packet in packets[sent:]:
                await _send_one(sock, packet)
        raise


async def _send_one(sock: trio.socket.SocketType, packet: bytes) -> None:
    try:
        await sock.send(packet)
    except OSError as error:  # statsd isn't running now, but it may be at the next push
        log.debug("STATSD: %s", error)
