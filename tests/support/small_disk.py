"""A real file system of a few megabytes, mounted for a test.

A process with the right to mount mounts it directly. Any other gets a user namespace with a mount namespace of its own:
a process that sleeps keeps the namespace open, daemons are started in it, and the test looks into it through `/proc`.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

_TIMEOUT: Final = 30.0
_BLOCK: Final = 64 * 1024
_REFUSALS: Final = 100
_CAP_SYS_ADMIN: Final = 1 << 21


class NotPossible(Exception):
    """Nothing can be mounted here. The text says why."""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    folder: Path  # as the daemons see it
    seen: Path  # as we see it
    under: Sequence[str] = ()  # the command under which daemons have to be started

    @property
    def free(self) -> int:
        found = os.statvfs(self.seen)
        return found.f_bavail * found.f_frsize

    def fill(self, *, leave: int = 0) -> Path:
        """Write a file, as another program would, that leaves only this much space."""
        path = self.seen / "somebody-elses"
        with path.open("wb", buffering=0) as file:
            size = refused = 0
            while (step := min(_BLOCK, self.free - leave)) > 0:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
                except OSError as error:  # a daemon has used some of the space since we looked
                    refused += 1
                    if error.errno != errno.ENOSPC or refused == _REFUSALS:
                        raise
        return path


def may_mount() -> bool:
    """Return whether this process may mount: then a failure to mount is an error, and no reason to skip a test."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) & _CAP_SYS_ADMIN)


@contextmanager
def mounted_for_test(folder: Path, size: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs, or skip the test where that is not possible."""
    try:
        with mounted(folder, size) as disk:
            yield disk
    except NotPossible as reason:
        if os.environ.get("CI") and may_mount():
            pytest.fail(f"a file system should have been mounted: {reason}")
        pytest.skip(f"no file system can be mounted: {reason}")


@contextmanager
def mounted(folder: Path, size: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs on a folder that is created for it. Raise NotPossible."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except FileNotFoundError as error:
        raise NotPossible(str(error)) from error
    if done.returncode == 0:
        try:
            yield SmallDisk(folder, folder)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], timeout=_TIMEOUT, check=True)
        return
    with _in_a_namespace(folder, mount) as disk:
        yield disk


@contextmanager
def _in_a_namespace(folder: Path, mount: Sequence[str]) -> Iterator[SmallDisk]:
    script = '"$@" && echo mounted && exec sleep 600'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", *mount]
    try:
        keeper = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise NotPossible(str(error)) from error
    with keeper:
        try:
            assert keeper.stdout is not None
            assert keeper.stderr is not None
            if keeper.stdout.readline() != "mounted\n":
                raise NotPossible(keeper.stderr.read().strip())
            enter = ("nsenter", "--target", str(keeper.pid), "--user", "--mount", "--preserve-credentials")
            yield SmallDisk(folder, Path(f"/proc/{keeper.pid}/root{folder}"), enter)
        finally:
            keeper.kill()
