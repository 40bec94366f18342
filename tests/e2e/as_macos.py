"""Run a module or a script as on a machine that is not Linux: `python tests/e2e/as_macos.py nsqd --version`.

What Linux has and macOS does not is taken out of Python's modules before ours are loaded, /proc and /sys cannot be
opened, and what macOS has instead is put in. Other people's packages know macOS well, so those that choose by system are
loaded first. This shows that our code asks for nothing that is missing there, not that it is right there.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import fnmatch
import multiprocessing
import os
import resource
import runpy
import select
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import trio
import trio._core._io_epoll as trio_epoll  # type: ignore[attr-defined,unused-ignore]
import trio_asyncio

_ = asyncio, multiprocessing, urllib.request, trio, trio_asyncio  # they choose by system when they are loaded

ONLY_LINUX: Final[dict[ModuleType, str]] = {
    select: "epoll EPOLL* POLLRDHUP",
    os: """
        eventfd* EFD_* memfd_create MFD_* timerfd* TFD_* fdatasync posix_fadvise POSIX_FADV_* posix_fallocate RWF_* preadv
        pwritev sched_getaffinity sched_setaffinity sched_yield SCHED_* pidfd_open pipe2 splice SPLICE_* copy_file_range
        getrandom GRND_* setns unshare CLONE_* O_DIRECT O_TMPFILE O_PATH O_NOATIME O_LARGEFILE O_RSYNC getxattr setxattr
        listxattr removexattr getresuid setresuid
    """,
    socket: """
        SO_INCOMING_CPU SO_PEERCRED SO_PASS* SO_DOMAIN SO_PROTOCOL SO_BINDTODEVICE SO_PRIORITY SO_MARK SOCK_CLOEXEC
        SOCK_NONBLOCK TCP_KEEPIDLE TCP_USER_TIMEOUT TCP_QUICKACK TCP_CORK TCP_DEFER_ACCEPT TCP_INFO TCP_LINGER2 TCP_SYNCNT
        TCP_WINDOW_CLAMP TCP_CONGESTION MSG_CMSG_CLOEXEC MSG_CONFIRM MSG_ERRQUEUE MSG_FASTOPEN MSG_MORE AF_NETLINK
        AF_PACKET AF_ALG AF_CAN AF_TIPC IP_TRANSPARENT IP_BIND_ADDRESS_NO_PORT
    """,
    time: "CLOCK_BOOTTIME CLOCK_TAI",
    fcntl: "F_OFD_* F_ADD_SEALS F_GET_SEALS F_SEAL_* F_SETPIPE_SZ F_GETPIPE_SZ F_NOTIFY DN_* F_SETSIG F_GETSIG",
    signal: "SIGPWR SIGSTKFLT SIGPOLL SIGRTMIN SIGRTMAX SIGCLD sigtimedwait sigwaitinfo pidfd_send_signal",
    errno: "EREMOTEIO EBADFD ENOTUNIQ EBADE EBADR ECHRNG ECOMM ENONET ENOMEDIUM EUCLEAN",
    resource: "prlimit RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RLIMIT_MSGQUEUE",
}
ONLY_GLIBC: Final = frozenset(("fallocate", "mallopt", "malloc_trim"))
F_FULLFSYNC: Final = 51
BOOT: Final = b"6D2A4A2E-0000-4000-8000-0123456789AB"
MARK: Final = "AS_MACOS_SYNCS"  # names a file that counts the full syncs


def become_macos() -> None:
    vars(trio_epoll)["select"] = SimpleNamespace(
        **vars(select)
    )  # trio has its own way there, which is not ours to test
    full_sync = _full_sync(fcntl.fcntl, os.fsync)
    idle_time = socket.TCP_KEEPIDLE
    for module, patterns in ONLY_LINUX.items():
        for name in {name for pattern in patterns.split() for name in fnmatch.filter(vars(module), pattern)}:
            delattr(module, name)
    fcntl.F_FULLFSYNC = F_FULLFSYNC  # type: ignore[attr-defined]
    fcntl.fcntl = full_sync
    socket.TCP_KEEPALIVE = idle_time  # type: ignore[attr-defined]
    ctypes.CDLL.__getattr__ = _symbol(ctypes.CDLL.__getattr__)  # type: ignore[method-assign]
    sys.addaudithook(_refuse_proc)
    sys.platform = "darwin"


def _full_sync(real: Callable[..., Any], fsync: Callable[[int], None]) -> Callable[..., Any]:
    def call(descriptor: int, command: int, *rest: Any) -> Any:
        if command != F_FULLFSYNC:
            return real(descriptor, command, *rest)
        fsync(descriptor)
        if path := os.environ.get(MARK):
            with Path(path).open("ab") as file:
                file.write(b".")
        return 0

    return call


def _symbol(real: Callable[[ctypes.CDLL, str], Any]) -> Callable[[ctypes.CDLL, str], Any]:
    def sysctlbyname(name: bytes, text: Any, size: Any, new: None, new_size: Any) -> int:
        text.value = BOOT
        return 0

    def find(library: ctypes.CDLL, name: str) -> Any:
        if name == "sysctlbyname":
            return sysctlbyname
        if name in ONLY_GLIBC:
            raise AttributeError(name)
        return real(library, name)

    return find


def _refuse_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


if __name__ == "__main__":
    del sys.argv[0]
    become_macos()
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
