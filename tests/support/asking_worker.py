"""What xdist starts as a worker, see collected_once.py: asks for a fork, and ends as that does.

python asking_worker.py ADDRESS -u -c TEXT
"""

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[2])
from tests.support.zygote import NUMBER, ask  # noqa: E402  # it needs the path

address, arguments = bytes.fromhex(sys.argv[1]), sys.argv[2:]
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(address)
    request = {"folder": os.getcwd(), "arguments": ["-c"], "command": [sys.executable, *arguments]}
    ask(connection, request, (0, 1, 2))
    pid = connection.recv(NUMBER.size)
except OSError:
    pid = b""
if not pid:
    os.execv(sys.executable, [sys.executable, *arguments])
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for xdist, which has the worker end in order
for stream in (0, 1):  # they are the worker's now
    os.close(stream)
status = connection.recv(NUMBER.size)
if not status:  # the collector was killed, and the worker would wait for ever
    with suppress(ProcessLookupError):
        os.kill(NUMBER.unpack(pid)[0], signal.SIGKILL)
sys.exit(os.waitstatus_to_exitcode(NUMBER.unpack(status)[0]) & 0xFF if status else 1)
