"""SizeLimits on the size of what a peer sends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimits:
    max_message: int = 1024 * 1024  # --max-msg-size
    max_body: int = 5 * 1024 * 1024  # --max-body-size
    max_identify: int = 64 * 1024  # --max-identify-size; of IDENTIFY and AUTH, which precede any authorization
    max_line: int = 16384  # bytes including the newline; NSQ's read buffer, into which a line must fit
