"""A whole node that is fetched to an empty disk: how long it takes, and what it needs."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

from tests.failover.ledger import Violation
from tests.support.process import PYTHONPATH, Nsqd

_BODY: Final = 1000  # bytes
_OF_ONE_PUBLISH: Final = 2000  # messages
_PUBLISHERS: Final = 4
_pack: Final = Struct(">I").pack


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def fill(nsqd: Nsqd, topic: str, size: int) -> int:
    """Publish at least so many bytes, and return how many messages these are."""
    publishes = -(-size // (_BODY * _OF_ONE_PUBLISH))
    numbers = iter(range(publishes))
    lock, errors = threading.Lock(), list[BaseException]()

    def publish() -> None:
        while not errors:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            bodies = (b"%d %b" % (it, os.urandom(_BODY - 20)) for it in range(_OF_ONE_PUBLISH))
            packed = b"".join(_pack(len(body)) + body for body in bodies)
            try:
                nsqd.post(f"/mpub?topic={topic}&binary=true", _pack(_OF_ONE_PUBLISH) + packed)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=publish) for _ in range(_PUBLISHERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return publishes * _OF_ONE_PUBLISH


def restore(store: Sequence[str], name: str, folder: Path) -> Cost:
    """Run `nsqd remote restore`, with these options of nsqd for the store."""
    url, *options = store
    command = ("remote", "restore", url.removeprefix("remote="), f"--name={name}", f"--to={folder}")
    return _run(*command, *(f"--{it}" for it in options))


def check_copy(original: Path, copy: Path) -> None:
    """Have `nsqd fsck` prove a data path, and compare its logs with those that it is a copy of."""
    _run("fsck", str(copy))
    logs = [sorted(str(it.relative_to(folder)) for it in folder.rglob("topics/*/*.log")) for folder in (original, copy)]
    if logs[0] != logs[1] or not logs[0]:
        raise Violation(f"the copy has {logs[1]}, not {logs[0]}")
    _, different, unreadable = filecmp.cmpfiles(original, copy, logs[0], shallow=False)
    if different or unreadable:
        raise Violation(f"the copy has other bytes in {different or unreadable}")


def _run(*arguments: str) -> Cost:
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "nsqd", *arguments],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as stdout:
        said = stdout.read()
    _, status, usage = os.wait4(process.pid, 0)  # instead of `wait`, as that doesn't say what it has cost
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Violation(f"nsqd {' '.join(arguments[:2])} has status {process.returncode}:\n{said[-3000:]}")
    return Cost(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
