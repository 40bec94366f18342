"""A zygote: a process that has imported one of our programs, and forks a child for each start of it.

`forked.py` and `spark_workers.py` run it, and ask it by a connection for each start; the collector of
`collected_once.py` serves forks in the same way. It answers with the child's pid, and later with the status with which
the child has ended. A child whose connection is closed before gets a SIGTERM. It runs `python -m program` as if it had
just begun: with its own streams, folder, environment and arguments, in a session of its own if that was asked for, on
the modules that are imported already.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from tempfile import mkdtemp
from typing import Any, Final, NoReturn

_TOOLS: Final = ("bench", "dead", "deferred", "replay", "stat", "tail", "to_file", "to_http", "to_nsq")
# What each program imports when it runs. A module that is missing here is only slower to start: to find those, set
# PYTHONPROFILEIMPORTTIME=1, and read the log of a program.
_NETWORK: Final = ("encodings.ascii", "encodings.idna")  # imported for the first address
OURS: Final = {
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
# Job libraries, whose workers are started in the same way. No module of an application is among these, as such modules
# read the environment when they are imported.
OF_OTHERS: Final = {
    "celery": (
        *_NETWORK,
        "billiard.popen_fork",
        "billiard.sharedctypes",
        "celery.app.routes",
        "celery.apps.worker",
        "celery.backends.rpc",
        "celery.bin.celery",
        "celery.concurrency.prefork",
        "celery.concurrency.solo",
        "celery.concurrency.thread",
        "celery.events.dispatcher",
        "celery.events.receiver",
        "celery.worker.consumer",
        "kombu.matcher",
        "kombu.pidbox",
        "nsqjobs.celery.transport",
    ),
    "django": (
        *_NETWORK,
        "django.core.management.commands",
        "django.db.migrations.autodetector",
        "django.db.backends.sqlite3.base",
        "django.db.models",
        "django.template.defaulttags",
        "nsqjobs.link",
        "nsqjobs.django.queue",
    ),
    "dramatiq": (
        *_NETWORK,
        "dramatiq.cli",
        "importlib.metadata",
        "multiprocessing.connection",
        "multiprocessing.sharedctypes",
        "nsqjobs.dramatiq",
    ),
    "taskiq": (
        *_NETWORK,
        "anyio.streams.memory",
        "anyio.streams.stapled",
        "anyio.streams.tls",
        "nsqjobs.taskiq",
        "taskiq.cli.scheduler.cmd",
        "taskiq.cli.worker.cmd",
        "taskiq.cli.worker.run",
    ),
}
# What starts a program of ours, which then imports all modules of ours itself.
SIGNALLED: Final = (
    *_NETWORK,
    "cramjam",
    "google_crc32c",
    "httpcore",
    "httptools",
    "importlib.metadata",
    "jinja2",
    "msgpack",
    "ssl",
    "starlette.applications",
    "starlette.responses",
    "starlette.routing",
    "trio",
    "trio_asyncio",
    "uvicorn",
)
# What nearly all packages of ours import, and none of these hides from another.
IMPORTED: Final = (*_NETWORK, "asyncio", "cramjam", "google_crc32c", "httptools", "ssl", "trio")
# Clients of others. gnsq is not among them: gevent wants to be the first that is imported.
CLIENTS: Final = {
    "tests.e2e.peers.ansq_peer": (*_NETWORK, "ansq"),
    "tests.e2e.peers.pynsq_lookup_peer": (*_NETWORK, "nsq"),
    "tests.e2e.peers.pynsq_peer": (*_NETWORK, "nsq"),
}
# What programs of readers import that use our client, or test what does.
SCRIPT: Final = (*_NETWORK, "asyncio", "nsqclient.aio", "nsqclient.sync", "nsqclient.testing", "pytest", "trio.testing")
# The attacker of a benchmark, and the honest client beside it.
ATTACK: Final = {
    "bench.attack.attacker": (*_NETWORK, "bench.attack.cases"),
    "bench.attack.probe": (*_NETWORK, "bench.attack.sockets", "http.client", "ssl"),
}
# Daemons on a clock that a test steers; the first module replaces Python's clocks.
STEERED: Final = ("tests.support.replaced_clocks", *OURS["nsqd"], *OURS["nsqlookupd"])
# A machine for the commands of a page in the documents, most of which are ours.
WORLD: Final = (
    *dict.fromkeys(name for names in OURS.values() for name in names),
    *("bench.__main__", "tests.simulation.__main__", "tests.docs.helps"),
)
PRELOADED: Final = {
    **OURS,
    **OF_OTHERS,
    **CLIENTS,
    **ATTACK,
    "tests.e2e.signalled": SIGNALLED,
    "tests.project.import_all": IMPORTED,
    "tests.docs.world": WORLD,
    "tests.support.script": SCRIPT,
    "tests.support.steered": STEERED,
    "tests.support.wide_admin": OURS["nsqadmin"],
}
# What a program imports only for some arguments: by how one of these begins. A zygote imports it before the first start
# that has such an argument, so that others don't pay for it.
FOR_ARGUMENTS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "nsqd": {
        "--remote=": ("http.client", "nsqd.remote.copy"),
        "--remote=s3:": ("nsqd.remote.stores.obstore",),
        "--standby": ("nsqd.standby",),
        "--tls-client-auth-policy=require": ("nsqcommon.streams.any_certificate",),
        "--workers=": ("nsqd.workers.supervisor",),
        "fsck": ("nsqd.fsck.cli",),
        "policy": ("nsqd.policy.cli",),
        "remote": ("nsqd.remote.cli",),
    },
    "nsqadmin": {
        "--oidc-issuer=": ("nsqadmin.oidc.login_flow", "nsqadmin.pages.login"),
    },
    "nsqtools": {
        "--database=postgresql:": ("psycopg",),
    },
}
SHARED: Final = {"tests.support.wide_admin": "nsqadmin"}  # programs that are forked from another one's zygote
_LENGTH: Final = struct.Struct("i")  # of the JSON that follows
NUMBER: Final = struct.Struct("i")  # a pid, or a status


def ask(connection: socket.socket, request: dict[str, Any], streams: Sequence[int]) -> None:
    """Ask for a start with these arguments, environ and folder, and streams. What comes back are two numbers."""
    asked = json.dumps(request).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(asked))], streams)
    connection.sendall(asked)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end what they have started
    program, listener = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    address = listener.getsockname()
    for name in PRELOADED[program]:
        importlib.import_module(name)
    if program in OURS or program == "tests.support.steered":
        importlib.import_module("nsqcommon.version").suite_version()  # is kept; to find it imports 30 modules
    if program == "celery":
        _read_declarations()
    if program == "nsqadmin":
        templates = mkdtemp(prefix="nsq-templates-")  # of this process, as what is compiled may be changed
        _keep_compiled(templates)
        serve(listener, import_for, at_end=partial(shutil.rmtree, templates, ignore_errors=True))
    else:
        serve(listener, import_for)
    if program == "nsqd" and any(word.startswith("--workers=") for word in sys.argv):
        _fork_workers(address)
    if program in OURS:
        run(sys.argv[0])  # itself, or one that shares its zygote
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def import_for(arguments: Sequence[str]) -> None:
    """Import what a start with these arguments needs besides. A module that can't be imported is for the start to tell."""
    program, *words = arguments
    for begin, names in FOR_ARGUMENTS.get(program, {}).items():
        missing = [name for name in names if name not in sys.modules]
        if missing and any(word.startswith(begin) for word in words):
            with suppress(ImportError):
                for name in missing:
                    importlib.import_module(name)
            _freeze()


def _fork_workers(address: bytes) -> None:
    """Have this process, a supervisor, start its workers by the zygote that has forked it."""
    try:
        from tests.support import forked
    except ImportError:  # the installation that scripts/test-compiled tests doesn't see the tests
        return
    forked.all_from(address)
    subprocess.Popen = forked.Popen  # type: ignore[misc]


def run(module: str) -> NoReturn:
    """Run the module as if it had been started, and end."""
    finish(partial(runpy.run_module, module, run_name="__main__", alter_sys=True))


def finish(program: Callable[[], object]) -> NoReturn:
    """Run the program, and end."""
    try:
        program()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            end(ended.code or 0)
        raise
    end(0)


def _read_declarations() -> None:
    """Have billiard's child processes find cffi's parser of C, which each of them needs for one function."""
    importlib.import_module("billiard.util").get_pdeathsig()


def _keep_compiled(folder: str) -> None:
    """Have nsqadmin's templates compiled once for all children: a page's take 0.15 s, and most children show few pages."""
    from jinja2 import FileSystemBytecodeCache

    from nsqadmin.parts import rendering

    make, cache = rendering.environment, FileSystemBytecodeCache(folder)

    def environment(*arguments: Any, **named: Any) -> Any:
        made = make(*arguments, **named)
        made.bytecode_cache = cache
        return made

    rendering.environment = environment


def end(status: int) -> NoReturn:
    """End like any Python, but without tearing down all modules, which copies what the children share: 30 ms of 35."""
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does: pools of threads end, then all are waited for
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(status)  # has to be told, and Python knows how
    os._exit(status)


def _freeze() -> None:
    """Have a child's collections not copy what all children share."""
    gc.collect()
    gc.freeze()


def serve(
    listener: socket.socket,
    prepare: Callable[[Sequence[str]], object] = lambda arguments: None,
    at_end: Callable[[], object] = lambda: None,
) -> None:
    """Fork for each connection until our standard input ends. Return only in the children, as what was asked for.

    `prepare` is called with the arguments of each start, before the fork.
    """
    _freeze()
    poll = select.poll()
    poll.register(0, select.POLLIN)  # first, as nobody needs another child when this has ended
    poll.register(listener, select.POLLIN)
    asking: dict[int, int] = {}  # by the descriptor of a connection that is open: the child
    children: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
    while True:
        descriptor = poll.poll()[0][0]  # one at a time: the next may be of a descriptor that this one closes
        if descriptor == 0:
            at_end()
            os._exit(0)
        if descriptor in children:
            pid, connection = children.pop(descriptor)
            poll.unregister(descriptor)
            os.close(descriptor)
            _, status = os.waitpid(pid, 0)
            if asking.pop(connection.fileno(), None) is not None:
                poll.unregister(connection)
                _tell(connection, status)
            connection.close()
        elif descriptor in asking:  # whoever asked has gone
            poll.unregister(descriptor)
            os.kill(asking.pop(descriptor), signal.SIGTERM)
        else:
            connection, _ = listener.accept()
            try:
                request, streams = _received(connection)
            except (struct.error, ValueError):  # whoever asked was killed meanwhile
                connection.close()
                continue
            prepare(request["arguments"])
            if request.get("has_bugs"):
                importlib.import_module("tests.planted.planting")
            pid = os.fork()
            if not pid:
                for other, (_, its) in children.items():
                    os.close(other)
                    its.close()
                listener.close()
                connection.close()
                _become(request, streams)
                return
            for stream in streams:
                os.close(stream)
            child = os.pidfd_open(pid)
            children[child] = pid, connection
            asking[connection.fileno()] = pid
            poll.register(child, select.POLLIN)
            poll.register(connection, select.POLLIN)
            _tell(connection, pid)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    length, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    with connection.makefile("rb") as stream:
        return json.loads(stream.read(_LENGTH.unpack(length)[0])), streams


def _tell(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(NUMBER.pack(number))
    except (BrokenPipeError, ConnectionResetError):
        pass  # whoever asked has gone


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Take the streams, folder, environment and arguments that were asked for, and own random numbers."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.get("session"):
        os.setsid()
    os.chdir(request["folder"])
    if request.get("sees_folder"):
        sys.path.insert(0, os.getcwd())  # as `python -m` does without -P
    if "environ" in request:
        os.environ.clear()
        os.environ.update(request["environ"])
    time.tzset()
    if "SHIM_ROOT" in os.environ:
        ctypes.CDLL(None).begin()  # tests/simulation/shim.c, which was loaded before it was known where its disk is
    # The same lists, because modules that are imported already may have taken them.
    sys.argv[:] = request["arguments"]
    sys.orig_argv[:] = request["command"]
    if request.get("has_bugs"):
        _plant()
    if (trio := sys.modules.get("trio._core._run")) is not None:
        trio._r.seed()  # chooses which task is next; Python itself seeds `random` anew


def _plant() -> None:
    """Plant bugs as Python does when it starts, in modules that are imported already."""
    folder, _, _ = os.environ["PYTHONPATH"].partition(os.pathsep)
    sys.path.insert(0, folder)
    runpy.run_path(os.path.join(folder, "sitecustomize.py"))


if __name__ == "__main__":
    main()
