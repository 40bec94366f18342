"""Machines for tests: network namespaces on one wire, each with an address, a host name and an /etc/hosts of its own.

with a_network(tmp_path) as network:
    node = network.machine("web7", "10.77.0.5")
    nsqd.under = node.under

Only a process with the rights of root can make them. Nothing leaves the namespaces.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import pytest

from tests.support.needs import need

_TIMEOUT: Final = 30.0
_CLONE_NEWNET: Final = 0x40000000
_numbers: Final = count()

T = TypeVar("T")


@dataclass
class Machine:
    """A network namespace. Programs run in it under the command `under`."""

    namespace: str
    hostname: str
    ip: str
    under: Sequence[str]

    def do(self, function: Callable[[], T]) -> T:
        """Call a function whose sockets are those of this machine."""
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                _enter(self.namespace)
                results.append(function())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]


@dataclass
class Network:
    name: str
    folder: Path
    running: ExitStack
    machines: list[Machine] = field(default_factory=list)

    def machine(self, hostname: str, ip: str, *, hosts: str = "") -> Machine:
        """Add a machine. Its /etc/hosts has localhost and what `hosts` says; it knows no name server."""
        namespace = f"{self.name}-{len(self.machines)}"
        _add(self.running, namespace)
        port = f"p{len(self.machines)}"
        _ip("link", "add", port, "netns", self.name, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("-n", self.name, "link", "set", port, "master", "wire", "up")
        _ip("-n", namespace, "address", "add", f"{ip}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        _ip("-n", namespace, "link", "set", "lo", "up")
        files = self.folder / namespace
        files.mkdir()
        (files / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}\n", encoding="ascii")
        (files / "resolv.conf").write_text("", encoding="ascii")
        (files / "nsswitch.conf").write_text("hosts: files dns\n", encoding="ascii")
        names = ("hosts", "resolv.conf", "nsswitch.conf")
        mounts = " && ".join(f'mount --bind "{files / name}" /etc/{name}' for name in names)
        script = f'{mounts} && hostname {hostname} && exec "$@"'
        under = ("ip", "netns", "exec", namespace, "unshare", "--uts", "--mount", "sh", "-c", script, "sh")
        made = Machine(namespace, hostname, ip, under)
        self.machines.append(made)
        return made


@contextmanager
def a_network(folder: Path) -> Iterator[Network]:
    """Make a network without machines, or skip the test where that is not possible."""
    need("ip")
    name = f"nsq{os.getpid()}x{next(_numbers)}"
    with ExitStack() as running:
        try:
            _add(running, name)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no right to make network namespaces")
        _ip("-n", name, "link", "add", "wire", "type", "bridge")
        _ip("-n", name, "link", "set", "wire", "up")
        yield Network(name, folder, running)


def _add(running: ExitStack, namespace: str) -> None:
    _ip("netns", "add", namespace)
    running.callback(_ip, "netns", "delete", namespace)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=_TIMEOUT)


def _enter(namespace: str) -> None:
    """Move the calling thread, and no other, into the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
