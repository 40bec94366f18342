"""The id of the machine's current boot. Two processes with the same id ran without a reboot in between."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

_LINUX: Final = Path("/proc/sys/kernel/random/boot_id")
_MACOS: Final = b"kern.bootsessionuuid"
_LONGEST: Final = 64  # bytes; it's a UUID


def boot_id() -> str:
    """Return the id of this boot, or "" if the system has none."""
    try:
        return _LINUX.read_text("ascii").strip()
    except OSError:
        return _from_sysctl()


def _from_sysctl() -> str:
    sysctl = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if sysctl is None:
        return ""
    text = ctypes.create_string_buffer(_LONGEST)
    size = ctypes.c_size_t(_LONGEST)
    failed = sysctl(_MACOS, text, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else text.value.decode("ascii", "replace")
