"""A flood of connections that are no clients: `tls_flood.py HOST PORT SECONDS MOST KIND [PREFIX]`.

It makes at most so many connections, and ends after so many seconds. KIND says what each of them sends: `garbage` (300
random bytes) or `hello` (what looks like a ClientHello) and goes at once; `stall` and `silent` (the same hello, and
nothing) stay, the last HELD of them. PREFIX, in hexadecimal, is sent before. Prints how many connections were made.
"""

from __future__ import annotations

import random
import socket
import sys
import time
from collections import deque

HELD = 5000

host, port, seconds, most, kind = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
prefix = bytes.fromhex(sys.argv[6]) if len(sys.argv) > 6 else b""
chance = random.Random(1)
HELLO = b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + chance.randbytes(194)
held: deque[socket.socket] = deque()
ends = time.monotonic() + seconds
made = failed = 0
while made < most and time.monotonic() < ends:
    connection = socket.socket()
    connection.settimeout(0.5)
    try:
        connection.connect((host, port))
        said = chance.randbytes(300) if kind == "garbage" else b"" if kind == "silent" else HELLO
        connection.sendall(prefix + said)
        made += 1
    except OSError:
        failed += 1
    held.append(connection)
    while len(held) > (HELD if kind in ("stall", "silent") else 0):
        held.popleft().close()
if held:
    time.sleep(max(0.0, ends - time.monotonic()))  # they stay until the flood ends
print(made, failed)
