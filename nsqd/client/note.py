"""The log lines of a client's protocol, which has no logger itself: the shell writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

# "lost": why nothing more can be read; "magic": the client's first four bytes; "exit": the client is no longer served.
NoteKind = Literal["info", "error", "lost", "magic", "exit"]
Note = Callable[[NoteKind, bytes], None]
