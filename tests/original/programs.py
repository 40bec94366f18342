"""NSQ's own programs: whoever has them names their folder, `NSQ_ORIGINAL=/folder scripts/test tests/original`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

Whose = Literal["ours", "nsq"]

FOLDER: Final = os.environ.get("NSQ_ORIGINAL", "")
PROGRAMS: Final = (
    "nsqd",
    "nsqlookupd",
    "nsqadmin",
    "nsq_stat",
    "nsq_tail",
    "nsq_to_file",
    "nsq_to_http",
    "nsq_to_nsq",
    "to_nsq",
)


def program(name: str) -> Path:
    return Path(FOLDER) / name


def tool_of(whose: Whose, name: str) -> Path | None:
    """Return NSQ's tool, or None for ours."""
    return program(name) if whose == "nsq" else None


def other(whose: Whose) -> Whose:
    return "nsq" if whose == "ours" else "ours"
