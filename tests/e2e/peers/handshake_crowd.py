"""A crowd that connects at once: half of it wants TLS, the other half sends garbage. See test_handshakes.py.

Arguments: port, the authority's file, how many. Prints how many got their OK, and how many of the others an end.
"""

from __future__ import annotations

import json
import random
import ssl
import sys

import trio

port, authority, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
context = ssl.create_default_context(cafile=authority)
document = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
IDENTIFY = b"  V2IDENTIFY\n" + len(document).to_bytes(4, "big") + document
RECORD = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
chance = random.Random(1)
GARBAGE = [
    chance.randbytes(1000),  # no TLS at all
    RECORD + chance.randbytes(505),  # the head of a TLS record, then garbage
    RECORD,  # a ClientHello that stops in the middle
    b"",  # silence
]
welcome = ended = 0


async def exactly(stream: trio.abc.Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


async def connect() -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(IDENTIFY)
    await exactly(stream, int.from_bytes(await exactly(stream, 4), "big"))
    return stream


async def behave(start: trio.Event, done: trio.Event) -> None:
    global welcome
    stream = await connect()
    await start.wait()
    secure = trio.SSLStream(stream, context, server_hostname="localhost")
    assert await exactly(secure, 10) == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    welcome += 1
    await done.wait()
    await trio.aclose_forcefully(secure)


async def misbehave(kind: int, start: trio.Event) -> None:
    global ended
    stream = await connect()
    await start.wait()
    await stream.send_all(GARBAGE[kind % len(GARBAGE)])
    if kind % 8 >= 4:  # and disconnects at once
        await trio.aclose_forcefully(stream)
    else:
        with trio.fail_after(30):
            try:
                while await stream.receive_some(4096):
                    pass
            except trio.BrokenResourceError:
                pass
    ended += 1


async def main() -> None:
    start, done = trio.Event(), trio.Event()
    async with trio.open_nursery() as crowd:
        async with trio.open_nursery() as garbage:
            for number in range(count // 2):
                crowd.start_soon(behave, start, done)
                garbage.start_soon(misbehave, number, start)
            await trio.sleep(0.5)  # until all are connected
            start.set()
        with trio.fail_after(30):
            while welcome < count // 2:
                await trio.sleep(0.02)
        done.set()
    print(json.dumps([welcome, ended]))


trio.run(main)
