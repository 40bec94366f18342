"""CORE: the percent codes of `--datetime-format`, in English in every locale. Unknown codes are left as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_CODES: Final[Mapping[str, Callable[[datetime], str]]] = {
    "Y": lambda when: f"{when.year:04d}",
    "y": lambda when: f"{when.year % 100:02d}",
    "m": lambda when: f"{when.month:02d}",
    "B": lambda when: _MONTHS[when.month - 1],
    "b": lambda when: _MONTHS[when.month - 1][:3],
    "d": lambda when: f"{when.day:02d}",
    "A": lambda when: _DAYS[when.weekday()],
    "a": lambda when: _DAYS[when.weekday()][:3],
    "H": lambda when: f"{when.hour:02d}",
    "I": lambda when: f"{(when.hour - 1) % 12 + 1:02d}",
    "M": lambda when: f"{when.minute:02d}",
    "S": lambda when: f"{when.second:02d}",
    "p": lambda when: "AM" if when.hour < 12 else "PM",
    "Z": lambda when: when.tzname() or "",
    "z": lambda when: _offset(when),
    "%": lambda when: "%",
}


def format_datetime(pattern: str, when: datetime) -> str:
    """Replace the codes in `pattern`; `when` must have a time zone."""

    def replacement(found: re.Match[str]) -> str:
        code = _CODES.get(found[1])
        return found[0] if code is None else code(when)

    return re.sub("%(.)", replacement, pattern, flags=re.DOTALL)


def _offset(when: datetime) -> str:
    seconds = int(offset.total_seconds()) if (offset := when.utcoffset()) is not None else 0
    hours, minutes = divmod(abs(seconds) // 60, 60)
    return f"{'-' if seconds < 0 else '+'}{hours:02d}{minutes:02d}"
