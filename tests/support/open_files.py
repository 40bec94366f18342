"""How many files our process may open, and which ones of a test are open."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


def open_files(folder: Path) -> int:
    """Return how many files in this folder our process has open.

    Earlier tests leave files of their own folders to the garbage collector.
    """
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # one of them was the listing's own, which is closed
            found += os.readlink(link).startswith(f"{folder}/")
    return found


def descriptors() -> set[str]:
    """Return the numbers of all that our process has open.

    Compare them right before and after a call, because now and then the garbage collector closes what other tests have
    left open.
    """
    return {it for it in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{it}")}  # not the listing's own


@contextmanager
def many_files() -> Iterator[None]:
    """Raise the limit of open files as far as the system allows."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@contextmanager
def only_high_descriptors() -> Iterator[None]:
    """Have whatever is opened get a number from 1,024 on, with which `select.select` can't do anything."""
    with many_files(), ExitStack() as opened:
        while opened.enter_context(open(os.devnull, "rb")).fileno() < 1024:
            pass
        yield
