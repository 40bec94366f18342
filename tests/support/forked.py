"""Starts our programs as `subprocess.Popen` does, but by forking a process that has imported them: a *zygote*.

Most of the 0.35 s that `python -m nsqd` takes are imports, and the tests start more than a thousand programs. A fork
takes 0.02 s. So it is with the workers of job libraries. A program is started in the normal way where a fork would
not be equivalent: another interpreter, a preloaded library, a terminal. Workers of `nsqd --workers=2` are forked by
the zygote of their supervisor, so they get a SIGTERM when that is killed. A variable that Python or a library reads
while it starts makes a zygote of its own, and so do a disk that misbehaves (tests/simulation/shim.py), another umask
and other signals that are blocked or ignored. Programs with planted bugs share one, which plants each bug in the child
only; the others are spared what that imports. Workers of xdist share their zygotes.

To start everything in the normal way, set NSQ_REAL_STARTS=1; for a single test there is the fixture `real_starts`. A
zygote writes to the stderr of the tests.

`Popen` replaces three methods that the standard library calls internal. They are the same in Python 3.11 to 3.14, and
tests/project/test_forked.py compares both ways.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, AnyStr, Final

from tests.support.zygote import NUMBER, PRELOADED, SHARED, ask

_ZYGOTE: Final = Path(__file__).with_name("zygote.py")
# Of the tests, and of the installation that scripts/test-compiled tests.
_PYTHONS: Final = ([sys.executable], [os.environ.get("NSQ_TEST_PYTHON", sys.executable)])
_STARTS: Final = (("-P", "-m"), ("-m",))  # python -P -m program
# Reading all certificates that the system has takes longer than all else that a fork has to do. They are still found in
# their folder, one by one.
_NO_AUTHORITIES: Final = os.devnull
# Variables that somebody reads before the first line of the program runs, or a library does when it is loaded.
_READ_EARLY: Final = (
    "PYTHON",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "LC_",
    "LANG",
    "NSQ_",
    "OPENSSL_",
    "SSL",
    "COVERAGE_",
    "FAKETIME",
)
_PLANTED: Final = "NSQ_PLANTED"  # names bugs
_SHIM: Final = "SHIM_"  # what the disk of tests/simulation/shim.py reads once more after the fork
is_off = "NSQ_REAL_STARTS" in os.environ  # the fixture `real_starts` sets it, too
# Variables of these that a program of a test reads when it runs.
_READ_LATE: Final = ("NSQ_TEST_BROKER", "NSQ_TEST_SETTINGS", "NSQ_URL", "NSQ_QUEUE", "NSQ_OPTIONS")
# What `Popen` is told where nothing of it was asked for: gid, gids, uid, umask, start_new_session, process_group.
_NOTHING_SPECIAL: Final = (None, None, None, -1, False, -1)
_SESSION: Final = 4  # its place among these
_asking: Final = threading.Lock()  # tests start programs in threads, and an answer must not go to another one
_zygotes: dict[tuple[str, ...], tuple[bytes, subprocess.Popen[bytes] | None]] = {}  # None: it is shared
_shared = b""  # how the addresses of zygotes begin that forks of this process share
_only = b""  # the address of the only zygote that this process asks
_lives: list[int] = []  # a pipe that is open as long as one of these is there
_for_all: list[subprocess.Popen[bytes]] = []  # shared zygotes that this process has started


def share() -> None:
    """Have forks of this process use the same zygotes, which end with the last of these."""
    global _shared
    _shared = b"\0nsq-zygote-%d-%s-" % (os.getpid(), os.urandom(8).hex().encode())
    _lives[:] = os.pipe()


def all_from(address: bytes) -> None:
    """Fork whatever this process starts from the zygote at this address."""
    global _only
    _only = address


class ZygoteHasGone(Exception):
    """A zygote was killed, or could not import its program."""


class Popen(subprocess.Popen[AnyStr]):
    """A process that was started by a fork, where that is the same."""

    _status: socket.socket | None = None  # tells how it has ended; None: it is our own child

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: bool,
        pass_fds: Any,
        cwd: Any,
        env: Mapping[str, str] | None,
        startupinfo: Any,
        creationflags: int,
        shell: bool,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        *rest: Any,
    ) -> None:
        """Start the process. `rest`: `restore_signals`, which a fork needs not, then what is asked for seldom."""
        pipes = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        streams: list[int] = [
            pipe if pipe != -1 else number for number, pipe in enumerate((p2cread, c2pwrite, errwrite))
        ]
        environ = dict(os.environ if env is None else env)
        is_usual = (
            executable is None
            and preexec_fn is None
            and close_fds
            and not pass_fds
            and not shell
            and tuple(False if place == _SESSION else it for place, it in enumerate(rest[1:])) == _NOTHING_SPECIAL
        )
        if not is_usual or not _can_fork(args, environ, streams):
            super()._execute_child(  # type: ignore[misc]
                args,
                executable,
                preexec_fn,
                close_fds,
                pass_fds,
                cwd,
                env,
                startupinfo,
                creationflags,
                shell,
                *pipes,
                *rest,
            )
            return
        environ.setdefault("SSL_CERT_FILE", _NO_AUTHORITIES)
        program = args.index("-m") + 1
        asked = {
            "command": args,
            "arguments": args[program:],
            "session": rest[1 + _SESSION],
            "has_bugs": _PLANTED in environ,
            "sees_folder": "-P" not in args[:program],
            "environ": environ,
            "folder": os.fspath(cwd) if cwd is not None else os.getcwd(),
        }
        self.pid, self._status = _fork(asked, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status is None:
            found: tuple[int, int] = super()._try_wait(wait_flags)  # type: ignore[misc]
            return found
        if wait_flags & os.WNOHANG and not _is_readable(self._status):
            return 0, 0
        data = self._status.recv(NUMBER.size)
        self._status.close()
        if not data:  # the zygote was killed, and nobody will tell how the child ends
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            return self.pid, signal.SIGKILL
        return self.pid, NUMBER.unpack(data)[0]

    def _internal_poll(self, *arguments: Any, **named: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(*arguments, **named)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def _is_readable(connection: socket.socket) -> bool:
    poll = select.poll()  # `select.select` only accepts descriptors below 1,024
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def run(
    command: Sequence[str], *, env: Mapping[str, str], input: Any = None, timeout: float, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as `subprocess.run` does, and capture what it says."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    process: Popen[Any]
    streams: dict[str, Any] = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with Popen(command, env=env, **streams) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _inherited() -> list[str]:
    """Return what a process inherits besides descriptors and variables: the umask, and signals that do nothing."""
    status = Path("/proc/thread-self/status").read_text(encoding="ascii")
    return [line for line in status.splitlines() if line.startswith(("Umask:", "SigBlk:", "SigIgn:"))]


def _can_fork(args: Any, environ: Mapping[str, str], streams: Sequence[int]) -> bool:
    return (
        not is_off
        and sys.platform == "linux"
        and isinstance(args, list)
        and args[:1] in _PYTHONS
        and _program_of(args) in PRELOADED
        and ("LD_PRELOAD" not in environ or f"{_SHIM}ROOT" in environ)
        and not any(map(os.isatty, streams))
    )


def _program_of(args: Sequence[Any]) -> Any:
    """Return what is started by `python -m`, if that is how these begin."""
    for start in _STARTS:
        if tuple(args[1 : len(start) + 1]) == start:
            return args[len(start) + 1]
    return None


def _fork(asked: dict[str, Any], streams: Sequence[int]) -> tuple[int, socket.socket]:
    """Have a zygote fork, and return the child's pid, and what tells later how it has ended."""
    python, program = asked["command"][0], asked["arguments"][0]
    with _asking:
        key, address = _zygote_for(python, program, asked["environ"])
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
            ask(connection, asked, streams)
            answer = connection.recv(NUMBER.size)
        except OSError:
            answer = b""
        except BaseException:
            connection.close()
            raise
        if not answer:
            connection.close()
            _stop(key)  # the next start has a new one
            raise ZygoteHasGone(f"the zygote of {program} has gone; what it said is on stderr")
    return int(NUMBER.unpack(answer)[0]), connection


def _without_bugs(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those by which Python plants bugs when it starts, see tests/planted/planting.py."""
    if _PLANTED not in environ:
        return dict(environ)
    _, _, path = environ["PYTHONPATH"].partition(os.pathsep)  # the first folder has sitecustomize.py
    return {**{name: value for name, value in environ.items() if name != _PLANTED}, "PYTHONPATH": path}


def _zygote_for(python: str, program: str, environ: Mapping[str, str]) -> tuple[tuple[str, ...], bytes]:
    """Return where to ask for a start of this program, with these variables from before it begins."""
    purpose = "for bugs" if _PLANTED in environ else ""
    environ = _without_bugs(environ)
    early = {it: environ[it] for it in environ if it.startswith(_READ_EARLY) and it not in _READ_LATE}
    program = SHARED.get(program, program)
    key = (python, program, purpose, *_inherited(), *(f"{name}={value}" for name, value in sorted(early.items())))
    if key not in _zygotes and _only:
        _zygotes[key] = _only, None
    if key not in _zygotes:
        _zygotes[key] = _shared_one(key, environ) if _shared else _own(key, environ)
    return key, _zygotes[key][0]


def _own(key: tuple[str, ...], environ: Mapping[str, str]) -> tuple[bytes, subprocess.Popen[bytes]]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # an address that is no file, and nobody else's
        listener.listen()
        return listener.getsockname(), _start(key, listener, environ, subprocess.PIPE)


def _shared_one(key: tuple[str, ...], environ: Mapping[str, str]) -> tuple[bytes, None]:
    address = _shared + sha256(repr(key).encode()).hexdigest().encode()
    with socket.socket(socket.AF_UNIX) as listener:
        with _ZYGOTE.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # nobody finds the address taken before it can be connected to
            try:
                listener.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                return address, None
            listener.listen()
        _for_all.append(_start(key, listener, environ, _lives[0]))
    return address, None


def _start(
    key: tuple[str, ...], listener: socket.socket, environ: Mapping[str, str], lives: int
) -> subprocess.Popen[bytes]:
    """Start a zygote, which ends when `lives` does, also if we are killed."""
    python, program, *_ = key
    return subprocess.Popen(
        [python, "-P", str(_ZYGOTE), program, str(listener.fileno())],
        env={name: value for name, value in environ.items() if not name.startswith(_SHIM)},
        pass_fds=[listener.fileno()],
        stdin=lives,
        stdout=subprocess.DEVNULL,
    )


def _stop(key: tuple[str, ...]) -> None:
    _, process = _zygotes.pop(key)
    if process is not None:
        process.communicate()  # its standard input ends, and so does it


@atexit.register
def _stop_all() -> None:
    for key in list(_zygotes):
        _stop(key)
