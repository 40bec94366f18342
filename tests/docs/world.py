"""A machine of its own for the commands of a page: `python -m tests.docs.world SCRIPT SPACE PYTHONPATH`.

Inside it all ports are free, names in the documents resolve to this machine, the tree may be written to, and all
processes end with it. The real tree and /tmp are not touched: overlays take all writes.

A page has a dozen commands of ours, and most of what they take is to import their modules. So this process, which is
forked from one that has imported them (tests/support/zygote.py), forks one for each of these commands. With
NSQ_REAL_STARTS=1 all are started.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from tests.docs import daemon
from tests.support import zygote

ROOT: Final = Path(__file__).resolve().parents[2]
NAMES: Final = (
    *(f"{kind}{number}" for kind in ("nsqd", "nsqlookupd") for number in (1, 2, 3)),
    *(f"{kind}{number}.example" for kind in ("node", "lookup") for number in (1, 2, 3)),
    *("auth.example", "other.example", "broker.example"),
)
EMPTY_FOLDERS: Final = ("/var/lib",)
DAEMONS: Final = ("nsqd", "nsqlookupd", "nsqadmin")
OTHERS: Final = ("nsq_*", "to_nsq", "outbox_to_nsq")
MODULES: Final = ("bench", "tests.simulation", "tests.docs.helps")  # run by `python -m`; importing them takes a second
NAMESPACES: Final = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_NEW_NAMESPACES: Final = 0x40000000 | 0x04000000 | 0x00020000 | 0x20000000  # of networks, host names, mounts and pids
_NEW_USERS: Final = 0x10000000
_PR_SET_PDEATHSIG: Final = 1
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914


def unshare() -> list[str]:
    """Return the command that runs another one on a machine of its own, with all files of this one."""
    return ["unshare", *([] if os.getuid() == 0 else ["--user", "--map-root-user"]), *NAMESPACES]


def main(script: str, space: str, python_path: str) -> NoReturn:
    is_root = os.getuid() == 0
    _leave(is_root)
    if pid := os.fork():  # whose child is the first that has pids of its own
        _, status = os.waitpid(pid, 0)
        zygote.end(os.waitstatus_to_exitcode(status) & 0xFF)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _run("mount", "--make-rprivate", "/")
    _run("mount", "-t", "proc", "proc", "/proc")
    os._exit(_live(Path(script), Path(space), python_path))


def _leave(is_root: bool) -> None:
    """Leave all that others see, as `unshare` does."""
    users = {"uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NAMESPACES | (0 if is_root else _NEW_USERS)):
        raise OSError(ctypes.get_errno(), "unshare")
    if not is_root:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        for name, text in users.items():
            Path("/proc/self", name).write_text(text, encoding="ascii")


def _live(script: Path, space: Path, python_path: str) -> int:
    start_loopback()
    _mount(space)
    address = space / "starts"
    _start_forks(str(address))
    _wrap_commands(space, address)
    environment = {
        **os.environ,
        "PATH": f"{space}/bin:{ROOT}/.venv/bin:{os.environ['PATH']}",
        "HOME": str(space),
        "NSQ_COMPILE": "0",  # the core is compiled by other tests
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": python_path,
    }
    if environment.get("SSL_CERT_FILE") == os.devnull:  # what forks have instead
        del environment["SSL_CERT_FILE"]
    # An HTTP error is a failure; retries give slow things, such as a registration, a moment.
    (space / ".curlrc").write_text(
        "fail\nsilent\nshow-error\nmax-time = 30\nretry = 2\nretry-delay = 1\nretry-all-errors\n", encoding="utf-8"
    )
    return _run_as_init(subprocess.Popen(["bash", script], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL))


def _run_as_init(page: subprocess.Popen[bytes]) -> int:
    """Run the script as process 1, which has to reap every process that loses its parent."""
    while True:
        pid, status = os.wait()
        if pid == page.pid:
            return os.waitstatus_to_exitcode(status) & 0xFF


def start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | 1))  # up


def _mount(space: Path) -> None:
    for covered in (Path("/tmp"), ROOT):  # in this order, because the tree may be below /tmp
        upper, work = space / f"written-{covered.name}", space / f"work-{covered.name}"
        upper.mkdir()
        work.mkdir()
        _run(
            "mount",
            "-t",
            "overlay",
            "overlay",
            "-o",
            f"lowerdir={covered},upperdir={upper},workdir={work}",
            str(covered),
        )
    os.chdir(ROOT)  # enters the overlay: until now we were in the folder below it
    for folder in EMPTY_FOLDERS:
        if Path(folder).is_dir() and not ROOT.is_relative_to(folder):
            _run("mount", "-t", "tmpfs", "none", folder)
    hosts = space / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {' '.join(NAMES)}\n", encoding="utf-8")
    _run("mount", "--bind", str(hosts), "/etc/hosts")


def _wrap_commands(space: Path, starts: Path) -> None:
    """Replace commands of ours by others that ask for a fork. All of nsqpipe's share a JVM instead."""
    kept = space / "commands"
    kept.mkdir()
    folder = ROOT / ".venv" / "bin"
    asking = f'"{sys.executable}" -I -S "{ROOT}/tests/docs/asking.py" "{starts}"'
    wrappers = {name: asking for it in (*DAEMONS, *OTHERS) for name in sorted(path.name for path in folder.glob(it))}
    for name, wrapper in {**wrappers, "nsqpipe": f'"{sys.executable}" "{ROOT}/tests/docs/pipe.py"'}.items():
        program = folder / name
        real = kept / name
        real.write_bytes(program.read_bytes())
        real.chmod(0o755)
        program.write_text(f'#!/bin/sh\nexec {wrapper} "{real}" "$@"\n', encoding="utf-8")
    python = space / "bin" / "python"
    python.parent.mkdir()
    modules = "|".join(f'"-m {it}"' for it in MODULES)
    python.write_text(
        f'#!/bin/sh\ncase "$1 $2" in {modules}) exec {asking} "$@" ;; esac\nexec "{folder}/python" "$@"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)


def _start_forks(address: str) -> None:
    """Start the process that forks for each command. It ends with us."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    end, ours = os.pipe()
    if os.fork():
        listener.close()
        os.close(end)
        return
    os.close(ours)
    os.dup2(end, 0)
    os.close(end)
    zygote.serve(listener)
    program, *arguments = sys.argv
    if program == "-m":
        _become_module(*arguments)
    if Path(program).name in DAEMONS:
        zygote.end(daemon.main(program, arguments, _become))
    _become(program, arguments)


def _become(program: str, arguments: Sequence[str]) -> NoReturn:
    if "NSQ_REAL_STARTS" in os.environ:
        os.execv(program, [program, *arguments])
    sys.argv[:] = [program, *arguments]
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    Path("/proc/self/comm").write_text(Path(program).name, encoding="ascii")  # for pgrep
    zygote.finish(partial(runpy.run_path, program, run_name="__main__"))


def _become_module(module: str, *arguments: str) -> NoReturn:
    if "NSQ_REAL_STARTS" in os.environ:
        os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
    sys.path.insert(0, os.getcwd())
    sys.argv[:] = [module, *arguments]
    sys.orig_argv[:] = [sys.executable, "-m", *sys.argv]
    sys.modules.pop(f"{module}.__main__", None)  # it begins anew
    zygote.run(module)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
