"""Limits on the size of a peer's input."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimits:
    max_message: int = 1024 * 1024  # --max-msg-size
    max_body: int = 5 * 1024 * 1024  # --max-body-size
    max_identify: int = 64 * 1024  # --max-identify-size; for IDENTIFY and AUTH, which come before any authorization
    max_line: int = 16384  # bytes with the newline; in NSQ, a line must fit into a read buffer of this size
