"""Stands for a command of ours in tests of the documents: asks for a fork that runs it, and ends as that does.

python -I -S asking.py ADDRESS PROGRAM ARGUMENTS...

It imports next to nothing, as a page has many commands, and signals reach what it stands for.
"""

import _socket
import json
import os
import signal
import struct
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
NUMBER = struct.Struct("i")


def main(address: str, arguments: list[str]) -> int:
    """Speak as tests/support/zygote.py does, which would take longer to import than all else here."""
    request = {"folder": os.getcwd(), "arguments": arguments, "command": arguments, "environ": dict(os.environ)}
    asked = json.dumps(request).encode()
    starter = _socket.socket(_socket.AF_UNIX)
    starter.connect(address)
    streams = struct.pack("3i", 0, 1, 2)
    starter.sendmsg([NUMBER.pack(len(asked))], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    starter.sendall(asked)
    (pid,) = NUMBER.unpack(starter.recv(NUMBER.size))
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: os.kill(pid, number))
    for stream in (0, 1, 2):  # they are the program's now: a pipe ends with it
        os.close(stream)
    status = os.waitstatus_to_exitcode(NUMBER.unpack(starter.recv(NUMBER.size))[0])
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
