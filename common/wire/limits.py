"""How much a peer may send at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_message: int = 1024 * 1024  # --max-msg-size
    max_body: int = 5 * 1024 * 1024  # --max-body-size
    max_identify: int = 64 * 1024  # --max-identify-size; of IDENTIFY and AUTH, which nobody has to be known for
    max_line: int = 16384  # bytes including the newline: the original's read buffer, which a line must fit
