"""The library between a process and its disk, `shim.c`: builds it, loads it into nsqd with LD_PRELOAD, and steers it.

with Shim(folder, data_path) as shim, Nsqd(data_path, environ=shim.environ) as nsqd:
    shim.apply(Rule(Op.READ, Effect.FAIL, seconds=0.3, pattern="topics/*/carried.*"))
"""

from __future__ import annotations

import errno
import mmap
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, NamedTuple, Self

SOURCE: Final = Path(__file__).with_name("shim.c")
MOST_RULES: Final = 16

# As in shim.c.
_CONTROL: Final = struct.Struct("=QII")
_RULE: Final = struct.Struct("=QIIIIIi96s")
_SIZE: Final = _CONTROL.size + MOST_RULES * _RULE.size


class Op(IntFlag):
    OPEN = 1
    READ = 2
    CACHED_READ = 4  # a read from the page cache; EAGAIN sends the reader to the disk
    WRITE = 8
    TRUNCATE = 16
    SYNC = 32
    RENAME = 64
    UNLINK = 128
    MKDIR = 256
    RMDIR = 512
    ALLOCATE = 1024
    LIST = 2048


class Effect(IntEnum):
    FAIL = 0
    SHORT = 1  # a part is read or written, and the result says so
    TORN = 2  # a part is written, and the result is an error
    HANG = 3
    SKIP = 4  # nothing is done, and the result is success


@dataclass(frozen=True, slots=True)
class Rule:
    """Which calls fail, and how."""

    ops: Op
    effect: Effect
    code: int = errno.EIO
    pattern: str = "*"  # of paths, relative to the data path
    share: float = 1.0  # share of the matching calls
    seconds: float = 3600.0  # seconds from when the rule is applied
    most: int = -1  # number of calls; negative: no bound
    milliseconds: int = 0  # longest hang

    def packed(self, now: float) -> bytes:
        until = int((now + self.seconds) * 1e9)
        share = round(self.share * 1_000_000)
        pattern = self.pattern.encode()
        assert len(pattern) < 96, pattern
        return _RULE.pack(until, self.ops, self.effect, self.code, self.milliseconds, share, self.most, pattern)


class Injected(NamedTuple):
    """A fault that was injected into a call."""

    at: float  # as time.monotonic() counts
    op: str
    effect: str
    code: int
    path: str


class Shim:
    """One disk, for all processes that are started with `environ`."""

    def __init__(self, folder: Path, data_path: Path, *, seed: int = 0, traced: bool = False) -> None:
        self.trace_path = folder / "shim.trace"
        self._log_path = folder / "shim.log"
        control = folder / "shim.control"
        control.write_bytes(_CONTROL.pack(seed, 0, 0).ljust(_SIZE, b"\0"))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _SIZE)
        self.environ: Mapping[str, str] = {
            "LD_PRELOAD": str(library()),
            "SHIM_ROOT": str(data_path),
            "SHIM_CONTROL": str(control),
            "SHIM_LOG": str(self._log_path),
            **({"SHIM_TRACE": str(self.trace_path)} if traced else {}),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()

    def apply(self, *rules: Rule) -> None:
        """Apply these rules and no others from now on."""
        self._set_count(0)
        now = time.monotonic()
        for place, rule in enumerate(rules):
            start = _CONTROL.size + place * _RULE.size
            self._control[start : start + _RULE.size] = rule.packed(now)
        self._set_count(len(rules))

    def heal(self) -> None:
        self._set_count(0)

    def _set_count(self, count: int) -> None:
        self._control[8:12] = struct.pack("=I", count)

    @property
    def injected(self) -> list[Injected]:
        """Return all faults so far."""
        if not self._log_path.exists():
            return []
        found = []
        for line in self._log_path.read_text().splitlines():
            at, op, effect, code, path = line.split(" ", 4)
            found.append(Injected(int(at) / 1e9, op, effect, int(code), path))
        return found

    @property
    def counts(self) -> Counter[str]:
        """Return how often each fault was injected."""
        return Counter(f"{it.op} {it.effect}" for it in self.injected)


def library() -> Path:
    """Return the compiled shim. Raise CalledProcessError, with the compiler's output on stderr."""
    return Path(_built().name) / "shim.so"


@cache
def _built() -> TemporaryDirectory[str]:
    """Compile the shim once for each process that needs it; it is removed with that process."""
    folder = TemporaryDirectory(prefix="nsq-shim-")
    target = Path(folder.name) / "shim.so"
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    subprocess.run(["cc", *flags, "-o", target, SOURCE, "-ldl", "-lpthread"], check=True)
    return folder
