"""Prints the traits of this Python and this machine on which an instruction count depends. Runs on any Python, by its path.

The processor matters because the C library chooses its `memcpy` by it, though only by what Valgrind shows of it: there
is no AVX-512, whatever the machine has. A Python that was optimized by a profile (PGO) is another program after each
build, so its date counts, too.
"""

from __future__ import annotations

import platform
import sysconfig
from hashlib import sha256
from pathlib import Path
from typing import Final

_FLAGS: Final = (
    *("OPT", "BASECFLAGS", "CONFIGURE_CFLAGS", "CONFIGURE_CFLAGS_NODIST", "CONFIGURE_LDFLAGS_NODIST"),
    *("Py_ENABLE_SHARED", "Py_DEBUG", "Py_GIL_DISABLED", "WITH_PYMALLOC", "WITH_MIMALLOC"),
)


def describe() -> str:
    flags = [str(sysconfig.get_config_var(name)) for name in _FLAGS]
    if "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS")):
        flags.append(platform.python_build()[1])
    return ", ".join(
        (
            f"{platform.python_implementation()} {platform.python_version()}",
            platform.python_compiler(),
            f"flags {sha256(' '.join(flags).encode()).hexdigest()[:8]}",
            " ".join(platform.libc_ver()),
            f"{platform.machine()}{_vectors()}",
        )
    )


def _vectors() -> str:
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return ""
    return next((f" with {name}" for name in ("avx2", "avx") if name in words), "")


if __name__ == "__main__":
    print(describe())
