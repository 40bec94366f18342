"""Spark's Python workers, forked from a process that has imported what they use instead of started.

Spark starts a Python for each stream that it plans, and for each kind of worker. That takes a second of processor time,
nearly all of it imports, and 0.1 s here. Spark waits for it for ten seconds, which cannot be set: on a machine that has
much else to do, streams fail by that. `workers()` starts the process that forks, and returns a command for
PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON.

What starts Spark by itself (the tests with the mark `own_jvm`) uses the commands that users get, but for the one that
kills Spark, whose workers have to stop where it wants.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from tests.support.process import SOURCES
from tests.support.zygote import run, serve

# What Spark runs: its modules are imported, and forgotten, so that the child which runs one begins it anew.
_RUN: Final = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.streaming.python_streaming_source_runner")
_USED: Final = ("pandas", "pyarrow.compute", "pyspark_nsq.data_source", "pyspark_nsqtable", "deltalake", "msgspec")

_COMMAND: Final = """#!{python} -IS
import _json, _socket, os, sys  # json and socket take longer to import than all that is done here
if sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
text = _json.encode_basestring_ascii


def array(words):
    return "[%s]" % ",".join(map(text, words))


environ = "{{%s}}" % ",".join("%s:%s" % (text(name), text(value)) for name, value in os.environ.items())
asked = '{{"command":%s,"arguments":%s,"environ":%s,"folder":%s}}' % (
    array(sys.argv),
    array(sys.argv[2:]),
    environ,
    text(os.getcwd()),
)
asked = asked.encode()
streams = _socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(it.to_bytes(4, sys.byteorder) for it in (0, 1, 2))
zygote = _socket.socket(_socket.AF_UNIX)
zygote.connect({address!r})
zygote.sendmsg([len(asked).to_bytes(4, sys.byteorder)], [streams])
zygote.sendall(asked)
zygote.recv(4)  # the pid
status = zygote.recv(4)
sys.exit(os.waitstatus_to_exitcode(int.from_bytes(status, sys.byteorder)) if status else 1)
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
    serve(listener)
    run(sys.argv[0])


if __name__ == "__main__":
    main()
