"""A machine of its own for the commands of a page: `unshare ... python world.py SCRIPT`.

Inside it all ports are free, names in the documents resolve to this machine, the tree may be written to, and all
processes end with it. The real tree and /tmp are not touched: overlays take all writes.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
NAMES: Final = (
    *(f"{kind}{number}" for kind in ("nsqd", "nsqlookupd") for number in (1, 2, 3)),
    *(f"{kind}{number}.example" for kind in ("node", "lookup") for number in (1, 2, 3)),
    *("auth.example", "other.example", "broker.example"),
)
EMPTY_FOLDERS: Final = ("/var/lib",)
DAEMONS: Final = ("nsqd", "nsqlookupd", "nsqadmin")
NAMESPACES: Final = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914


def unshare() -> list[str]:
    """Return the command that runs another one on a machine of its own."""
    return ["unshare", *([] if os.getuid() == 0 else ["--user", "--map-root-user"]), *NAMESPACES]


def main(script: str, space: str) -> int:
    start_loopback()
    _mount(Path(space))
    _wrap_commands(Path(space))
    environment = {
        **os.environ,
        "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
        "HOME": space,
        "NSQ_COMPILE": "0",  # the core is compiled by other tests
        "PIP_NO_INDEX": "1",
    }
    # An HTTP error is a failure; retries give slow things, such as a registration, a moment.
    (Path(space) / ".curlrc").write_text(
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


def _wrap_commands(space: Path) -> None:
    """Replace commands: a reader has a terminal for each daemon, and here its command returns when it listens.

    All of nsqpipe's share a JVM.
    """
    kept = space / "commands"
    kept.mkdir()
    for name, wrapper in {**dict.fromkeys(DAEMONS, "daemon.py"), "nsqpipe": "pipe.py"}.items():
        program = ROOT / ".venv" / "bin" / name
        real = kept / name
        real.write_bytes(program.read_bytes())
        real.chmod(0o755)
        program.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/docs/{wrapper}" "{real}" "$@"\n', encoding="utf-8"
        )


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
