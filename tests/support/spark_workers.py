"""Spark's Python workers, forked from a process that has imported what they use instead of started.

Spark starts a Python for each stream that it plans, and for each kind of worker. That takes a second of processor time,
nearly all of it imports, and 0.1 s here. Spark waits for it for ten seconds, which cannot be set: on a machine that has
much else to do, streams fail by that. `workers()` starts the process that forks, and returns a command for
PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON.

What starts Spark by itself (the tests with the mark `own_jvm`) uses the commands that users get, but for the one that
kills Spark, whose workers have to stop where it wants.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

from tests.support.process import SOURCES

# What Spark runs: its modules are imported, and forgotten, so that the child which runs one begins it anew.
_RUN: Final = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.streaming.python_streaming_source_runner")
_USED: Final = ("pandas", "pyarrow.compute", "pyspark_nsq", "pyspark_nsqtable", "deltalake", "msgspec")
_LENGTH: Final = struct.Struct(">I")
_STATUS: Final = struct.Struct("i")

_COMMAND: Final = """#!{python} -IS
import json, os, socket, struct, sys
if sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
asked = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
with socket.socket(socket.AF_UNIX) as zygote:
    zygote.connect({address!r})
    socket.send_fds(zygote, [struct.pack(">I", len(asked))], [0, 1, 2])
    zygote.sendall(asked)
    status = zygote.recv(4)
sys.exit(os.waitstatus_to_exitcode(struct.unpack("i", status)[0]) if status else 1)
"""


@contextmanager
def workers() -> Iterator[str]:
    """Return the command. It works until the context ends."""
    with workers_with({}) as (command, _):
        yield command


@contextmanager
def workers_with(environ: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Return the command, and the session of all workers. The process that forks them starts with these variables."""
    folder = Path(mkdtemp(prefix="workers-"))  # not pytest's folder: the address of a socket has at most 107 bytes
    address, command = str(folder / "socket"), folder / "python"
    command.write_text(_COMMAND.format(python=sys.executable, address=address))
    command.chmod(0o755)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            with subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(listener.fileno())],
                env={**os.environ, "PYTHONPATH": SOURCES, **environ},
                stdin=subprocess.PIPE,  # it ends when this is closed, also if we are killed
                pass_fds=[listener.fileno()],
                start_new_session=True,
            ) as zygote:
                yield str(command), zygote.pid
                assert zygote.stdin is not None
                zygote.stdin.close()
    finally:
        shutil.rmtree(folder)


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    import pyspark.sql.worker

    ours = [it.name for it in pkgutil.iter_modules(pyspark.sql.worker.__path__, "pyspark.sql.worker.")]
    for name in (*_USED, *_RUN, *ours):
        importlib.import_module(name)
    for name in (*_RUN, *ours):
        del sys.modules[name]
    gc.collect()
    gc.freeze()  # so that a child's collections do not copy what all children share
    arguments = _serve(listener)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _serve(listener: socket.socket) -> list[str]:
    """Fork for each request, until our standard input ends. Return only in the children, with what to run."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(0, select.POLLIN)
    asking: dict[int, tuple[socket.socket, int]] = {}  # who waits for a child's end: its connection, and the child
    children: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
    while True:
        descriptor = poll.poll()[0][0]  # one at a time: the next may be of a descriptor that this one closes
        if descriptor == 0:
            os._exit(0)
        if descriptor in children:
            pid, connection = children.pop(descriptor)
            poll.unregister(descriptor)
            os.close(descriptor)
            _, status = os.waitpid(pid, 0)
            if connection.fileno() in asking:
                poll.unregister(connection)
                del asking[connection.fileno()]
                _tell(connection, status)
            connection.close()
        elif descriptor in asking:  # Spark has killed the command: it means the worker
            connection, pid = asking.pop(descriptor)
            poll.unregister(connection)
            os.kill(pid, signal.SIGTERM)
        elif descriptor == listener.fileno():
            connection, _ = listener.accept()
            asked, streams = _received(connection)
            pid = os.fork()
            if not pid:
                for other, _ in asking.values():
                    other.close()
                for other_child in children:
                    os.close(other_child)
                listener.close()
                connection.close()
                return _become(asked, streams)
            for stream in streams:
                os.close(stream)
            child = os.pidfd_open(pid)
            children[child] = pid, connection
            asking[connection.fileno()] = connection, pid
            poll.register(child, select.POLLIN)
            poll.register(connection, select.POLLIN)


def _received(connection: socket.socket) -> tuple[Any, list[int]]:
    length, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    with connection.makefile("rb", buffering=0) as stream:
        asked = b""
        while len(asked) < _LENGTH.unpack(length)[0]:
            asked += stream.read(1 << 16) or b""
    return json.loads(asked), streams


def _become(asked: Any, streams: list[int]) -> list[str]:
    arguments, environ, folder = asked
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    sys.argv[:] = arguments
    return list(arguments)


def _tell(connection: socket.socket, status: int) -> None:
    try:
        connection.sendall(_STATUS.pack(status))
    except (BrokenPipeError, ConnectionResetError):
        pass  # whoever started it has gone


if __name__ == "__main__":
    main()
