"""Stands for the command `nsqpipe` in tests of the documents: all of a page's commands run in one process, on one JVM.

A JVM takes ten seconds of processor time to start, and a page has five commands that need one. The first of them starts
the process, and Spark in it, in the way that each would by itself; the others find the session that is there. What
needs no Spark, such as `nsqpipe doctor`, is started as a reader does. `pipe.py PROGRAM ARGUMENTS...`
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

# With these words the command is over before Spark would start.
OTHER: Final = ("doctor", "--help", "-h", "--version")
ROOT: Final = Path(__file__).resolve().parents[2]
_LENGTH: Final = struct.Struct(">I")
_STATUS: Final = struct.Struct(">i")


def main(program: str, arguments: list[str]) -> int:
    if any(it in OTHER for it in arguments):
        os.execv(program, [program, *arguments])
    address = f"{program}.socket"
    if not os.path.exists(address):
        _start(address)
    asked = json.dumps([arguments, os.getcwd()]).encode()
    with socket.socket(socket.AF_UNIX) as served:
        served.connect(address)
        socket.send_fds(served, [_LENGTH.pack(len(asked))], [0, 1, 2])
        served.sendall(asked)
        status = served.recv(_STATUS.size)
    return int(_STATUS.unpack(status)[0]) if status else 1  # it has died


def _start(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.docs.pipe", "--serve", str(listener.fileno())],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def serve(listener: socket.socket) -> None:
    """Run command after command, each with its own words, streams and folder. It ends with the page's machine."""
    from nsqpipe.cli import app
    from tests.support.py4j_names import names_kept
    from tests.support.spark import NO_CODEGEN
    from tests.support.spark_workers import workers

    nothing = os.open(os.devnull, os.O_RDWR)
    with workers() as python, names_kept():
        conf = " ".join(f"--conf {name}={value}" for name, value in NO_CODEGEN.items())
        os.environ |= {
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "PYSPARK_SUBMIT_ARGS": f"{conf} pyspark-shell",
        }
        while True:
            connection, _ = listener.accept()
            with connection:
                (arguments, folder), streams = _received(connection)
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                os.chdir(folder)
                status = status_of(partial(app, arguments, prog_name="nsqpipe"))
                for number in range(3):
                    os.dup2(nothing, number)  # a pipe ends with the command
                connection.sendall(_STATUS.pack(status))


def _received(connection: socket.socket) -> tuple[Any, list[int]]:
    length, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    with connection.makefile("rb") as stream:
        return json.loads(stream.read(_LENGTH.unpack(length)[0])), streams


def status_of(command: Callable[[], object]) -> int:
    """Return the exit status of a process that does nothing but this."""
    status: Any = 0
    try:
        command()
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status or 0)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(socket.socket(fileno=int(sys.argv[2])))
    sys.exit(main(sys.argv[1], sys.argv[2:]))
