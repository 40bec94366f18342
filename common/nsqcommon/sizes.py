"""Sizes in bytes, as people write them: `10GB`, `512KiB`, `4096`."""

from __future__ import annotations

from typing import Final

_UNITS: Final[dict[str, int]] = {
    "": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), start=1)},
}


def parse_size(text: str) -> int:
    """Parse a size, and return the number of bytes. Raises ValueError."""
    number, unit = text.rstrip("kKMGTiB"), text.lstrip("0123456789")
    if not number.isascii() or not number.isdigit() or unit not in _UNITS:
        raise ValueError("must be a number of bytes, or have a unit: kB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return int(number) * _UNITS[unit]
