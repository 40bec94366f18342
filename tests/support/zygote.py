"""A zygote: a process that has imported one of our programs, and forks a child for each start of it.

`forked.py` runs it and asks it, over a socket. It answers with the child's pid, and later with the status with which the
child has ended. A child runs `python -m program` as if it had just begun: with its own descriptors, folder, environment
and arguments, on the modules that are imported already.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any, Final

_TOOLS: Final = ("bench", "dead", "deferred", "replay", "stat", "tail", "to_file", "to_http", "to_nsq")
# What each program imports when it runs. A module that is missing here is only slower to start: to find those, set
# PYTHONPROFILEIMPORTTIME=1, and read the log of a program.
_NETWORK: Final = ("encodings.ascii", "encodings.idna")  # imported for the first address
PRELOADED: Final = {
    "nsqd": ("nsqcommon.daemon", "nsqd.cli", "nsqd.options", "nsqd.workers.run", "nsqd.daemon", "uuid", *_NETWORK),
    "nsqlookupd": ("nsqcommon.daemon", "nsqlookupd.cli", "nsqlookupd.options", "nsqlookupd.daemon", *_NETWORK),
    "nsqadmin": (
        "nsqcommon.daemon",
        "nsqadmin.cli",
        "nsqadmin.options",
        "nsqadmin.daemon",
        "csv",
        "encodings.unicode_escape",
        "httpcore",
        "importlib.readers",
        *_NETWORK,
    ),
    "nsqtools": (
        *_NETWORK,
        "nsqtools.cli",
        *(f"nsqtools.nsq_{tool}" for tool in _TOOLS),
        "nsqtools.outbox_to_nsq",
        "nsqtools.to_nsq",
    ),
}
STATUS: Final = struct.Struct("i")
PID: Final = struct.Struct("i")
MOST_DESCRIPTORS: Final = 5


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end what they have started
    program, requests, templates = sys.argv[1], socket.socket(fileno=int(sys.argv[2])), sys.argv[3]
    for name in PRELOADED[program]:
        importlib.import_module(name)
    importlib.import_module("nsqcommon.version").suite_version()  # is kept; to find it imports 30 modules
    if program == "nsqadmin":
        _keep_compiled(templates)
    gc.collect()
    gc.freeze()  # so that a child's collections do not copy what all children share
    _take(_serve(requests))
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, int):
            _end(ended.code)
        raise
    _end(0)


def _keep_compiled(folder: str) -> None:
    """Have nsqadmin's templates compiled once for all children: a page's take 0.15 s, and most children show few pages."""
    from jinja2 import FileSystemBytecodeCache

    from nsqadmin.pages import rendering

    make, cache = rendering.environment, FileSystemBytecodeCache(folder)

    def environment(*arguments: Any, **named: Any) -> Any:
        made = make(*arguments, **named)
        made.bytecode_cache = cache
        return made

    rendering.environment = environment


def _end(status: int) -> None:
    """End like any Python, but without tearing down all modules, which copies what the children share: 30 ms of 35."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(status)  # has to be told, and Python knows how
    os._exit(status)


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request until nobody can ask any more. Return only in the children, with the request."""
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    children: dict[int, tuple[int, int]] = {}  # by its pidfd: pid, and where to tell how it has ended
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in children:
                pid, status_pipe = children.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                _, status = os.waitpid(pid, 0)
                _report(status_pipe, status)
                continue
            data, descriptors, _, _ = socket.recv_fds(requests, 1, MOST_DESCRIPTORS)
            if not data:
                os._exit(0)
            request, *streams, status_pipe = descriptors
            pid = os.fork()
            if not pid:
                poll.unregister(requests)
                for other, (_, its_status_pipe) in children.items():
                    os.close(other)
                    os.close(its_status_pipe)
                requests.close()
                os.close(status_pipe)
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                with open(request, "rb") as file:
                    file.seek(0)
                    return dict(json.load(file))
            for mine in (request, *streams):
                os.close(mine)
            child = os.pidfd_open(pid)
            children[child] = pid, status_pipe
            poll.register(child, select.POLLIN)
            requests.send(PID.pack(pid))


def _report(status_pipe: int, status: int) -> None:
    try:
        os.write(status_pipe, STATUS.pack(status))
    except BrokenPipeError:
        pass  # whoever started it has gone
    finally:
        os.close(status_pipe)


def _take(request: dict[str, Any]) -> None:
    """Take the folder, environment and arguments that were asked for, and own random numbers."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    # The same lists, because modules that are imported already may have taken them.
    sys.argv[:] = request["arguments"]
    sys.orig_argv[:] = request["command"]
    if (trio := sys.modules.get("trio._core._run")) is not None:
        trio._r.seed()  # chooses which task is next; Python itself seeds `random` anew


if __name__ == "__main__":
    main()
