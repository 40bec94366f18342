"""A read must not map memory, as that would cost more than the rest of a small read."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

READS = 2000
LIMIT = 60.0

PREFACE = f"""
import asyncio, resource, socket, trio
from nsqclient import Config
from nsqclient._trio import SocketTransport
from nsqclient.aio import AsyncioLink

ours, theirs = socket.socketpair()
READS = {READS}

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
"""

ON_TRIO = """
async def main():
    transport = SocketTransport(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
    for number in range(READS):
        if number == READS // 2:
            before = faults()
        theirs.send(b"OK")
        assert await transport.receive() == b"OK"
    print(faults() - before)

trio.run(main)
"""

ON_ASYNCIO = """
class Connection:
    finished = False

    def bytes_to_send(self):
        return b""

    def receive(self, data, now):
        assert data == b"OK"
        read.set()

async def main():
    _, link = await asyncio.get_running_loop().create_connection(lambda: AsyncioLink(Config()), sock=ours)
    link.attach(Connection())
    for number in range(READS):
        if number == READS // 2:
            before = faults()
        theirs.send(b"OK")
        await read.wait()
        read.clear()
    print(faults() - before)
    link.abort()

read = asyncio.Event()
asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc's allocator")
@pytest.mark.parametrize("code", [ON_TRIO, ON_ASYNCIO], ids=["trio", "asyncio"])
def test_a_read_maps_no_memory(code: str) -> None:
    # With a fixed threshold, which the allocator does not move, the count does not depend on chance.
    done = subprocess.run(
        [sys.executable, "-c", PREFACE + code],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 * 1024)},
        capture_output=True,
        check=False,
        timeout=LIMIT,
    )
    assert not done.returncode, done.stderr.decode()
    assert int(done.stdout) < READS // 20
