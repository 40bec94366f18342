"""A folder that becomes a machine: namespaces of its own, and the folder as its root.

Nothing has to be undone after it. Its mounts belong to its mount namespace, its processes to its PID namespace, and both
end with its first process. That one dies with us, even if we are killed: the kernel sends it the signal
(`--pdeathsig`, `--kill-child`). It shares the host's network, so that packages can be installed.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER: Final = "newcomer"
_STOP_LIMIT: Final = 60.0
# Becomes the machine's first process, which has to reap orphans: dash does, while it waits.
_BOOT: Final = """
set -eu
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs -o mode=755,nosuid tmpfs dev
for device in "null 3" "zero 5" "full 7" "random 8" "urandom 9"; do
  mknod -m 666 "dev/${device% *}" c 1 "${device#* }"
done
mknod -m 666 dev/tty c 5 0
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
hostname "$2"
mkdir -p .host
pivot_root . .host
umount -l .host
rmdir .host
echo ready
sleep infinity &
wait
"""


class Failed(Exception):
    """Something went wrong on a machine. The text says what, in one line."""


class Machine:
    """`root` is its folder. Commands run as `user`, or as root."""

    def __init__(self, name: str, root: Path, environment: Mapping[str, str], *, user: str = "root") -> None:
        self.name = name
        self.root = root
        self.user = user
        self._environment = environment

    def __enter__(self) -> Self:
        namespaces = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--propagation", "private")
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "sh", "-c", _BOOT, "sh", self.root, self.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            self._holder.wait()
            raise Failed("this machine lets root make no namespaces, or mounts in them")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.kill()
        self._holder.wait()

    @property
    def home(self) -> str:
        return "/root" if self.user == "root" else str(Path("/home", self.user))

    def start(self, command: str, log: TextIO, *, cwd: str = "", root: bool = False, quiet: bool = False) -> Running:
        return Running(self._inside(command, cwd or self.home, root=root), f"{self.name:4} ", log, quiet=quiet)

    def run(self, command: str, log: TextIO, *, cwd: str = "", root: bool = False, limit: float = 3600) -> None:
        """Run a shell command, and raise Failed unless it succeeds in time."""
        if (status := self.start(command, log, cwd=cwd, root=root).wait(limit)) != 0:
            raise Failed(f"`{command}` ended with status {status}")

    def succeeds(self, command: str, *, cwd: str = "") -> bool:
        return not subprocess.run(
            self._inside(command, cwd or self.home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode

    def shell(self, command: str) -> int:
        """Run a command, or else an interactive shell, on our terminal."""
        inside = self._inside(command or "exec bash", self.home, on_terminal=True)
        return subprocess.run(inside, check=False).returncode

    def _first(self) -> str:
        return children_of(self._holder.pid)[0]

    def _inside(self, command: str, cwd: str, *, root: bool = False, on_terminal: bool = False) -> list[str]:
        user = "root" if root else self.user
        enter = ["nsenter", "--target", self._first(), "--mount", "--pid", "--ipc", "--uts", "--root", "--wd"]
        become = [] if user == "root" else ["setpriv", "--reuid", user, "--regid", user, "--init-groups"]
        environment = {"PATH": PATH, "HOME": self.home, "USER": user, "LOGNAME": user, **self._environment}
        return [
            *enter, "env", "-i", *(f"{name}={value}" for name, value in environment.items()), *become,
            *(() if on_terminal else ("setsid",)), "sh", "-c", f"cd {shlex.quote(cwd)} && {command}",
        ]  # fmt: skip


class Running:
    """A command on a machine. Its lines are passed on as they come, behind the seconds since it began."""

    def __init__(self, command: list[str], name: str, log: TextIO, *, quiet: bool = False) -> None:
        self.lines: list[tuple[float, str]] = []
        self._name = name
        self._log = log
        self._quiet = quiet
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def wait(self, limit: float) -> int:
        try:
            status = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self._process.kill()  # nsenter; what it waited for ends with the machine
            self._process.wait()
            raise Failed(f"not done after {limit:.0f} s") from None
        self._reader.join(5)  # a process in the background may keep the pipe open
        return status

    def stop(self) -> int:
        """Do what Ctrl-C does, and return the exit status."""
        with suppress(OSError):  # it has ended
            os.killpg(int(children_of(self._process.pid)[0]), signal.SIGINT)  # nsenter itself only waits
        return self.wait(_STOP_LIMIT)

    def _pass_on(self) -> None:
        out = self._process.stdout
        assert out is not None
        for line in out:
            self.lines.append((self.seconds, line.rstrip("\n")))
            text = f"{self._name}{self.seconds:7.1f} {line.rstrip()}\n"
            self._log.write(text)
            self._log.flush()
            if not self._quiet:
                sys.stdout.write(text)
                sys.stdout.flush()
        out.close()


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
